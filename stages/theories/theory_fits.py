"""Fit theories to the same late neurons: heuristics, a helix, Fourier components and predicates.

A theory predicts a neuron's map as an intercept and a few terms. There are two groups of theories.

* bag, helix and waves search: the terms of a dictionary (atoms.py) are chosen one after another on
  trained cells (pursuit.py), with equal numbers of terms for every neuron. A larger dictionary
  gains more from the choice alone. The control is therefore the same search on the same maps with
  rows and columns relabelled at random. Fourier components are selected anew for these maps.
* labels and discovered take a neuron's terms from the tables of these names (conditions.py), and
  fit their coefficients to the same trained cells. A neuron without a term is predicted as its
  mean. In the control, the neurons of a layer that have terms exchange them, and coefficients are
  fitted anew. It shows what the terms explain of any neuron. Labels were scored on all cells, and
  labels about the result on contributions rather than activations.

The neurons are those of the late layers at the last position. In a model without late layers, they
are those of the later half of its layers. All theories are scored on held-out cells.

Scores (column `what`):
* activation: the variance of the neurons' activations, each around its own mean.
* logit: the variance of what the neurons together write to the answer's logit, the sum of
  activation x value logit. It varies little around its mean, so a theory whose errors are as large
  as this variation explains nothing.
* written: the same, but instead of the variance, the squared error of each neuron's mean.

Description length (column `bits`, description.py): the mean bits of a late neuron, beyond its mean,
which all theories share. D is the size of the dictionary, k the number of terms, n the number of
trained cells. A coefficient takes log2(n) / 2 bits (Rissanen 1978). D of labels is the number of
heuristics that are scored.
* bag and helix: log2(D choose k) + k log2(n) / 2.
* waves: the same, and log2(F choose S) / neurons, since the S Fourier components of the dictionary
  are selected from all F for all late neurons together.
* labels: the same as bag, and the number of labels, which differs between neurons: k + 1 in
  Rissanen's universal code of integers (1983), 1.5 bits if there is no label.
* discovered: 1 bit, whether there is a predicate; then the bits of the table, and log2(n) / 2.
Cells that share an operand are not independent, so log2(n) / 2 bits per coefficient are an upper
bound.
With the number of operand labels as n, as in heuristics/discovery, every coefficient of every
theory takes log2(5,000 / 600) / 2 = 1.5 bits less. The order of the theories does not depend on it.

The stage also writes theories/theory_given.h5: the prediction for each late neuron in the
evaluation prompts of `pairs`, on none of which a theory was fitted. `mean` is a theory without
terms, the neuron's mean over the operator's trained cells. `relabelled` are the controls: fits to
relabelled maps, around that same mean (where some cells have no answer, a relabelled map contains
other values of the neuron and so has another mean), and fits of another neuron's terms. Theories
that search have controls for the budgets in `control_budgets` and for the largest. `itself` is the
stored activation.

Table theory_fits: the share of the late neurons' variance that theories explain
    subject     VARCHAR   the model
    operator    VARCHAR   add, subtract, multiply or divide
    layer       SMALLINT  late layer, from 0; null: all late layers together
    theory      VARCHAR   bag (heuristics of the catalogue), helix (lines and circles of op1, op2
                          and the result), waves (Fourier components over op1 and op2), labels (each
                          neuron's labels) or discovered (each neuron's discovered predicate)
    parameters  INTEGER   largest number of terms per neuron, without the intercept; null for labels
                          and discovered, whose terms other tables name
    what        VARCHAR   what is explained: activation (each neuron's activations), logit (what the
                          neurons together write to the answer's logit), or written (the same,
                          compared with the neurons' means)
    value       DOUBLE    explained share over held-out cells, at most 1: 1 - squared error /
                          variance, for written 1 - squared error / that of the neurons' means; null
                          where the denominator is 0
    ci_low      DOUBLE    lower end of the bootstrap interval of value, over neurons for activation,
                          over cells for logit and written
    ci_high     DOUBLE    upper end of the bootstrap interval of value
    relabelled  DOUBLE    value of the control: for bag, helix and waves the same search on maps
                          with relabelled operands, for labels and discovered a fit of another
                          neuron's terms
    bits        DOUBLE    mean description length of a neuron's terms and coefficients, in bits; the
                          neuron's mean is not counted
    choices     INTEGER   terms in the theory's dictionary; null for discovered, whose predicates
                          are too many to list
    neurons     INTEGER   late neurons of the layer, or of all late layers
    cells       INTEGER   held-out cells
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, product, repeat
from pathlib import Path
from threading import get_ident
from typing import NamedTuple

import numpy as np
import polars as pl

from stages.heuristics.fourier.frequencies import FrequencyPairs
from stages.heuristics.fourier.spectrum import spectrum
from stages.heuristics.settings import Spectra
from stages.lib.core import environment, progress
from stages.lib.core.hdf5_store import LayerStore, widen
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.executor import external_values
from stages.lib.heuristics.answer_tokens import logit_numbers, numbers
from stages.lib.sql.database import Database
from stages.lib.subject import Subject
from stages.theories import atoms, description
from stages.theories.conditions import Conditions, LayerConditions
from stages.theories.pursuit import pursue
from stages.theories.settings import Helix, TheoryFits
from stages.theories.tally import Key, Length, Tally

SCHEMA = {
    "subject": pl.String,
    "operator": pl.String,
    "layer": pl.Int16,
    "theory": pl.String,
    "parameters": pl.Int32,
    "what": pl.String,
    "value": pl.Float64,
    "ci_low": pl.Float64,
    "ci_high": pl.Float64,
    "relabelled": pl.Float64,
    "bits": pl.Float64,
    "choices": pl.Int32,
    "neurons": pl.Int32,
    "cells": pl.Int32,
}
NAMED = ("labels", "discovered")  # theories whose terms a table names
# Shares get this many decimals, and no more significant digits beyond 1. Further digits depend on
# the kind of processor.
DIGITS = 6


@dataclass(frozen=True, eq=False)
class SampledCells:
    """An operator's cells: first training cells, then held-out cells, then the patched prompts.

    op1, op2, result: (cells,) numbers of each cell
    order: (cells,) row number of each cell among all of the operator's cells
    training, held_out: how many training and held-out cells there are
    """

    op1: np.ndarray
    op2: np.ndarray
    result: np.ndarray
    order: np.ndarray
    training: int
    held_out: int

    @classmethod
    def draw(
        cls, cells: pl.DataFrame, results: np.ndarray, prompts: pl.DataFrame, settings: TheoryFits
    ) -> "SampledCells":
        """Draw training and held-out cells, and add the prompts.

        cells: the operator's cells, sorted by op1, then op2
        results: (op1, op2) the store's answers, -1 where there is none; the grid may be smaller
        prompts: op1 and op2 of the evaluation prompts, which are not training cells
        """
        on_grid = (cells["op1"] < results.shape[0]) & (cells["op2"] < results.shape[1])
        rows = np.flatnonzero(on_grid)
        cells = cells[rows]
        op1, op2 = cells["op1"].to_numpy(), cells["op2"].to_numpy()
        # A cell's location in the flattened grid.
        location = op1.astype(np.int64) * results.shape[1] + op2
        first, second = prompts["op1"].to_numpy(), prompts["op2"].to_numpy()
        prompted = first.astype(np.int64) * results.shape[1] + second
        answered, trained = results[op1, op2] >= 0, (cells["split"] == "train").to_numpy()
        generator = np.random.default_rng(settings.fit_seed)
        usable = np.flatnonzero(answered & trained & ~np.isin(location, prompted))
        training = generator.permutation(usable)[: settings.train_cells]
        usable = np.flatnonzero(answered & ~trained)
        held_out = generator.permutation(usable)[: settings.held_out_cells]
        order = np.concatenate([training, held_out, np.searchsorted(location, prompted)])
        result = results[op1, op2][order]
        return cls(op1[order], op2[order], result, rows[order], len(training), len(held_out))

    def numbers(self) -> dict[str, np.ndarray]:
        """Return quantity -> its value in each cell (cells,)."""
        return {"op1": self.op1, "op2": self.op2, "result": self.result}

    def columns(self, tokens: np.ndarray | None) -> dict[str, np.ndarray]:
        """Return the columns that predicates name -> their values in each cell (cells,).

        tokens: see answer_tokens.numbers
        """
        if tokens is None:
            return self.numbers()
        known = tokens[np.minimum(self.result, len(tokens) - 1)]
        return self.numbers() | {"asked": np.where(self.result < len(tokens), known, -1)}


def main(name: str) -> None:
    """Fit the theories to one model's late neurons; write both outputs."""
    subject, settings = Subject.named(name), load(TheoryFits)
    pairs = subject.table("circuit/pairs.parquet").filter(split="evaluation").sort("pair")
    late_layers = subject.table("circuit/late_layers.parquet")
    first, layers = late_layers.select("first_layer", "layers").row(0)
    if first is None:
        first = layers // 2
    stores = subject.activation_stores()
    neurons = stores[0].axes["neuron"]
    late = [layer for layer in stores[0].layers if layer >= first]
    values: dict[str, np.ndarray] = {}

    def relabel(store: LayerStore, bar: progress.Bar) -> Relabelled:
        return Relabelled.draw(store, late, settings, bar)

    def fit(store: LayerStore, relabelled: Relabelled, bar: progress.Bar) -> list[tuple]:
        """Fit an operator's neurons, add their predictions to `values`, and return their rows."""
        operator = store.attributes["operator"]
        prompts, own = pairs.filter(operator=operator), (pairs["operator"] == operator).to_numpy()
        theories = NeuronTheories(subject, store, late, prompts, settings, relabelled)
        for key, block, predicted in _predictions(theories, late, bar):
            empty = np.zeros((len(pairs), neurons), np.float32)
            values.setdefault(key, empty)[own, block] = predicted.T
        return [(name, operator, *row) for row in theories.tally.rows()]

    open_bar = partial(progress.bar, total=len(stores) * len(late) * neurons, unit="neuron")
    with ThreadPoolExecutor(environment.workers()) as threads:
        with open_bar(desc=f"relabelled spectra {name}") as bar:
            relabelled = list(threads.map(relabel, stores, repeat(bar)))
        with open_bar(desc=f"theories {name}") as bar:
            rows = list(chain.from_iterable(threads.map(fit, stores, relabelled, repeat(bar))))
    shares = pl.col("value", "ci_low", "ci_high", "relabelled", "bits")
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    rounded = frame.with_columns(shares.round(DIGITS).round_sig_figs(DIGITS))
    write_table(rounded, subject.path("theories/theory_fits.parquet"))
    external_values.write(
        subject.path("theories/theory_given.h5"), pairs["pair"].to_numpy(), values
    )


def _predictions(
    theories: "NeuronTheories", late: list[int], bar: progress.Bar
) -> Iterator[tuple[str, slice, np.ndarray]]:
    """Yield (name, block, (neurons, prompts)) for every block of neurons of the late layers."""
    for layer in late:
        for block in theories.blocks():
            for theory, predicted in theories.predictions(layer, block):
                yield f"{theory} {layer}", block, predicted
            bar.update(block.stop - block.start, worker=get_ident())


class FittedTheory(NamedTuple):
    """A theory's predictions for a block of neurons.

    values: (neurons, cells) activations to which the theory was fitted
    centre: (neurons, 1) their mean over training cells
    around: (neurons, cells) predictions - centre, for the cells after training
    """

    key: Key
    values: np.ndarray
    centre: np.ndarray
    around: np.ndarray


class Dictionary(NamedTuple):
    """The terms among which a theory searches.

    terms: (terms, cells), each of mean 0 and length 1 on training cells
    gram: (terms, terms) their products over training cells
    """

    terms: np.ndarray
    gram: np.ndarray

    @classmethod
    def scale(cls, terms: np.ndarray, training: int) -> "Dictionary":
        """Scale terms (terms, cells) on the first `training` cells."""
        scaled = atoms.scaled(terms, training)
        return cls(scaled, scaled[:, :training] @ scaled[:, :training].T)


class Relabelled(NamedTuple):
    """The maps of an operator's late neurons with relabelled operands.

    rows, columns: the row and column of the grid that each row and column of a relabelled map has
    spectra: the strongest Fourier components of each relabelled map, as in `spectra`
    """

    rows: np.ndarray
    columns: np.ndarray
    spectra: pl.DataFrame

    @classmethod
    def draw(
        cls, store: LayerStore, late: list[int], settings: TheoryFits, bar: progress.Bar
    ) -> "Relabelled":
        """Draw a permutation of the rows and one of the columns, and find the components."""
        generator = np.random.default_rng(settings.fit_seed)
        rows, columns = (generator.permutation(store.axes[axis]) for axis in ("op1", "op2"))
        pairs, shown = FrequencyPairs.from_shape((len(rows), len(columns))), load(Spectra)
        none = np.zeros((0, *pairs.shape), np.float32)
        frames, step = [spectrum(none, pairs, shown.components)], shown.neurons_at_once
        for layer, first in product(late, range(0, store.axes["neuron"], step)):
            maps = store.read(layer, slice(first, first + step), slice(None))
            relabelled = widen(maps)[:, rows[:, None], columns]
            frames.append(spectrum(relabelled, pairs, shown.components))
            bar.update(len(maps), worker=get_ident())
        return cls(rows, columns, pl.concat(frames))


class NeuronTheories:
    """Every theory of one operator's late neurons.

    controlled: numbers of terms of which predictions yields the control; None for named theories
    dictionaries: theory -> its terms
    control_dictionaries: theory -> the terms of its control
    """

    def __init__(
        self,
        subject: Subject,
        store: LayerStore,
        late: list[int],
        prompts: pl.DataFrame,
        settings: TheoryFits,
        relabelled: Relabelled,
    ):
        """store: the operator's activations; late: layers; prompts: evaluation prompts."""
        operator, results = store.attributes["operator"], store.columns["result"]
        self.store, self.value_logits, self.settings = store, subject.value_logits(), settings
        self.controlled = {None, max(settings.budgets), *settings.control_budgets}
        database = Database({"cells": [Path("data/corpus/cells.parquet")]}, threads=1)
        query = """
            select op1, op2, split from cells where operator = $operator order by op1, op2
        """
        cells = database.sql(query, operator=operator).pl()
        self.database, self.neurons = database, store.axes["neuron"]
        self.cells = SampledCells.draw(cells, results, prompts, settings)
        catalogue = read_table("data/heuristics/heuristics.parquet").filter("usable")
        spectra = subject.table("heuristics/spectra.parquet")
        spectra = spectra.filter(pl.col("layer").is_in(late), operator=operator)
        op1, op2, training = self.cells.op1, self.cells.op2, self.cells.training
        self.relabelled = relabelled
        raw = {
            "bag": atoms.bag(database, catalogue, operator, self.cells.order),
            "helix": atoms.helices(self.cells.numbers(), load(Helix).periods),
            "waves": atoms.waves(spectra, results.shape, settings.waves, op1, op2),
        }
        control_waves = atoms.waves(relabelled.spectra, results.shape, settings.waves, op1, op2)
        self.dictionaries = {name: Dictionary.scale(raw[name], training) for name in raw}
        self.control_dictionaries = self.dictionaries | {
            "waves": Dictionary.scale(control_waves, training)
        }
        tables = {name: subject.table(f"heuristics/{name}.parquet") for name in NAMED}
        self.conditions = {
            "labels": Conditions.labels(tables["labels"], catalogue, store, late, training),
            "discovered": Conditions.discovered(tables["discovered"], store, late, training),
        }
        self.of_layer = lru_cache(1)(self._of_layer)
        names = ["frequency1", "frequency2"]
        components = min(settings.waves, spectra.n_unique(names))
        pairs = len(FrequencyPairs.from_shape(results.shape).frequencies)
        lengths = list(self._lengths(late, components, pairs))
        self.tally = Tally(lengths, self.cells.held_out, settings)

    def _lengths(self, late: list[int], components: int, pairs: int) -> Iterator[Length]:
        """Yield the description length of each theory with each budget.

        components: Fourier components in the dictionary; pairs: from which they were selected
        """
        training, neurons = self.cells.training, len(late) * self.neurons
        shared = {"waves": description.subset(pairs, components) / max(1, neurons)}
        for theory, dictionary in self.dictionaries.items():
            choices = len(dictionary.terms)
            for budget in self.settings.budgets:
                bits = shared.get(theory, 0.0) + description.subset(choices, budget)
                bits += description.coefficients(min(budget, choices), training)
                yield Length(theory, budget, choices, dict.fromkeys(late, bits))
        for theory, conditions in self.conditions.items():
            yield Length(theory, None, conditions.choices, conditions.bits)

    def _of_layer(self, layer: int) -> dict[str, LayerConditions]:
        """Return theory -> the conditions of a layer's neurons."""
        arguments = self.database, self.cells.columns(numbers(self.store)), self.settings.fit_seed
        return {
            theory: conditions.of_layer(layer, self.neurons, *arguments)
            for theory, conditions in self.conditions.items()
        }

    def blocks(self) -> Iterator[slice]:
        """Yield blocks of neurons that fit into memory."""
        neurons, size = self.store.axes["neuron"], self.settings.neurons_at_once
        for first in range(0, neurons, size):
            yield slice(first, min(first + size, neurons))

    def predictions(self, layer: int, block: slice) -> Iterator[tuple[str, np.ndarray]]:
        """Fit a block of a layer's neurons and add their scores to the tally.

        Yields (name, (neurons, prompts)): each theory's predictions for the patched prompts.
        """
        maps, cells = widen(self.store.read(layer, block, slice(None))), self.cells
        training = slice(cells.training)
        held_out = slice(cells.training, cells.training + cells.held_out)
        prompts = slice(held_out.stop, None)
        answers = logit_numbers(self.value_logits, cells.result[held_out])
        value_logits = self.value_logits.read(layer, block, slice(None))[:, answers]
        value_logits = value_logits.astype(np.float64)
        trained = maps[:, cells.op1[training], cells.op2[training]]
        mean = trained.mean(1, keepdims=True, dtype=np.float64)
        yield "itself", maps[:, cells.op1[prompts], cells.op2[prompts]]
        yield "mean", np.broadcast_to(mean, (len(maps), len(cells.op1[prompts])))
        for key, values, centre, around in self._fits(layer, block, maps):
            predicted = (around + centre)[:, : cells.held_out]
            self.tally.add(key, values[:, held_out], predicted, centre, value_logits)
            parameters = key.parameters
            if not key.kind or parameters in self.controlled:
                size = "" if parameters is None else str(parameters)
                name = " ".join(filter(None, (key.theory, size, key.kind)))
                yield name, around[:, cells.held_out :] + mean

    def _fits(self, layer: int, block: slice, maps: np.ndarray) -> Iterator[FittedTheory]:
        """Fit every theory to a block of neurons, and each theory's control.

        maps: (neurons, op1, op2) activations
        """
        cells, training = self.cells, self.cells.training
        rows, columns, _ = self.relabelled
        labels = {
            "": (cells.op1, cells.op2),
            "relabelled": (rows[cells.op1], columns[cells.op2]),
        }
        for kind, (op1, op2) in labels.items():
            values = maps[:, op1, op2].astype(np.float64)
            centre = values[:, :training].mean(1, keepdims=True)
            dictionaries = self.control_dictionaries if kind else self.dictionaries
            for theory, budget, around in self._searched(values - centre, dictionaries):
                yield FittedTheory(Key(layer, theory, budget, kind), values, centre, around)
            if kind:
                continue
            for theory, conditions in self.of_layer(layer).items():
                kinds = {"": conditions.own, "relabelled": conditions.exchanged}
                for control, rows_of_holds in kinds.items():
                    around = conditions.fit(rows_of_holds[block], values - centre, training)
                    yield FittedTheory(Key(layer, theory, None, control), values, centre, around)

    def _searched(
        self, values: np.ndarray, dictionaries: dict[str, Dictionary]
    ) -> Iterator[tuple[str, int, np.ndarray]]:
        """Yield (theory, budget, (neurons, cells)): predictions for the cells after training.

        values: (neurons, cells) activations, of mean 0 over training cells
        """
        training = self.cells.training
        budgets = self.settings.budgets
        for theory, (terms, gram) in dictionaries.items():
            products = values[:, :training] @ terms[:, :training].T
            remaining = terms[:, training:]
            for budget, chosen_terms, sizes in pursue(gram, products, budgets):
                predicted = np.zeros((len(values), remaining.shape[1]))
                for term, size in zip(chosen_terms.T, sizes.T, strict=True):
                    predicted += size[:, None] * remaining[term]
                yield theory, budget, predicted


if __name__ == "__main__":
    main(sys.argv[1])
