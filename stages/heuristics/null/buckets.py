"""Answers in the order of a neuron's contributions, put in order no further than sets of so many cells need it.

Whether a cell is among the first k matters, not where, and k takes a few hundred values, the stops. So cells are counted in fine
buckets by the upper bits of their contribution, buckets between two stops are thrown together, and only the bucket in which a stop
lies is sorted: the order is exact at every stop. Ties there are broken at random.

A contribution becomes a key, a number that is the smaller the larger the contribution is: with no sign, its float32's bits; what is
below 2^-32 of the largest possible one counts as zero. All functions fill or change the arrays of a Workspace.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

KEY_BITS, OCTAVES, MANTISSA = 29, 32, 23
ZERO = 1 << (KEY_BITS - 1)  # the key of nothing
FLOOR = (127 - OCTAVES) << MANTISSA  # the bits of the smallest float32 that is told from zero
MOST_BUCKETS = 15  # bits; more do not stay in a processor's near memory


class Workspace(NamedTuple):
    """Room for one map. shift: a key's bits that do not count for its bucket; with the answer they make an item, behind 32 - shift bits.

    stops: rising (stops,); counts: cells by bucket; segments: the segment of each bucket; ends: (2 · stops + 1,) of each segment, in
    places of the order; keys: (cells,) in the cells' order; items: (cells,) in the map's order, after `settle` answers alone.
    """

    shift: int
    stops: np.ndarray
    counts: np.ndarray
    segments: np.ndarray
    ends: np.ndarray
    keys: np.ndarray
    items: np.ndarray


def workspace(cells: int, largest: int, stops: np.ndarray) -> Workspace:
    """Room for maps of so many cells, whose answers are at most `largest`; stops: numbers of cells, 0 < stop < cells."""
    shift = min(max(KEY_BITS - MOST_BUCKETS, KEY_BITS - cells.bit_length()), 32 - int(largest).bit_length())
    buckets = (1 << (KEY_BITS - shift)) + 1
    stops = np.unique(stops).astype(np.uint32)
    counts, segments, ends = np.empty(buckets, np.uint32), np.empty(buckets, np.uint16), np.empty(2 * len(stops) + 1, np.uint32)
    return Workspace(shift, stops, counts, segments, ends, np.empty(cells, np.uint32), np.empty(cells, np.uint32))


@njit(nogil=True, cache=True)
def take(square, stretches, labels, values):
    """Fills values (cells,) with what relabelling brings there from a square (op1, op2)."""
    row, column = labels
    for number in range(len(stretches) - 1):
        source, columns = square[row[stretches[number, 1]]], column[stretches[number, 2] :]
        start = stretches[number, 0]
        for i in range(stretches[number + 1, 0] - start):
            values[start + i] = source[columns[i]]


@njit(nogil=True, cache=True, fastmath={"reassoc"})
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


@njit(nogil=True, cache=True)
def count_keys(space):
    """Turns contributions between -1 and 1, which stand where keys do, into keys, and counts them by bucket."""
    keys, counts, shift = space.keys, space.counts, np.uint32(space.shift)
    for cell in range(len(keys)):
        size = max(keys[cell] & np.uint32(0x7FFFFFFF), np.uint32(FLOOR)) - np.uint32(FLOOR)
        keys[cell] = np.uint32(ZERO) + size if keys[cell] >> np.uint32(31) else np.uint32(ZERO) - size
    counts[:] = 0
    for key in keys:
        counts[key >> shift] += np.uint32(1)


@njit(nogil=True, cache=True)
def cut(space):
    """Fills segments and where each begins (ends): a bucket in which a stop lies is one, as are all buckets between such."""
    counts, segments, begins = space.counts, space.segments, space.ends
    bucket, segment, place = 0, 0, np.int64(0)
    begins[0] = 0
    for stop in space.stops:
        if stop < place:
            continue
        while place + counts[bucket] <= stop:
            segments[bucket] = segment
            place += counts[bucket]
            bucket += 1
        if place > begins[segment]:
            segment += 1
            begins[segment] = place
        if place < stop:
            segments[bucket] = segment
            place += counts[bucket]
            bucket, segment = bucket + 1, segment + 1
            begins[segment] = place
    segments[bucket:] = segment
    begins[segment + 1 :] = len(space.keys)


@njit(nogil=True, cache=True)
def spread(results, space):
    """Fills items, segment by segment: a key's lower bits above its cell's answer. `ends` then is where segments end."""
    keys, segments, ends, items = space.keys, space.segments, space.ends, space.items
    shift, room = np.uint32(space.shift), np.uint32(32 - space.shift)
    for cell in range(len(keys)):
        segment = segments[keys[cell] >> shift]
        place = ends[segment]
        items[place] = (keys[cell] << room) | results[cell]
        ends[segment] = place + np.uint32(1)


@njit(nogil=True, cache=True)
def settle(space):
    """Sorts the segments in which a stop lies, then leaves nothing but answers in the items."""
    stops, items, room, begin, number = space.stops, space.items, np.uint32(32 - space.shift), 0, 0
    for end in space.ends:
        while number < len(stops) and stops[number] <= begin:
            number += 1
        if number < len(stops) and stops[number] < end:
            sort(items[begin:end], room)
            while number < len(stops) and stops[number] < end:
                settled = begin + break_ties(items[begin:end], stops[number] - begin, room)
                while number < len(stops) and stops[number] < settled:
                    number += 1
        begin = end
    answer = np.uint32((1 << (32 - space.shift)) - 1)
    for i in range(len(items)):
        items[i] &= answer


@njit(nogil=True, cache=True)
def sort(items, room):
    """Puts items in rising order, in place, unless all are ties."""
    n, first = len(items), items[0] >> room
    if n > 100:
        for item in items:
            if item >> room != first:
                items.sort()
                break
        return
    old = items.copy()
    for i in range(n):
        place = 0
        for j in range(n):
            place += (old[j] < old[i]) | ((old[j] == old[i]) & (j < i))
        items[place] = old[i]


@njit(nogil=True, cache=True)
def break_ties(items, stop, room):
    """Shuffles the ties that stand on both sides of a stop; returns where they end."""
    begin, end = stop, stop + 1
    while begin > 0 and items[begin - 1] >> room == items[stop] >> room:
        begin -= 1
    while end < len(items) and items[end] >> room == items[stop] >> room:
        end += 1
    if begin < stop:
        np.random.shuffle(items[begin:end])
    return end
