"""Files that fill the templates of a user's own tasks: what cannot be read or asked is said in a sentence."""

from pathlib import Path

import pytest

from stages.lib.core.settings import ParamsError
from stages.mediation.pairs.own_tasks import fillings
from stages.mediation.settings import FilledTemplate

HEADER = "entity,answer\n"


def filled(folder: Path, name: str, content: bytes) -> list:
    (folder / name).write_bytes(content)
    return fillings(FilledTemplate(template="The sea of {entity} is", file=str(folder / name)), "mediation.tables.seas.0")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.csv", HEADER.encode() + b"A,x\nB,y\nC,z\nC,w\nD,\n"),
        ("mark.csv", b"\xef\xbb\xbf" + HEADER.encode() + b'"A",x\r\nB,y\r\n'),
        (
            "lines.jsonl",
            b'{"entity": "A", "answer": "x", "more": [1]}\n\n{"entity": "B", "answer": "y"}\n{"entity": null, "answer": "y"}\n',
        ),
    ],
)
def test_rows_with_every_value_and_one_answer_are_facts(tmp_path: Path, name: str, content: bytes):
    assert filled(tmp_path, name, content) == [({"entity": "A"}, "x"), ({"entity": "B"}, "y")]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.csv", b"", "has no column 'entity'; it has no rows"),
        ("other.csv", b"land,answer\nA,x\n", "has no column 'entity'; it has 'land', 'answer'; say which of them is entity"),
        ("twice.csv", b"entity,answer,answer\nA,x,y\n", "two columns are called 'answer'"),
        ("long.csv", HEADER.encode() + b"A" * 10_000_000 + b",x\n", r"behind line 1: field larger than field limit"),
        ("longer.csv", HEADER.encode() + b"A" * 5000 + b",x\n", r"'A{40}'… has 5,000 characters; a value has at most 1000"),
        ("nul.csv", HEADER.encode() + b"A\0B,x\n", r"holds '\\x00'|line contains NUL"),
        ("latin.csv", HEADER.encode() + "Å,x\n".encode("latin-1"), "byte 14 is not UTF-8"),
        ("wide.csv", HEADER.encode("utf-16"), "byte 0 is not UTF-8"),
        ("text.jsonl", b"hello\n", r"line 1 is not JSON \(Expecting value\); it needs one object per line"),
        ("list.jsonl", b"{}\n[1]\n", "line 2 is no object"),
        ("deep.jsonl", b"[" * 100_000, "line 1 is not JSON"),
        ("digits.jsonl", b'{"entity": ' + b"1" * 5000 + b', "answer": "x"}', "line 1 is not JSON"),
        ("half.jsonl", b'{"entity": "\\ud800", "answer": "x"}', "is no character of a text"),
        ("control.jsonl", b'{"entity": "a\\nb", "answer": "x"}', r"holds '\\n'"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(tmp_path: Path, name: str, content: bytes, said: str):
    with pytest.raises(ParamsError, match=said) as error:
        filled(tmp_path, name, content)
    assert f"mediation.tables.seas.0.file = '{tmp_path / name}'" in str(error.value)
    assert len(str(error.value)) < 400 + len(str(tmp_path))


def test_a_file_that_is_missing_is_named(tmp_path: Path):
    with pytest.raises(ParamsError, match="no such file; correct the path"):
        fillings(FilledTemplate(template="{entity}", file=str(tmp_path / "none.csv")), "mediation.tables.seas.0")
