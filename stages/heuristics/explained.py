"""How much of each labelled neuron's map its heuristics explain, beside as many Fourier terms: labelled is not explained.

A theory of a map is fitted on the training cells by least squares and scored on the held-out ones, so that more terms do not help by
themselves. Heuristics: an intercept and one coefficient for each of the neuron's labels. Fourier: an intercept and the strongest waves,
with as many coefficients or one more, found on the training cells alone (labels were found on all cells, which favours them a little).
Neurons without labels have no row: what their labels explain is 0 by definition.

Table explained: how much of a neuron's map two theories of it explain
    subject    VARCHAR   the model
    operator   VARCHAR   add, subtract, multiply or divide
    layer      SMALLINT  decoder layer, from 0
    neuron     INTEGER   neuron of the layer's MLP, from 0; only those with labels
    map        VARCHAR   activation, for labels about operands; contribution (activation · value logit of the answer), about results
    theory     VARCHAR   heuristics (the neuron's labels) or fourier (the strongest waves over op1 and op2)
    terms      INTEGER   free coefficients without the intercept; labels that follow from others (even beside odd) add none
    explained  FLOAT     1 - error / variance of held-out cells: 1 is all, below 0 is worse than their mean; null where they do not vary
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl

from stages.heuristics.waves.fit import SplitCells, explain, indicators, waves
from stages.heuristics.waves.fourier import FrequencyPairs
from stages.lib.core import machine, progress
from stages.lib.core.layered import LayerStore, widen
from stages.lib.core.tables import read_table, write_table
from stages.lib.heuristics import asked
from stages.lib.heuristics.members import listed, members
from stages.lib.sql.database import Database
from stages.lib.subject import Subject

SCHEMA = {
    "operator": pl.String, "layer": pl.Int16, "neuron": pl.Int32, "map": pl.String, "theory": pl.String, "terms": pl.Int32,
    "explained": pl.Float32,
}  # fmt: skip


def main(name: str) -> None:
    subject = Subject.named(name)
    labels = subject.table("heuristics/labels.parquet")
    catalogue = read_table("data/heuristics/heuristics.parquet")
    database = Database({"cells": [Path("data/corpus/cells.parquet")]}, threads=1)
    votes = subject.votes()
    rows: list[tuple] = []
    for activations in subject.squares():
        operator = activations.attributes["operator"]
        square = Labelled(database, activations, votes, labels.filter(operator=operator), catalogue)
        with progress.bar(total=len(square.maps), desc=f"explained {name} {operator}", unit="map") as bar:
            for found in square.rows(machine.workers()):
                rows += [(operator, *row) for row in found]
                bar.update()
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row").select(pl.lit(name).alias("subject"), pl.all())
    write_table(frame.sort("operator", "layer", "neuron", "map", "theory"), subject.path("heuristics/explained.parquet"))


class Labelled:
    """One operator's cells, its store, and the labels of each map."""

    def __init__(
        self, database: Database, activations: LayerStore, votes: LayerStore, labels: pl.DataFrame, catalogue: pl.DataFrame
    ):  # all of one operator
        operator, results = activations.attributes["operator"], activations.columns["result"]
        self.activations, self.votes = activations, votes
        table = database.sql("select op1, op2, split from cells where operator = $operator order by op1, op2", operator=operator).pl()
        self.cells, self.pairs = SplitCells.of(table, results), FrequencyPairs.of((results.shape[0], results.shape[1]))
        self.voted = asked.voted(activations, results[self.cells.op1, self.cells.op2])
        names = sorted(set(labels["heuristic"]))
        satisfied = members(database, operator, listed(catalogue, operator, names), asked.numbers(activations))
        self.satisfied = satisfied[:, self.cells.order]
        kind = pl.when(pl.col("quantity").is_in(["result", "asked"])).then(pl.lit("contribution")).otherwise(pl.lit("activation"))
        numbered = labels.with_columns(map=kind, number=pl.col("heuristic").replace_strict(names, range(len(names)), return_dtype=pl.Int64))
        grouped = numbered.group_by("layer", "neuron", "map").agg(pl.col("number").unique().sort()).sort("layer", "neuron", "map")
        self.maps: list[tuple[int, int, str, list[int]]] = grouped.rows()  # layer, neuron, map, its labels' rows of `satisfied`

    def rows(self, threads: int) -> Iterator[list[tuple]]:
        """(layer, neuron, map, theory, terms, explained) of every map's theories; one map per thread in memory."""
        with ThreadPoolExecutor(threads) as pool:
            yield from pool.map(self._theories, self.maps)

    def _theories(self, labelled: tuple[int, int, str, list[int]]) -> list[tuple]:
        layer, neuron, kind, numbers = labelled
        values = self._map(layer, neuron, kind)
        heuristics = explain(indicators(self.satisfied[numbers]), values, self.cells.training)
        fourier = explain(waves(values, self.cells, self.pairs, heuristics.terms), values, self.cells.training)
        found = {"heuristics": heuristics, "fourier": fourier}
        return [(layer, neuron, kind, theory, part.terms, _rounded(part.share)) for theory, part in found.items()]

    def _map(self, layer: int, neuron: int, kind: str) -> np.ndarray:
        """A neuron's map (cells,) in float64."""
        one = slice(neuron, neuron + 1)
        values = widen(self.activations.read(layer, one, slice(None)))[0, self.cells.op1, self.cells.op2].astype(np.float64)
        if kind == "contribution":
            values *= self.votes.read(layer, one, slice(None))[0, self.voted]
        return values


def _rounded(share: float) -> float | None:
    """To seven decimals: where a theory explains nothing, what is left of 0 in the tenth is the processor's rounding."""
    return None if np.isnan(share) else round(share, 7) + 0.0  # + 0.0: no negative zero


if __name__ == "__main__":
    main(sys.argv[1])
