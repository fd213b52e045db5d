"""Fits numbers as helices to the residual stream, and what else they may be: a circle, a line, any few directions.

Kantamneni and Tegmark 2025, Sec. 4: the stream at an operand's token is a linear map of B(a) (bases.py). Fits are made on trained cells
and scored on held-out ones. As all numbers are seen in training, a theory could learn each by heart, as `number` does: a second fit is
scored on numbers that it never saw. The study looks at the 100 first principal components; here it is the whole stream.

Theories: helix, a line and a circle of each period; circles, without the line; circle, of the one period that fits best; line;
polynomial, with as many terms as the helix; other_periods, a helix of periods drawn at random, mean over draws; pca, as many principal
components, which look at the stream itself; number, a mean for each number. Where a stream does not vary there are no rows.

Writes theories/helix_given.h5, too: what each theory says of the stream in the prompts of `pairs` for evaluation, to be put in its place.

Table helix_fits: how much of the residual stream is a function of one number, by theory of that function
    subject        VARCHAR   the model
    operator       VARCHAR   add, subtract, multiply or divide
    layer          SMALLINT  decoder layer that the stream enters, from 0; the number of layers: what leaves the last one
    position       VARCHAR   role of the token: op1, op2 or last
    quantity       VARCHAR   the number: op1, op2 or result
    numbers_below  INTEGER   the cells whose number is below this, which the study has; null: all
    theory         VARCHAR   helix, circles, circle, line, polynomial, pca, other_periods or number
    parameters     INTEGER   terms that are free, without the intercept: parameters per coordinate; for pca, directions
    period         DOUBLE    of the circle that fits best; null of other theories
    explained      DOUBLE    1 - error / variance over held-out cells, all coordinates together
    explained_new  DOUBLE    the same of a fit without some numbers, over the cells of these; null of number
    shuffled       DOUBLE    explained with the numbers shuffled before the fit, mean over shufflings; null of pca, number and other_periods
    shuffled_most  DOUBLE    the largest of them; of other_periods, explained by the best draw
    numbers        INTEGER   different numbers among the cells of training
    cells          INTEGER   held-out cells
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, product

import numpy as np
import polars as pl

from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.executor import given
from stages.lib.model import checkpoint, residuals
from stages.lib.model.residuals import Residuals
from stages.lib.settings import Passes
from stages.lib.subject import Subject
from stages.theories.number_theories import SITES, Told
from stages.theories.settings import Helix

SCHEMA = {
    "subject": pl.String, "operator": pl.String, "layer": pl.Int16, "position": pl.String, "quantity": pl.String,
    "numbers_below": pl.Int32, "theory": pl.String,
    "parameters": pl.Int32, "period": pl.Float64, "explained": pl.Float64, "explained_new": pl.Float64, "shuffled": pl.Float64,
    "shuffled_most": pl.Float64, "numbers": pl.Int32, "cells": pl.Int32,
}  # fmt: skip
POSITIONS = ("op1", "op2", "last")
DIGITS = 6  # of shares, that do not depend on the processor: decimals, and of what is beyond 1 all digits
Drawn = dict[str, np.ndarray]  # quantity -> of each prompt


@dataclass(frozen=True, eq=False)
class Prompts:
    """Prompts of an operator: a sample of its cells, and behind them those whose streams are to be replaced.

    tokens: of each prompt; positions: (prompts, POSITIONS); numbers: quantity -> (prompts,);
    training: (sample,); pairs: numbers of the last ones.
    """

    tokens: list[list[int]]
    positions: np.ndarray
    numbers: Drawn
    training: np.ndarray
    pairs: np.ndarray

    @classmethod
    def of(cls, cells: pl.DataFrame, pairs: pl.DataFrame, settings: Helix) -> "Prompts":
        """cells: the operator's, with tokens, positions and split; pairs: its pairs for evaluation."""
        generator = np.random.default_rng(settings.helix_seed)
        drawn = cells.sort("op1", "op2")[np.sort(generator.permutation(len(cells))[: settings.prompts])]
        places = [f"{role}_position" for role in POSITIONS]
        theirs = pairs.with_columns(pl.col("positions").struct.unnest().name.suffix("_position"))
        both = pl.concat([drawn, theirs], how="diagonal_relaxed").select("op1", "op2", "result", "tokens", *places)
        positions = both.select(pl.col(places).cast(pl.Int64)).to_numpy()
        numbers = {quantity: both[quantity].to_numpy().astype(np.int64) for quantity in ("op1", "op2", "result")}
        training = (drawn["split"] == "train").to_numpy()
        tokens = both["tokens"].to_list()
        return cls(tokens, positions, numbers, training, pairs["pair"].to_numpy())


def main(name: str) -> None:
    subject, settings = Subject.named(name), load(Helix)
    passes = subject.settings.passes or load(Passes)
    keys = ["operator", "op1", "op2"]
    split = read_table("data/corpus/cells.parquet").select(*keys, "split")
    prompts = subject.table("store/prompts.parquet").filter(pl.col("answer_token").is_not_null())
    cells = prompts.join(split, on=keys)
    pairs = subject.table("circuit/pairs.parquet").filter(split="evaluation").sort("pair")
    loaded = checkpoint.of(subject.settings)
    with ExitStack() as files:
        fits = []
        for operator in subject.settings.operators:
            own, some = (table.filter(operator=operator) for table in (cells, pairs))
            sample, title = Prompts.of(own, some, settings), f"streams {name} {operator}"
            reading = residuals.read(
                loaded,
                sample.tokens,
                sample.positions,
                passes.prompts,
                subject.path("theories"),
                title,
            )
            fits.append(Fits((name, operator), sample, files.enter_context(reading), settings))
        values = replacements(fits, pairs["pair"].to_numpy(), f"helix {name}")
        path = subject.path("theories/helix_given.h5")
        given.write_each(path, pairs["pair"].to_numpy(), values)
    rows = chain.from_iterable(fit.rows for fit in fits)
    shares = pl.col("explained", "explained_new", "^shuffled.*$")
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    rounded = frame.with_columns(shares.round(DIGITS).round_sig_figs(DIGITS))
    write_table(rounded, subject.path("theories/helix_fits.parquet"))


@dataclass(frozen=True, eq=False)
class Fits:
    """Fits to the streams of an operator's prompts. key: model and operator; rows: of helix_fits."""

    key: tuple[str, str]
    prompts: Prompts
    streams: Residuals
    settings: Helix
    rows: list[tuple] = field(default_factory=list)

    def at(self, level: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Fit one level and add its rows; yield replacements of the streams of pairs.

        Each is its name, the numbers of the pairs and their vectors (pairs, width).
        """
        last, sample = self.streams.shape[0] - 1, len(self.prompts.training)
        for site, below in product(SITES, (None, self.settings.study_numbers)):
            vectors = self.streams.at(level, POSITIONS.index(site.position)).astype(np.float64)
            numbers, training = self.prompts.numbers[site.quantity], self.prompts.training
            told = Told.of(vectors, numbers, training, self.settings, below)
            if not told.varies:
                continue
            what = (*self.key, level, *site, below)
            self.rows.extend((*what, *row, *told.sizes()) for row in told.rows())
            if site.replaceable(level, last):
                which = self.prompts.pairs[numbers[sample:] < (below or np.inf)]
                suffix = "" if below is None else " below"
                for theory, fitted in told.replacements():
                    yield f"{theory} {site.position} {level}{suffix}", which, fitted


def replacements(fits: list[Fits], pairs: np.ndarray, title: str) -> Iterator[tuple[str, np.ndarray]]:
    """Fit level by level; yield named replacements (pairs, width), 0 where a pair has none.

    One level's are in memory together: those of all levels take gigabytes for a deep model.
    """
    levels = fits[0].streams.shape[0]
    with progress.bar(total=len(fits) * levels, desc=title, unit="layer") as bar:
        for level in range(levels):
            values: dict[str, np.ndarray] = {}
            for fit in fits:
                for name, which, fitted in fit.at(level):
                    whole = values.setdefault(name, np.zeros((len(pairs), fitted.shape[1])))
                    whole[np.searchsorted(pairs, which)] = fitted
                bar.update()
            yield from values.items()


if __name__ == "__main__":
    main(sys.argv[1])
