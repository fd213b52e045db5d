"""Hits of operands' heuristics under relabellings. They do not change which activations come first, only whose they are.

Where the cells are a whole rectangle, tables that are made once say all there is to know: how many of the first activations each
value of an operand has. Elsewhere other activations come into the cells, but still in an order that was found once: a walk along it
that leaves out whatever now is in no cell.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

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
    operands = np.stack(np.divmod(order.astype(np.uint32), np.uint32(ranks.shape[1])))
    if len(order) > n:
        number = np.full(ranks.shape, n, np.uint32)
        number[square.op1, square.op2] = np.arange(n)
        _by_order(operands, number, of, labels, found)
    else:
        stops, which = np.unique(np.concatenate([of.k, n - of.k]), return_inverse=True)
        tables = Tables(_tabulate(operands, stops, max(ranks.shape)), *which.reshape(2, -1))
        _by_tables(tables, ranks, (square.op1, square.op2), of, labels, found)
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


@njit(nogil=True, cache=True)
def _by_order(order, number, of, labels, found):
    """Fills found where the cells are anything else. order: (2, places) operands; number: (op1, op2) of the cell, or how many there are."""
    n = number.max()
    values, places = np.empty((2, n + 1), np.uint32), np.empty(n + 1, np.uint32)
    names = np.empty(number.shape[0], np.uint32), np.empty(number.shape[1], np.uint32)  # label -> operand that has it now
    for draw in range(len(found)):
        for operand in range(2):
            for value in range(number.shape[operand]):
                names[operand][labels[operand][draw, value]] = value
        place = np.uint32(0)
        for i in range(order.shape[1]):
            op1, op2 = names[0][order[0, i]], names[1][order[1, i]]
            cell = number[op1, op2]
            values[0, place], values[1, place], places[cell] = op1, op2, place
            place += np.uint32(cell < n)
        for operand in range(2):
            hits_of_values(values[operand, :n], of, operand, found[draw])
        hits_of_cells(places[:n], of, found[draw])
