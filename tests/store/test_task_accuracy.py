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
    predicted: list[tuple[str, bool, float | None]],
) -> list[tuple[Any, ...]]:
    """What task_accuracy says: task, accuracy, prompts and majority_accuracy.

    tasks: task and answer of each prompt; predicted: text, whether it is correct, logit.
    """
    prompts = pl.DataFrame(tasks, schema=["task", "answer"], orient="row").with_columns(
        prompt_number=pl.int_range(pl.len(), dtype=pl.Int32).over("task"),
        operator=pl.lit(None, pl.String), split=pl.lit("train"),
    )  # fmt: skip
    schema = {"predicted": pl.String, "correct": pl.Boolean, "answer_logit": pl.Float32}
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
    predicted = [
        ("Rome", True, 1.0),
        ("Rome", False, 0.5),
        (" Rome", True, 1.0),
        ("x", False, None),
    ]
    tasks += [("retrieval", "a b"), ("retrieval", "a b")]
    predicted += [("a", False, None), ("a", False, None)]
    assert task_accuracy(tasks, predicted) == [
        ("factual", pytest.approx(2 / 3), 3, pytest.approx(2 / 3)),
        ("retrieval", None, 0, None),
    ]


def test_one_token_of_several_has_no_most_frequent_answer():
    """The table tasks has whole answers, of which no text is the token that is asked for."""
    tasks = [("three_operands", "144"), ("three_operands", "7"), ("factual", "Rome")]
    predicted = [("1", True, 1.0), ("7", True, 1.0), ("Rome", True, 1.0)]
    assert task_accuracy(tasks, predicted) == [
        ("factual", 1, 1, None),
        ("three_operands", 1, 2, None),
    ]
