"""How well heuristics describe a neuron's map: Algorithm 1 of Nikankin et al. 2025, App. F, exactly.

A map gives every cell a number. Its cells are put in order, largest first, ties by (op1, op2). A heuristic that k cells
satisfy scores the share of the first k that satisfy it (top), or of the last k (bottom). One walk along the order serves all
heuristics: it counts, for every value of a quantity, the cells seen so far, and at the k-th cell adds up the counts of the
values that belong to the heuristic.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

DIGIT = 11  # bits of a float32 sorted at once
BUCKETS = 1 << DIGIT


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
        np.concatenate([np.zeros(0, np.int32), *members]).astype(np.int32),
    )
    return made, order


def scores(values: np.ndarray, of: Sets) -> np.ndarray:
    """Scores at the top and at the bottom (2, sets) float32 of one map (cells,), without NaN; a set without cells scores NaN."""
    found = np.empty((2, len(of.k)), np.int32)
    hits(descending(values.astype(np.float32)), of, found)
    with np.errstate(invalid="ignore"):
        return (found / of.k).astype(np.float32)


@njit(nogil=True, cache=True)
def strengths(values, of):
    """Mean of a map (cells,) over each set's cells, in root mean squares of the map: (sets,); 0 where the map is 0."""
    sums = np.zeros((len(of.values), of.largest + 1))
    squares = 0.0
    for cell in range(len(values)):
        squares += values[cell] * values[cell]
        for quantity in range(len(of.values)):
            sums[quantity, of.values[quantity, cell]] += values[cell]
    scale = np.sqrt(squares / len(values))
    means = np.zeros(len(of.k))
    for number in range(len(of.k)):
        total = 0.0
        for i in range(of.starts[number], of.starts[number + 1]):
            total += values[of.members[i]] if of.quantity[number] == len(of.values) else sums[of.quantity[number], of.members[i]]
        if scale > 0 and of.k[number]:
            means[number] = total / of.k[number] / scale
    return means


@njit(nogil=True, cache=True)
def falling(bits):
    """A number of 32 bits that is smaller the larger a float32 with these bits (int32) is; -0 is 0."""
    if bits == np.int32(-0x80000000):
        bits = np.int32(0)
    rising = bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))
    return np.uint32(~rising) ^ np.uint32(0x80000000)


@njit(nogil=True, cache=True)
def descending(values):
    """Which cell comes where, largest first, ties by number: float32 (cells,) to int32 (cells,). A radix sort, 11 bits at a time."""
    n = len(values)
    bits = values.view(np.int32)
    keys, other_keys = np.empty(n, np.uint32), np.empty(n, np.uint32)
    order, other = np.empty(n, np.int32), np.empty(n, np.int32)
    starts = np.zeros((3, BUCKETS), np.int32)
    for cell in range(n):
        key = falling(bits[cell])
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


@njit(nogil=True, cache=True)
def running_total(counts):
    """Counts become where each begins, in place."""
    total = 0
    for i in range(len(counts)):
        count = counts[i]
        counts[i] = total
        total += count


@njit(nogil=True, cache=True)
def hits(order, of, found):
    """How many of each set's k cells are among the first k of the order (found[0]) and among the last k (found[1]).

    The last k are those that are not among the first n - k, so one walk along the order finds both.
    """
    n, sets = len(order), len(of.k)
    counts = np.zeros((len(of.values), of.largest + 1), np.int32)
    place, top, bottom = 0, 0, sets - 1
    while top < sets or bottom >= 0:
        stop = n
        if top < sets:
            stop = min(stop, of.k[top])
        if bottom >= 0:
            stop = min(stop, n - of.k[bottom])
        for quantity in range(len(of.values)):
            values, seen = of.values[quantity], counts[quantity]
            for i in range(place, stop):
                seen[values[order[i]]] += 1
        place = stop
        while top < sets and of.k[top] == stop:
            found[0, top] = covered(of, top, counts)
            top += 1
        while bottom >= 0 and n - of.k[bottom] == stop:
            found[1, bottom] = of.k[bottom] - covered(of, bottom, counts)
            bottom -= 1
    if sets and of.quantity.max() == len(of.values):
        hits_of_cells(order, of, found)


@njit(nogil=True, cache=True)
def covered(of, number, counts):
    """The cells counted so far that belong to a set of values."""
    total = 0
    if of.quantity[number] < len(counts):
        seen = counts[of.quantity[number]]
        for i in range(of.starts[number], of.starts[number + 1]):
            total += seen[of.members[i]]
    return total


@njit(nogil=True, cache=True)
def hits_of_cells(order, of, found):
    """`hits` of the sets of cells."""
    n = len(order)
    places = np.empty(n, np.int32)
    for i in range(n):
        places[order[i]] = i
    for number in range(len(of.k)):
        if of.quantity[number] == len(of.values):
            k = of.k[number]
            found[0, number] = found[1, number] = 0
            for i in range(of.starts[number], of.starts[number + 1]):
                found[0, number] += places[of.members[i]] < k
                found[1, number] += places[of.members[i]] >= n - k


@njit(nogil=True, cache=True)
def answer_set(results, cells, first, most, covers, chosen):
    """The fewest results that cover a share of a map's first cells (a multi-result heuristic): how many, and its score at the top.

    results: the answers in the map's order; cells: (results,) how many cells have each answer; first: how many cells are looked at;
    most: results allowed; covers: the share; chosen: filled with the results found. 0 where one or more than `most` are needed.
    """
    counts = np.zeros(len(cells), np.int32)
    first = min(first, len(results))
    for i in range(first):
        counts[results[i]] += 1
    reached, number = 0, 0
    while number < most and reached < covers * first:
        chosen[number] = np.argmax(counts)
        reached += counts[chosen[number]]
        counts[chosen[number]] = 0
        number += 1
    if number < 2 or reached < covers * first:
        return 0, 0.0
    k = 0
    for result in chosen[:number]:
        k += cells[result]
    inside = 0
    for i in range(k):
        for result in chosen[:number]:
            inside += results[i] == result
    return number, inside / k
