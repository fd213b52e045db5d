"""Hits of operands' heuristics under relabellings. They do not change which activations come first, only whose they are.

Where the cells are a whole rectangle, tables that are made once say all there is to know: how many of the first activations each
value of an operand has. Elsewhere other activations come into the cells, but still in an order that was found once.
"""

from typing import NamedTuple

import numpy as np

from stages.lib.core.compiled import compiled
from stages.lib.heuristics.scores import hits_of_cells, hits_of_values, members_of
from stages.lib.heuristics.square import Square


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
    cells = square.op1.astype(np.uint32), square.op2.astype(np.uint32)
    if len(order) > n:
        _by_order(ranks, cells, of, labels, found)
    else:
        stops, which = np.unique(np.concatenate([of.k, n - of.k]), return_inverse=True)
        tables = Tables(_tabulate(np.stack(np.divmod(order, ranks.shape[1])), stops, max(ranks.shape)), *which.reshape(2, -1))
        _by_tables(tables, ranks, cells, of, labels, found)
    return found


@compiled()
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


@compiled()
def _by_tables(tables, ranks, cells, of, labels, found):
    """Fills found where the cells are a whole rectangle."""
    op1, op2 = cells
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


@compiled()
def _by_order(ranks, cells, of, labels, found):
    """Fills found where the cells are anything else: marks the ranks that they have now, and takes the marks in order."""
    op1, op2 = cells
    n, one = len(op1), np.uint64(1)
    marks, cell_of = np.zeros(ranks.size // 64 + 1, np.uint64), np.empty(ranks.size, np.uint32)  # a bit for each rank; rank -> cell
    values, places = np.empty((2, n), np.uint32), np.empty(n, np.uint32)
    for draw in range(len(found)):
        row, column = labels[0][draw], labels[1][draw]
        for cell in range(n):
            rank = ranks[row[op1[cell]], column[op2[cell]]]
            marks[rank >> np.uint32(6)] |= one << np.uint64(rank & np.uint32(63))
            cell_of[rank] = cell
        place = 0
        for word in range(len(marks)):
            left, marks[word] = marks[word], 0
            while left:
                rest = left & (left - one)
                cell = cell_of[64 * word + _ones((left ^ rest) - one)]
                values[0, place], values[1, place], places[cell] = op1[cell], op2[cell], place
                left = rest
                place += 1
        for operand in range(2):
            hits_of_values(values[operand], of, operand, found[draw])
        hits_of_cells(places, of, found[draw])


@compiled(inline="always")
def _ones(word):
    """How many bits of a word are set."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.uint32((word * np.uint64(0x0101010101010101)) >> np.uint64(56))
