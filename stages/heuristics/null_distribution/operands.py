"""Hits of the operands' heuristics under relabellings of the operands.

These heuristics are scored on activations. A relabelling moves activations to other cells, but does
not change their order. If the cells are a whole block of the operand grid, all activations stay in
use, and tables made once give all hits: how many of the first activations belong to each value of
an operand. Otherwise other activations come into the cells, and each draw puts the cells in order
anew, by ranks that were found once.
"""

from typing import NamedTuple

import numpy as np

from stages.lib.core.compiled import compiled
from stages.lib.heuristics.grid import OperandGrid
from stages.lib.heuristics.scores import hits_of_cells, hits_of_values, members_of


class Tables(NamedTuple):
    """How often each value of an operand occurs among the first activations.

    counts: (2 operands, stops, values); top: (heuristics,) the stop at a heuristic's k; bottom:
    (heuristics,) the stop at all cells but k.
    """

    counts: np.ndarray
    top: np.ndarray
    bottom: np.ndarray


def operand_hits(
    grid: OperandGrid,
    ranks: np.ndarray,
    order: np.ndarray,
    labels: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """Count the hits of one neuron's activations under relabellings.

    ranks: (op1, op2) the rank of each activation, 0 for the largest; order: (activations,) flat
    locations on the grid, by rank; labels: rows (draws, op1) and columns (draws, op2), see
    `permutations`. Returns (draws, 2 sides, heuristics) int32.
    """
    heuristics, n = grid.operands.sets, len(grid.cells)
    hits = np.zeros((len(labels[0]), 2, len(heuristics.k)), np.int32)
    cells = grid.op1.astype(np.uint32), grid.op2.astype(np.uint32)
    if len(order) > n:
        _by_order(ranks, cells, heuristics, labels, hits)
        return hits
    both = np.concatenate([heuristics.k, n - heuristics.k])
    stops, stop_numbers = np.unique(both, return_inverse=True)
    operands = np.stack(np.divmod(order, ranks.shape[1]))
    counts = _tabulate(operands, stops, max(ranks.shape))
    tables = Tables(counts, *stop_numbers.reshape(2, -1))
    _by_tables(tables, ranks, cells, heuristics, labels, hits)
    return hits


@compiled()
def _tabulate(operands, stops, values):
    """Count how often each value is among the first, up to each stop: (operands, stops, values).

    operands: (operands, activations) by rank; values: how many an operand may have.
    """
    counts = np.zeros((len(operands), len(stops), values), np.uint32)
    for operand in range(len(operands)):
        seen, first = np.zeros(values, np.uint32), 0
        for stop in range(len(stops)):
            for value in operands[operand, first : stops[stop]]:
                seen[value] += 1
            counts[operand, stop] = seen
            first = stops[stop]
    return counts


@compiled()
def _by_tables(tables, ranks, cells, heuristics, labels, hits):
    """Fill `hits` if the cells are a whole block of the grid."""
    op1, op2 = cells
    cell_ranks = np.zeros(len(op1), np.int32)  # filled for the members of sets of cells only
    used = _used(heuristics, len(op1))
    for draw in range(len(hits)):
        row, column = labels[0][draw], labels[1][draw]
        for cell in used:
            cell_ranks[cell] = ranks[row[op1[cell]], column[op2[cell]]]
        for number in range(len(heuristics.k)):
            quantity, members = heuristics.quantity[number], members_of(heuristics, number)
            if quantity == len(heuristics.values):
                continue
            label = row if quantity == 0 else column
            first = tables.counts[quantity, tables.top[number]]
            rest = tables.counts[quantity, tables.bottom[number]]
            top, bottom = np.uint32(0), np.uint32(heuristics.k[number])
            for member in members:
                top = np.uint32(top + first[label[member]])
                bottom = np.uint32(bottom - rest[label[member]])
            hits[draw, 0, number], hits[draw, 1, number] = top, bottom
        hits_of_cells(cell_ranks, heuristics, hits[draw])


@compiled()
def _used(heuristics, cells):
    """Return the cells, rising, that belong to any set of cells; cells: their number."""
    used = np.zeros(cells, np.bool_)
    for number in range(len(heuristics.k)):
        if heuristics.quantity[number] == len(heuristics.values):
            used[members_of(heuristics, number)] = True
    return np.flatnonzero(used).astype(np.uint32)


@compiled()
def _by_order(ranks, cells, heuristics, labels, hits):
    """Fill `hits` for any other cells: put them in order by the ranks that they now have."""
    op1, op2 = cells
    n = len(op1)
    cell_at, order = np.empty(ranks.size, np.uint32), np.empty(n + 1, np.uint32)
    ordered, places = np.empty((2, n), np.uint32), np.empty(n, np.uint32)
    for draw in range(len(hits)):
        row, column = labels[0][draw], labels[1][draw]
        cell_at[:] = n  # no cell has this number
        for cell in range(n):
            cell_at[ranks[row[op1[cell]], column[op2[cell]]]] = cell
        _without(n, cell_at, order)
        for place in range(n):
            cell = order[place]
            ordered[0, place], ordered[1, place], places[cell] = op1[cell], op2[cell], place
        for operand in range(2):
            hits_of_values(ordered[operand], heuristics, operand, hits[draw])
        hits_of_cells(places, heuristics, hits[draw])


@compiled()
def _without(unwanted, numbers, others):
    """Copy all numbers but the unwanted ones to `others`, which has room for one more.

    Every number is written, but the place moves on after a wanted one only. This needs no branch,
    which a processor would often predict wrongly.
    """
    place = 0
    for number in numbers:
        others[place] = number
        place += number != unwanted
