"""Test the files that fill templates of a user's own tasks."""

from pathlib import Path

import pytest

from stages.lib.core.settings import ParamsError
from stages.mediation.pairs.own_tasks import fillings
from stages.mediation.settings import FilledTemplate

HEADER = "entity,answer\n"
TEMPLATE = "The sea of {entity} is"
KEY = "mediation.tables.seas.0"


def filled(folder: Path, name: str, content: bytes) -> list:
    (folder / name).write_bytes(content)
    return fillings(FilledTemplate(template=TEMPLATE, file=str(folder / name)), KEY)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.csv", HEADER.encode() + b"A,x\nB,y\nC,z\nC,w\nD,\n"),
        ("mark.csv", b"\xef\xbb\xbf" + HEADER.encode() + b'"A",x\r\nB,y\r\n'),
        (
            "lines.jsonl",
            b'{"entity": "A", "answer": "x", "more": [1]}\n\n'
            b'{"entity": "B", "answer": "y"}\n{"entity": null, "answer": "y"}\n',
        ),
    ],
)
def test_rows_with_every_value_and_one_answer_are_facts(tmp_path: Path, name: str, content: bytes):
    facts = filled(tmp_path, name, content)
    assert facts == [({"entity": "A"}, "x"), ({"entity": "B"}, "y")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.csv", b"", "has no column 'entity'; it has no rows"),
        (
            "other.csv",
            b"land,answer\nA,x\n",
            "has no column 'entity'; it has 'land', 'answer'; name the column of entity",
        ),
        ("twice.csv", b"entity,answer,answer\nA,x,y\n", "two columns are called 'answer'"),
        (
            "long.csv",
            HEADER.encode() + b"A" * 10_000_000 + b",x\n",
            "after line 1: field larger than field limit",
        ),
        (
            "longer.csv",
            HEADER.encode() + b"A" * 5000 + b",x\n",
            r"'A{40}'… has 5,000 characters; shorten it to 1000",
        ),
        ("nul.csv", HEADER.encode() + b"A\0B,x\n", r"contains '\\x00'|line contains NUL"),
        ("latin.csv", HEADER.encode() + "Å,x\n".encode("latin-1"), "byte 14 is not UTF-8"),
        ("wide.csv", HEADER.encode("utf-16"), "byte 0 is not UTF-8"),
        (
            "text.jsonl",
            b"hello\n",
            r"line 1 is not JSON \(Expecting value\); each line needs one object",
        ),
        ("list.jsonl", b"{}\n[1]\n", "line 2 is not an object"),
        ("deep.jsonl", b"[" * 100_000, "line 1 is not JSON"),
        (
            "digits.jsonl",
            b'{"entity": ' + b"1" * 5000 + b', "answer": "x"}',
            "line 1 is not JSON",
        ),
        ("half.jsonl", b'{"entity": "\\ud800", "answer": "x"}', "is not text"),
        ("control.jsonl", b'{"entity": "a\\nb", "answer": "x"}', r"contains '\\n'"),
    ],
)
def test_an_unusable_file_raises_one_sentence(
    tmp_path: Path, name: str, content: bytes, message: str
):
    with pytest.raises(ParamsError, match=message) as error:
        filled(tmp_path, name, content)
    assert f"{KEY}.file = '{tmp_path / name}'" in str(error.value)
    assert len(str(error.value)) < 400 + len(str(tmp_path))


def test_a_missing_file_is_named(tmp_path: Path):
    table = FilledTemplate(template="{entity}", file=str(tmp_path / "none.csv"))
    with pytest.raises(ParamsError, match="no such file; correct the path"):
        fillings(table, KEY)
