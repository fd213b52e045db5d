"""Failing cells against correct cells of equal difficulty: the query against brute force."""

import math
from collections import defaultdict
from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.made import ask

NORMAL = 1.959964
SIDE = 12
CALCULATE = {
    "add": int.__add__,
    "subtract": int.__sub__,
    "multiply": int.__mul__,
    "divide": int.__floordiv__,
}


def difficulty(operator: str, op1: int, op2: int) -> int:
    if operator == "multiply":
        return (op1 % 10) * (op2 % 10) // 10
    if operator == "divide":  # how far op1 may move before the quotient is another one
        up, down = op2 - op1 % op2, op1 % op2 + 1
        steps = min(up, down) if op1 >= op2 else up
        return int(math.log2(steps))
    changes, carry = 0, 0
    for place in (1, 10, 100):
        a, b = op1 // place % 10, op2 // place % 10
        carry = int(a + b + carry > 9) if operator == "add" else int(a - carry < b)
        changes += carry
    return changes


def cells() -> pl.DataFrame:
    """Return a small grid whose operands have units and tens, with the difficulty of each cell."""
    rows = []
    for operator, a, b in product(CALCULATE, range(0, 5 * SIDE, 5), range(1, 4 * SIDE, 4)):
        if operator != "subtract" or a >= b:
            result = CALCULATE[operator](a, b)
            rows.append((operator, a, b, result, difficulty(operator, a, b)))
    numbers = dict.fromkeys(["op1", "op2", "result", "difficulty"], pl.Int32)
    return pl.DataFrame(rows, schema={"operator": pl.String} | numbers, orient="row")


CELLS = cells()
HARD = CELLS["difficulty"].to_numpy()


def failures(correct: np.ndarray, contribution: np.ndarray, neurons: np.ndarray) -> pl.DataFrame:
    measures = {
        "correct": pl.Series(correct.astype(bool)),
        "answer_contribution": pl.Series(contribution, dtype=pl.Float32),
        "associated_neurons": pl.Series(neurons, dtype=pl.Int32),
    }
    keys = CELLS.select("operator", "op1", "op2")
    return keys.with_columns(subject=pl.lit("s"), criterion=pl.lit("fdr"), **measures)


def controlled(table: pl.DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    given = {
        "failures": table.sample(fraction=1, shuffle=True, seed=0),
        "cells": CELLS.drop("difficulty"),
    }
    made = ask("failure_controls", given, normal=NORMAL)
    return made.rows_by_key(["operator", "measure"], named=True, unique=True)


def test_pairs_of_cells_of_one_stratum_are_counted_as_brute_force_does():
    rng, size = np.random.default_rng(0), len(CELLS)
    table = failures(rng.random(size) < 0.6, rng.normal(size=size), rng.integers(0, 4, size))
    rows = controlled(table)
    joined = table.join(CELLS, on=["operator", "op1", "op2"])
    for measure in ("answer_contribution", "associated_neurons"):
        strata = defaultdict(list)
        for (operator, *_), stratum in joined.group_by("operator", "result", "difficulty"):
            right = stratum.filter("correct")[measure].to_numpy()
            wrong = stratum.filter(~pl.col("correct"))[measure].to_numpy()
            if len(right) and len(wrong):
                differences = np.subtract.outer(wrong, right)
                wins = (differences > 0).sum() + (differences == 0).sum() / 2
                strata[operator].append((wins, len(right), len(wrong)))
        assert strata.keys() == CALCULATE.keys()
        for operator, own in strata.items():
            row = rows[operator, measure]
            wins, right, wrong = np.array(own, float).T
            pairs = right * wrong
            auc = wins.sum() / pairs.sum()
            error = (
                np.sqrt(((wins - auc * pairs) ** 2).sum() * len(own) / (len(own) - 1)) / pairs.sum()
            )
            assert (row["strata"], row["cells_correct"], row["cells_incorrect"]) == (
                len(own),
                right.sum(),
                wrong.sum(),
            )
            assert len(own) > 3
            ends = [max(auc - NORMAL * error, 0), min(auc + NORMAL * error, 1)]
            assert [row["auc"], row["auc_ci_low"], row["auc_ci_high"]] == pytest.approx(
                [auc, *ends]
            )


def test_what_difficulty_explains_is_gone_and_what_it_does_not_explain_stays():
    """Difficult cells fail more often.

    Contributions depend on the difficulty, numbers of neurons on whether the cell fails.
    """
    areas = defaultdict(list)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        wrong = rng.random(len(HARD)) < np.where(HARD > 0, 0.7, 0.2)
        contribution = 5.0 * HARD + rng.normal(size=len(HARD))
        neurons = 3 * wrong + rng.integers(0, 2, len(HARD))
        rows = controlled(failures(~wrong, contribution, neurons))
        for operator in CALCULATE:
            assert rows[operator, "associated_neurons"]["auc"] == 1
            areas[operator].append(rows[operator, "answer_contribution"]["auc"])
        uncontrolled = np.subtract.outer(HARD[wrong], HARD[~wrong]).mean()
        assert uncontrolled > 0.3
    for own in areas.values():
        assert np.mean(own) == pytest.approx(0.5, abs=4 * np.std(own) / np.sqrt(len(own)))
        assert np.std(own) < 0.3


def test_without_both_kinds_in_a_stratum_there_is_nothing_to_say():
    everywhere = np.ones(len(CELLS))
    assert controlled(failures(everywhere, everywhere, everywhere)) == {}


@pytest.mark.parametrize("strata", [1, 2])
def test_a_single_stratum_has_no_interval(strata: int):
    """One stratum with two cells of either kind, as in multiply of the default subject (scored)."""
    known = CELLS.filter(operator="multiply")
    sizes = known.group_by("result", "difficulty").len()
    largest = sizes.sort("len", "result", "difficulty", descending=True).head(strata)
    kept = known.join(largest, on=["result", "difficulty"]).select("operator", "op1", "op2")
    rng = np.random.default_rng(0)
    wrong = np.arange(len(CELLS)) % 2 == 0
    table = failures(~wrong, rng.normal(size=len(wrong)), wrong)
    table = table.join(kept, on=["operator", "op1", "op2"])
    rows = controlled(table)
    for row in rows.values():
        assert row["strata"] == strata
        assert 0 <= row["auc"] <= 1
        ends = row["auc_ci_low"], row["auc_ci_high"]
        assert ends == (None, None) if strata == 1 else None not in ends
    assert rows.keys() == {("multiply", "answer_contribution"), ("multiply", "associated_neurons")}
