"""Operators, and pairs of operators with brackets: what each answers to any operands, as whole arrays."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import numpy as np
import polars as pl

from stages.corpus.prompts import SAME_EITHER_WAY
from stages.corpus.settings import Words
from stages.lib.core.words import Operator
from stages.mediation.pairs.draws import Counterparts

Composition = tuple[Operator, Operator, bool]  # two operators in reading order; whether the first stands in brackets
NONE = -1  # where there is no answer
CALCULATE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": lambda x, y: np.where(y > 0, x // np.maximum(y, 1), NONE),
}


@dataclass(frozen=True, eq=False)
class Operation:
    """One operator, or two. words: placeholder -> its word; answers: (operands, …) -> the answer, NONE where it is not asked for."""

    name: str
    words: dict[str, str]
    answers: np.ndarray = field(repr=False)

    @cached_property
    def questions(self) -> np.ndarray:
        """The operands that have an answer, in order: (questions, operands)."""
        return np.argwhere(self.answers != NONE)

    @cached_property
    def counterparts(self) -> Counterparts:
        alike = np.ravel_multi_index(tuple(np.sort(self.questions).T), self.answers.shape)
        return Counterparts(self.answers[tuple(self.questions.T)], alike)

    def shared(self, other: "Operation") -> np.ndarray:
        """The operands to which both have an answer, and different ones."""
        both = (self.answers != NONE) & (other.answers != NONE)
        return np.argwhere(both & (self.answers != other.answers))

    def answer(self, operands: tuple[int, ...]) -> int:
        return int(self.answers[operands])


def operations(cells: pl.DataFrame, words: dict[Operator, Words]) -> list[Operation]:
    """The operators of `words` on these cells."""
    size = max(int(cells[name].max() or 0) for name in ("op1", "op2")) + 1  # type: ignore[arg-type]
    found = []
    for name, of in words.items():
        own = cells.filter(operator=name)
        answers = np.full((size, size), NONE, np.int32)
        answers[own["op1"].to_numpy(), own["op2"].to_numpy()] = own["result"].to_numpy()
        found.append(Operation(name, {"symbol": of.symbol, "verb": of.verb, "noun": of.noun}, answers))
    return found


def compositions(words: dict[Operator, Words], operands: range, results: list[int]) -> dict[Composition, Operation]:
    """Every two operators, the first or the second in brackets, on three operands with one of these results, which are from 0.

    Brackets that make no difference are left out.
    """
    x, y, z = np.meshgrid(*[np.arange(operands.stop, dtype=np.int32)] * 3, indexing="ij", sparse=True)
    asked = (x >= operands.start) & (y >= operands.start) & (z >= operands.start)
    found: dict[Composition, Operation] = {}
    for first, second, left in product(words, words, (True, False)):
        if left or (first, second) not in SAME_EITHER_WAY:
            inner = CALCULATE[first](x, y) if left else CALCULATE[second](y, z)
            outer = CALCULATE[second](inner, z) if left else CALCULATE[first](x, inner)
            valid = asked & (inner >= 0) & np.isin(outer, results)
            symbols = {"first": words[first].symbol, "second": words[second].symbol}
            found[first, second, left] = Operation(f"{first} {second}", symbols, np.where(valid, outer, NONE))
    return found
