"""Count the hits of one set of cells on several neurons' maps, with operands relabelled.

The hits are those of null_distribution/, which serves a whole catalogue at once. One set of cells
needs less work:

* Activations: give each activation the cell that a relabelling moves it to, and go through the
  activations from both ends until enough cells are seen. All neurons share a relabelling.
* Contributions: count cells, and cells of the set, by the bucket of their contribution.
"""

from typing import NamedTuple

import numpy as np

from stages.heuristics.null_distribution.buckets import BUCKETS, FLOOR, SHIFT, ZERO
from stages.lib.core.compiled import compiled

CELL, MEMBER = 1, 3  # what a location of the grid holds: no cell (0), a cell, a cell of the set


def codes(shape: tuple[int, int], cells: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Return what each location of the grid holds: (op1, op2) uint8.

    cells: (cells,) flat locations; members: (cells,) bool, whether a cell belongs to the set.
    """
    held = np.zeros(shape, np.uint8)
    held.ravel()[cells] = np.where(members, MEMBER, CELL)
    return held


@compiled()
def count_on_activations(held, orders, labels, hits):
    """Fill hits (draws, neurons, 2): cells of the set among the first k and among the last k.

    k is the number of cells in the set. held: see `codes`; orders: (neurons, locations) flat
    locations by activation, largest first; labels: rows (draws, op1) and columns (draws, op2), see
    relabelled.permutations.
    """
    rows, columns = labels
    moved = np.zeros(held.shape, np.uint8)
    flat = moved.reshape(-1)
    k, n = int(np.sum(held == MEMBER)), int(np.sum(held > 0))
    # the first k are all but the last n - k
    stop = min(k, n - k)
    for draw in range(len(hits)):
        for op1 in range(held.shape[0]):
            target = moved[rows[draw, op1]]
            for op2 in range(held.shape[1]):
                target[columns[draw, op2]] = held[op1, op2]
        for neuron in range(len(orders)):
            first = _members(flat, orders[neuron], stop)
            last = _members(flat, orders[neuron][::-1], stop)
            both = hits[draw, neuron]
            both[0], both[1] = (first, last) if stop == k else (k - last, k - first)


@compiled()
def _members(flat, order, stop):
    """Count the cells of the set among the first `stop` cells in this order."""
    cells = members = place = np.int64(0)
    while cells < stop:
        code = np.int64(flat[order[place]])
        cells += code & CELL
        members += code >> 1
        place += 1
    return members


class WeightedMaps(NamedTuple):
    """Neurons on the cells of an operator.

    activations: (neurons, op1, op2) float32; weights: (neurons, cells) float32, the scaled value
    logits of the cells' answers; stretches: see OperandGrid; is_member: (cells,) bool, whether a
    cell belongs to the set.
    """

    activations: np.ndarray
    weights: np.ndarray
    stretches: np.ndarray
    is_member: np.ndarray


def scaled(activations: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return one neuron's weights (cells,), scaled so that contributions are at most 1."""
    largest = np.abs(activations).max() * np.abs(weights).max()
    return np.ldexp(weights, -np.frexp(largest)[1])


@compiled()
def count_on_contributions(maps, labels, hits):
    """Fill hits (draws, neurons, 2), as count_on_activations does, for contributions.

    The cells in the bucket of the k-th cell are ties, and count in part.
    """
    rows, columns = labels
    n = len(maps.is_member)
    k = int(np.sum(maps.is_member))
    counts = np.uint64(1) + (maps.is_member.astype(np.uint64) << np.uint64(32))
    values, buckets = np.empty(n, np.float32), np.empty(n, np.uint16)
    tally = np.empty(BUCKETS, np.uint64)
    for draw in range(len(hits)):
        for neuron in range(len(maps.weights)):
            _contribute(maps, neuron, rows[draw], columns[draw], values)
            _tally(values.view(np.uint32), counts, buckets, tally)
            hits[draw, neuron, 0] = _members_of_first(tally, k)
            hits[draw, neuron, 1] = k - _members_of_first(tally, n - k)


@compiled()
def _contribute(maps, neuron, row, column, values):
    """Fill values (cells,) with the contributions under a relabelling."""
    stretches, weights = maps.stretches, maps.weights[neuron]
    for number in range(len(stretches) - 1):
        start, end = stretches[number, 0], stretches[number + 1, 0]
        source = maps.activations[neuron, row[stretches[number, 1]]]
        own = column[stretches[number, 2] :]
        for i in range(end - start):
            values[start + i] = source[own[i]] * weights[start + i]


@compiled()
def _tally(bits, counts, buckets, tally):
    """Count cells by bucket, largest contributions first, and those of the set in the upper half.

    bits: (cells,) contributions as uint32; counts: (cells,) what each cell adds; buckets: (cells,)
    and tally: (buckets,) uint64 are filled. Two loops, as a processor vectorises the first.
    """
    zero, floor = np.int32(ZERO), np.uint32(FLOOR)
    for cell in range(len(bits)):
        upper = (bits[cell] & np.uint32(0x7FFFFFFF)) >> np.uint32(SHIFT)
        size = np.int32(max(upper, floor) - floor)
        sign = (np.int32(bits[cell]) >> np.int32(31)) | np.int32(1)
        buckets[cell] = zero - sign * size
    tally[:] = 0
    for cell in range(len(bits)):
        tally[buckets[cell]] += counts[cell]


@compiled()
def _members_of_first(tally, stop):
    """Count the cells of the set among the first `stop` cells."""
    cells = members = np.int64(0)
    for bucket in range(len(tally)):
        count = np.int64(tally[bucket] & np.uint64(0xFFFFFFFF))
        inside = np.int64(tally[bucket] >> np.uint64(32))
        if cells + count >= stop:
            return members + (stop - cells) / count * inside
        cells += count
        members += inside
    return np.float64(members)
