"""The prompt pairs of causal mediation: the real stage, held against prompts read by their
templates alone.
"""

import re
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from stages.corpus.prompts import CALCULATE
from stages.lib.dictionary import tables
from stages.lib.model.tokenizer import TOKEN
from stages.lib.sql.database import Database
from tests.mediation.paired import (
    CELLS,
    MEDIATION,
    SHOTS,
    TASKS,
    corpus,
    drawn,
    project,
    read,
    read_question,
    templates,
    tokenizer,
)
from tests.micro import ROOT

ARITHMETIC = ("arithmetic", "number_words", "three_operands")
CONDITIONS = ("result_varies", "result_fixed", "operator_varies")
SIDES = ("", "counterfactual_")
COMPOSITIONS = corpus().compositions


@pytest.fixture(
    scope="module",
    params=[("word", 0), ("word", 2), ("pieces", 0), ("pieces", 2)],
    ids=lambda p: f"{p[0]}-{p[1]}",
)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, pl.DataFrame]:
    """The kind of tokenizer, and its pairs without or with solved examples."""
    kind, shots = request.param
    with pytest.MonkeyPatch.context() as monkeypatch:
        return kind, drawn(
            project(tmp_path_factory.mktemp("pairs"), kind, **(SHOTS if shots else {})), monkeypatch
        )


def answered(task: str, template: int, operator: str, operands: list[int]) -> int | None:
    """The right answer, by plain arithmetic."""
    first, *second = operator.split()
    if not second:
        return CALCULATE[first](*operands)
    x, y, z = operands
    left = COMPOSITIONS[template][2]
    inner = CALCULATE[first](x, y) if left else CALCULATE[second[0]](y, z)
    return (
        None
        if inner is None
        else CALCULATE[second[0]](inner, z)
        if left
        else CALCULATE[first](x, inner)
    )


def questions(row: dict) -> list[list[tuple[str, list[int], int | None]]]:
    """Operator, operands and right answer of every line of both prompts of an arithmetic pair, the
    question last.
    """
    listed = []
    for side in SIDES:
        *solved, query = row[side + "prompt"].split("\n")
        lines = [line.rsplit(" ", 1) for line in solved] + [[query, row[side + "answer"]]]
        read = [read_question(row["task"], row["template"], text) for text, _ in lines]
        listed.append([(*item, answered(row["task"], row["template"], *item)) for item in read])
        assert [item[2] for item in listed[-1]] == [asked_number(text) for _, text in lines]
    return listed


def asked_number(text: str) -> int:
    return read_question("number_words", 1, f"Q: What is {text} plus zero? A:")[1][0]


def test_pairs_are_what_their_condition_says(made: tuple[str, pl.DataFrame]):
    cells = {
        (operator, *operands) for operator, *operands, _, _ in corpus().pools["arithmetic"].rows
    }
    for row in made[1].filter(pl.col("task").is_in(ARITHMETIC)).to_dicts():
        clean, other = questions(row)
        (operator, operands, result), (other_operator, other_operands, other_result) = (
            clean[-1],
            other[-1],
        )
        assert operator == row["operator"]
        match row["condition"]:
            case "result_varies":
                assert operator == other_operator
                assert result != other_result
            case "result_fixed":
                assert (operator, result) == (other_operator, other_result)
                assert sorted(operands) != sorted(other_operands)
            case "operator_varies":
                assert operands == other_operands
                assert operator != other_operator
                assert result != other_result
        assert min(*operands, *other_operands, result, other_result) >= 1
        if len(operands) == 2:
            assert {(operator, *operands), (other_operator, *other_operands)} <= cells
        else:
            assert max(operands) <= TASKS.largest_operand_of_three
            assert max(result, other_result) <= CELLS["largest_answer"]


def test_solved_examples_are_right_in_both_prompts_and_give_nothing_away(
    made: tuple[str, pl.DataFrame],
):
    for row in made[1].filter(pl.col("task").is_in(ARITHMETIC)).to_dicts():
        clean, other = questions(row)  # which also holds every answer against plain arithmetic
        assert len(clean) == len(other) == row["shots"] + 1
        assert [operands for _, operands, _ in clean[:-1]] == [
            operands for _, operands, _ in other[:-1]
        ]
        for lines in (clean, other):
            assert {operator for operator, _, _ in lines} == {lines[-1][0]}
            assert not {result for _, _, result in lines[:-1]} & {clean[-1][2], other[-1][2]}
        several = [tuple(sorted(operands)) for _, operands, _ in clean] + [
            tuple(sorted(other[-1][1]))
        ]
        assert len(set(several)) == row["shots"] + len({several[-1], several[-2]})


def test_retrieval_asks_for_the_other_thing_and_facts_for_another_entity(
    made: tuple[str, pl.DataFrame],
):
    relations, facts = (
        [*TASKS.factual],
        {(relation, entity): answer for relation, entity, answer in corpus().facts},
    )
    rows = made[1].filter(~pl.col("task").is_in(ARITHMETIC)).to_dicts()
    assert {row["task"] for row in rows} == {"retrieval", "factual"}
    for row in rows:
        item, other = (
            read(row["task"], row["template"], row[side + "prompt"])[1] for side in SIDES
        )
        assert row["answer"] != row["counterfactual_answer"]
        if row["task"] == "retrieval":
            assert row["condition"] == "query_varies"
            assert {k: v for k, v in item.items() if k != "q"} == {
                k: v for k, v in other.items() if k != "q"
            }
            assert min(int(item["x"]), int(item["y"])) >= 2
            for side, values in zip(SIDES, (item, other), strict=True):
                assert (
                    row[side + "answer"]
                    == {values["a"]: values["x"], values["b"]: values["y"]}[values["q"]]
                )
        else:
            assert row["condition"] == "entity_varies"
            assert [facts[relations[row["template"]], v["entity"]] for v in (item, other)] == [
                row[s + "answer"] for s in SIDES
            ]


def test_both_prompts_are_alike_in_the_tokens_of_the_subject(made: tuple[str, pl.DataFrame]):
    own = tokenizer(made[0])
    for row in made[1].to_dicts():
        for side in SIDES:
            *tokens, answer = own(
                f"{row[side + 'prompt']} {row[side + 'answer']}", add_special_tokens=False
            )["input_ids"]
            alone = own(row[side + "prompt"], add_special_tokens=False)["input_ids"]
            assert tokens[: len(alone)] == alone
            assert (
                own.decode(tokens[len(alone) :]).strip() == ""
            )  # a blank that is a token of its own
            whole = [*own("")["input_ids"], *tokens]  # behind what the tokenizer itself puts first
            assert (row[side + "tokens"], row[side + "answer_token"]) == (whole, answer)
            assert row[side + "positions"] == {"last": len(whole) - 1}
            assert len(row["classes"]) == len(whole)


def test_a_token_is_classed_by_what_it_says(made: tuple[str, pl.DataFrame]):
    """By the words of each class: our own tokenizer's are told one by one from the template, pieces
    are put together again.
    """
    own, names = (
        tokenizer(made[0]),
        {"op1": "x", "op2": "y", "op3": "z", "entity": "entity", "query": "q"},
    )
    for row in made[1].to_dicts():
        assert row["classes"][-1] == "last"
        query = row["prompt"].split("\n")[-1]
        operator, values = read(row["task"], row["template"], query)
        for name, placeholder in names.items():
            at = [i for i, kind in enumerate(row["classes"]) if kind == name]
            assert own.decode([row["tokens"][i] for i in at]).strip() == values.get(placeholder, "")
        pieces = re.findall(r"\{\w+\}|" + TOKEN, templates(row["task"], row["template"])[operator])
        if made[0] == "word":
            assert row["classes"][-len(pieces) :] == [*expected(row, operator, pieces)[:-1], "last"]
            assert set(row["classes"][: -len(pieces)]) == {"early"}


def expected(row: dict, operator: str, pieces: list[str]) -> list[str]:
    """The class of each word of a template."""
    # type: ignore[index]
    words = {word for name in operator.split() for word in vars(TASKS.operators[name]).values()}
    held = {"{x}": "op1", "{y}": "op2", "{z}": "op3", "{entity}": "entity", "{q}": "query"}
    at = [i for i, piece in enumerate(pieces) if piece in held and piece != "{q}"]
    outside = [
        "early" if i < at[0] else "late" if i > at[-1] else "middle" for i in range(len(pieces))
    ]
    return [
        held.get(piece) or ("operator" if piece in words else where)
        for piece, where in zip(pieces, outside, strict=True)
    ]


def test_every_kind_of_pair_is_there_once_each(made: tuple[str, pl.DataFrame]):
    table = made[1]
    assert table["pair"].to_list() == list(range(len(table)))
    last = [pl.col(side + "prompt").str.split("\n").list.last() for side in SIDES]
    keys = ["task", "condition", "template", "operator"]
    assert not table.select(*keys, *last).is_duplicated().any()
    if made[0] == "word":
        groups = {"arithmetic": 6 * 4, "number_words": 5 * 4, "three_operands": 29}
        known = {
            (task, condition): count for task, count in groups.items() for condition in CONDITIONS
        }
        kinds = table.group_by(keys).len()
        assert Counter(kinds.select("task", "condition").rows()) == known | {
            ("retrieval", "query_varies"): 8,
            ("factual", "entity_varies"): 6,
        }
        assert set(kinds.select("task", "len").rows()) == set(
            MEDIATION["pairs_per_template"].items()
        )


def test_the_file_is_as_documented_and_the_same_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = []
    for name in ("one", "two"):
        drawn(project(tmp_path / name, "word"), monkeypatch)
        files.append(tmp_path / name / "data/s/mediation/mediation_pairs.parquet")
    assert files[0].read_bytes() == files[1].read_bytes()
    documented = {
        name: kind for name, (kind, _) in tables(ROOT / "stages")["mediation_pairs"].columns.items()
    }
    assert Database({"written": files[:1]}).columns("written") == documented


def test_a_task_is_drawn_alike_whatever_is_asked_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first = drawn(project(tmp_path / "one", "word"), monkeypatch).drop("pair")
    few = MEDIATION["pairs_per_template"] | {"arithmetic": 3, "number_words": 0, "factual": 9}
    second = drawn(
        project(
            tmp_path / "two",
            "word",
            pairs_per_template=few,
            shots=MEDIATION["shots"] | {"arithmetic": 1},
        ),
        monkeypatch,
    )
    assert set(second["task"].unique()) == {*few} - {"number_words"}
    for task in ("three_operands", "retrieval"):
        assert second.drop("pair").filter(task=task).equals(first.filter(task=task))
    for template in range(6):  # more pairs keep those that fewer would be
        assert (
            second.drop("pair")
            .filter(task="factual", template=template)[:8]
            .equals(first.filter(task="factual", template=template))
        )
    other = drawn(project(tmp_path / "three", "word", mediation_seed=1), monkeypatch).drop("pair")
    assert not other.equals(first)


def test_a_subject_gets_what_it_has_words_and_operators_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    signs = drawn(project(tmp_path / "signs", "signs"), monkeypatch)
    assert set(signs.select("task", "template").rows()) == {("arithmetic", 5)}
    assert len(signs) == 3 * 4 * MEDIATION["pairs_per_template"]["arithmetic"]
    two = drawn(
        project(tmp_path / "two", "word", subject={"operators": ["add", "subtract"]}), monkeypatch
    )
    listed = {
        template
        for (template,) in two.filter(task="three_operands").select("template").unique().rows()
    }
    assert listed == {
        i
        for i, (first, second, _) in enumerate(COMPOSITIONS)
        if {first, second} <= {"add", "subtract"}
    }
    assert set(two.filter(pl.col("task") != "three_operands")["operator"].drop_nulls()) == {
        "add",
        "subtract",
    }
