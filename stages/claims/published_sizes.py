"""Algorithm 1 with the sizes k of the published code: it looks at the first k cells where a heuristic covers another number.

Two of its sizes are wrong. That of a range of op2 is that of the same range of op1, and that of a remainder of the result modulo n
is (M // n) ** 2, M being the number of operands, which multiply and divide cut off at a cap. The first is about heuristics of
the operands and the second about those of the result, so each has one group of heuristics to itself.
"""

from dataclasses import dataclass

import numpy as np

from stages.lib.heuristics.names import parse
from stages.lib.heuristics.scores import Sets, descending, hits
from stages.lib.heuristics.square import Square

OP2, MODULO = "op2 range with op1's size", "result modulo with (M // n)^2"
FAULTS = {"none": (0, 0), OP2: (1, 0), MODULO: (0, 1), "both": (1, 1)}  # name -> which of Sizes operands and result are scored with
CAPPED = ("multiply", "divide")


@dataclass(frozen=True, eq=False)
class Sized:
    """Heuristics scored on some number of cells. sets: its k is that number, in rising order; covered: (sets,) cells that satisfy each."""

    sets: Sets
    covered: np.ndarray


Sizes = tuple[Sized, Sized]  # the right sizes, the published ones


def operand_sizes(square: Square) -> Sizes:
    """The operands' heuristics; a range of op2 has the size of the same range of op1."""
    group = square.operands
    k = group.sets.k.copy()
    for i in np.flatnonzero((group.kinds == "range") & (group.quantities == "op2")):
        first, last = map(int, parse(group.names[i]).parameters)
        k[i] = ((square.op1 >= first) & (square.op1 <= last)).sum()
    return sized(group.sets, group.sets.k), sized(group.sets, k)


def result_sizes(square: Square, cap: int) -> Sizes:
    """The result's heuristics; a remainder modulo n has the size (M // n) ** 2, at most `cap` where the operator is capped."""
    group = square.answers
    operands, most = int(max(square.op1.max(), square.op2.max())) + 1, cap if square.operator in CAPPED else len(square.cells)
    k = group.sets.k.copy()
    for i in np.flatnonzero(group.kinds == "modulo"):
        k[i] = min((operands // int(parse(group.names[i]).parameters[0])) ** 2, most, len(square.cells))
    return sized(group.sets, group.sets.k), sized(group.sets, k)


def sized(of: Sets, k: np.ndarray) -> Sized:
    """Heuristics of some sizes. of: as the catalogue has them; k: (sets,) at most the cells, the covered ones for a set of cells."""
    order = np.argsort(k, kind="stable")
    members = [of.members[of.starts[i] : of.starts[i + 1]] for i in order]
    made = of._replace(
        quantity=of.quantity[order],
        k=k[order].astype(np.int32),
        starts=np.cumsum([0, *map(len, members)]).astype(np.int32),
        members=np.concatenate([of.members[:0], *members]),
    )
    return Sized(made, of.k[order])


def best(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """A map's (cells,) best score, top or bottom, of any heuristic: float32 (2,), for the right and for the published sizes."""
    order = descending(values.astype(np.float32))
    return np.array([scores(order, of).max(initial=0) for of in sizes], np.float32)


def scores(order: np.ndarray, of: Sized) -> np.ndarray:
    """Scores at the top and at the bottom (2, sets), for cells in this order; 0 for a heuristic whose size is 0."""
    found = np.empty((2, len(of.covered)), np.int32)
    hits(order, of.sets, found)
    found[1] += of.covered - of.sets.k  # it finds the last cells as those covered, k of them it believes, that are not before
    return found / np.maximum(of.sets.k, 1)
