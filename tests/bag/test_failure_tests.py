"""Tests of failing cells: the query against numpy, and how often its intervals hold the truth."""

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import ArrayLike

from tests.made import ask

NORMAL = 1.959964
Sides = dict[str, tuple[ArrayLike, ArrayLike]]  # operator -> values of correct, incorrect cells


def concluded(failures: pl.DataFrame) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return the rows of failure_tests, by operator, criterion and measure."""
    table = ask("failure_tests", {"failures": failures}, normal=NORMAL)
    keys = ["operator", "criterion", "measure"]
    return table.rows_by_key(keys, named=True, unique=True)


def contributions(sides: Sides) -> pl.DataFrame:
    """Return the rows of failure_tests about answer contributions, in order of operator."""
    table = ask("failure_tests", {"failures": measured(sides)}, normal=NORMAL)
    return table.filter(measure="answer_contribution")


def measured(sides: Sides) -> pl.DataFrame:
    """Return the table failures for one criterion.

    sides: answer contributions, whose whole parts are numbers of neurons.
    """
    parts = []
    for operator, both in sides.items():
        for correct, values in zip((True, False), both, strict=True):
            contribution = pl.Series("answer_contribution", np.asarray(values), pl.Float32)
            part = contribution.to_frame()
            parts.append(part.with_columns(operator=pl.lit(operator), correct=pl.lit(correct)))
    neurons = pl.col("answer_contribution").floor().cast(pl.Int32)
    made = pl.concat(parts).with_columns(
        subject=pl.lit("s"), criterion=pl.lit("threshold"), associated_neurons=neurons
    )
    return made.sample(fraction=1, shuffle=True, seed=0)


def student(freedom: float) -> float:
    """Return the quantile of Student's t that is NORMAL for a normal distribution."""
    grid = np.linspace(0, 200, 2_000_001)
    density = (1 + grid**2 / freedom) ** (-(freedom + 1) / 2)
    share = np.cumsum(density) / density.sum()
    return float(np.interp(math.erf(NORMAL / math.sqrt(2)), share, grid))


@pytest.mark.parametrize(
    ("correct", "incorrect", "shift", "spread"),
    [(200, 30, 0.5, 1), (60, 60, -12, 3), (400, 7, 1, 0.3), (9, 90, 0, 2)],
)
def test_effects_are_those_of_brute_force(
    correct: int, incorrect: int, shift: float, spread: float
):
    rng = np.random.default_rng(correct)
    x = rng.normal(6, 2, correct).astype(np.float32)
    y = rng.normal(6 + shift, 2 * spread, incorrect).astype(np.float32)
    rows = concluded(measured({"add": (x, y)}))
    x, y, n1, n2 = x.astype(float), y.astype(float), correct, incorrect
    for measure, (a, b) in {
        "answer_contribution": (x, y),
        "associated_neurons": (np.floor(x), np.floor(y)),
    }.items():
        row = rows["add", "threshold", measure]
        assert (row["cells_correct"], row["cells_incorrect"]) == (n1, n2)
        means = row["mean_correct"], row["mean_incorrect"]
        assert means == pytest.approx((a.mean(), b.mean()))
        assert row["difference"] == pytest.approx(b.mean() - a.mean())
        v1, v2 = a.var(ddof=1), b.var(ddof=1)
        pooled = ((n1 - 1) * v1 + (n2 - 1) * v2) / (n1 + n2 - 2)
        d = (b.mean() - a.mean()) / np.sqrt(pooled)
        of_pooled = (
            2 * ((n1 - 1) * v1**2 + (n2 - 1) * v2**2) / (n1 + n2 - 2) ** 2
        )  # variance of the pooled variance
        error = np.sqrt((v1 / n1 + v2 / n2) / pooled + d**2 * of_pooled / (4 * pooled**2))
        freedom = (v1 / n1 + v2 / n2) ** 2 / ((v1 / n1) ** 2 / (n1 - 1) + (v2 / n2) ** 2 / (n2 - 1))
        assert row["d"] == pytest.approx(d)
        assert np.array([row["d_ci_low"], row["d_ci_high"]]) == pytest.approx(
            d + student(freedom) * error * np.array([-1, 1]), abs=0.004
        )
        wins = (b[:, None] > a) + (b[:, None] == a) / 2
        auc, variance = wins.mean(), wins.mean(1).var(ddof=1) / n2 + wins.mean(0).var(ddof=1) / n1
        assert row["auc"] == pytest.approx(auc)
        # Wilson's ends: so far from the auc, by the variance that they would have
        for end in (row["auc_ci_low"], row["auc_ci_high"]):
            assert (auc - end) ** 2 == pytest.approx(
                NORMAL**2 * variance * end * (1 - end) / (auc * (1 - auc))
            )
        assert row["auc_ci_low"] < auc < row["auc_ci_high"]


def test_without_two_cells_of_either_kind_there_are_only_counts_and_means():
    sides: Sides = {
        "none": ([3, 4, 5], []),
        "one": ([3, 4, 5], [9]),
        "all": ([], [1, 2]),
        "few": ([3], [4, 5, 6]),
    }
    expected = {
        "none": (3, 0, 4, None, None),
        "one": (3, 1, 4, 9, 5),
        "all": (0, 2, None, 1.5, None),
        "few": (1, 3, 3, 5, 2),
    }
    rows = concluded(measured(sides))
    for (operator, _, _), row in rows.items():
        assert tuple(row.values())[1:] == expected[operator] + (None,) * 6
    assert len(rows) == 2 * len(sides)


def test_what_does_not_vary_has_no_effect():
    table = contributions({"add": (np.full(90, 2.0), np.full(20, 2.0))})
    effects = table.select("difference", "d", "d_ci_low", "d_ci_high", "auc")
    assert effects.row(0) == (0, None, None, None, 0.5)
    assert table["auc_ci_low"].item() < 0.35
    assert table["auc_ci_high"].item() > 0.65


def test_where_one_side_beats_all_of_the_other_its_size_says_how_sure_that_is():
    sizes = np.array([2, 8, 50])
    sides: Sides = {}
    for operator, size in zip(("few", "more", "most"), sizes, strict=True):
        sides[operator] = np.arange(500.0), 600 + np.arange(size)
    table = contributions(sides)
    assert table["operator"].to_list() == ["few", "more", "most"]
    assert table["auc"].to_list() == [1, 1, 1]
    assert table["auc_ci_high"].to_list() == pytest.approx([1, 1, 1])
    assert table["auc_ci_low"].to_numpy() == pytest.approx(sizes / (sizes + NORMAL**2))


def test_equal_distributions_differ_by_chance_alone_and_intervals_are_as_wide_as_they_say():
    """Draw both groups from one distribution, or from two that differ in mean and variance.

    Operators are repetitions.
    """
    rng = np.random.default_rng(0)
    same: Sides = {}
    other: Sides = {}
    for repetition in map(str, range(300)):
        same[repetition] = rng.normal(5, 2, 150), rng.normal(5, 2, 12)
        other[repetition] = rng.normal(5, 1, 150), rng.normal(6, 2, 12)
    d = 1 / np.sqrt((149 * 1 + 11 * 4) / 160)
    auc = (1 + math.erf(1 / np.sqrt(5) / np.sqrt(2))) / 2
    for sides, truths in ((same, {"d": 0, "auc": 0.5}), (other, {"d": d, "auc": auc})):
        table = contributions(sides)
        for name, truth in truths.items():
            assert table[name].mean() == pytest.approx(truth, abs=0.05)
            is_covered = pl.lit(truth).is_between(f"{name}_ci_low", f"{name}_ci_high")
            covered = table.select(is_covered.mean()).item()
            assert 0.91 < covered < 0.99, (name, covered)
