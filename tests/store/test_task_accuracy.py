"""Accuracies on the grid and outside it, beside that of always predicting one answer."""

from typing import Any

import polars as pl
import pytest

from tests.made import ask, frame

TOKENS = {"train": [3, 4, 4, 4, 5], "held-out": [3, 3, 4]}
CORRECT = {"train": [True, False, True, True, False], "held-out": [False, True, True]}


def test_accuracy_on_the_grid_is_compared_with_the_most_frequent_answer_token():
    splits = [split for split, tokens in TOKENS.items() for _ in tokens]
    answers = [token for tokens in TOKENS.values() for token in tokens]
    correct = [value for values in CORRECT.values() for value in values]
    cell = {"operator": "add", "op1": range(len(splits)), "op2": 0}
    given = {
        "cells": frame(**cell, split=splits),
        "origins": frame(subject=["s"], trained_here=[True]),
        "predictions": frame(subject="s", **cell, correct=correct),
        # prompts without an answer are no cells
        "prompts": frame(
            subject="s",
            operator="add",
            op1=range(10),
            op2=0,
            answer_token=[*answers, None, None],
        ),
    }
    table = ask("accuracy", given)
    elsewhere = ask("accuracy", given | {"origins": frame(subject=["s"], trained_here=[False])})
    assert elsewhere.rows() == [("s", "add", "all", pytest.approx(5 / 8), 8, 0.5)]
    assert table.rows() == [
        ("s", "add", "held-out", pytest.approx(2 / 3), 3, pytest.approx(2 / 3)),
        ("s", "add", "train", 0.6, 5, 0.6),
    ]


def task_accuracy(
    tasks: list[tuple[str, str]],
    predicted: list[tuple[bool, int | None]],
) -> list[tuple[Any, ...]]:
    """What task_accuracy says: task, accuracy, prompts and majority_accuracy.

    tasks: task and answer of each prompt; predicted: whether it is correct, the answer's token.
    """
    prompts = pl.DataFrame(tasks, schema=["task", "answer"], orient="row").with_columns(
        prompt_number=pl.int_range(pl.len(), dtype=pl.Int32).over("task"),
        operator=pl.lit(None, pl.String), split=pl.lit("train"),
    )  # fmt: skip
    schema = {"correct": pl.Boolean, "answer_token": pl.Int32}
    predictions = pl.DataFrame(predicted, schema=schema, orient="row").with_columns(
        prompts["task"],
        prompts["prompt_number"],
        subject=pl.lit("s"),
    )
    never_asked = prompts.with_columns(pl.col("prompt_number") + 99, split=pl.lit("all"))
    given = {"tasks": prompts, "real_tasks": never_asked, "task_predictions": predictions}
    rows = ask("task_accuracy", given).rows()
    assert {(subject, *key) for subject, _, *key, _, _, _ in rows} == {("s", "all", "train")}
    return [(row[1], *row[4:]) for row in rows]


def test_answers_of_several_tokens_are_no_wrong_ones():
    tasks = [("factual", "Rome"), ("factual", "Oslo"), ("factual", "Rome"), ("factual", "Oslo")]
    predicted = [(True, 5), (False, 9), (True, 5), (False, None)]
    tasks += [("retrieval", "a b"), ("retrieval", "a b")]
    predicted += [(False, None), (False, None)]
    assert task_accuracy(tasks, predicted) == [
        ("factual", pytest.approx(2 / 3), 3, pytest.approx(2 / 3)),
        ("retrieval", None, 0, None),
    ]


def test_the_most_frequent_answer_is_that_of_the_token_that_is_asked_for():
    """A model that is asked for the first digit: different answers may begin with the same one."""
    tasks = [("three_operands", "144"), ("three_operands", "17"), ("three_operands", "7")]
    assert task_accuracy(tasks, [(False, 1), (True, 1), (False, 7)]) == [
        ("three_operands", pytest.approx(1 / 3), 3, pytest.approx(2 / 3)),
    ]
