"""Bag of heuristics, helix and waves as theories of the same late neurons, with equal numbers of parameters for each.

A theory says of a neuron's map an intercept and a few terms of its dictionary (atoms.py), chosen one after another (pursuit.py) on
trained cells, and is scored on held-out ones. The dictionaries differ in size, and so in what a choice among their terms is worth: the
null is the same search on the same maps with rows and columns relabelled at random. Neurons are those at the last position of the late
layers; where the answer can be read behind no layer, of the later half.

What is explained: activation, all neurons' together, each with its own variance; logit, what they write together of the answer's logit,
the sum of activation · value logit; written, the same against the error of a theory that knows each neuron's mean alone. (The answer's
logit varies little around its mean, so a theory that moves it by as much as it varies explains nothing of `logit`.)

Writes theories/theory_given.h5, too: what each theory says of each late neuron in the prompts of `pairs` for evaluation, none of which
it was fitted on; `mean` is said by a theory without terms, whose intercept is the neuron's mean over the operator's trained cells;
`relabelled` is said by the fits to relabelled maps, around that mean, too (where not all cells have an answer, a relabelled map has the
neuron's values of cells without one, and so a mean of its own); `itself` is what the store has.

Table theory_fits: how much of the late neurons three theories explain
    subject     VARCHAR   the model
    operator    VARCHAR   add, subtract, multiply or divide
    layer       SMALLINT  late layer, from 0; null: all of them together
    theory      VARCHAR   bag (heuristics of the catalogue), helix (line and circles of op1, op2 and the result) or waves (over op1 and op2)
    parameters  INTEGER   terms that a neuron may have, without the intercept
    what        VARCHAR   activation, logit or written
    value       DOUBLE    1 - error / variance over held-out cells (written: / error of the means); null where it does not vary
    ci_low      DOUBLE    lower end of its bootstrap interval, over neurons for activation, over cells for logit and written
    ci_high     DOUBLE    upper end
    relabelled  DOUBLE    the same for relabelled maps: what the search alone finds
    choices     INTEGER   terms that a neuron's are chosen from
    neurons     INTEGER   neurons
    cells       INTEGER   held-out cells
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib.core import progress
from stages.lib.core.layered import LayerStore, widen
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.executor import given
from stages.lib.heuristics.asked import voted
from stages.lib.sql.database import Database
from stages.lib.subject import Subject
from stages.theories import atoms
from stages.theories.pursuit import pursue
from stages.theories.settings import Helix, TheoryFits
from stages.theories.tally import Tally

SCHEMA = {
    "subject": pl.String, "operator": pl.String, "layer": pl.Int16, "theory": pl.String, "parameters": pl.Int32, "what": pl.String,
    "value": pl.Float64, "ci_low": pl.Float64, "ci_high": pl.Float64, "relabelled": pl.Float64, "choices": pl.Int32, "neurons": pl.Int32,
    "cells": pl.Int32,
}  # fmt: skip
DIGITS = 6  # of shares, that do not depend on the processor: decimals, and of what is beyond 1 all digits


@dataclass(frozen=True, eq=False)
class Chosen:
    """An operator's cells: those that theories are fitted on, those that they are scored on, and the prompts that they are put into.

    op1, op2, result: (cells,); order: which of the table's cells each is; training, held_out: how many of each there are, first.
    """

    op1: np.ndarray
    op2: np.ndarray
    result: np.ndarray
    order: np.ndarray
    training: int
    held_out: int

    @classmethod
    def of(cls, cells: pl.DataFrame, results: np.ndarray, prompts: pl.DataFrame, settings: TheoryFits) -> "Chosen":
        """cells: the operator's, by op1, then op2; results: the store's answers, -1 for none, of a square that may be smaller;
        prompts: op1, op2 of those for evaluation."""
        inside = np.flatnonzero((cells["op1"] < results.shape[0]) & (cells["op2"] < results.shape[1]))
        cells = cells[inside]
        op1, op2 = cells["op1"].to_numpy(), cells["op2"].to_numpy()
        place = op1.astype(np.int64) * results.shape[1] + op2
        asked = prompts["op1"].to_numpy().astype(np.int64) * results.shape[1] + prompts["op2"].to_numpy()
        answered, trained = results[op1, op2] >= 0, (cells["split"] == "train").to_numpy()
        generator = np.random.default_rng(settings.fit_seed)
        training = generator.permutation(np.flatnonzero(answered & trained & ~np.isin(place, asked)))[: settings.train_cells]
        held_out = generator.permutation(np.flatnonzero(answered & ~trained))[: settings.held_out_cells]
        order = np.concatenate([training, held_out, np.searchsorted(place, asked)])
        return cls(op1[order], op2[order], results[op1, op2][order], inside[order], len(training), len(held_out))

    def numbers(self) -> dict[str, np.ndarray]:
        """Quantity -> of each cell."""
        return {"op1": self.op1, "op2": self.op2, "result": self.result}


def main(name: str) -> None:
    subject, settings = Subject.named(name), load(TheoryFits)
    pairs = subject.table("circuit/pairs.parquet").filter(split="evaluation").sort("pair")
    first, layers = subject.table("circuit/late_layers.parquet").select("first_layer", "layers").row(0)
    rows: list[tuple] = []
    values: dict[str, np.ndarray] = {}
    for store in subject.squares():
        operator = store.attributes["operator"]
        late = [layer for layer in store.layers if layer >= (layers // 2 if first is None else first)]
        theorists = Theorists(subject, store, late, pairs.filter(operator=operator), settings)
        here = (pairs["operator"] == operator).to_numpy()
        with progress.bar(total=len(late) * store.axes["neuron"], desc=f"theories {name} {operator}", unit="neuron") as bar:
            for layer in late:
                for part in theorists.blocks(layer):
                    for what, said in theorists.told(layer, part):
                        whole = values.setdefault(f"{what} {layer}", np.zeros((len(pairs), store.axes["neuron"]), np.float32))
                        whole[here, part] = said.T
                    bar.update(part.stop - part.start)
        rows += [(name, operator, *row) for row in theorists.tally.rows()]
    shares = pl.col("value", "ci_low", "ci_high", "relabelled")
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row").with_columns(shares.round(DIGITS).round_sig_figs(DIGITS))
    write_table(frame, subject.path("theories/theory_fits.parquet"))
    given.write(subject.path("theories/theory_given.h5"), pairs["pair"].to_numpy(), values)


class Theorists:
    """Every theory of one operator's late neurons. terms: theory -> its scaled terms (terms, cells); grams: their products in training."""

    def __init__(self, subject: Subject, store: LayerStore, late: list[int], prompts: pl.DataFrame, settings: TheoryFits):
        operator, results = store.attributes["operator"], store.columns["result"]
        database = Database({"cells": [Path("data/corpus/cells.parquet")]}, threads=1)
        cells = database.sql("select op1, op2, split from cells where operator = $operator order by op1, op2", operator=operator).pl()
        catalogue = read_table("data/heuristics/heuristics.parquet").filter("usable")
        spectra = subject.table("heuristics/spectra.parquet").filter(pl.col("layer").is_in(late), operator=operator)
        self.store, self.votes, self.settings = store, subject.votes(), settings
        self.cells = Chosen.of(cells, results, prompts, settings)
        raw = {
            "bag": atoms.bag(database, catalogue, operator, self.cells.order),
            "helix": atoms.helices(self.cells.numbers(), load(Helix).periods),
            "waves": atoms.waves(spectra, results.shape, settings.waves, self.cells.op1, self.cells.op2),
        }
        self.terms = {theory: atoms.scaled(terms, self.cells.training) for theory, terms in raw.items()}
        self.grams = {theory: terms[:, : self.cells.training] @ terms[:, : self.cells.training].T for theory, terms in self.terms.items()}
        generator = np.random.default_rng(settings.fit_seed)
        self.relabelled = [generator.permutation(side) for side in results.shape]
        self.tally = Tally({theory: len(terms) for theory, terms in self.terms.items()}, self.cells.held_out, settings)

    def blocks(self, layer: int) -> Iterator[slice]:
        neurons, at_once = self.store.axes["neuron"], self.settings.neurons_at_once
        return (slice(first, min(first + at_once, neurons)) for first in range(0, neurons, at_once))

    def told(self, layer: int, part: slice) -> Iterator[tuple[str, np.ndarray]]:
        """What theories say of some neurons of a layer in the prompts: (what, (neurons, prompts)); keeps the score of all cells."""
        maps, cells = widen(self.store.read(layer, part, slice(None))), self.cells
        prompts = slice(cells.training + cells.held_out, None)
        held_out = slice(cells.training, prompts.start)
        votes = self.votes.read(layer, part, slice(None))[:, voted(self.votes, cells.result[held_out])].astype(np.float64)
        rows, columns = self.relabelled
        mean = maps[:, cells.op1[: cells.training], cells.op2[: cells.training]].mean(1, keepdims=True, dtype=np.float64)
        yield "itself", maps[:, cells.op1[prompts], cells.op2[prompts]]
        yield "mean", np.broadcast_to(mean, (len(maps), len(cells.op1[prompts])))
        for kind, (op1, op2) in {"": (cells.op1, cells.op2), "relabelled": (rows[cells.op1], columns[cells.op2])}.items():
            values = maps[:, op1, op2].astype(np.float64)
            centre = values[:, : cells.training].mean(1, keepdims=True)
            for theory, budget, around in self._fits(values - centre):
                said = around + centre
                self.tally.add((layer, theory, budget, kind), values[:, held_out], said[:, : cells.held_out], centre, votes)
                if not kind or budget == max(self.settings.budgets):
                    yield f"{theory} {budget}{' relabelled' * bool(kind)}", around[:, cells.held_out :] + mean

    def _fits(self, values: np.ndarray) -> Iterator[tuple[str, int, np.ndarray]]:
        """What each theory says behind the training: (theory, budget, (neurons, cells)); values: (neurons, cells), of mean 0 there."""
        training = self.cells.training
        for theory, terms in self.terms.items():
            products = values[:, :training] @ terms[:, :training].T
            behind = terms[:, training:]
            for budget, chosen, coefficients in pursue(self.grams[theory], products, self.settings.budgets):
                said = np.zeros((len(values), behind.shape[1]))
                for which, size in zip(chosen.T, coefficients.T, strict=True):
                    said += size[:, None] * behind[which]
                yield theory, budget, said


if __name__ == "__main__":
    main(sys.argv[1])
