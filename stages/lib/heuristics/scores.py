"""How well heuristics describe a neuron's map: Algorithm 1 of Nikankin et al. 2025, App. F, exactly.

A map gives every cell a number. Its cells are put in order, largest first, ties by (op1, op2). A heuristic that k cells
satisfy scores the share of the first k that satisfy it (top), or of the last k (bottom). One walk along the order serves all
heuristics: it counts, for every value of a quantity, the cells seen so far, and at the k-th cell adds up the counts of the
values that belong to the heuristic.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stages.lib.core.compiled import compiled

DIGIT, BUCKETS = 11, 1 << 11  # bits of a float32 sorted at once


class Sets(NamedTuple):
    """Heuristics as sets of values, in rising order of how many cells they cover.

    values: (quantities, cells) of every cell; largest: value of any; quantity: (sets,) what each is about, or `quantities` where it is
    a set of cells; k: (sets,) cells covered; starts: (sets + 1,) where in `members` the values of each begin.
    """

    values: np.ndarray
    largest: int
    quantity: np.ndarray
    k: np.ndarray
    starts: np.ndarray
    members: np.ndarray


def sets(satisfied: np.ndarray, quantities: Sequence[str], values: Mapping[str, np.ndarray]) -> tuple[Sets, np.ndarray]:
    """The heuristics as sets, and the index of each among those given.

    satisfied: (heuristics, cells) bool; quantities: what each is about; values: quantity -> its value in each cell. A
    heuristic about something else than these, such as both operands, is a set of cells.
    """
    sizes, names = satisfied.sum(1), list(values)
    order = np.argsort(sizes, kind="stable")
    members = [np.unique(values[quantities[i]][satisfied[i]]) if quantities[i] in values else np.flatnonzero(satisfied[i]) for i in order]
    made = Sets(
        np.array([values[name] for name in names], np.int32),
        max(int(of.max(initial=0)) for of in values.values()),
        np.array([names.index(quantities[i]) if quantities[i] in values else len(names) for i in order], np.int32),
        sizes[order].astype(np.int32),
        np.cumsum([0, *map(len, members)]).astype(np.int32),
        np.concatenate([np.zeros(0, np.uint32), *members]).astype(np.uint32),
    )
    return made, order


def scores(values: np.ndarray, of: Sets) -> np.ndarray:
    """Scores at the top and at the bottom (2, sets) float32 of one map (cells,), without NaN; a set without cells scores NaN."""
    found = np.empty((2, len(of.k)), np.int32)
    hits(descending(values.astype(np.float32)), of, found)
    with np.errstate(invalid="ignore"):
        return (found / of.k).astype(np.float32)


@compiled()
def strengths(values, of):
    """Mean of a map (cells,) over each set's cells, in root mean squares of the map: (sets,); 0 where the map is 0."""
    sums = np.zeros((len(of.values), of.largest + 1))
    squares = 0.0
    for cell in range(len(values)):
        squares += values[cell] * values[cell]
        for quantity in range(len(of.values)):
            sums[quantity, of.values[quantity, cell]] += values[cell]
    scale = np.sqrt(squares / max(len(values), 1))  # an operator may have no cells
    means = np.zeros(len(of.k))
    for number in range(len(of.k)):
        total = 0.0
        for i in range(of.starts[number], of.starts[number + 1]):
            total += values[of.members[i]] if of.quantity[number] == len(of.values) else sums[of.quantity[number], of.members[i]]
        if scale > 0 and of.k[number]:
            means[number] = total / of.k[number] / scale
    return means


@compiled()
def descending(values):
    """Which cell comes where, largest first, ties by number: float32 (cells,) to int32 (cells,). A radix sort, 11 bits at a time."""
    n = len(values)
    bits = values.view(np.uint32)
    keys, other_keys = np.empty(n, np.uint32), np.empty(n, np.uint32)
    order, other = np.empty(n, np.int32), np.empty(n, np.int32)
    starts = np.zeros((3, BUCKETS), np.int32)
    for cell in range(n):
        size = bits[cell] & np.uint32(0x7FFFFFFF)
        key = np.uint32(0x7FFFFFFF) + size if bits[cell] > size else np.uint32(0x7FFFFFFF) - size  # smaller the larger the value is
        keys[cell], order[cell] = key, cell
        for digit in range(3):
            starts[digit, (key >> np.uint32(DIGIT * digit)) & np.uint32(BUCKETS - 1)] += 1
    for digit in range(3):
        running_total(starts[digit])
        for i in range(n):
            bucket = (keys[i] >> np.uint32(DIGIT * digit)) & np.uint32(BUCKETS - 1)
            place = starts[digit, bucket]
            starts[digit, bucket] += 1
            other_keys[place], other[place] = keys[i], order[i]
        keys, other_keys, order, other = other_keys, keys, other, order
    return order


@compiled()
def running_total(counts):
    """Counts become where each begins, in place."""
    total = 0
    for i in range(len(counts)):
        count = counts[i]
        counts[i] = total
        total += count


@compiled()
def hits(order, of, found):
    """How many of each set's k cells are among the first k of the order (found[0]) and among the last k (found[1])."""
    n = len(order)
    ordered, places = np.empty(n, np.int32), np.empty(n, np.int32)
    for quantity in range(len(of.values)):
        values = of.values[quantity]
        for i in range(n):
            ordered[i] = values[order[i]]
        hits_of_values(ordered, of, quantity, found)
    for i in range(n):
        places[order[i]] = i
    hits_of_cells(places, of, found)


@compiled()
def hits_of_values(ordered, of, quantity, found):
    """`hits` of the sets of one quantity's values. ordered: (cells,) its value in every cell, in the map's order.

    The last k are those that are not among the first n - k, so one walk along the order finds both.
    """
    n, chosen = len(ordered), np.flatnonzero(of.quantity == quantity)
    seen, other = np.zeros(of.largest + 1, np.uint32), np.zeros(of.largest + 1, np.uint32)
    place, top, bottom = 0, 0, len(chosen) - 1
    while top < len(chosen) or bottom >= 0:
        stop = n
        if top < len(chosen):
            stop = min(stop, of.k[chosen[top]])
        if bottom >= 0:
            stop = min(stop, n - of.k[chosen[bottom]])
        count(ordered, place, stop, seen, other)
        place = stop
        while top < len(chosen) and of.k[chosen[top]] == stop:
            found[0, chosen[top]] = covered(seen, members_of(of, chosen[top]))
            top += 1
        while bottom >= 0 and n - of.k[chosen[bottom]] == stop:
            found[1, chosen[bottom]] = of.k[chosen[bottom]] - covered(seen, members_of(of, chosen[bottom]))
            bottom -= 1


@compiled()
def count(ordered, place, stop, seen, other):
    """Adds how often each value stands from place to stop to seen (values,). other: zeros.

    Long parts are counted in two arrays in turn: quotients are equal so often that one counter would wait for itself.
    """
    if stop - place < len(seen):
        for i in range(place, stop):
            seen[ordered[i]] += np.uint32(1)
        return
    for i in range(place, stop - 1, 2):
        seen[ordered[i]] += np.uint32(1)
        other[ordered[i + 1]] += np.uint32(1)
    seen[ordered[stop - 1]] += np.uint32((stop - place) % 2)
    for value in range(len(seen)):
        seen[value] += other[value]
        other[value] = 0


@compiled()
def members_of(of, number):
    """The values or cells that belong to one set."""
    return of.members[of.starts[number] : of.starts[number + 1]]


@compiled()
def covered(seen, members):
    """The cells seen that belong to a set of values. seen: (values,) uint32, how many cells have each."""
    total = np.uint32(0)
    for i in range(len(members)):  # unsigned of 32 bits throughout: three times as fast
        total = np.uint32(total + seen[members[i]])
    return np.int64(total)


@compiled()
def hits_of_cells(places, of, found):
    """`hits` of the sets of cells. places: (cells,) where in the order each one is."""
    n = len(places)
    for number in range(len(of.k)):
        if of.quantity[number] == len(of.values):
            k = of.k[number]
            found[0, number] = found[1, number] = 0
            for i in range(of.starts[number], of.starts[number + 1]):
                found[0, number] += places[of.members[i]] < k
                found[1, number] += places[of.members[i]] >= n - k
