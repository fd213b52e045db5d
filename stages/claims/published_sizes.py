"""Score heuristics with the sizes k of the published code (Algorithm 1).

Algorithm 1 looks at the first k cells of a neuron's map, where k should be the number of cells that
a heuristic covers. The published code has two wrong sizes. A range of op2 has the size of the same
range of op1. A remainder of the result modulo n has the size (M // n) ** 2, where M is the number
of operands, and which is cut off at a cap for multiply and divide. The first fault is about
heuristics of the operands, the second about heuristics of the result, so each has one group of
heuristics to itself.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stages.lib.heuristics.grid import OperandGrid
from stages.lib.heuristics.names import parse
from stages.lib.heuristics.scores import Sets, descending, hits

OP2, MODULO = "op2 range with op1's size", "result modulo with (M // n)^2"
RIGHT, PUBLISHED = 0, 1  # index in CoveredCells
# fault -> sizes with which heuristics of the operands and of the result are scored
FAULTS = {
    "none": (RIGHT, RIGHT),
    OP2: (PUBLISHED, RIGHT),
    MODULO: (RIGHT, PUBLISHED),
    "both": (PUBLISHED, PUBLISHED),
}
CAPPED = ("multiply", "divide")


@dataclass(frozen=True, eq=False)
class Sized:
    """Hold heuristics that are scored on given numbers of cells.

    sets: its k are these numbers, in rising order; covered: (sets,) cells that satisfy each.
    """

    sets: Sets
    covered: np.ndarray


class CoveredCells(NamedTuple):
    right: Sized
    published: Sized


def operand_sizes(grid: OperandGrid) -> CoveredCells:
    """Return the heuristics of operands; a range of op2 has the size of the same range of op1."""
    group = grid.operands
    k = group.sets.k.copy()
    for i in np.flatnonzero((group.kinds == "range") & (group.quantities == "op2")):
        first, last = map(int, parse(group.names[i]).parameters)
        k[i] = ((grid.op1 >= first) & (grid.op1 <= last)).sum()
    return CoveredCells(sized(group.sets, group.sets.k), sized(group.sets, k))


def result_sizes(grid: OperandGrid, cap: int) -> CoveredCells:
    """Return the heuristics of the result; a remainder modulo n has the size (M // n) ** 2.

    The size is at most `cap` for operators that are capped, and at most the number of cells.
    """
    group, cells = grid.answers, len(grid.cells)
    operands = int(max(grid.op1.max(), grid.op2.max())) + 1
    most = min(cap, cells) if grid.operator in CAPPED else cells
    k = group.sets.k.copy()
    for i in np.flatnonzero(group.kinds == "modulo"):
        divisor = int(parse(group.names[i]).parameters[0])
        k[i] = min((operands // divisor) ** 2, most)
    return CoveredCells(sized(group.sets, group.sets.k), sized(group.sets, k))


def sized(sets: Sets, k: np.ndarray) -> Sized:
    """Return heuristics with other sizes, in rising order of size.

    sets: heuristics as the catalogue has them; k: (sets,) at most the number of cells, and the
    number of covered cells for a set of cells.
    """
    order = np.argsort(k, kind="stable")
    parts = np.split(sets.members, sets.starts[1:-1])
    members = [parts[i] for i in order]
    reordered = sets._replace(
        quantity=sets.quantity[order],
        k=k[order].astype(np.int32),
        starts=np.cumsum([0, *map(len, members)]).astype(np.int32),
        members=np.concatenate([sets.members[:0], *members]),
    )
    return Sized(reordered, sets.k[order])


def best(values: np.ndarray, sizes: CoveredCells) -> np.ndarray:
    """Return the best score of any heuristic on a map, top or bottom.

    values: (cells,). The result is float32 (2,): with the right and with the published sizes.
    """
    order = descending(values.astype(np.float32))
    return np.array([scores(order, each).max(initial=0) for each in sizes], np.float32)


def scores(order: np.ndarray, heuristics: Sized) -> np.ndarray:
    """Return scores at the top and at the bottom (2, sets); 0 for a heuristic of size 0.

    order: (cells,) cells by falling value.
    """
    sets, covered = heuristics.sets, heuristics.covered
    counts = np.empty((2, len(covered)), np.int32)
    hits(order, sets, counts)
    # hits counts the bottom as k minus those before the last cells, as if k cells were covered
    counts[1] += covered - sets.k
    return counts / np.maximum(sets.k, 1)
