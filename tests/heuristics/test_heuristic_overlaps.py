"""Heuristics that overlap: by counting, and on the cells that a subject has an answer for, not on all that the grid has."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages.heuristics.heuristic_overlaps import overlaps
from stages.lib.heuristics.members import members
from stages.lib.heuristics.names import parse
from stages.lib.heuristics.square import answered
from stages.lib.sql.database import Database

NAMES = ["op1 in 99..198", "result in 99..198", "op2 mod 2 = 0"]


def test_two_that_only_an_answers_size_tells_apart_are_one_to_who_answers_it(tmp_path: Path):
    """The third digit of a difference: it is there from 100 on, and so is op1. On the grid they have next to nothing in common."""
    op1, op2 = (axis.ravel() for axis in np.indices((300, 300)))
    grid = pl.DataFrame({"operator": "subtract", "op1": op1, "op2": op2, "result": op1 - op2}).filter(pl.col("result") >= 0)
    grid.sample(fraction=1, shuffle=True, seed=0).write_parquet(tmp_path / "cells.parquet")
    database = Database({"cells": [tmp_path / "cells.parquet"]}, threads=1)
    side = 250  # this subject's square is smaller, too
    differences = np.subtract.outer(np.arange(side), np.arange(side))
    results = np.where(differences >= 100, differences, -1)
    known = answered(database, "subtract", results)
    cells = grid.sort("op1", "op2").filter(known)
    assert cells.select("op1", "op2").rows() == [tuple(place) for place in np.argwhere(results >= 0).tolist()]

    satisfied = members(database, "subtract", [parse(name) for name in NAMES])
    for kept in (np.ones(len(grid), bool), known):
        found = {row[:2]: row[2:] for row in overlaps(NAMES, satisfied[:, kept], -1.0).rows()}
        for one, mine in zip(NAMES, satisfied[:, kept], strict=True):
            for other, its in zip(NAMES, satisfied[:, kept], strict=True):
                if one != other:
                    share = max(mine.mean(), its.mean())
                    expected = ((mine & its).sum() / min(mine.sum(), its.sum()) - share) / (1 - share)
                    assert found[one, other] == (pytest.approx(expected), bool((mine == its).all()))
        both = found["op1 in 99..198", "result in 99..198"][0]
        assert both == pytest.approx(1) if kept is known else both < 0.01
