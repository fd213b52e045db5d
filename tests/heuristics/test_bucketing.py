"""The order that is exact at its stops alone, against sorting."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.heuristics.null.buckets import count_keys, cut, settle, spread, workspace


def ordered(values: np.ndarray, answers: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Answers (cells,) in the order of values (cells,) between -1 and 1."""
    space = workspace(len(values), answers.max(), stops)
    space.keys.view(np.float32)[:] = values
    count_keys(space)
    cut(space)
    spread(answers.astype(np.uint32), space)
    settle(space)
    return space.items


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 3000), st.sampled_from([1, 5, 10**6]), st.integers(0, 30), st.sampled_from([9, 2000, 99999]))
def test_the_first_cells_are_those_of_sorting(seed: int, cells: int, distinct: int, octaves: int, answers: int):
    """At every stop: all cells above the value there, and as many of its ties as fit in. Many ties, both signs, a wide range, zeros."""
    random = np.random.default_rng(seed)
    values = (random.integers(-distinct, distinct + 1, cells) / distinct * 2.0 ** -random.integers(0, octaves + 1, cells)).astype(
        np.float32
    )
    of = random.integers(0, answers + 1, cells)
    stops = random.integers(1, cells, 20)
    found = ordered(values, of, stops)
    values[np.abs(values) <= 2.0**-32] = 0
    order = np.argsort(-values, kind="stable")
    for stop in stops:
        above, ties = of[values > values[order[stop]]], of[values == values[order[stop]]]
        first = np.bincount(found[:stop], minlength=answers + 1) - np.bincount(above, minlength=answers + 1)
        assert (first >= 0).all()
        assert (first <= np.bincount(ties, minlength=answers + 1)).all()
    np.testing.assert_array_equal(np.sort(found), np.sort(of))


@pytest.mark.parametrize("values", [np.zeros(4000), np.repeat([0.5, 0, -0.5], [1000, 2000, 1000])])
def test_ties_are_broken_at_random(values: np.ndarray):
    """Answers rise with the number of the cell; among ties the first half has as many small ones as the second."""
    stop = 2000
    found = ordered(values.astype(np.float32), np.arange(len(values)), np.array([stop]))
    ties = np.flatnonzero(values == values[stop])
    below = np.isin(found[:stop], ties[: len(ties) // 2]).sum() / np.isin(found[:stop], ties).sum()
    assert below == pytest.approx(0.5, abs=0.06)
