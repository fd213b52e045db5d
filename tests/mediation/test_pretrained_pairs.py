"""Pairs for a pretrained model: real facts, its own operands, and its own solved examples."""

from pathlib import Path

import pytest

from stages.lib.core.vocabulary import ARITHMETIC
from stages.lib.core.vocabulary import TASKS as TASKS_OF_PAIRS
from stages.mediation.pairs.examples import SolvedExample, solved, unread
from tests.mediation.paired import (
    SHOTS,
    TASKS,
    drawn,
    number,
    project,
    read_question,
    real_facts,
)

EXAMPLES = "5+3=8\n9-4=5\n"
LARGEST = 12  # the model's own largest operand; the grid's is 40
MODEL = {
    "template": EXAMPLES + "{op1}{symbol}{op2}=",
    "answer_token": 0,
    "largest_operand": LARGEST,
}
SHOWN = [SolvedExample("add", 5, 3, 8), SolvedExample("subtract", 9, 4, 5)]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{op1}{symbol}{op2}=", []),
        (MODEL["template"], SHOWN),
        ("Add up.\n5 + 3 = 8, 9 - 4 = 5, {op1} {symbol} {op2} = ", SHOWN),
        ("Q: 5+3\nA: 8\nQ: 9-4\nA: 5\nQ: {op1}{symbol}{op2}\nA:", SHOWN),
        ("5+3: 8\n{op1}{symbol}{op2}=", []),  # of another form
        ("3-5=-2\n{op1}{symbol}{op2}=", []),  # no cell
        ("{{5}}+3=8\n{op1}{symbol}{op2}=", []),
        ("(+ 5 3) is 8\n({symbol} {op1} {op2}) is", SHOWN[:1]),
        ("5 + 3 = 8\n9-4=5\n{op1}{symbol}{op2}=", SHOWN),  # other blanks
        ("5×3=15\n{op1}{symbol}{op2}=", [SolvedExample("multiply", 5, 3, 15)]),
    ],
)
def test_solved_examples_are_texts_like_the_question(template: str, expected: list[SolvedExample]):
    assert solved(template, TASKS.operators) == expected


@pytest.mark.parametrize(
    ("template", "is_unread"),
    [
        ("{op1}{symbol}{op2}=", False),
        ("Add up.\n{op1}{symbol}{op2}=", False),
        (MODEL["template"], False),
        ("5+3: 8\n{op1}{symbol}{op2}=", True),
    ],
)
def test_numbers_before_the_question_that_are_no_example_are_noticed(
    template: str, is_unread: bool
):
    assert unread(template, solved(template, TASKS.operators)) == is_unread


def test_missing_pairs_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    """Some draws fail, and there is one for each pair."""
    settings = {"pairs_per_template": dict.fromkeys(TASKS_OF_PAIRS, 9), "draws_per_pair": 1}
    folder = project(tmp_path, "digits", trained_here=False, subject=MODEL, **settings, **SHOTS)
    table = drawn(folder, monkeypatch)
    wanted = 9 * len(TASKS.factual)
    missing = wanted - table.filter(task="factual").height
    assert missing > 0
    assert f"{missing} pairs of factual are missing" in capfd.readouterr().err


def test_pairs_are_of_the_model_s_facts_operands_and_examples(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    few = {"pairs_per_template": dict.fromkeys(TASKS_OF_PAIRS, 2), "draws_per_pair": 5, **SHOTS}
    folder = project(tmp_path, "digits", trained_here=False, subject=MODEL, **few)
    table = drawn(folder, monkeypatch)
    answers = {row[:2]: row[2] for row in real_facts().rows()}
    relations = [*TASKS.factual]
    in_words = "The sum of five and three is eight\nThe difference of nine and four is five\n"
    examples = {  # as each template words them
        ("arithmetic", 0): "Q: How much is 5 plus 3? A: 8\nQ: How much is 9 minus 4? A: 5\n",
        ("arithmetic", 5): "5 + 3 = 8\n9 - 4 = 5\n",
        ("number_words", 4): in_words,
        ("three_operands", 0): "5 + 3 = 8\n9 - 4 = 5\n",
    }
    assert set(table["task"]) == set(TASKS_OF_PAIRS)
    for row in table.to_dicts():
        task, template = row["task"], row["template"]
        fronts = []
        for side in ("", "counterfactual_"):
            *lines, query = row[side + "prompt"].split("\n")
            fronts.append("".join(f"{line}\n" for line in lines))
            answer = row[side + "answer"]
            if task == "factual":
                before, after = TASKS.factual[relations[template]].split("{entity}")
                entity = query.removeprefix(before).removesuffix(after)
                assert answer == answers[relations[template], entity]
                continue
            assert max(read_question(task, template, query)[1]) <= LARGEST
            if task in ARITHMETIC:
                assert number(answer) not in (8, 5)  # no example gives it away
        front, other = fronts
        assert front == other
        if task in ARITHMETIC:
            assert row["shots"] == 2
            assert front.count("\n") == 2
            assert front == examples.get((task, template), front)
        else:
            assert (row["shots"], front) == (0, "")
        before = len(row["tokens"]) - len(row["prompt"].removeprefix(front)) - 1
        assert set(row["classes"][: max(before, 0)]) <= {"early"}
    assert {("arithmetic", 0), ("three_operands", 0)} <= set(
        table.select("task", "template").rows(),
    )
