"""Arrange one operator's prompts over (op1, op2), and cut them into rectangles for a model to run.

Two prompts have the same form if they have the same length and every role stands at the same
position. A rectangle is some rows (op1) times some columns (op2) whose prompts have the same form,
so that the prompts of a row can share the computation of their first tokens. If all numbers are one
token, the whole grid is one rectangle.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np
import polars as pl

from stages.lib.core.slots import OPERANDS, first_of, slots

PREDICTIONS = [
    "subject", "operator", "op1", "op2", "predicted", "correct", "answer_logit", "max_logit",
    "answer_probability",
]  # fmt: skip


@dataclass(frozen=True)
class Rectangle:
    """Rows and columns of a grid whose prompts have the same form.

    rows, columns: indices, ascending; tokens: (rows, columns, positions); slots: (positions,),
    where each token belongs among those of the longest prompt (stages/lib/core/slots.py).
    """

    rows: np.ndarray
    columns: np.ndarray
    tokens: np.ndarray
    slots: np.ndarray

    @property
    def prompts(self) -> int:
        return len(self.rows) * len(self.columns)

    @property
    def consecutive(self) -> bool:
        """Whether the rows, and the columns, have no gaps between them."""
        return all(np.ptp(indices) == len(indices) - 1 for indices in (self.rows, self.columns))

    def pieces(self, prompts: int) -> Iterator["Rectangle"]:
        """Yield parts of at most `prompts` columns.

        Parts with gaps between their rows or columns have at most `prompts` prompts, too.
        """
        for first in range(0, len(self.columns), prompts):
            columns = slice(first, first + prompts)
            rows = len(self.rows)
            if not self.consecutive:
                rows = max(1, prompts // len(self.columns[columns]))
            for start in range(0, len(self.rows), rows):
                part = slice(start, start + rows)
                tokens = self.tokens[part, columns]
                yield Rectangle(self.rows[part], self.columns[columns], tokens, self.slots)


class PromptGrid:
    """One operator's prompts as arrays over (op1, op2).

    table: the operator's rows of the table `prompts`, sorted.
    tokens: (op1, op2, length of the longest prompt), 0 after a prompt's end.
    lengths, answers, results: (op1, op2), -1 where a prompt has no answer; answers are tokens.
    positions: role -> (op1, op2).
    widths: operand -> tokens of the longest one; None if the table has no first tokens of operands.
    """

    def __init__(self, operator: str, table: pl.DataFrame):
        self.operator = operator
        self.table = table.sort("op1", "op2")
        side = self.table["op1"].n_unique()
        self.shape = (side, len(table) // side)
        listed = self.table["tokens"]
        lengths = listed.list.len()
        longest = int(lengths.max())  # type: ignore[arg-type]
        if lengths.n_unique() > 1:
            rows = listed.to_list()
            listed = pl.Series([row + [0] * (longest - len(row)) for row in rows])
        tokens = listed.list.to_array(longest).to_numpy()
        self.tokens = tokens.reshape(*self.shape, longest).astype(np.int64)
        self.lengths = self._on_grid(lengths)
        self.answers = self._on_grid(self.table["answer_token"].fill_null(-1))
        self.results = self.table["result"].fill_null(-1).to_numpy().reshape(self.shape)
        self.positions: dict[str, np.ndarray] = {}
        for name in table.columns:
            role = name.removesuffix("_position")
            if role != name:
                self.positions[role] = self._on_grid(self.table[name])
        self.widths = self._widths()

    def _on_grid(self, column: pl.Series) -> np.ndarray:
        return column.to_numpy().reshape(self.shape).astype(np.int64)

    def _widths(self) -> dict[str, int] | None:
        widths = {}
        for operand in OPERANDS:
            first = self.positions.get(first_of(operand))
            if first is None:
                return None
            widths[operand] = int((self.positions[operand] - first + 1).max())
        return widths

    def blocks(self, prompts: int) -> list[range]:
        """Split the rows into as few blocks as have at most `prompts` prompts, or one row, each.

        All blocks but the last have the same number of rows, and the last is only slightly smaller:
        chunks have a full block's rows, so a short last block would waste space.
        """
        rows, columns = self.shape
        most = max(1, min(rows, prompts // columns))
        at_once = ceil(rows / ceil(rows / most))
        return [range(first, min(first + at_once, rows)) for first in range(0, rows, at_once)]

    @cached_property
    def forms(self) -> np.ndarray:
        """The form of each prompt, (op1, op2), as a number from 0."""
        facts = np.stack([self.lengths, *self.positions.values()], -1)
        facts = facts.reshape(-1, facts.shape[-1])
        _, forms = np.unique(facts, axis=0, return_inverse=True)
        return forms.reshape(self.shape)

    def rectangles(self, rows: slice, widths: Mapping[str, int] | None) -> Iterator[Rectangle]:
        """Yield the rectangles that make up some rows; their rows count from the first of these.

        widths: operand -> tokens of the longest one over all operators; None if all are one token.
        """
        alike, kinds = np.unique(self.forms[rows], axis=0, return_inverse=True)
        for kind, forms in enumerate(alike):  # rows of a kind have the same form in each column
            for form in np.unique(forms):
                yield self._rectangle(
                    rows.start,
                    np.flatnonzero(kinds == kind),
                    np.flatnonzero(forms == form),
                    widths,
                )

    def _rectangle(
        self,
        start: int,
        rows: np.ndarray,
        columns: np.ndarray,
        widths: Mapping[str, int] | None,
    ) -> Rectangle:
        at = np.ix_(rows + start, columns)
        length = int(self.lengths[at][0, 0])
        places = np.arange(length)
        if widths:
            first = {role: positions[at][0, :1] for role, positions in self.positions.items()}
            places = slots(length, first, widths)[0]
        return Rectangle(rows, columns, self.tokens[at][:, :, :length], places)

    def _all(self, widths: Mapping[str, int] | None) -> Iterator[Rectangle]:
        return self.rectangles(slice(0, self.shape[0]), widths)

    def largest(self, widths: Mapping[str, int] | None) -> Rectangle:
        """Return the rectangle with the most prompts."""
        return max(self._all(widths), key=lambda rectangle: rectangle.prompts)

    def slot_counts(self, widths: Mapping[str, int] | None, number: int) -> np.ndarray:
        """Return how many prompts have a token in each of `number` slots, (slots,)."""
        counts = np.zeros(number, np.int64)
        for rectangle in self._all(widths):
            counts[rectangle.slots] += rectangle.prompts
        return counts

    def slots(self, widths: Mapping[str, int] | None) -> int:
        """Return the number of slots: the length of a prompt with the longest operands of all."""
        if not widths or not self.widths:
            return self.tokens.shape[2]
        return max(int(rectangle.slots[-1]) for rectangle in self._all(widths)) + 1

    def predictions(self, predicted: pl.DataFrame, numbers: pl.DataFrame) -> pl.DataFrame:
        """Return the cells' rows of the table `predictions`.

        predicted: a row per prompt, in the grid's order, in which `predicted` is a token;
        numbers: the table of that name.
        """
        keys = self.table.select("subject", "operator", "op1", "op2", "answer_token")
        token = pl.col("predicted")
        number = token.replace_strict(numbers["token"], numbers["number"], default=None)
        return (
            pl.concat([keys, predicted], how="horizontal")
            .filter(pl.col("answer_token").is_not_null())
            .with_columns(correct=token == pl.col("answer_token"), predicted=number)
            .select(PREDICTIONS)
        )


def asked_attribute(
    prompts: pl.DataFrame,
    numbers: pl.DataFrame,
    answer_token: int | None,
) -> dict[str, str]:
    """Return the attribute `asked` of the stores of a model with the setting answer_token.

    It lists, for each result from 0, the number that the predicted token of the answer stands for,
    -1 for none. Without that setting there is no attribute.
    """
    if answer_token is None:
        return {}
    known = prompts.filter(pl.col("result").is_not_null())
    known = known.join(numbers.select("number", answer_token="token"), on="answer_token")
    asked_numbers = np.full(int(known["result"].max() or 0) + 1, -1)  # type: ignore[arg-type]
    asked_numbers[known["result"]] = known["number"]
    return {"asked": ",".join(map(str, asked_numbers))}
