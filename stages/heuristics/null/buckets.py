"""Answers in the order of a neuron's contributions, as far as sets of so many cells need it.

Whether a cell is among the first k matters, not where, and k takes a few hundred values, the stops. So cells are counted in fine
buckets by the upper bits of their contribution, and buckets between two stops are thrown together into one segment. A table of how
often each answer stands in each segment then says all there is to know, but for the bucket in which a stop lies: its cells, whose
contributions are within .2 percent, count as ties, and as many of each answer as there would be on average come before the stop.
Counts are whole numbers, so that nothing depends on the order in which a processor adds them up.
"""

from typing import NamedTuple

import numpy as np

from stages.lib.core.compiled import compiled

MANTISSA, OCTAVES = 9, 32  # bits of a contribution that count; what is below 2^-32 of the largest possible one counts as zero
SHIFT = 23 - MANTISSA  # bits of a float32 that do not
ZERO = OCTAVES << MANTISSA  # the bucket of nothing; larger contributions are in buckets before it
FLOOR = (127 - OCTAVES) << MANTISSA  # the upper bits of the smallest float32 that is told from zero
BUCKETS = 2 * ZERO + 1


class Workspace(NamedTuple):
    """Room for one map.

    values: (cells,) contributions; buckets: (cells,) of each; ends: (buckets,) how many cells are in it or before it; segments:
    (buckets,) its segment; stops: rising (stops,), 0 < stop < cells; stop_segments: (stops,) in which each lies, a bucket of its own;
    inside: (stops, 2) how many of its cells come before the stop, of how many; table: (segments, answers) how many cells, without rows
    where the cells are too few to fill it: then items (cells,) are their answers, segment by segment, and starts where each begins.
    """

    values: np.ndarray
    buckets: np.ndarray
    ends: np.ndarray
    segments: np.ndarray
    stops: np.ndarray
    stop_segments: np.ndarray
    inside: np.ndarray
    table: np.ndarray
    items: np.ndarray
    starts: np.ndarray


SPARSE = 50  # entries of the table for each cell, from which on it takes longer to go through than the cells


def workspace(results: np.ndarray, stops: np.ndarray) -> Workspace:
    """Room for maps whose cells have these answers (cells,); stops: numbers of cells."""
    sizes, stops = np.bincount(results), np.unique(stops)
    cells, segments = len(results), 2 * len(stops) + 1
    rows = 0 if segments * len(sizes) > SPARSE * cells else segments
    return Workspace(
        np.empty(cells, np.float32), np.empty(cells, np.uint16), np.empty(BUCKETS, np.uint32), np.empty(BUCKETS, np.uint16),
        stops.astype(np.uint32), np.empty(len(stops), np.int64), np.empty((len(stops), 2), np.int64),
        np.empty((rows, len(sizes)), np.uint16 if sizes.max() < 1 << 16 else np.uint32),
        np.empty(cells, np.uint32), np.empty(segments + 1, np.uint32),
    )  # fmt: skip


@compiled()
def take(square, stretches, labels, values):
    """Fills values (cells,) with what relabelling brings there from a square (op1, op2)."""
    row, column = labels
    for number in range(len(stretches) - 1):
        source, columns = square[row[stretches[number, 1]]], column[stretches[number, 2] :]
        start = stretches[number, 0]
        for i in range(stretches[number + 1, 0] - start):
            values[start + i] = source[columns[i]]


@compiled(fastmath={"reassoc"})
def weigh(values, weights):
    """Multiplies values by weights (cells,), in place; returns sums of the values, of their squares and of the products.

    They are added up in whatever order is fast: in float64, what that changes is not seen in the float32 that is kept.
    """
    total = squares = products = 0.0
    for cell in range(len(values)):
        value, product = np.float64(values[cell]), values[cell] * weights[cell]
        values[cell] = product
        total += value
        squares += value * value
        products += np.float64(product)
    return total, squares, products


@compiled()
def sort_into_buckets(space):
    """Fills buckets and ends from the values, which are between -1 and 1."""
    bits, buckets, ends = space.values.view(np.uint32), space.buckets, space.ends
    for cell in range(len(bits)):
        size = max((bits[cell] & np.uint32(0x7FFFFFFF)) >> np.uint32(SHIFT), np.uint32(FLOOR)) - np.uint32(FLOOR)
        buckets[cell] = np.uint32(ZERO) + size if bits[cell] >> np.uint32(31) else np.uint32(ZERO) - size
    ends[:] = 0
    for bucket in buckets:
        ends[bucket] += np.uint32(1)
    total = np.uint32(0)
    for bucket in range(len(ends)):
        total += ends[bucket]
        ends[bucket] = total


@compiled()
def cut(space):
    """Fills segments, stop_segments and inside: a bucket in which a stop lies is a segment, and so are all between two such."""
    ends, segments = space.ends, space.segments
    buckets = np.searchsorted(ends, space.stops)
    segment = begin = 0  # the next segment, and the first bucket that has none
    for number in range(len(space.stops)):
        bucket = buckets[number]
        if bucket >= begin:
            if bucket > begin:
                segments[begin:bucket] = segment
                segment += 1
            segments[bucket] = segment
            segment, begin = segment + 1, bucket + 1
        before = np.int64(ends[bucket - 1]) if bucket else 0
        space.stop_segments[number] = segment - 1
        space.inside[number] = space.stops[number] - before, ends[bucket] - before
    segments[begin:] = segment
    return segment + 1


@compiled()
def tabulate(results, segments, space):
    """Fills the table's first segments, or items and starts. results: (cells,) uint32."""
    table, starts = space.table, space.starts
    if len(table):
        table[:segments] = 0
        for cell in range(len(results)):
            table[space.segments[space.buckets[cell]], results[cell]] += 1
        return
    starts[:] = 0
    for bucket in space.buckets:
        starts[space.segments[bucket] + 1] += np.uint32(1)
    for segment in range(segments):
        starts[segment + 1] += starts[segment]
    for cell in range(len(results)):
        segment = space.segments[space.buckets[cell]]
        space.items[starts[segment]] = results[cell]
        starts[segment] += np.uint32(1)
    starts[1 : segments + 1] = starts[:segments].copy()
    starts[0] = 0


@compiled()
def walk(space, number, segment, seen, ties):
    """Adds to seen what is in the segments from one, by its number, to a stop's, and fills ties with what is in that; both (answers,)
    uint32. Returns the stop's segment."""
    table, starts, stop = space.table, space.starts, space.stop_segments[number]
    if len(table):
        for before in range(segment, stop):
            for answer in range(len(seen)):
                seen[answer] += np.uint32(table[before, answer])
        for answer in range(len(seen)):
            ties[answer] = table[stop, answer]
        return stop
    for item in space.items[starts[segment] : starts[stop]]:
        seen[item] += np.uint32(1)
    ties[:] = 0
    for item in space.items[starts[stop] : starts[stop + 1]]:
        ties[item] += np.uint32(1)
    return stop
