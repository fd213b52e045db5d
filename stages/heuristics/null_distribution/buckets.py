"""Count the answers among the first k cells of a neuron's contributions, without sorting the cells.

A heuristic that k cells satisfy needs the first k cells of a map, in any order. It is enough to
know how often each answer occurs before each such k, which is called a stop here. `arrange` finds
this in three steps:

1. It puts each cell into a bucket by the upper bits of its contribution. Contributions in one
   bucket differ by at most 0.2 percent.
2. It joins the buckets between two stops into one segment. A bucket that holds a stop is a segment
   of its own.
3. It counts how often each answer occurs in each segment.

`advance` then goes from stop to stop and adds up segments. The cells of a bucket that holds a stop
count as ties: the same share of each answer's ties is before the stop. All counts are whole
numbers, so they do not depend on the order in which a processor adds them.

An answer's count before the stop's bucket and its count of ties are kept as one number, a pair, in
whose upper half the ties are. So one addition adds both, and one access reads both.
"""

from typing import NamedTuple

import numpy as np

from stages.lib.core.compiled import compiled

MANTISSA = 9  # bits of a contribution's mantissa that distinguish buckets
OCTAVES = 32  # a contribution below 2^-32 of the largest possible one counts as zero
SHIFT = 23 - MANTISSA  # lower bits of a float32 that are ignored
ZERO = OCTAVES << MANTISSA  # the bucket of zero; positive contributions are in buckets before it
FLOOR = (127 - OCTAVES) << MANTISSA  # upper bits of the smallest float32 that is not zero
BUCKETS = 2 * ZERO + 1
SPARSE = 50  # table entries per cell above which lists of answers are faster than a table


class Stops(NamedTuple):
    """The numbers k of first cells that heuristics need, and the buckets that hold the k-th cell.

    k: (stops,) uint32, rising, 0 < k < cells; segments: (stops,) the segment that is the stop's
    bucket; ties: (stops,) cells in that bucket; before: (stops,) how many of these ties are among
    the first k cells.
    """

    k: np.ndarray
    segments: np.ndarray
    ties: np.ndarray
    before: np.ndarray


class Workspace(NamedTuple):
    """Arrays that are reused for every map of the same cells.

    answers: (cells,) uint32; values: (cells,) contributions, -1 to 1; buckets: (cells,) the bucket
    of each; ends: (buckets,) number of cells in a bucket or before it; segments: (buckets,) the
    segment of each; stops: see above.

    The counts of answers by segment have one of two forms. table: (stops' segments + 1, answers)
    pairs of the counts in the segment before a stop's and in the stop's. If the cells are too few
    to fill a table, it has no rows, and listed: (cells,) has the answers, segment by segment, and
    starts: (segments + 2,) where each segment begins in it. half: bits of half a pair.
    """

    answers: np.ndarray
    values: np.ndarray
    buckets: np.ndarray
    ends: np.ndarray
    segments: np.ndarray
    stops: Stops
    table: np.ndarray
    listed: np.ndarray
    starts: np.ndarray
    half: int


def workspace(answers: np.ndarray, stops: np.ndarray) -> Workspace:
    """Allocate the arrays for maps whose cells have these answers.

    answers: (cells,) integers; stops: numbers of first cells, in any order, repeats allowed.
    """
    sizes, k = np.bincount(answers), np.unique(stops)
    cells, segments = len(answers), 2 * len(k) + 1
    rows = 0 if segments * len(sizes) > SPARSE * cells else len(k) + 1
    half = 16 if sizes.max() < 1 << 16 else 32
    return Workspace(
        answers=answers.astype(np.uint32),
        values=np.empty(cells, np.float32),
        buckets=np.empty(cells, np.uint16),
        ends=np.empty(BUCKETS, np.uint32),
        segments=np.empty(BUCKETS, np.uint16),
        stops=Stops(k.astype(np.uint32), *np.empty((3, len(k)), np.int64)),
        table=np.empty((rows, len(sizes)), f"uint{2 * half}"),
        listed=np.empty(cells, np.uint32),
        starts=np.empty(segments + 2, np.uint32),
        half=half,
    )


@compiled()
def arrange(space):
    """Count the answers in each segment of the contributions `space.values`."""
    _sort_into_buckets(space)
    _cut(space)
    if len(space.table):
        _fill_table(space)
    else:
        _list_answers(space)


@compiled()
def advance(space, stop, segment, pairs):
    """Update the pairs (answers,) of the last stop to those of this one; return its segment.

    stop: number of the stop; segment: of the last stop, 0 at first, and pairs are then 0.
    """
    last = space.stops.segments[stop]
    if last == segment:
        return last
    table = space.table
    if len(table):
        for row in range((segment + 1) // 2, (last + 1) // 2):
            if space.half == 16:  # numbers known when this is compiled are four times as fast
                for answer in range(len(pairs)):
                    pair = pairs[answer]
                    pairs[answer] = (pair & 0xFFFF) + (pair >> 16) + table[row, answer]
            else:
                for answer in range(len(pairs)):
                    pair = pairs[answer]
                    pairs[answer] = (pair & 0xFFFFFFFF) + (pair >> 32) + table[row, answer]
        return last
    listed, starts, tie = space.listed, space.starts, 1 << space.half
    following = segment + segment % 2
    for i in range(starts[segment], starts[following]):  # ties no more
        pairs[listed[i]] -= tie - 1
    for i in range(starts[following], starts[last]):
        pairs[listed[i]] += 1
    for i in range(starts[last], starts[last + 1]):
        pairs[listed[i]] += tie
    return last


@compiled()
def _sort_into_buckets(space):
    """Fill `buckets` and `ends`; the larger a value, the lower its bucket."""
    bits, buckets, ends = space.values.view(np.uint32), space.buckets, space.ends
    zero, floor = np.uint32(ZERO), np.uint32(FLOOR)
    for cell in range(len(bits)):
        upper = (bits[cell] & np.uint32(0x7FFFFFFF)) >> np.uint32(SHIFT)
        size = max(upper, floor) - floor
        is_negative = bits[cell] >> np.uint32(31)
        buckets[cell] = zero + size if is_negative else zero - size
    ends[:] = 0
    for bucket in buckets:
        ends[bucket] += np.uint32(1)
    total = np.uint32(0)
    for bucket in range(len(ends)):
        total += ends[bucket]
        ends[bucket] = total


@compiled()
def _cut(space):
    """Fill `segments` and `stops`; odd segments hold stops, even ones before may be empty."""
    ends, segments, stops = space.ends, space.segments, space.stops
    buckets = np.searchsorted(ends, stops.k)  # which holds the k-th cell
    segment = first = 0  # the next segment, and the first bucket without one
    for stop in range(len(stops.k)):
        bucket = buckets[stop]
        if bucket >= first:  # otherwise the last stop is in the same bucket
            segments[first:bucket] = segment
            segments[bucket] = segment + 1
            segment, first = segment + 2, bucket + 1
        cells_before = np.int64(ends[bucket - 1]) if bucket else 0
        stops.segments[stop] = segment - 1
        stops.ties[stop] = ends[bucket] - cells_before
        stops.before[stop] = stops.k[stop] - cells_before
    segments[first:] = segment


@compiled()
def _fill_table(space):
    table, segments, buckets, tie = space.table, space.segments, space.buckets, 1 << space.half
    table[:] = 0
    for cell, answer in enumerate(space.answers):
        segment = segments[buckets[cell]]
        table[segment >> 1, answer] += tie if segment & 1 else 1


@compiled()
def _list_answers(space):
    """Fill `listed` and `starts` by counting sort."""
    starts = space.starts
    starts[:] = 0
    for bucket in space.buckets:
        starts[space.segments[bucket] + 2] += np.uint32(1)
    for segment in range(2, len(starts)):
        starts[segment] += starts[segment - 1]
    # starts[segment + 1] is where the next answer of a segment goes, and in the end the next start
    for cell in range(len(space.answers)):
        following = space.segments[space.buckets[cell]] + 1
        space.listed[starts[following]] = space.answers[cell]
        starts[following] += np.uint32(1)
