"""What prompt pairs are drawn from: counterparts, operations, words in templates, a user's tables; against every possibility there is."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.corpus.prompts import CALCULATE
from stages.lib.core import settings as sections
from stages.lib.model import tokenizer as tokenizers
from stages.mediation import mediation_pairs
from stages.mediation.pairs.draws import Counterparts
from stages.mediation.pairs.operators import NONE, compositions
from stages.mediation.pairs.templates import CLASSES, Text, Wording, classes
from stages.mediation.pairs.tokens import place
from stages.mediation.settings import Mediation
from stages.store.template import PromptError
from tests.mediation.paired import MEDIATION, TASKS, corpus, drawn, project

QUESTIONS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=7)
OWN = {
    "template": "{who} lives in",
    "file": "own.csv",
    "columns": {"who": "sub_label", "answer": "obj_label"},
}


@settings(max_examples=60, deadline=None)
@given(QUESTIONS, st.integers(0, 1000))
def test_counterparts_are_all_those_there_are_and_no_others(of: list[tuple[int, int]], seed: int):
    answers, alike = (np.array([one[i] for one in of], dtype=int) for i in range(2))
    counterparts, rng, every = (
        Counterparts(answers, alike),
        np.random.default_rng(seed),
        [*product(range(len(of)), repeat=2)],
    )
    varied = {(i, j) for i, j in every if answers[i] != answers[j]}
    fixed = {(i, j) for i, j in every if answers[i] == answers[j] and alike[i] != alike[j]}
    for draw, possible in ((counterparts.varied, varied), (counterparts.fixed, fixed)):
        assert {draw(rng) for _ in range(1000 if possible else 3)} == (possible or {None})


def test_a_counterpart_is_as_likely_as_any():
    answers = np.array([0, 0, 0, 1, 2])
    drawn = [
        Counterparts(answers, np.arange(5)).varied(rng)
        for rng in [np.random.default_rng(0)]
        for _ in range(6000)
    ]
    assert np.bincount([j for i, j in drawn if i == 3], minlength=5)[[0, 1, 2, 4]] == pytest.approx(
        [300] * 4, abs=80
    )  # type: ignore[misc]


def test_compositions_are_those_of_the_corpus_and_right():
    results = [*range(2, 60), 77]
    made = compositions(TASKS.operators, range(1, 8), results)
    assert [*made] == corpus().compositions
    for (first, second, left), operation in made.items():
        for operands in product(range(8), repeat=3):
            x, y, z = operands
            inner = CALCULATE[first](x, y) if left else CALCULATE[second](y, z)
            result = (
                None
                if inner is None
                else CALCULATE[second](inner, z)
                if left
                else CALCULATE[first](x, inner)
            )
            assert operation.answer(operands) == (
                result if 0 not in operands and result in results else NONE
            )


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="{}"), max_size=6)
PARTS = st.tuples(
    TEXTS, st.sampled_from([*CLASSES, "entity", "who"]), st.text(min_size=1, max_size=4)
)


@settings(max_examples=100, deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=5), TEXTS, TEXTS)
def test_every_character_is_classed_by_what_it_says(
    parts: list[tuple[str, str, str]], end: str, front: str
):
    values = {name: value for _, name, value in parts}
    query, spans = Wording(
        "".join(f"{literal}{{{name}}}" for literal, name, _ in parts) + end
    ).fill(values)
    assert query == "".join(literal + values[name] for literal, name, _ in parts) + end
    kinds = [
        kind for _, name, _ in parts for kind in [CLASSES.get(name, "entity")] * len(values[name])
    ]
    held, said = iter(kinds), []
    for literal, name, _ in parts:  # a character at a time, as a tokenizer of characters would
        said += [None] * len(literal) + [next(held) for _ in values[name]]
    said = [None] * len(front) + said + [None] * len(end)
    asked = [i for i, kind in enumerate(said) if kind in ("op1", "op2", "op3", "entity")] or [
        len(said)
    ]
    outside = [
        "early" if i < asked[0] else "late" if i > asked[-1] else "middle" for i in range(len(said))
    ]
    tokens = [(i, i + 1) for i in range(len(said))]
    assert (
        classes(Text(front, query, "", spans), tokens)[:-1]
        == [kind or where for kind, where in zip(said, outside, strict=True)][:-1]
    )


def test_all_of_few_possibilities_are_found_and_no_pair_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    many = {"arithmetic": 40, "number_words": 0, "three_operands": 0, "retrieval": 0, "factual": 0}
    folder = project(tmp_path / "few", "word", operands=[1, 3], pairs_per_template=many)
    found = drawn(folder, monkeypatch).filter(template=5)
    operands = [*product(range(1, 4), repeat=2)]
    for name, calculate in CALCULATE.items():
        cells = {cell: result for cell in operands if (result := calculate(*cell))}
        for condition, possible in {
            "result_varies": sum(cells[a] != cells[b] for a, b in product(cells, repeat=2)),
            "result_fixed": sum(
                cells[a] == cells[b] and sorted(a) != sorted(b) for a, b in product(cells, repeat=2)
            ),
            "operator_varies": sum(
                cells[a] != (other(*a) or cells[a]) for other in CALCULATE.values() for a in cells
            ),
        }.items():
            assert len(found.filter(operator=name, condition=condition)) == min(possible, 40), (
                name,
                condition,
            )


def own_task(folder: Path, lines: str, **table: Any) -> Path:
    """A project with a task of two templates, one filled by own.csv, the other one by what `table` says; lines: of own.jsonl."""
    numbers = dict.fromkeys(MEDIATION["pairs_per_template"], 0) | {"homes": 50}
    made = project(folder, "word", pairs_per_template=numbers, tables={"homes": [OWN, OWN | table]})
    (made / "own.csv").write_text("id,sub_label,obj_label\n1,Kiba,Delo\n")
    (made / "own.jsonl").write_text(lines)
    return made


def test_a_users_own_task_needs_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one, two, three = [answer for _, _, answer in corpus().facts][:3]
    here, there = [entity for _, entity, _ in corpus().facts][:2]
    given = [
        {"X": f"{i} apples", "told": [1], "Y": name} for i, name in enumerate((one, two, three))
    ]
    unusable = [{"X": "3 apples"}, {"X": "4 pears", "Y": "unheard of"}]
    table = {"template": "The capital of {X} is", "file": "own.jsonl", "columns": {"answer": "Y"}}
    made = own_task(
        tmp_path / "own", "".join(json.dumps(row) + "\n" for row in given + unusable), **table
    )
    rows = [
        (here, one),
        (three, two),
        (there, two),
        (there, three),
        ("Zzz", two),
        ("", two),
        (three, two),
    ]  # there has two, Zzz is unknown
    (made / "own.csv").write_text(
        "sub_label,obj_label\n" + "".join(f"{who},{home}\n" for who, home in rows)
    )
    (made / "params.yaml").write_text(
        (made / "params.yaml").read_text().replace("{who} lives in", "The capital of {who} is")
    )
    found = drawn(made, monkeypatch)
    assert set(found.select("task", "condition", "operator", "shots").rows()) == {
        ("homes", "entity_varies", None, 0)
    }
    columns = ["prompt", "answer", "counterfactual_prompt", "counterfactual_answer"]
    first, second = (found.filter(template=i).select(columns).rows() for i in range(2))
    clean, other = (f"The capital of {here} is", one), (f"The capital of {three} is", two)
    assert sorted(first) == sorted([(*clean, *other), (*other, *clean)])
    said = [(f"The capital of {row['X']} is", row["Y"]) for row in given]
    assert sorted(second) == sorted((*a, *b) for a in said for b in said if a != b)
    assert found.filter(template=1)["classes"].unique().to_list() == [
        ["early"] * 4 + ["entity"] * 2 + ["last"]
    ]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"file": "gone.csv"},
            ["mediation.tables.homes.1.file = 'gone.csv'", "no such file", "correct the path"],
        ),
        (
            {"columns": {"who": "sub_label"}},
            [
                "mediation.tables.homes.1",
                "no column 'answer'",
                "'obj_label'",
                "columns: {answer: …}",
            ],
        ),
        ({"template": "{whom} is"}, ["columns names 'who'", "whom"]),
        (
            {"template": "No one lives in"},
            ["tables.homes.1.template = 'No one lives in'", "needs a placeholder"],
        ),
        (
            {"template": "{who lives in"},
            ["tables.homes.1.template = '{who lives in'", "expected '}'"],
        ),
        ({"file": "own.txt"}, ["tables.homes.1.file = 'own.txt'", "csv|jsonl"]),
        (
            {"file": "own.jsonl", "columns": {}},
            ["own.jsonl", "line 2 is not JSON", "each line needs one object"],
        ),
    ],
)
def test_a_table_that_lacks_something_is_named(
    table: dict, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = own_task(tmp_path / "own", '{"who": "Kiba"}\nKiba\n', **table)
    (made / "model").rename(made / "elsewhere")  # nothing may be loaded yet
    monkeypatch.chdir(made)
    with pytest.raises(sections.ParamsError) as error:
        mediation_pairs.main("s")
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        (
            {"arithmetic": ["{x} {symbol} 3 ="]},
            ["tasks.arithmetic.0 = '{x} {symbol} 3 ='", "lacks the placeholder {y}"],
        ),
        (
            {"arithmetic": ["{x} and {y} ="]},
            ["tasks.arithmetic.0", "for the operator", "{symbol}, {verb}, {noun}"],
        ),
        (
            {"retrieval": ["{x} {a} and {y} {b}, {q} {z}"]},
            ["tasks.retrieval.0", "{z} is no placeholder here", "{q}"],
        ),
        ({"factual": {"kind": "It is a kind of"}}, ["tasks.factual.kind", "{entity}"]),
    ],
)
def test_a_template_that_lacks_a_placeholder_is_named(
    tasks: dict, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(project(tmp_path / "own", "signs", tasks=tasks))
    Path("model").rename("elsewhere")
    with pytest.raises(sections.ParamsError) as error:
        mediation_pairs.main("s")
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"pairs_per_template": {"arithmetic": 3}},
            ["pairs_per_template lacks 'factual'", "three_operands"],
        ),
        ({"shots": MEDIATION["shots"] | {"factual": 1}}, ["shots.factual"]),
        ({"operands": [9, 3]}, ["operands is [9, 3]", "smallest"]),
        ({"tables": {"retrieval": [OWN]}}, ["'retrieval'", "already a task"]),
        (
            {"bracketed": {"left": "({x} {first} {y}) {z}", "right": "{x}"}},
            ["bracketed.left", "{second}", "bracketed.right", "{y}"],
        ),
    ],
)
def test_a_wrong_setting_is_named(change: dict, words: list[str]):
    with pytest.raises(sections.ParamsError) as error:
        sections.check(Mediation, MEDIATION | change, "mediation")
    for word in words:
        assert word in str(error.value)


def test_a_subject_without_bos_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = drawn(project(tmp_path / "none", "signs", subject={"bos": False}), monkeypatch).filter(
        task="arithmetic"
    )
    assert (found["tokens"].list.len() == 4).all()
    assert found["classes"].unique().to_list() == [["op1", "operator", "op2", "last"]]
    without = tokenizers.build(9, ["="])
    without.bos_token = None
    with pytest.raises(PromptError, match="bos: false"):
        place(without, [Text("", "1 =", "1", ())], bos=True)
