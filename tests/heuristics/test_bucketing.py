"""Counting answers before a stop, in buckets, against sorting."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.heuristics.null_distribution.buckets import advance, arrange, workspace


def before_stops(values: np.ndarray, answers: np.ndarray, k: np.ndarray) -> dict[int, np.ndarray]:
    """Return k -> how many of the first k cells have each answer.

    values: (cells,) between -1 and 1; answers: (cells,); k: numbers of cells.
    """
    space = workspace(answers, k)
    space.values[:] = values
    arrange(space)
    stops, counts, segment = space.stops, {}, 0
    pairs, lower = np.zeros(space.table.shape[1], space.table.dtype), (1 << space.half) - 1
    for stop, cells in enumerate(stops.k.tolist()):
        segment = advance(space, stop, segment, pairs)
        seen, ties = (pairs & lower).astype(np.int64), (pairs >> space.half).astype(np.int64)
        before, all_ties = stops.before[stop], stops.ties[stop]
        assert 0 < before <= all_ties
        counts[cells] = seen + ties * before / all_ties
    return counts


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(2, 3000),
    st.sampled_from([1, 5, 10**6]),
    st.integers(0, 30),
    st.sampled_from([9, 2000]),
)
def test_the_first_cells_are_those_of_sorting(
    seed: int, cells: int, distinct: int, octaves: int, largest: int
):
    """All larger values come before a stop, and a share of its ties.

    Values have many ties, both signs, a wide range and zeros.
    """
    random = np.random.default_rng(seed)
    values = random.integers(-distinct, distinct + 1, cells) / distinct
    values *= 2.0 ** -random.integers(0, octaves + 1, cells)
    values = values.astype(np.float32)
    answers = random.integers(0, largest + 1, cells)
    counts = before_stops(values, answers, random.integers(1, cells, 20))
    values[np.abs(values) < 2.0**-32] = 0
    mantissa, exponent = np.frexp(values)
    values = np.ldexp(np.trunc(mantissa * 1024), exponent)
    for k, first in counts.items():
        last = -np.sort(-values)[k - 1]
        above = np.bincount(answers[values > last], minlength=len(first))
        ties = np.bincount(answers[values == last], minlength=len(first))
        expected = above + ties * (k - above.sum()) / ties.sum()
        np.testing.assert_allclose(first, expected, atol=1e-9)


def test_a_stop_among_ties_alone_takes_the_same_share_of_each_answer():
    values = np.repeat([0.5, 0, -0.5], [1000, 2000, 1000]).astype(np.float32)
    counts = before_stops(values, np.arange(4000), np.array([2000]))
    np.testing.assert_array_equal(counts[2000], np.repeat([1, 0.5, 0], [1000, 2000, 1000]))


@pytest.mark.parametrize("others", [0, 200_000])
def test_one_answer_may_have_more_cells_than_16_bits_count(others: int):
    """The counts fill a table, or are too few for one because there are many other answers."""
    values = np.linspace(1, -1, 70_000, dtype=np.float32)
    answers = np.zeros(70_000, int)
    answers[-1] = others
    counts = before_stops(values, answers, np.array([10, 66_000, 69_000]))
    assert [counts[k][0] for k in (10, 66_000, 69_000)] == [10, 66_000, 69_000]
