"""Hits of operands' heuristics under relabellings. They do not change which activations come first, only whose they are.

Where the cells are a whole rectangle, tables that are made once say all there is to know: how many of the first activations each
value of an operand has. Elsewhere other activations come into the cells, but still in an order that was found once: a cell's place
is the number of smaller ranks that the cells have.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from stages.heuristics.null.buckets import take
from stages.lib.heuristics.scores import hits_of_cells, hits_of_values, members_of
from stages.lib.heuristics.square import Square

WORD, HALF = np.uint32(64), np.uint32(16)  # bits: of a word of marks; of a pair of operands, for each


class Tables(NamedTuple):
    """counts: (2, stops, values) of each operand's value among the first activations, up to each stop.

    top, bottom: (sets,) which stop is a set's k, and which is all cells but k.
    """

    counts: np.ndarray
    top: np.ndarray
    bottom: np.ndarray


def operand_hits(square: Square, ranks: np.ndarray, order: np.ndarray, labels: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Hits (draws, 2 sides, sets) int32.

    order: the places of the square from which cells get their activations, largest activation first; ranks: (op1, op2) in that order;
    labels: rows (draws, op1) and columns (draws, op2), see permutations.
    """
    of, n = square.operands.sets, len(square.cells)
    found = np.zeros((len(labels[0]), 2, len(of.k)), np.int32)
    cells = (square.op1.astype(np.uint32), square.op2.astype(np.uint32), square.stretches)
    if len(order) > n:
        _by_order(ranks, cells, of, labels, found)
    else:
        stops, which = np.unique(np.concatenate([of.k, n - of.k]), return_inverse=True)
        counts = _tabulate(np.stack(np.divmod(order, ranks.shape[1])), stops, max(ranks.shape))
        _by_tables(Tables(counts, *which.reshape(2, -1)), ranks, cells, of, labels, found)
    return found


@njit(nogil=True, cache=True)
def _tabulate(values, stops, number):
    """How often each of so many values is among the first, up to each stop: (quantities, stops, number). values: (quantities, cells)."""
    counts = np.zeros((len(values), len(stops), number), np.uint32)
    for quantity in range(len(values)):
        seen, place = np.zeros(number, np.uint32), 0
        for i in range(len(stops)):
            for value in values[quantity, place : stops[i]]:
                seen[value] += 1
            counts[quantity, i] = seen
            place = stops[i]
    return counts


@njit(nogil=True, cache=True)
def _by_tables(tables, ranks, cells, of, labels, found):
    """Fills found where the cells are a whole rectangle."""
    op1, op2, _ = cells
    places = np.zeros(len(op1), np.int32)  # only of cells that a set of cells has
    for draw in range(len(found)):
        row, column = labels[0][draw], labels[1][draw]
        for number in range(len(of.k)):
            quantity, members = of.quantity[number], members_of(of, number)
            if quantity == 2:
                for cell in members:
                    places[cell] = ranks[row[op1[cell]], column[op2[cell]]]
                continue
            label = row if quantity == 0 else column
            first, rest = tables.counts[quantity, tables.top[number]], tables.counts[quantity, tables.bottom[number]]
            top, bottom = np.uint32(0), np.uint32(of.k[number])
            for member in members:
                top = np.uint32(top + first[label[member]])
                bottom = np.uint32(bottom - rest[label[member]])
            found[draw, 0, number], found[draw, 1, number] = top, bottom
        hits_of_cells(places, of, found[draw])


@njit(nogil=True, cache=True)
def _by_order(ranks, cells, of, labels, found):
    """Fills found where the cells are anything else."""
    op1, op2, stretches = cells
    pairs, n = (op1 << HALF) | op2, len(op1)
    places, ordered, one = np.empty(n, np.uint32), np.empty(n, np.uint32), np.empty(n, np.uint32)
    taken, before = np.empty(ranks.size // WORD + 1, np.uint64), np.empty(ranks.size // WORD + 1, np.uint32)
    for draw in range(len(found)):
        take(ranks, stretches, (labels[0][draw], labels[1][draw]), places)
        _mark(places, taken, before)
        for cell in range(n):
            word, bit = places[cell] // WORD, np.uint64(1) << np.uint64(places[cell] % WORD)
            place = before[word] + _ones(taken[word] & (bit - np.uint64(1)))
            places[cell], ordered[place] = place, pairs[cell]
        for quantity in range(2):
            for i in range(n):
                one[i] = ordered[i] & np.uint32((1 << HALF) - 1) if quantity else ordered[i] >> np.uint32(HALF)
            hits_of_values(one, of, quantity, found[draw])
        hits_of_cells(places, of, found[draw])


@njit(nogil=True, cache=True)
def _mark(ranks, taken, before):
    """Fills taken, a bit per rank, with which the cells have, and before with how many they have in front of each word of it."""
    taken[:] = 0
    for rank in ranks:
        taken[rank // WORD] |= np.uint64(1) << np.uint64(rank % WORD)
    total = np.uint32(0)
    for word in range(len(taken)):
        before[word] = total
        total += _ones(taken[word])


@njit(nogil=True, cache=True, inline="always")
def _ones(word):
    """How many bits of a word are set."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.uint32((word * np.uint64(0x0101010101010101)) >> np.uint64(56))
