"""Measure the variance that labels explain in neurons' maps, against Fourier components.

A theory of a map is fitted on the training cells by least squares and scored on the held-out cells,
so more terms do not help by themselves. There are two theories:

* heuristics: an intercept and one coefficient for each of the neuron's labels;
* fourier: an intercept and the strongest Fourier components, with as many coefficients or one more.

Components are selected on the training cells alone, but labels were found on all cells, which
favours them a little. Neurons without labels have no row: by definition, their labels explain 0.

Table explained: how much of a labelled neuron's map two theories explain
    subject    VARCHAR   the model
    operator   VARCHAR   add, subtract, multiply or divide
    layer      SMALLINT  decoder layer, from 0
    neuron     INTEGER   neuron of the layer's MLP, from 0; only neurons with labels
    map        VARCHAR   map that is explained: activation, for labels about operands, or
                         contribution (activation times value logit of the answer), for labels about
                         results
    theory     VARCHAR   heuristics (the neuron's labels) or fourier (the strongest Fourier
                         components over op1 and op2)
    terms      INTEGER   free coefficients of the theory, without the intercept; a label that
                         follows from others (such as even and odd) adds none
    explained  FLOAT     explained share of the variance of held-out cells, 1 - error / variance: 1
                         is all, below 0 is worse than predicting the mean; null if they do not vary
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from stages.heuristics.fourier.fit import SplitCells, explain, indicators, waves
from stages.heuristics.fourier.frequencies import FrequencyPairs
from stages.lib.core import environment, progress
from stages.lib.core.hdf5_store import LayerStore, widen
from stages.lib.core.tables import read_table, write_table
from stages.lib.heuristics import answer_tokens
from stages.lib.heuristics.members import listed, members
from stages.lib.sql.database import Database
from stages.lib.subject import Subject

SCHEMA = {
    "operator": pl.String,
    "layer": pl.Int16,
    "neuron": pl.Int32,
    "map": pl.String,
    "theory": pl.String,
    "terms": pl.Int32,
    "explained": pl.Float32,
}


def main(name: str) -> None:
    subject = Subject.named(name)
    labels = subject.table("heuristics/labels.parquet")
    catalogue = read_table("data/heuristics/heuristics.parquet")
    database = Database({"cells": [Path("data/corpus/cells.parquet")]}, threads=1)
    value_logits = subject.value_logits()
    rows: list[tuple] = []
    for activations in subject.activation_stores():
        operator = activations.attributes["operator"]
        own = labels.filter(operator=operator)
        grid = Labelled(database, activations, value_logits, own, catalogue)
        title = f"explained {name} {operator}"
        with progress.bar(total=len(grid.maps), desc=title, unit="map") as bar:
            for theories in grid.rows(environment.workers()):
                rows += [(operator, *theory) for theory in theories]
                bar.update()
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    table = frame.select(pl.lit(name).alias("subject"), pl.all())
    table = table.sort("operator", "layer", "neuron", "map", "theory")
    write_table(table, subject.path("heuristics/explained.parquet"))


class LabelledMap(NamedTuple):
    """A neuron's map, activation or contribution, and the rows of its labels' cells."""

    layer: int
    neuron: int
    map: str
    labels: list[int]


class Labelled:
    """One operator's cells, its store, and the labels of each map."""

    def __init__(
        self,
        database: Database,
        activations: LayerStore,
        value_logits: LayerStore,
        labels: pl.DataFrame,
        catalogue: pl.DataFrame,
    ):
        """Find the cells of each label; all arguments are about one operator."""
        operator, results = activations.attributes["operator"], activations.columns["result"]
        self.activations, self.value_logits = activations, value_logits
        query = "select op1, op2, split from cells where operator = $operator order by op1, op2"
        table = database.sql(query, operator=operator).pl()
        self.cells = SplitCells.from_table(table, results)
        self.pairs = FrequencyPairs.from_shape((results.shape[0], results.shape[1]))
        self.answers = answer_tokens.logit_numbers(
            activations, results[self.cells.op1, self.cells.op2]
        )
        names = labels["heuristic"].unique().sort().to_list()
        heuristics = listed(catalogue, operator, names)
        satisfied = members(database, operator, heuristics, answer_tokens.numbers(activations))
        self.satisfied = satisfied[:, self.cells.order]
        of_result = pl.col("quantity").is_in(["result", "asked"])
        keys = ["layer", "neuron", "map"]
        maps = (
            labels.with_columns(
                map=pl.when(of_result).then(pl.lit("contribution")).otherwise(pl.lit("activation")),
                number=pl.col("heuristic").replace_strict(
                    names, range(len(names)), return_dtype=pl.Int64
                ),
            )
            .group_by(keys)
            .agg(pl.col("number").unique().sort())
            .sort(keys)
        )
        self.maps = [LabelledMap(*row) for row in maps.rows()]

    def rows(self, threads: int) -> Iterator[list[tuple]]:
        """Yield each map's rows, without the operator; each thread has one map in memory."""
        with ThreadPoolExecutor(threads) as pool:
            yield from pool.map(self._theories, self.maps)

    def _theories(self, labelled: LabelledMap) -> list[tuple]:
        values, training = self._values(labelled), self.cells.training
        heuristics = explain(indicators(self.satisfied[labelled.labels]), values, training)
        components = waves(values, self.cells, self.pairs, heuristics.terms)
        fourier = explain(components, values, training)
        key = labelled[:3]
        return [
            (*key, "heuristics", heuristics.terms, _rounded(heuristics.share)),
            (*key, "fourier", fourier.terms, _rounded(fourier.share)),
        ]

    def _values(self, labelled: LabelledMap) -> np.ndarray:
        """Read a neuron's map: (cells,) float64."""
        layer, neuron = labelled.layer, slice(labelled.neuron, labelled.neuron + 1)
        activations = widen(self.activations.read(layer, neuron, slice(None)))[0]
        values = activations[self.cells.op1, self.cells.op2].astype(np.float64)
        if labelled.map == "contribution":
            values *= self.value_logits.read(layer, neuron, slice(None))[0, self.answers]
        return values


def _rounded(share: float) -> float | None:
    """Round to seven decimals, and turn NaN into None.

    If a theory explains nothing, the rest of 0 in the tenth decimal is the processor's rounding.
    """
    if np.isnan(share):
        return None
    return round(share, 7) + 0.0  # no negative zero


if __name__ == "__main__":
    main(sys.argv[1])
