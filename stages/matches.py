"""Scores every heuristic of the catalogue on every neuron, and keeps what is clearly better than chance.

Reads data/heuristics.parquet, data/cells.parquet and the subject's stores; writes data/<subject>/matches.parquet. Heuristics
of the result are scored on activation · value logit of the cell's answer, all others on the activation alone.

Table matches: how well heuristics describe neurons
    subject    VARCHAR   the model
    operator   VARCHAR   add, subtract, multiply or divide
    layer      SMALLINT  decoder layer, from 0
    neuron     INTEGER   neuron of the layer's MLP, from 0
    heuristic  VARCHAR   as in heuristics
    side       VARCHAR   top or bottom: whether the map's largest or smallest values were taken
    score      FLOAT     share of the map's k first cells that satisfy the heuristic, k being how many cells do
    corrected  FLOAT     (score - share) / (1 - share), share being what chance scores: 0 is chance, 1 is perfect
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl
from tqdm import tqdm

from stages.lib import matching
from stages.lib.covering import members
from stages.lib.files import write_table
from stages.lib.heuristics import Heuristic
from stages.lib.params.heuristics import Matches
from stages.lib.params.sections import load
from stages.lib.sql import Database
from stages.lib.store import LayerStore, widen

SCHEMA = {
    "operator": pl.String, "layer": pl.Int16, "neuron": pl.Int32, "heuristic": pl.String, "side": pl.String,
    "score": pl.Float32, "corrected": pl.Float32,
}  # fmt: skip


def main(subject: str) -> None:
    settings = load(Matches)
    catalogue = pl.read_parquet("data/heuristics.parquet").filter("usable")
    database = Database({"cells": [Path("data/cells.parquet")]}, threads=1)
    folder = Path("data") / subject
    votes = LayerStore(folder / "value_logits.h5")
    frames = [pl.DataFrame(schema=SCHEMA)]
    for path in sorted((folder / "activations").glob("*.h5")):
        activations = LayerStore(path)
        operator = activations.attributes["operator"]
        square = Square(database, operator, catalogue.filter(operator=operator), activations)
        for layer in tqdm(activations.layers, desc=f"matches {subject} {operator}", unit="layer"):
            frames += [frame.with_columns(layer=pl.lit(layer, pl.Int16)) for frame in square.layer(layer, votes, settings)]
    whole = pl.concat([frame.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items()) for frame in frames])
    keys = ["operator", "layer", "neuron", "heuristic", "side"]
    write_table(whole.select(pl.lit(subject).alias("subject"), pl.all()).sort(keys), folder / "matches.parquet")


class Square:
    """One operator's cells, the heuristics that are scored on them, and its store."""

    def __init__(self, database: Database, operator: str, catalogue: pl.DataFrame, activations: LayerStore):
        self.operator, self.activations = operator, activations
        listed = catalogue.select("heuristic", "kind", "quantity", "predicate").rows()
        heuristics = [Heuristic(name, kind, quantity, (), predicate) for name, kind, quantity, predicate in listed]
        results = activations.columns["result"]
        self.cells = np.flatnonzero(results.ravel() >= 0)
        self.results = results.ravel()[self.cells]
        op1, op2 = (axis.ravel()[self.cells] for axis in np.indices(results.shape))
        values = {"op1": op1, "op2": op2, "result": self.results}
        satisfied = members(database, operator, heuristics)
        self.parts = []  # names, members, families, whether the map is weighted by value logits
        for of_result in (False, True):
            chosen = [i for i, h in enumerate(heuristics) if (h.quantity == "result") == of_result]
            grouped = matching.families(satisfied[chosen], [heuristics[i].quantity for i in chosen], values)
            self.parts.append((np.array([heuristics[i].name for i in chosen]), satisfied[chosen], grouped, of_result))

    def layer(self, layer: int, votes: LayerStore, settings: Matches) -> list[pl.DataFrame]:
        """The matches of one layer's neurons, some neurons at a time in memory."""
        frames = []
        for first in range(0, self.activations.axes["neuron"], settings.neurons_at_once):
            neurons = slice(first, first + settings.neurons_at_once)
            stored = self.activations.read(layer, neurons, slice(None))
            maps = widen(stored).reshape(len(stored), -1)[:, self.cells]
            weights = votes.read(layer, neurons, slice(None))
            for names, satisfied, grouped, weighted in self.parts:
                of = maps * weights[:, self.results] if weighted else maps
                share = satisfied.mean(1)
                for part, top, bottom in matching.scores(of, satisfied, grouped, settings.threads):
                    frames += [
                        self._kept(first + part.start, names, share, s, side, settings) for s, side in ((top, "top"), (bottom, "bottom"))
                    ]
        return frames

    def _kept(self, first: int, names: np.ndarray, share: np.ndarray, scores: np.ndarray, side: str, settings: Matches) -> pl.DataFrame:
        corrected = (scores - share) / (1 - share)
        neurons, which = np.nonzero(corrected >= settings.smallest_corrected)
        columns = {
            "neuron": first + neurons, "heuristic": names[which], "score": scores[neurons, which], "corrected": corrected[neurons, which],
        }  # fmt: skip
        return pl.DataFrame(columns).with_columns(operator=pl.lit(self.operator), side=pl.lit(side))


if __name__ == "__main__":
    main(sys.argv[1])
