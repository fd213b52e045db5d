"""Fit the residual stream as a function of a number: a helix, its parts, and alternatives.

Kantamneni and Tegmark 2025, Sec. 4: the residual stream at an operand's token is a linear map of
the helix B(a) (bases.py). Theories are fitted on trained cells and scored on held-out cells,
none of which is an evaluation prompt of `pairs`. All numbers occur in training, so a theory
could memorise each of them, as `number` does. A second fit is therefore scored on numbers that it
never saw. The study fits the first 100 principal components of the residual stream. Here all
coordinates are fitted.

Theories:
* helix: a line, and a circle of each period
* circles: the helix without its line
* circle: the circle of the single period that fits best
* line: the number itself
* polynomial: as many terms as the helix has
* other_periods: a helix of random periods, mean over draws
* pca: as many principal components as the helix has terms. It sees the residual stream itself.
* number: a mean for each number

A site whose residual stream does not vary has no rows.

The stage also writes theories/helix_given.h5: each theory's prediction of the residual stream in
the evaluation prompts of `pairs`, with which an experiment patches the model.

Table helix_fits: how well functions of a number predict the residual stream
    subject        VARCHAR   the model
    operator       VARCHAR   add, subtract, multiply or divide
    layer          SMALLINT  decoder layer that the residual stream enters, from 0; the number of
                             layers stands for the stream after the last layer
    position       VARCHAR   role of the token: op1, op2 or last
    quantity       VARCHAR   the number that the theory is a function of: op1, op2 or result
    numbers_below  INTEGER   only cells whose number is below this are used, as in the study; null:
                             all cells
    theory         VARCHAR   helix, circles, circle, line, polynomial, pca, other_periods or number
    parameters     INTEGER   free terms per coordinate, without the intercept; for pca, components;
                             for other_periods, the largest number over the draws
    period         DOUBLE    period of the circle that fits best; null for other theories
    explained      DOUBLE    explained share of the variance over held-out cells, at most 1: 1 -
                             squared error / variance, all coordinates together
    explained_new  DOUBLE    the same share for a fit that leaves some numbers out, over the cells
                             of these numbers; null for the theory number
    shuffled       DOUBLE    explained share of a fit to shuffled numbers, mean over shuffles; null
                             for pca, number and other_periods
    shuffled_most  DOUBLE    largest explained share over the shuffles; for other_periods, over the
                             draws of periods
    numbers        INTEGER   distinct numbers among the training cells
    cells          INTEGER   held-out cells
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, repeat

import numpy as np
import polars as pl

from stages.lib.core import environment, progress
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.executor import external_values
from stages.lib.model import checkpoint, residuals
from stages.lib.model.residuals import Residuals
from stages.lib.settings import Passes
from stages.lib.subject import Subject
from stages.theories.number_theories import SITES, NumberTheories, Site, SplitVectors
from stages.theories.settings import Helix

SCHEMA = {
    "subject": pl.String,
    "operator": pl.String,
    "layer": pl.Int16,
    "position": pl.String,
    "quantity": pl.String,
    "numbers_below": pl.Int32,
    "theory": pl.String,
    "parameters": pl.Int32,
    "period": pl.Float64,
    "explained": pl.Float64,
    "explained_new": pl.Float64,
    "shuffled": pl.Float64,
    "shuffled_most": pl.Float64,
    "numbers": pl.Int32,
    "cells": pl.Int32,
}
POSITIONS = ("op1", "op2", "last")
QUANTITIES = ("op1", "op2", "result")
# Shares get this many decimals, and no more significant digits beyond 1. Further digits depend on
# the kind of processor.
DIGITS = 6


def main(name: str) -> None:
    """Fit the theories to one model's residual stream; write both outputs."""
    subject = Subject.named(name)
    pairs = subject.table("circuit/pairs.parquet").filter(split="evaluation").sort("pair")
    numbers = pairs["pair"].to_numpy()
    with ExitStack() as files:
        fits = _read_streams(subject, pairs, files)
        predictions = _predictions(fits, numbers, f"helix {name}")
        external_values.write_each(subject.path("theories/helix_given.h5"), numbers, predictions)
    rows = chain.from_iterable(fit.rows for fit in fits)
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    shares = pl.col("explained", "explained_new", "^shuffled.*$")
    rounded = frame.with_columns(shares.round(DIGITS).round_sig_figs(DIGITS))
    write_table(rounded, subject.path("theories/helix_fits.parquet"))


def _read_streams(subject: Subject, pairs: pl.DataFrame, files: ExitStack) -> list["OperatorFits"]:
    """Run the model on each operator's prompts; the residual streams stay open with `files`."""
    settings = load(Helix)
    passes = subject.settings.passes or load(Passes)
    loaded = checkpoint.from_settings(subject.settings)
    cells = _answered_cells(subject)
    fits = []
    for operator in subject.settings.operators:
        own_pairs = pairs.filter(operator=operator)
        prompts = Prompts.draw(cells.filter(operator=operator), own_pairs, settings)
        reading = residuals.read(
            loaded,
            prompts.tokens,
            prompts.positions,
            passes.prompts,
            subject.path("theories"),
            f"streams {subject.name} {operator}",
        )
        streams = files.enter_context(reading)
        fits.append(OperatorFits(subject.name, operator, prompts, streams, settings))
    return fits


def _answered_cells(subject: Subject) -> pl.DataFrame:
    """Return the model's prompts that have an answer token, with their split."""
    keys = ["operator", "op1", "op2"]
    split = read_table("data/corpus/cells.parquet").select(*keys, "split")
    prompts = subject.table("store/prompts.parquet")
    return prompts.filter(pl.col("answer_token").is_not_null()).join(split, on=keys)


@dataclass(frozen=True, eq=False)
class Prompts:
    """An operator's prompts: first a sample of its cells, then the prompts to be patched.

    tokens: token ids of each prompt
    positions: (prompts, POSITIONS) position of each role's token
    numbers: quantity -> its value in each prompt (prompts,)
    training: (sample,) True for trained cells
    pairs: (patched,) pair numbers of the prompts after the sample
    """

    tokens: list[list[int]]
    positions: np.ndarray
    numbers: dict[str, np.ndarray]
    training: np.ndarray
    pairs: np.ndarray

    @classmethod
    def draw(cls, cells: pl.DataFrame, pairs: pl.DataFrame, settings: Helix) -> "Prompts":
        """Draw the sample from an operator's cells, and add its evaluation pairs.

        cells: with tokens, positions and split
        """
        others = cells.join(pairs, on=["op1", "op2"], how="anti").sort("op1", "op2")
        generator = np.random.default_rng(settings.helix_seed)
        rows = np.sort(generator.permutation(len(others))[: settings.prompts])
        sample = others[rows]
        roles = [f"{role}_position" for role in POSITIONS]
        positions = pl.col("positions").struct.unnest().name.suffix("_position")
        both = pl.concat([sample, pairs.with_columns(positions)], how="diagonal_relaxed")
        return cls(
            tokens=both["tokens"].to_list(),
            positions=both.select(pl.col(roles).cast(pl.Int64)).to_numpy(),
            numbers={name: both[name].to_numpy().astype(np.int64) for name in QUANTITIES},
            training=(sample["split"] == "train").to_numpy(),
            pairs=pairs["pair"].to_numpy(),
        )


@dataclass(frozen=True, eq=False)
class OperatorFits:
    """Fits to the residual streams of one operator's prompts. rows: of helix_fits, so far."""

    subject: str
    operator: str
    prompts: Prompts
    streams: Residuals
    settings: Helix
    rows: list[tuple] = field(default_factory=list)

    def fit_level(self, level: int) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Fit the residual stream that enters one layer, and add the rows.

        Returns each theory's predictions for the prompts to be patched: a name, the pair numbers
        (patched,) and the vectors (patched, width).
        """
        all_predictions = []
        sample, study = len(self.prompts.training), self.settings.study_numbers
        for site in SITES:
            numbers = self.prompts.numbers[site.quantity]
            whole = self._fit(level, site, None)
            # the same fit if no number is left out
            small = whole if numbers.max() < study else self._fit(level, site, study)
            for below, suffix, (rows, predictions) in ((None, "", whole), (study, " below", small)):
                keys = self.subject, self.operator, level, *site, below
                self.rows.extend((*keys, *row) for row in rows)
                pairs = self.prompts.pairs[numbers[sample:] < (below or np.inf)]
                for theory, predicted in predictions:
                    name = f"{theory} {site.position} {level}{suffix}"
                    all_predictions.append((name, pairs, predicted))
        return all_predictions

    def _fit(
        self, level: int, site: Site, below: int | None
    ) -> tuple[list[tuple], list[tuple[str, np.ndarray]]]:
        """Fit all theories at one site; below: to smaller numbers only.

        Returns their scores and sizes, and where the experiment patches the site, their predictions
        (patched, width). Both are empty if the residual stream does not vary.
        """
        vectors = self.streams.at(level, POSITIONS.index(site.position)).astype(np.float64)
        numbers, training = self.prompts.numbers[site.quantity], self.prompts.training
        split = SplitVectors.draw(vectors, numbers, training, self.settings, below)
        if not split.varies:
            return [], []
        theories = NumberTheories(split, self.settings)
        rows = [(*score, *split.sizes()) for score in theories.scores()]
        is_patched = site.replaceable(level, self.streams.shape[0] - 1)
        return rows, list(theories.predictions()) if is_patched else []


def _predictions(
    fits: list[OperatorFits], pairs: np.ndarray, title: str
) -> Iterator[tuple[str, np.ndarray]]:
    """Fit level by level; yield named predictions (pairs, width), 0 where a pair has none.

    Only one level is in memory at a time: all levels of a deep model take gigabytes. Threads fit
    the operators.
    """
    levels = fits[0].streams.shape[0]
    with (
        progress.bar(total=len(fits) * levels, desc=title, unit="layer") as bar,
        ThreadPoolExecutor(environment.workers()) as threads,
    ):
        for level in range(levels):
            arrays: dict[str, np.ndarray] = {}
            for predictions in threads.map(OperatorFits.fit_level, fits, repeat(level)):
                for name, fitted_pairs, predicted in predictions:
                    empty = np.zeros((len(pairs), predicted.shape[1]))
                    array = arrays.setdefault(name, empty)
                    array[np.searchsorted(pairs, fitted_pairs)] = predicted
                bar.update()
            yield from arrays.items()


if __name__ == "__main__":
    main(sys.argv[1])
