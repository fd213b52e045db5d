"""The prompt pairs of causal mediation: the real stage, held against prompts read by their
templates alone.
"""

import re
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
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
    calculate,
    corpus,
    drawn,
    number,
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
PLACEHOLDERS = {"{x}": "op1", "{y}": "op2", "{z}": "op3", "{entity}": "entity", "{q}": "query"}


@pytest.fixture(
    scope="module",
    params=[("word", {}), ("word", SHOTS), ("pieces", {}), ("pieces", SHOTS)],
    ids=["word", "word-solved", "pieces", "pieces-solved"],
)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, pl.DataFrame]:
    """The kind of tokenizer, and its pairs without or with solved examples."""
    kind, shots = request.param
    folder = project(tmp_path_factory.mktemp("pairs"), kind, **shots)
    with pytest.MonkeyPatch.context() as monkeypatch:
        return kind, drawn(folder, monkeypatch)


def answered(template: int, operator: str, operands: list[int]) -> int | None:
    """Return the right answer, by plain arithmetic."""
    first, *second = operator.split()
    if not second:
        return CALCULATE[first](*operands)
    return calculate(first, second[0], COMPOSITIONS[template][2], operands)


def questions(row: dict, side: str) -> list[tuple[str, list[int], int]]:
    """Return operator, operands and result of each line of a prompt, its own question last.

    Assert that the results are right.
    """
    listed = []
    for line in f"{row[side + 'prompt']} {row[side + 'answer']}".split("\n"):
        text, answer = line.rsplit(" ", 1)
        operator, operands = read_question(row["task"], row["template"], text)
        assert number(answer) == answered(row["template"], operator, operands)
        listed.append((operator, operands, number(answer)))
    return listed


def test_pairs_are_what_their_condition_says(made: tuple[str, pl.DataFrame]):
    cells = {
        (operator, *operands) for operator, *operands, _, _ in corpus().pools["arithmetic"].rows
    }
    for row in made[1].filter(pl.col("task").is_in(ARITHMETIC)).to_dicts():
        operator, operands, result = questions(row, SIDES[0])[-1]
        other_operator, other_operands, other_result = questions(row, SIDES[1])[-1]
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
        operators, operands, results = zip(*questions(row, SIDES[0]), strict=True)
        other_operators, other_operands, other_results = zip(*questions(row, SIDES[1]), strict=True)
        assert len(results) == len(other_results) == row["shots"] + 1
        assert operands[:-1] == other_operands[:-1]
        assert len(set(operators)) == len(set(other_operators)) == 1
        assert not {*results[:-1], *other_results[:-1]} & {results[-1], other_results[-1]}
        several = [tuple(sorted(numbers)) for numbers in (*operands, other_operands[-1])]
        assert len(set(several)) == row["shots"] + len({several[-1], several[-2]})


def test_retrieval_asks_for_the_other_thing(made: tuple[str, pl.DataFrame]):
    table = made[1].filter(task="retrieval")
    assert set(table["condition"]) == {"query_varies"}
    for row in table.to_dicts():
        things = []
        for side in SIDES:
            values = read("retrieval", row["template"], row[side + "prompt"])[1]
            numbers = {values["a"]: values["x"], values["b"]: values["y"]}
            assert row[side + "answer"] == numbers[values.pop("q")]
            assert min(int(values["x"]), int(values["y"])) >= 2
            things.append(values)
        assert things[0] == things[1]
        assert row["answer"] != row["counterfactual_answer"]


def test_facts_are_of_another_entity(made: tuple[str, pl.DataFrame]):
    table, facts = made[1].filter(task="factual"), corpus().facts
    assert set(table["condition"]) == {"entity_varies"}
    for row in table.to_dicts():
        relation = [*TASKS.factual][row["template"]]
        for side in SIDES:
            values = read("factual", row["template"], row[side + "prompt"])[1]
            assert (relation, values["entity"], row[side + "answer"]) in facts
        assert row["answer"] != row["counterfactual_answer"]


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
    own = tokenizer(made[0])
    for row in made[1].to_dicts():
        tokens, kinds = np.array(row["tokens"]), np.array(row["classes"])
        assert kinds[-1] == "last"
        query = row["prompt"].split("\n")[-1]
        operator, values = read(row["task"], row["template"], query)
        for placeholder, name in PLACEHOLDERS.items():
            text = own.decode(tokens[kinds == name].tolist())
            assert text.strip() == values.get(placeholder.strip("{}"), "")
        pieces = re.findall(r"\{\w+\}|" + TOKEN, templates(row["task"], row["template"])[operator])
        if made[0] == "word":
            assert row["classes"][-len(pieces) :] == [*expected(operator, pieces)[:-1], "last"]
            assert set(row["classes"][: -len(pieces)]) == {"early"}


def expected(operator: str, pieces: list[str]) -> list[str]:
    """Return the class of each word of a template."""
    words = set()
    for name in operator.split():
        words |= {*vars(TASKS.operators[name]).values()}
    operands = [i for i, piece in enumerate(pieces) if piece in PLACEHOLDERS and piece != "{q}"]
    kinds = ["middle"] * len(pieces)
    kinds[: operands[0]] = ["early"] * operands[0]
    kinds[operands[-1] :] = ["late"] * (len(pieces) - operands[-1])
    for i, piece in enumerate(pieces):
        if piece in words:
            kinds[i] = "operator"
        kinds[i] = PLACEHOLDERS.get(piece, kinds[i])
    return kinds


def test_every_kind_of_pair_is_there_once_each(made: tuple[str, pl.DataFrame]):
    table = made[1]
    assert table["pair"].to_list() == list(range(len(table)))
    last = pl.col("prompt", "counterfactual_prompt").str.split("\n").list.last()
    keys = ["task", "condition", "template", "operator"]
    assert not table.select(*keys, last).is_duplicated().any()
    if made[0] == "word":
        known = {("retrieval", "query_varies"): 8, ("factual", "entity_varies"): 6}
        groups = {"arithmetic": 6 * 4, "number_words": 5 * 4, "three_operands": 29}
        for task, count in groups.items():
            known |= dict.fromkeys(product([task], CONDITIONS), count)
        kinds = table.group_by(keys).len()
        assert Counter(kinds.select("task", "condition").rows()) == known
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
    assert set(two.filter(task="three_operands")["template"]) == {
        i
        for i, (first, second, _) in enumerate(COMPOSITIONS)
        if {first, second} <= {"add", "subtract"}
    }
    assert set(two.filter(pl.col("task") != "three_operands")["operator"].drop_nulls()) == {
        "add",
        "subtract",
    }
