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
from stages.lib.heuristics.scores import covered, hits_of_cells, members_of, outside

NO_CELL = 0xFFFFFFFF  # no cell has these operands


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
    """Fill `hits` for any other cells: put their operands in order by the ranks that they now have.

    A cell's operands are one number, op1 in the upper half.
    """
    op1, op2 = cells
    n = len(op1)
    operands, cell_ranks = (op1 << np.uint32(16)) | op2, np.zeros(n, np.uint32)
    used = _used(heuristics, n)
    at_rank = np.empty(ranks.size, np.uint32)
    ordered, ordered_ranks = np.empty(n + 1, np.uint32), np.empty(n + 1, np.uint32)
    for draw in range(len(hits)):
        row, column = labels[0][draw], labels[1][draw]
        at_rank[:] = NO_CELL
        for cell in range(n):
            at_rank[ranks[row[op1[cell]], column[op2[cell]]]] = operands[cell]
        _put_in_order(at_rank, ordered, ordered_ranks)
        _hits_of_operands(ordered[:n], heuristics, hits[draw])
        for cell in used:
            cell_ranks[cell] = ranks[row[op1[cell]], column[op2[cell]]]
        for number in range(len(heuristics.k)):
            if heuristics.quantity[number] == len(heuristics.values):
                k, members = heuristics.k[number], members_of(heuristics, number)
                top, bottom = ordered_ranks[k], ordered_ranks[n - k]
                hits[draw, 0, number], hits[draw, 1, number] = outside(
                    cell_ranks, members, top, bottom
                )


@compiled()
def _put_in_order(at_rank, ordered, ordered_ranks):
    """Copy the operands of cells, and their ranks, to arrays that have room for one more.

    Every rank is written, but the place moves on after one with a cell only. This needs no branch,
    which a processor would often predict wrongly.
    """
    place = 0
    for rank, operands in enumerate(at_rank):
        ordered[place], ordered_ranks[place] = operands, rank
        place += operands != NO_CELL


@compiled()
def _hits_of_operands(ordered, heuristics, hits):
    """Count hits, as `hits` does, for the heuristics of both operands; ordered: (cells,)."""
    n, end, k = len(ordered), heuristics.largest + 1, heuristics.k
    seen = np.zeros((2, end), np.uint32)
    place, top, bottom = 0, 0, len(k) - 1
    while top < len(k) or bottom >= 0:
        stop = n
        if top < len(k):
            stop = min(stop, k[top])
        if bottom >= 0:
            stop = min(stop, n - k[bottom])
        for i in range(place, stop):
            seen[0, ordered[i] >> 16] += np.uint32(1)
            seen[1, ordered[i] & 0xFFFF] += np.uint32(1)
        place = stop
        while top < len(k) and k[top] == stop:
            quantity = heuristics.quantity[top]
            if quantity < 2:
                hits[0, top] = covered(seen[quantity], members_of(heuristics, top))
            top += 1
        while bottom >= 0 and n - k[bottom] == stop:
            quantity = heuristics.quantity[bottom]
            if quantity < 2:
                first = covered(seen[quantity], members_of(heuristics, bottom))
                hits[1, bottom] = k[bottom] - first
            bottom -= 1
