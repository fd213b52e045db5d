"""One operator's prompts as arrays over (op1, op2), and the rectangles of prompts of one form that they are made of.

Prompts have one form where they are of one length and every role stands at the same place. A model runs a rectangle, some rows times
some columns, at once, so that the prompts of a row share what is computed of their first tokens. A square whose numbers are one token
each is one rectangle.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np
import polars as pl

from stages.lib.core.slots import OPERANDS, first_of, slots


@dataclass(frozen=True)
class Rectangle:
    """Rows and columns of a square whose prompts have one form. tokens: (rows, columns, positions); slots: (positions,)."""

    rows: np.ndarray
    columns: np.ndarray
    tokens: np.ndarray
    slots: np.ndarray

    @property
    def consecutive(self) -> bool:
        """Whether no row and no column lies between its own."""
        return all(np.ptp(places) == len(places) - 1 for places in (self.rows, self.columns))

    def pieces(self, prompts: int) -> Iterator["Rectangle"]:
        """Yield parts of at most so many columns.

        Parts with gaps between their rows or columns have at most so many prompts as well.
        """
        for first in range(0, len(self.columns), prompts):
            columns = slice(first, first + prompts)
            rows = len(self.rows)
            if not self.consecutive:
                rows = max(1, prompts // len(self.columns[columns]))
            for start in range(0, len(self.rows), rows):
                some = slice(start, start + rows)
                tokens = self.tokens[some, columns]
                yield Rectangle(self.rows[some], self.columns[columns], tokens, self.slots)


class PromptSquare:
    """tokens: (op1, op2, longest), 0 behind a prompt's end; the others (op1, op2): lengths; answers, tokens, and results, -1 for none;
    positions, by role. widths: operand -> tokens of the longest one, None where the table says of none that it has several."""

    def __init__(self, operator: str, prompts: pl.DataFrame):
        self.operator = operator
        self.prompts = prompts.sort("op1", "op2")
        side = self.prompts["op1"].n_unique()
        self.shape = (side, len(prompts) // side)
        lengths = self.prompts["tokens"].list.len()
        longest = int(lengths.max())  # type: ignore[arg-type]
        padded = self.prompts["tokens"]
        if lengths.n_unique() > 1:
            padded = pl.Series([tokens + [0] * (longest - len(tokens)) for tokens in padded.to_list()])
        self.tokens = padded.list.to_array(longest).to_numpy().reshape(*self.shape, longest).astype(np.int64)
        self.lengths = lengths.to_numpy().reshape(self.shape).astype(np.int64)
        self.answers = self.prompts["answer_token"].fill_null(-1).to_numpy().reshape(self.shape).astype(np.int64)
        self.results = self.prompts["result"].fill_null(-1).to_numpy().reshape(self.shape)
        named = {name.removesuffix("_position"): name for name in prompts.columns if name.endswith("_position")}
        self.positions = {role: self.prompts[name].to_numpy().reshape(self.shape).astype(np.int64) for role, name in named.items()}
        several = all(first_of(operand) in self.positions for operand in OPERANDS)
        self.widths = {o: int((self.positions[o] - self.positions[first_of(o)] + 1).max()) for o in OPERANDS} if several else None

    def blocks(self, prompts: int) -> list[range]:
        """Split the rows into as few blocks as have at most so many prompts, or one row, each.

        All blocks but the last have the same number of rows, and the last has few rows less, since
        a file's chunks have a block's rows even where the square ends.
        """
        rows, columns = self.shape
        most = max(1, min(rows, prompts // columns))
        at_once = ceil(rows / ceil(rows / most))
        return [range(first, min(first + at_once, rows)) for first in range(0, rows, at_once)]

    @cached_property
    def forms(self) -> np.ndarray:
        """Which form each prompt has, (op1, op2), from 0."""
        facts = np.stack([self.lengths, *self.positions.values()], -1)
        return np.unique(facts.reshape(-1, facts.shape[-1]), axis=0, return_inverse=True)[1].reshape(self.shape)

    def rectangles(self, rows: slice, widths: Mapping[str, int] | None) -> Iterator[Rectangle]:
        """Those that these rows are made of; widths: of the longest operands of all squares, None where all are one token."""
        forms = self.forms[rows]
        alike, which = np.unique(forms, axis=0, return_inverse=True)
        for number, columns_of in enumerate(alike):
            for form in np.unique(columns_of):
                chosen, columns = np.flatnonzero(which == number), np.flatnonzero(columns_of == form)
                at = np.ix_(chosen + rows.start, columns)
                length = int(self.lengths[at][0, 0])
                one = {role: positions[at][0, :1] for role, positions in self.positions.items()}
                places = slots(length, one, widths)[0] if widths else np.arange(length)
                yield Rectangle(chosen, columns, self.tokens[at][:, :, :length], places)

    def largest(self, widths: Mapping[str, int] | None) -> Rectangle:
        """The one of most prompts."""
        return max(self.rectangles(slice(0, self.shape[0]), widths), key=lambda one: one.tokens[:, :, 0].size)

    def slot_counts(self, widths: Mapping[str, int] | None, number: int) -> np.ndarray:
        """How many prompts have a token in each of so many slots, (slots,)."""
        counts = np.zeros(number, np.int64)
        for one in self.rectangles(slice(0, self.shape[0]), widths):
            counts[one.slots] += len(one.rows) * len(one.columns)
        return counts

    def slots(self, widths: Mapping[str, int] | None) -> int:
        """How many slots there are: tokens of the longest prompt, were its operands the longest of all."""
        if not widths or not self.widths:
            return self.tokens.shape[2]
        return max(int(one.slots[-1]) for one in self.rectangles(slice(0, self.shape[0]), widths)) + 1

    def predictions(self, said: pl.DataFrame, numbers: pl.DataFrame) -> pl.DataFrame:
        """The cells' rows of the table `predictions`."""
        return (
            pl.concat([self.prompts.select("subject", "operator", "op1", "op2", "answer_token"), said], how="horizontal")
            .filter(pl.col("answer_token").is_not_null())
            .with_columns(
                correct=pl.col("predicted") == pl.col("answer_token"),
                predicted=pl.col("predicted").replace_strict(numbers["token"], numbers["number"], default=None),
            )
            .select("subject", "operator", "op1", "op2", "predicted", "correct", "answer_logit", "max_logit", "answer_probability")
        )


def asked_attribute(prompts: pl.DataFrame, numbers: pl.DataFrame, answer_token: int | None) -> dict[str, str]:
    """What a store's votes are about, where that is a token of the answer: for each result, from 0, the number asked for, -1 for none."""
    if answer_token is None:
        return {}
    known = prompts.filter(pl.col("result").is_not_null()).join(numbers.select("number", answer_token="token"), on="answer_token")
    asked = np.full(int(known["result"].max() or 0) + 1, -1)  # type: ignore[arg-type]
    asked[known["result"]] = known["number"]
    return {"asked": ",".join(map(str, asked))}
