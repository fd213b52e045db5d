"""The answers of operators, and of bracketed pairs of operators, to all operands, as arrays."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import numpy as np
import polars as pl

from stages.corpus.prompts import SAME_EITHER_WAY
from stages.corpus.settings import Words
from stages.lib.core.vocabulary import Operator
from stages.mediation.pairs.draws import Counterparts

# Two operators in reading order, and whether the first one is in brackets.
Composition = tuple[Operator, Operator, bool]
NONE = -1  # where there is no answer
CALCULATE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": lambda x, y: np.where(y > 0, x // np.maximum(y, 1), NONE),
}


@dataclass(frozen=True, eq=False)
class Operation:
    """One operator, or two.

    words: placeholder -> its word; answers: (operands, …) the answer, NONE if it is not asked for.
    """

    name: str
    words: dict[str, str]
    answers: np.ndarray = field(repr=False)

    @cached_property
    def questions(self) -> np.ndarray:
        """The operands that have an answer, in order: (questions, operands)."""
        return np.argwhere(self.answers != NONE)

    @cached_property
    def counterparts(self) -> Counterparts:
        """Draws of two of these questions."""
        operands = np.ravel_multi_index(tuple(np.sort(self.questions).T), self.answers.shape)
        return Counterparts(self.answers[tuple(self.questions.T)], operands)

    def shared(self, other: "Operation") -> np.ndarray:
        """Return the operands to which both operations have an answer, and different ones."""
        both = (self.answers != NONE) & (other.answers != NONE)
        return np.argwhere(both & (self.answers != other.answers))

    def answer(self, operands: tuple[int, ...]) -> int:
        """Return the answer to these operands."""
        return int(self.answers[operands])


def operations(cells: pl.DataFrame, words: dict[Operator, Words]) -> list[Operation]:
    """Return the operators of `words` with the results of these cells as answers."""
    largest = max(cells["op1"].max() or 0, cells["op2"].max() or 0)  # type: ignore[type-var]
    size = int(largest) + 1  # type: ignore[arg-type]
    made = []
    for name, word in words.items():
        own = cells.filter(operator=name)
        answers = np.full((size, size), NONE, np.int32)
        answers[own["op1"].to_numpy(), own["op2"].to_numpy()] = own["result"].to_numpy()
        placeholders = {"symbol": word.symbol, "verb": word.verb, "noun": word.noun}
        made.append(Operation(name, placeholders, answers))
    return made


def compositions(
    words: dict[Operator, Words], operands: range, results: list[int]
) -> dict[Composition, Operation]:
    """Return all pairs of operators on three operands, with the first or the second in brackets.

    results: the answers that are asked for, from 0. Brackets that make no difference are left out.
    """
    numbers = [np.arange(operands.stop, dtype=np.int32)] * 3
    x, y, z = np.meshgrid(*numbers, indexing="ij", sparse=True)
    in_range = (x >= operands.start) & (y >= operands.start) & (z >= operands.start)
    composed: dict[Composition, Operation] = {}
    for first, second, left in product(words, words, (True, False)):
        if not left and (first, second) in SAME_EITHER_WAY:
            continue
        if left:
            inner = CALCULATE[first](x, y)
            outer = CALCULATE[second](inner, z)
        else:
            inner = CALCULATE[second](y, z)
            outer = CALCULATE[first](x, inner)
        valid = in_range & (inner >= 0) & np.isin(outer, results)
        symbols = {"first": words[first].symbol, "second": words[second].symbol}
        answers = np.where(valid, outer, NONE)
        composed[first, second, left] = Operation(f"{first} {second}", symbols, answers)
    return composed
