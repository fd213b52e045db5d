"""Test what prompt pairs are drawn from, against all possibilities."""

import json
from collections import Counter
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
from tests.mediation.paired import MEDIATION, TASKS, calculate, corpus, drawn, project

QUESTIONS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=7)
OWN = {
    "template": "{who} lives in",
    "file": "own.csv",
    "columns": {"who": "sub_label", "answer": "obj_label"},
}


@settings(max_examples=60, deadline=None)
@given(QUESTIONS, st.integers(0, 1000))
def test_draws_reach_all_counterparts_and_no_others(questions: list[tuple[int, int]], seed: int):
    """questions: answer, and operands in any order"""
    answers, operands = np.array(questions, dtype=int).reshape(-1, 2).T
    counterparts, rng = Counterparts(answers, operands), np.random.default_rng(seed)
    varied, fixed = set(), set()
    for first, second in product(range(len(questions)), repeat=2):
        if answers[first] != answers[second]:
            varied.add((first, second))
        elif operands[first] != operands[second]:
            fixed.add((first, second))
    for draw, possible in ((counterparts.varied, varied), (counterparts.fixed, fixed)):
        assert {draw(rng) for _ in range(1000)} == (possible or {None})


def test_counterparts_are_equally_likely():
    answers = np.array([0, 0, 0, 1, 2])
    counterparts, rng = Counterparts(answers, np.arange(5)), np.random.default_rng(0)
    counts = np.zeros((5, 5))
    for _ in range(6000):
        counts[counterparts.varied(rng)] += 1
    assert counts[3, [0, 1, 2, 4]] == pytest.approx([300] * 4, abs=80)
    assert counts[3, 3] == 0


def test_compositions_are_those_of_the_corpus_and_right():
    results = [*range(2, 60), 77]
    made = compositions(TASKS.operators, range(1, 8), results)
    assert [*made] == corpus().compositions
    for (first, second, left), operation in made.items():
        for operands in product(range(8), repeat=3):
            expected = calculate(first, second, left, operands)
            if 0 in operands or expected not in results:
                expected = NONE
            assert operation.answer(operands) == expected


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="{}"), max_size=6)
PARTS = st.tuples(
    TEXTS, st.sampled_from([*CLASSES, "entity", "who"]), st.text(min_size=1, max_size=4)
)


@settings(max_examples=100, deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=5), TEXTS, TEXTS)
def test_every_character_has_the_class_of_its_placeholder(
    parts: list[tuple[str, str, str]], end: str, front: str
):
    values = {name: value for _, name, value in parts}
    template, text = "", ""
    kinds: list[str | None] = [None] * len(front)  # of each character
    for literal, name, _ in parts:
        template += f"{literal}{{{name}}}"
        text += literal + values[name]
        kinds += [None] * len(literal) + [CLASSES.get(name, "entity")] * len(values[name])
    kinds += [None] * len(end)
    query, spans = Wording(template + end).fill(values)
    assert query == text + end
    operands = [i for i, kind in enumerate(kinds) if kind in ("op1", "op2", "op3", "entity")]
    first, last = min(operands, default=len(kinds)), max(operands, default=len(kinds))
    tokens = [(i, i + 1) for i in range(len(kinds))]  # of a tokenizer of characters
    classed = classes(Text(front, query, "", spans), tokens)
    for i, kind in enumerate(kinds[:-1]):
        outside = "early" if i < first else "late" if i > last else "middle"
        assert classed[i] == (kind or outside)


def test_all_of_few_possibilities_are_found_and_no_pair_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    many = {"arithmetic": 40, "number_words": 0, "three_operands": 0, "retrieval": 0, "factual": 0}
    folder = project(tmp_path / "few", "word", operands=[1, 3], pairs_per_template=many)
    pairs = drawn(folder, monkeypatch).filter(template=5)
    operands = [*product(range(1, 4), repeat=2)]
    for name, function in CALCULATE.items():
        possible: Counter[str] = Counter()
        for a, b in product(operands, repeat=2):
            result, other = function(*a), function(*b)
            if result and other:
                possible["result_varies"] += result != other
                possible["result_fixed"] += result == other and sorted(a) != sorted(b)
        for a, other_function in product(operands, CALCULATE.values()):
            result, other = function(*a), other_function(*a)
            possible["operator_varies"] += bool(result and other and result != other)
        conditions = pairs.filter(operator=name)["condition"].to_list()
        for condition, count in possible.items():
            assert conditions.count(condition) == min(count, 40), (name, condition)


def own_task(folder: Path, lines: str, **table: Any) -> Path:
    """Return a project with a task of two templates, filled by own.csv and by `table`.

    lines: of own.jsonl
    """
    numbers = dict.fromkeys(MEDIATION["pairs_per_template"], 0) | {"homes": 50}
    made = project(folder, "word", pairs_per_template=numbers, tables={"homes": [OWN, OWN | table]})
    (made / "own.csv").write_text("id,sub_label,obj_label\n1,Kiba,Delo\n")
    (made / "own.jsonl").write_text(lines)
    return made


def test_a_users_own_task_needs_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (_, entity_a, home_a), (_, entity_b, home_b), (_, _, home_c) = corpus().facts[:3]
    homes = (home_a, home_b, home_c)
    given = [{"X": f"{i} apples", "more": [1], "Y": home} for i, home in enumerate(homes)]
    unusable = [{"X": "3 apples"}, {"X": "4 pears", "Y": "unheard of"}]
    table = {"template": "The capital of {X} is", "file": "own.jsonl", "columns": {"answer": "Y"}}
    lines = "\n".join(map(json.dumps, given + unusable)) + "\n"
    made = own_task(tmp_path / "own", lines, **table)
    rows = [
        ("sub_label", "obj_label"),
        (entity_a, home_a),
        (home_c, home_b),
        (entity_b, home_b),  # this entity has two homes
        (entity_b, home_c),
        ("Zzz", home_b),  # the tokenizer lacks this word
        ("", home_b),
        (home_c, home_b),
    ]
    (made / "own.csv").write_text("\n".join(map(",".join, rows)) + "\n")
    settings = (made / "params.yaml").read_text()
    settings = settings.replace("{who} lives in", "The capital of {who} is")
    (made / "params.yaml").write_text(settings)
    pairs = drawn(made, monkeypatch)
    assert set(pairs.select("task", "condition", "operator", "shots").rows()) == {
        ("homes", "entity_varies", None, 0)
    }
    columns = ["prompt", "answer", "counterfactual_prompt", "counterfactual_answer"]
    first, second = (pairs.filter(template=i).select(columns).rows() for i in range(2))
    clean, other = (
        (f"The capital of {entity_a} is", home_a),
        (f"The capital of {home_c} is", home_b),
    )
    assert sorted(first) == sorted([(*clean, *other), (*other, *clean)])
    queries = [(f"The capital of {row['X']} is", row["Y"]) for row in given]
    assert sorted(second) == sorted((*a, *b) for a in queries for b in queries if a != b)
    assert pairs.filter(template=1)["classes"].unique().to_list() == [
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
    pairs = drawn(project(tmp_path / "none", "signs", subject={"bos": False}), monkeypatch).filter(
        task="arithmetic"
    )
    assert (pairs["tokens"].list.len() == 4).all()
    assert pairs["classes"].unique().to_list() == [["op1", "operator", "op2", "last"]]
    without = tokenizers.build(9, ["="])
    without.bos_token = None
    with pytest.raises(PromptError, match="bos: false"):
        place(without, [Text("", "1 =", "1", ())], bos=True)
