"""Tests of failing cells: the query against numpy, and how often its intervals hold the truth."""

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.made import ask

NORMAL = 1.959964


def concluded(table: pl.DataFrame) -> dict[tuple[str, str, str], dict[str, Any]]:
    made = ask("failure_tests", {"failures": table}, normal=NORMAL)
    return {
        (row["operator"], row["criterion"], row["measure"]): row
        for row in made.iter_rows(named=True)
    }


def measured(sides: dict[str, tuple[np.ndarray, np.ndarray]]) -> pl.DataFrame:
    """Return the table failures for one criterion.

    values: operator -> answer contributions of correct cells and of incorrect cells; their whole
    parts are numbers of neurons.
    """
    rows = [
        (o, is_right, value)
        for o, both in sides.items()
        for is_right, values in zip((True, False), both, strict=True)
        for value in values
    ]
    made = pl.DataFrame(
        rows,
        schema={"operator": pl.String, "correct": pl.Boolean, "answer_contribution": pl.Float32},
        orient="row",
    )
    neurons = pl.col("answer_contribution").floor().cast(pl.Int32)
    made = made.with_columns(
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
    x, y = (
        rng.normal(6, 2, correct).astype(np.float32),
        rng.normal(6 + shift, 2 * spread, incorrect).astype(np.float32),
    )
    rows = concluded(measured({"add": (x, y)}))
    x, y, n1, n2 = x.astype(float), y.astype(float), correct, incorrect
    for measure, (a, b) in {
        "answer_contribution": (x, y),
        "associated_neurons": (np.floor(x), np.floor(y)),
    }.items():
        row = rows["add", "threshold", measure]
        assert (row["cells_correct"], row["cells_incorrect"]) == (n1, n2)
        assert [row[k] for k in ("mean_correct", "mean_incorrect", "difference")] == pytest.approx(
            [a.mean(), b.mean(), b.mean() - a.mean()]
        )
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
        for end in (
            row["auc_ci_low"],
            row["auc_ci_high"],
        ):  # Wilson's ends: so far from the auc, by the variance that they would have
            assert (auc - end) ** 2 == pytest.approx(
                NORMAL**2 * variance * end * (1 - end) / (auc * (1 - auc))
            )
        assert row["auc_ci_low"] < auc < row["auc_ci_high"]


def test_without_two_cells_of_either_kind_there_are_only_counts_and_means():
    sides = {
        "none": ([3, 4, 5], []),
        "one": ([3, 4, 5], [9]),
        "all": ([], [1, 2]),
        "few": ([3], [4, 5, 6]),
    }
    rows = concluded(measured({name: (np.array(a), np.array(b)) for name, (a, b) in sides.items()}))
    for (operator, _, _), row in rows.items():
        correct, incorrect = sides[operator]
        expected = [
            len(correct),
            len(incorrect),
            np.mean(correct) if correct else None,
            np.mean(incorrect) if incorrect else None,
        ]
        expected += [expected[3] - expected[2] if correct and incorrect else None] + [None] * 6
        assert [*row.values()][4:] == expected
    assert len(rows) == 2 * len(sides)


def test_what_does_not_vary_has_no_effect():
    row = concluded(measured({"add": (np.full(90, 2.0), np.full(20, 2.0))}))[
        "add", "threshold", "answer_contribution"
    ]
    assert [row[name] for name in ("difference", "d", "d_ci_low", "d_ci_high", "auc")] == [
        0,
        None,
        None,
        None,
        0.5,
    ]
    assert row["auc_ci_low"] < 0.35
    assert row["auc_ci_high"] > 0.65


def test_where_one_side_beats_all_of_the_other_its_size_says_how_sure_that_is():
    rows = concluded(measured({str(n): (np.arange(500.0), 600 + np.arange(n)) for n in (2, 8, 50)}))
    few, some, many = (rows[str(n), "threshold", "answer_contribution"] for n in (2, 8, 50))
    assert [row["auc"] for row in (few, some, many)] == [1, 1, 1]
    assert [row["auc_ci_high"] for row in (few, some, many)] == pytest.approx([1, 1, 1])
    assert [row["auc_ci_low"] for row in (few, some, many)] == pytest.approx(
        [n / (n + NORMAL**2) for n in (2, 8, 50)]
    )


def test_equal_distributions_differ_by_chance_alone_and_intervals_are_as_wide_as_they_say():
    """Draw both groups from one distribution, or from two that differ in mean and variance.

    Operators are repetitions.
    """
    rng, repetitions = np.random.default_rng(0), range(300)
    same = concluded(
        measured({str(i): (rng.normal(5, 2, 150), rng.normal(5, 2, 12)) for i in repetitions})
    )
    other = concluded(
        measured({str(i): (rng.normal(5, 1, 150), rng.normal(6, 2, 12)) for i in repetitions})
    )
    d = 1 / np.sqrt((149 * 1 + 11 * 4) / 160)
    auc = (1 + math.erf(1 / np.sqrt(5) / np.sqrt(2))) / 2
    for rows, truths in ((same, {"d": 0, "auc": 0.5}), (other, {"d": d, "auc": auc})):
        for name, truth in truths.items():
            values = [
                row for (_, _, measure), row in rows.items() if measure == "answer_contribution"
            ]
            assert np.mean([row[name] for row in values]) == pytest.approx(truth, abs=0.05)
            covered = np.mean(
                [row[f"{name}_ci_low"] <= truth <= row[f"{name}_ci_high"] for row in values]
            )
            assert 0.91 < covered < 0.99, (name, covered)
