"""Overlaps of heuristics against counting, on the cells that a model has an answer for."""

from itertools import permutations
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages.heuristics.heuristic_overlaps import overlaps
from stages.lib.heuristics.grid import answered
from stages.lib.heuristics.members import members
from stages.lib.heuristics.names import parse
from stages.lib.sql.database import Database

NAMES = ["op1 in 99..198", "result in 99..198", "op2 mod 2 = 0"]
SIDE = 250  # operands of the model's grid; the table of cells has 300


def expected(first: np.ndarray, second: np.ndarray) -> tuple:
    """Return the overlap of two heuristics' cells (cells,), and whether they are the same."""
    share = max(first.mean(), second.mean())
    inside = (first & second).sum() / min(first.sum(), second.sum())
    return pytest.approx((inside - share) / (1 - share)), bool((first == second).all())


def test_overlaps_are_those_on_the_cells_that_a_model_answers(tmp_path: Path):
    """The third digit of a difference: results of 100 or more occur only if op1 is 100 or more.

    On the whole grid, the first two heuristics have next to nothing in common.
    """
    op1, op2 = np.indices((300, 300)).reshape(2, -1)
    grid = pl.DataFrame({"operator": "subtract", "op1": op1, "op2": op2, "result": op1 - op2})
    grid = grid.filter(pl.col("result") >= 0)
    grid.sample(fraction=1, shuffle=True, seed=0).write_parquet(tmp_path / "cells.parquet")
    database = Database({"cells": [tmp_path / "cells.parquet"]}, threads=1)
    differences = np.subtract.outer(np.arange(SIDE), np.arange(SIDE))
    results = np.where(differences >= 100, differences, -1)
    known = answered(database, "subtract", results)
    cells = grid.sort("op1", "op2").filter(known).select("op1", "op2").to_numpy()
    np.testing.assert_array_equal(cells, np.argwhere(results >= 0))

    satisfied = members(database, "subtract", list(map(parse, NAMES)))
    of_pair = {}
    for label, kept in (("all", np.ones(len(grid), bool)), ("answered", known)):
        inside = dict(zip(NAMES, satisfied[:, kept], strict=True))
        table = overlaps(NAMES, satisfied[:, kept], -1.0)
        rows = {(first, second): tuple(row) for first, second, *row in table.rows()}
        for first, second in permutations(NAMES, 2):
            assert rows[first, second] == expected(inside[first], inside[second])
        of_pair[label] = rows[NAMES[0], NAMES[1]][0]
    assert of_pair["all"] < 0.01
    assert of_pair["answered"] == pytest.approx(1)
