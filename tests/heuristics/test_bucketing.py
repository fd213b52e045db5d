"""What comes before a stop, from counting in buckets, against sorting."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.heuristics.null.buckets import cut, sort_into_buckets, tabulate, walk, workspace


def before_stops(values: np.ndarray, answers: np.ndarray, stops: np.ndarray) -> tuple[list[int], list[np.ndarray]]:
    """The stops, and how many cells of each answer come before each. values: (cells,) between -1 and 1; answers: (cells,)."""
    space = workspace(answers, stops)
    space.values[:] = values
    sort_into_buckets(space)
    tabulate(answers.astype(np.uint32), cut(space), space)
    seen, ties = np.zeros(space.table.shape[1], np.uint32), np.empty(space.table.shape[1], np.uint32)
    segment, found = 0, []
    for number in range(len(space.stops)):
        segment = walk(space, number, segment, seen, ties)
        inside, of = space.inside[number]
        assert 0 < inside <= of
        found.append(seen + ties * inside / of)
    return space.stops.tolist(), found


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 3000), st.sampled_from([1, 5, 10**6]), st.integers(0, 30), st.sampled_from([9, 2000]))
def test_the_first_cells_are_those_of_sorting(seed: int, cells: int, distinct: int, octaves: int, answers: int):
    """At every stop: all cells above the value there, and its ties' share. Many ties, both signs, a wide range, zeros."""
    random = np.random.default_rng(seed)
    values = random.integers(-distinct, distinct + 1, cells) / distinct * 2.0 ** -random.integers(0, octaves + 1, cells)
    values = values.astype(np.float32)
    of = random.integers(0, answers + 1, cells)
    stops, found = before_stops(values, of, random.integers(1, cells, 20))
    values[np.abs(values) < 2.0**-32] = 0
    mantissa, exponent = np.frexp(values)
    values = np.ldexp(np.trunc(mantissa * 1024), exponent)
    for stop, first in zip(stops, found, strict=True):
        last = -np.sort(-values)[stop - 1]
        above, ties = (np.bincount(of[chosen], minlength=len(first)) for chosen in (values > last, values == last))
        np.testing.assert_allclose(first, above + ties * (stop - above.sum()) / ties.sum(), atol=1e-9)


def test_a_stop_among_nothing_but_ties_takes_an_equal_share_of_all():
    values = np.repeat([0.5, 0, -0.5], [1000, 2000, 1000]).astype(np.float32)
    [stop], [first] = before_stops(values, np.arange(4000), np.array([2000]))
    assert stop == first.sum() == 2000
    np.testing.assert_array_equal(first, np.repeat([1, 0.5, 0], [1000, 2000, 1000]))
