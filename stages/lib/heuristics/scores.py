"""Score how well heuristics describe a neuron's map: Algorithm 1 of Nikankin et al. 2025, App. F.

A map gives every cell a number. Its cells are sorted, largest first, ties by (op1, op2). The score
of a heuristic that k cells satisfy is the share of the first k cells that satisfy it (top), or of
the last k (bottom). One pass over the sorted cells serves all heuristics. It counts, for every
value of a quantity, the cells seen so far. At the k-th cell it adds up the counts of the values
that belong to the heuristic.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stages.lib.core.compiled import compiled

DIGIT = 11  # bits of a float32 that one pass of the radix sort uses
BUCKETS = 1 << DIGIT


class Sets(NamedTuple):
    """Heuristics as sets of values, sorted by the number of cells that they cover.

    values: (quantities, cells) int32 of every cell; largest: largest of all values; quantity:
    (sets,) index of each set's quantity, or `quantities` for a set of cells; k: (sets,) cells
    covered; starts: (sets + 1,) where the values, or cells, of each set begin in `members`.
    """

    values: np.ndarray
    largest: int
    quantity: np.ndarray
    k: np.ndarray
    starts: np.ndarray
    members: np.ndarray


def sets(
    satisfied: np.ndarray,
    quantities: Sequence[str],
    values: Mapping[str, np.ndarray],
) -> tuple[Sets, np.ndarray]:
    """Return the heuristics as sets, and the index of each set's heuristic in the arguments.

    satisfied: (heuristics, cells) bool; quantities: what each heuristic is about; values: quantity
    -> (cells,) its values. A heuristic about any other quantity, such as both operands, becomes a
    set of cells.
    """
    sizes, names = satisfied.sum(1), list(values)
    order = np.argsort(sizes, kind="stable")
    members, numbers = [], []
    for heuristic in order:
        quantity, cells = quantities[heuristic], satisfied[heuristic]
        if quantity in values:
            members.append(np.unique(values[quantity][cells]))
            numbers.append(names.index(quantity))
        else:
            members.append(np.flatnonzero(cells))
            numbers.append(len(names))
    table = np.array(list(values.values()), np.int32)
    made = Sets(
        values=table,
        largest=int(table.max(initial=0)),
        quantity=np.array(numbers, np.int32),
        k=sizes[order].astype(np.int32),
        starts=np.cumsum([0, *map(len, members)]).astype(np.int32),
        members=np.concatenate([np.zeros(0, np.uint32), *members]).astype(np.uint32),
    )
    return made, order


def scores(values: np.ndarray, sets: Sets) -> np.ndarray:
    """Score all sets on one map, at the top and at the bottom: (2, sets) float32.

    values: (cells,) without NaN. A set without cells scores NaN.
    """
    counts = np.empty((2, len(sets.k)), np.int32)
    hits(descending(values.astype(np.float32)), sets, counts)
    with np.errstate(invalid="ignore"):
        return (counts / sets.k).astype(np.float32)


@compiled()
def strengths(values, sets):
    """Average a map over each set's cells, in root mean squares of the map: (sets,).

    values: (cells,). The result is 0 if the map is 0.
    """
    sums = np.zeros((len(sets.values), sets.largest + 1))
    squares = 0.0
    for cell in range(len(values)):
        squares += values[cell] * values[cell]
        for quantity in range(len(sets.values)):
            sums[quantity, sets.values[quantity, cell]] += values[cell]
    scale = np.sqrt(squares / max(len(values), 1))  # an operator may have no cells
    means = np.zeros(len(sets.k))
    for number in range(len(sets.k)):
        total, quantity = 0.0, sets.quantity[number]
        for i in range(sets.starts[number], sets.starts[number + 1]):
            if quantity == len(sets.values):
                total += values[sets.members[i]]
            else:
                total += sums[quantity, sets.members[i]]
        if scale > 0 and sets.k[number]:
            means[number] = total / sets.k[number] / scale
    return means


@compiled()
def descending(values):
    """Sort cells by value, largest first, ties by number: float32 (cells,) to int32 (cells,).

    It is a radix sort, 11 bits at a time.
    """
    n, largest = len(values), np.uint32(0x7FFFFFFF)
    bits = values.view(np.uint32)
    keys, other_keys = np.empty(n, np.uint32), np.empty(n, np.uint32)
    order, other = np.empty(n, np.int32), np.empty(n, np.int32)
    starts = np.zeros((3, BUCKETS), np.int32)
    for cell in range(n):
        size = bits[cell] & largest  # without the sign
        is_negative = bits[cell] > size
        key = largest + size if is_negative else largest - size  # the larger a value, the smaller
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
    """Replace counts by the sum of all counts before each, in place."""
    total = 0
    for i in range(len(counts)):
        count = counts[i]
        counts[i] = total
        total += count


@compiled()
def hits(order, sets, counts):
    """Count the cells of each set among the first k cells and among the last k.

    order: (cells,) sorted cells; counts: (2, sets), is filled, the first k cells before the last k.
    """
    n = len(order)
    ordered, places = np.empty(n, np.int32), np.empty(n, np.int32)
    for quantity in range(len(sets.values)):
        values = sets.values[quantity]
        for i in range(n):
            ordered[i] = values[order[i]]
        hits_of_values(ordered, sets, quantity, counts)
    for i in range(n):
        places[order[i]] = i
    hits_of_cells(places, sets, counts)


@compiled()
def hits_of_values(ordered, sets, quantity, counts):
    """Count hits, as `hits` does, for the sets of one quantity's values.

    ordered: (cells,) the quantity's value in each of the sorted cells. The last k cells are those
    that are not among the first n - k, so one pass over the sorted cells finds both.
    """
    n, numbers = len(ordered), np.flatnonzero(sets.quantity == quantity)
    seen, other = np.zeros(sets.largest + 1, np.uint32), np.zeros(sets.largest + 1, np.uint32)
    place, top, bottom = 0, 0, len(numbers) - 1
    while top < len(numbers) or bottom >= 0:
        stop = n
        if top < len(numbers):
            stop = min(stop, sets.k[numbers[top]])
        if bottom >= 0:
            stop = min(stop, n - sets.k[numbers[bottom]])
        count(ordered, place, stop, seen, other)
        place = stop
        while top < len(numbers) and sets.k[numbers[top]] == stop:
            counts[0, numbers[top]] = covered(seen, members_of(sets, numbers[top]))
            top += 1
        while bottom >= 0 and n - sets.k[numbers[bottom]] == stop:
            first = covered(seen, members_of(sets, numbers[bottom]))
            counts[1, numbers[bottom]] = sets.k[numbers[bottom]] - first
            bottom -= 1


@compiled()
def count(ordered, place, stop, seen, other):
    """Add how often each value occurs from place to before stop to seen (values,).

    other: (values,) zeros. Long parts are counted in two arrays in turn. Quotients are so often
    equal that a single counter would wait for itself.
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
def members_of(sets, number):
    """Return the values or cells that belong to one set."""
    return sets.members[sets.starts[number] : sets.starts[number + 1]]


@compiled()
def covered(seen, members):
    """Count the cells seen that belong to a set of values; seen: (values,) uint32 cells of each."""
    total = np.uint32(0)
    for i in range(len(members)):  # 32-bit unsigned integers throughout: three times as fast
        total = np.uint32(total + seen[members[i]])
    return np.int64(total)


@compiled()
def hits_of_cells(places, sets, counts):
    """Count hits, as `hits` does, for the sets of cells; places: (cells,) position of each."""
    n = len(places)
    for number in range(len(sets.k)):
        if sets.quantity[number] == len(sets.values):
            k, members = sets.k[number], members_of(sets, number)
            counts[0, number], counts[1, number] = outside(places, members, k, n - k)


@compiled()
def outside(places, members, first, last):
    """Count the members whose places are before `first`, and those from `last` on.

    places: (cells,) position of each, or rank; members: cells.
    """
    before, after = np.uint32(0), np.uint32(0)
    for i in range(len(members)):
        place = np.int32(places[members[i]])
        before = np.uint32(before + np.uint32(place < np.int32(first)))
        after = np.uint32(after + np.uint32(place >= np.int32(last)))
    return np.int64(before), np.int64(after)
