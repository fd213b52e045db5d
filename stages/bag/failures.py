"""Sum what each cell's heuristic neurons contribute to its answer (Sec. 4.3, Fig. 9).

The sum should be smaller where the model fails. The stage reads data/corpus/cells.parquet,
data/heuristics/heuristics.parquet, the model's predictions.parquet and heuristic_neurons.parquet,
and its HDF5 stores. It writes data/<subject>/bag/failures.parquet. A neuron of the late layers is
associated with a cell that satisfies at least one of the neuron's heuristics, and counts once.
Every cell that the model was prompted with has its rows, even if no neuron is associated with it.

Table failures: how many heuristic neurons each cell has, and what they contribute to its answer
    subject                  VARCHAR  the model
    operator                 VARCHAR  add, subtract, multiply or divide
    op1                      INTEGER  first operand
    op2                      INTEGER  second operand
    criterion                VARCHAR  criterion by which neurons have heuristics, as in
                                      heuristic_neurons: fdr or threshold
    correct                  BOOLEAN  whether the model answers the cell correctly, as in
                                      predictions
    associated_neurons       INTEGER  neurons of late layers that have a heuristic which the cell
                                      satisfies
    answer_contribution      FLOAT    sum over the associated neurons of activation · value logit of
                                      the answer, in logits; 0 without such neurons
    prediction_contribution  FLOAT    sum over the associated neurons of activation · value logit of
                                      the model's prediction, in logits; null if the prediction is
                                      not a number
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

from stages.bag.settings import Failures
from stages.lib.core import progress
from stages.lib.core.hdf5_store import LayerStore, widen
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.core.vocabulary import OVERLAPPING_CRITERIA as CRITERIA
from stages.lib.heuristics import answer_tokens
from stages.lib.heuristics.members import listed, members
from stages.lib.sql.database import Database
from stages.lib.subject import Subject

KEYS = ["operator", "op1", "op2", "criterion"]
AT_ONCE = 50  # heuristics whose cells a query returns, as Python objects
CELLS = """
    select op1, op2, correct, predicted, if(correct is null, null, result) as answer
    from cells left join predictions using (operator, op1, op2)
    where operator = $operator
    order by op1, op2
"""
NEURONS = """
    select layer, neuron,
        list(heuristic order by heuristic) filter (criterion = 'fdr') as fdr,
        list(heuristic order by heuristic) filter (criterion = 'threshold') as threshold
    from heuristic_neurons
    where operator = $operator and late and criterion in ('fdr', 'threshold')
    group by layer, neuron
    order by layer, neuron
"""


def main(name: str) -> None:
    subject, settings = Subject.named(name), load(Failures)
    catalogue = read_table("data/heuristics/heuristics.parquet")
    tables = {
        "cells": Path("data/corpus/cells.parquet"),
        "predictions": subject.path("store/predictions.parquet"),
        "heuristic_neurons": subject.path("heuristics/heuristic_neurons.parquet"),
    }
    files = {table: [path] for table, path in tables.items()}
    database = Database(files, threads=1)
    value_logits = subject.value_logits()
    frames = []
    for activations in subject.activation_stores():
        bag = OperatorBag(database, catalogue, activations, value_logits)
        frames.append(bag.rows(settings.neurons_at_once, f"failures {name}"))
    table = pl.concat(frames).select(pl.lit(name).alias("subject"), pl.all())
    write_table(table.sort(KEYS), subject.path("bag/failures.parquet"))


class Sums:
    """Sum contributions to each cell over its associated neurons, in float64.

    Neurons are added in order, so that the rounding is the same in every run.
    """

    def __init__(self, cells: int):
        self.neurons = np.zeros(cells, np.int32)
        self.answer = np.zeros(cells)
        self.prediction = np.zeros(cells)

    def add(self, associated: np.ndarray, answer: np.ndarray, prediction: np.ndarray) -> None:
        """Add one neuron.

        associated: bool (cells,); answer, prediction: (cells,) its contributions, in logits.
        """
        self.neurons += associated
        self.answer += associated * answer  # faster than adding to the associated cells alone
        self.prediction += associated * prediction


class OperatorBag:
    """Hold one operator's cells, in order of op1, then op2, and its late heuristic neurons.

    Cells that the model was not prompted with, as their answer has no token, are summed like all
    others and have no row.
    """

    def __init__(
        self,
        database: Database,
        catalogue: pl.DataFrame,
        activations: LayerStore,
        value_logits: LayerStore,
    ):
        self.activations, self.value_logits = activations, value_logits
        self.operator: str = activations.attributes["operator"]
        self.cells = database.sql(CELLS, operator=self.operator).pl()
        columns = self.cells.select("op1", "op2", "answer", "predicted").fill_null(0)
        op1, op2, answers, self.predicted = columns.to_numpy().astype(np.intp).T
        height, width = activations.axes["op1"], activations.axes["op2"]
        # where each cell is in a neuron's flattened map of the operand grid
        self.locations = np.minimum(op1, height - 1) * width + np.minimum(op2, width - 1)
        self.answers = answer_tokens.logit_numbers(activations, answers)
        self.neurons = database.sql(NEURONS, operator=self.operator).pl()
        # neurons called are scored, too
        names = sorted(set(self.neurons["threshold"].explode()))
        self.row = dict(zip(names, range(len(names)), strict=True))
        self.satisfied = np.zeros((len(names), len(self.cells)), bool)
        heuristics = listed(catalogue, self.operator, names)
        numbers = answer_tokens.numbers(activations)
        for first in range(0, len(names), AT_ONCE):
            some = slice(first, first + AT_ONCE)
            self.satisfied[some] = members(database, self.operator, heuristics[some], numbers)

    def rows(self, neurons_at_once: int, title: str) -> pl.DataFrame:
        """Return the operator's rows; neurons_at_once: maps that are in memory together."""
        sums = {criterion: Sums(len(self.cells)) for criterion in CRITERIA}
        neurons = self.neurons.with_columns(block=pl.col("neuron") // neurons_at_once)
        title = f"{title} {self.operator}"
        with progress.bar(total=len(neurons), desc=title, unit="neuron") as bar:
            for (layer, block), part in neurons.group_by("layer", "block", maintain_order=True):
                start = block * neurons_at_once
                self._add(layer, slice(start, start + neurons_at_once), part, sums)
                bar.update(len(part))
        frames = [self._frame(criterion, own) for criterion, own in sums.items()]
        return pl.concat(frames)

    def _add(self, layer: int, block: slice, neurons: pl.DataFrame, sums: dict[str, Sums]) -> None:
        """Add the neurons of one block, each to every criterion by which it has heuristics."""
        maps = widen(self.activations.read(layer, block, slice(None)))
        maps = maps.reshape(len(maps), -1)
        logits = self.value_logits.read(layer, block, slice(None))
        for neuron, *heuristics_of in neurons.select("neuron", *CRITERIA).iter_rows():
            values = maps[neuron - block.start].take(self.locations).astype(np.float64)
            own_logits = logits[neuron - block.start]
            answer = values * own_logits[self.answers]
            prediction = values * own_logits[self.predicted]
            for criterion, own in zip(CRITERIA, heuristics_of, strict=True):
                if own:
                    rows = [self.row[name] for name in own]
                    associated = np.logical_or.reduce(self.satisfied[rows])
                    sums[criterion].add(associated, answer, prediction)

    def _frame(self, criterion: str, sums: Sums) -> pl.DataFrame:
        prediction = pl.when(pl.col("predicted").is_not_null()).then(pl.Series(sums.prediction))
        rows = self.cells.select(
            pl.lit(self.operator).alias("operator"),
            "op1",
            "op2",
            pl.lit(criterion).alias("criterion"),
            "correct",
            pl.Series("associated_neurons", sums.neurons),
            pl.Series("answer_contribution", sums.answer).cast(pl.Float32),
            prediction.cast(pl.Float32).alias("prediction_contribution"),
        )
        return rows.filter(pl.col("correct").is_not_null())


if __name__ == "__main__":
    main(sys.argv[1])
