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
from dataclasses import dataclass

import numpy as np
import polars as pl

from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.executor import given
from stages.lib.executor.clean import clean_run
from stages.lib.model import checkpoint
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

    forms: those of one length, which they are and their tokens (those, token positions); positions: (prompts, POSITIONS); numbers:
    quantity -> (prompts,); training: (sample,); pairs: numbers of the last ones.
    """

    forms: list[tuple[np.ndarray, np.ndarray]]
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
        lengths = both["tokens"].list.len().to_numpy()
        same = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
        forms = [(which, np.array(both["tokens"].gather(which).to_list(), np.int64)) for which in same]
        positions = both.select(pl.col(places).cast(pl.Int64)).to_numpy()
        numbers = {quantity: both[quantity].to_numpy().astype(np.int64) for quantity in ("op1", "op2", "result")}
        training = (drawn["split"] == "train").to_numpy()
        return cls(forms, positions, numbers, training, pairs["pair"].to_numpy())


def main(name: str) -> None:
    subject, settings = Subject.named(name), load(Helix)
    passes = subject.settings.passes or load(Passes)
    keys = ["operator", "op1", "op2"]
    split = read_table("data/corpus/cells.parquet").select(*keys, "split")
    cells = subject.table("store/prompts.parquet").filter(pl.col("answer_token").is_not_null()).join(split, on=keys)
    pairs = subject.table("circuit/pairs.parquet").filter(split="evaluation").sort("pair")
    loaded = checkpoint.of(subject.settings)
    levels = len(loaded.architecture.layers) + 1
    rows: list[tuple] = []
    values: dict[str, np.ndarray] = {}
    with progress.bar(total=len(subject.settings.operators) * levels, desc=f"helix {name}", unit="layer") as bar:
        for operator in subject.settings.operators:
            prompts = Prompts.of(cells.filter(operator=operator), pairs.filter(operator=operator), settings)
            here = np.isin(pairs["pair"].to_numpy(), prompts.pairs)
            for level, streams in entering(loaded, prompts, settings.levels_at_once, passes.prompts):
                for site in SITES:
                    for below in (None, settings.study_numbers):
                        numbers = prompts.numbers[site.quantity]
                        told = Told.of(streams[POSITIONS.index(site.position)], numbers, prompts.training, settings, below)
                        if not told.varies:
                            continue
                        rows += [(name, operator, level, *site, below, *row, *told.sizes()) for row in told.rows()]
                        if site.replaceable(level, levels - 1):
                            of = np.flatnonzero(here)[numbers[len(prompts.training) :] < (below or np.inf)]
                            for theory, fitted in told.replacements():
                                what = f"{theory} {site.position} {level}{' below' * (below is not None)}"
                                values.setdefault(what, np.zeros((len(pairs), fitted.shape[1])))[of] = fitted
                bar.update()
    shares = pl.col("explained", "explained_new", "^shuffled.*$")
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row").with_columns(shares.round(DIGITS).round_sig_figs(DIGITS))
    write_table(frame, subject.path("theories/helix_fits.parquet"))
    given.write(subject.path("theories/helix_given.h5"), pairs["pair"].to_numpy(), values)


def entering(loaded: checkpoint.Checkpoint, prompts: Prompts, at_once: int, prompts_per_pass: int) -> Iterator[tuple[int, np.ndarray]]:
    """What enters each layer, and what leaves the last: (positions, prompts, width) float64."""
    levels, width = len(loaded.architecture.layers) + 1, loaded.architecture.width
    for start in range(0, levels, at_once):
        group = range(start, min(start + at_once, levels))
        streams = np.empty((len(group), len(POSITIONS), len(prompts.positions), width))
        for which, tokens in prompts.forms:
            for first in range(0, len(tokens), prompts_per_pass):
                part = slice(first, first + prompts_per_pass)
                run, here = clean_run(loaded, tokens[part], cached=False), which[part]
                at = np.arange(len(here))[:, None], prompts.positions[here]
                for place, level in enumerate(group):
                    streams[place, :, here] = run.streams[level][at].double().cpu().numpy()
        yield from zip(group, streams, strict=True)


if __name__ == "__main__":
    main(sys.argv[1])
