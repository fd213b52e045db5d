"""Failing cells against correct cells of equal difficulty: the query against brute force."""

import math
from itertools import groupby, product
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


def cells() -> pl.DataFrame:
    """A small grid whose operands have units and tens."""
    rows = []
    for operator, a, b in product(CALCULATE, range(0, 5 * SIDE, 5), range(1, 4 * SIDE, 4)):
        if operator != "subtract" or a >= b:
            rows.append((operator, a, b, CALCULATE[operator](a, b)))
    schema = {"operator": pl.String, "op1": pl.Int32, "op2": pl.Int32, "result": pl.Int32}
    return pl.DataFrame(rows, schema=schema, orient="row")


def difficulty(operator: str, op1: int, op2: int) -> int:
    digits = [(op1 // place % 10, op2 // place % 10) for place in (1, 10, 100)]
    if operator == "multiply":
        return digits[0][0] * digits[0][1] // 10
    if operator == "divide":  # how far op1 may move before the quotient is another one
        up, down = op2 - op1 % op2, op1 % op2 + 1
        steps = min(up, down) if op1 >= op2 else up
        return int(math.log2(steps))
    changes, carry = 0, 0
    for a, b in digits:
        carry = int(a + b + carry > 9) if operator == "add" else int(a - carry < b)
        changes += carry
    return changes


def failures(correct: np.ndarray, contribution: np.ndarray, neurons: np.ndarray) -> pl.DataFrame:
    measures = {
        "correct": pl.Series(correct.astype(bool)),
        "answer_contribution": pl.Series(contribution, dtype=pl.Float32),
        "associated_neurons": pl.Series(neurons, dtype=pl.Int32),
    }
    return (
        cells()
        .drop("result")
        .with_columns(subject=pl.lit("s"), criterion=pl.lit("fdr"), **measures)
    )


def controlled(table: pl.DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    made = ask(
        "failure_controls",
        {"failures": table.sample(fraction=1, shuffle=True, seed=0), "cells": cells()},
        normal=NORMAL,
    )
    return {(row["operator"], row["measure"]): row for row in made.iter_rows(named=True)}


def test_pairs_of_cells_of_one_stratum_are_counted_as_brute_force_does():
    rng = np.random.default_rng(0)
    table = failures(
        rng.random(len(cells())) < 0.6,
        rng.normal(size=len(cells())),
        rng.integers(0, 4, len(cells())),
    )
    rows = controlled(table)
    joined = table.join(cells(), on=["operator", "op1", "op2"]).rows(named=True)

    def stratum(row: dict) -> tuple:
        difficulty_of = difficulty(row["operator"], row["op1"], row["op2"])
        return row["operator"], row["result"], difficulty_of

    for measure in ("answer_contribution", "associated_neurons"):
        strata: dict[str, list[tuple[float, int, int]]] = {operator: [] for operator in CALCULATE}
        for (operator, *_), group in groupby(sorted(joined, key=stratum), stratum):
            some = list(group)
            right = [row[measure] for row in some if row["correct"]]
            wrong = [row[measure] for row in some if not row["correct"]]
            if right and wrong:
                wins = sum((b > a) + (b == a) / 2 for a in right for b in wrong)
                strata[operator].append((wins, len(right), len(wrong)))
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
    hard = np.array(
        [difficulty(*cell) for cell in cells().select("operator", "op1", "op2").iter_rows()]
    )
    areas: dict[str, list[float]] = {operator: [] for operator in CALCULATE}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        wrong = rng.random(len(hard)) < np.where(hard > 0, 0.7, 0.2)
        rows = controlled(
            failures(
                ~wrong,
                5.0 * hard + rng.normal(size=len(hard)),
                3 * wrong + rng.integers(0, 2, len(hard)),
            )
        )
        for operator, own in areas.items():
            assert rows[operator, "associated_neurons"]["auc"] == 1
            own.append(rows[operator, "answer_contribution"]["auc"])
        assert (
            np.subtract.outer(hard[wrong], hard[~wrong]).mean() > 0.3
        )  # uncontrolled, they differ
    for own in areas.values():
        assert np.mean(own) == pytest.approx(0.5, abs=4 * np.std(own) / np.sqrt(len(own)))
        assert np.std(own) < 0.3


def test_without_both_kinds_in_a_stratum_there_is_nothing_to_say():
    everywhere = np.ones(len(cells()))
    assert controlled(failures(everywhere, everywhere, everywhere)) == {}


@pytest.mark.parametrize("strata", [1, 2])
def test_a_single_stratum_has_no_interval(strata: int):
    """One stratum with two cells of either kind, as in multiply of the default subject (scored)."""
    hard = [difficulty(*cell) for cell in cells().select("operator", "op1", "op2").iter_rows()]
    known = cells().with_columns(hard=pl.Series(hard)).filter(operator="multiply")
    sizes = known.group_by("result", "hard").len()
    largest = sizes.sort("len", "result", "hard", descending=True).head(strata)
    kept = known.join(largest, on=["result", "hard"]).select("operator", "op1", "op2")
    rng = np.random.default_rng(0)
    wrong = np.arange(len(cells())) % 2 == 0
    table = failures(~wrong, rng.normal(size=len(wrong)), wrong)
    table = table.join(kept, on=["operator", "op1", "op2"])
    rows = controlled(table)
    for row in rows.values():
        assert row["strata"] == strata
        assert 0 <= row["auc"] <= 1
        ends = row["auc_ci_low"], row["auc_ci_high"]
        assert ends == (None, None) if strata == 1 else None not in ends
    assert rows.keys() == {("multiply", "answer_contribution"), ("multiply", "associated_neurons")}
