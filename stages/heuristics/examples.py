"""What the picture of a labelled neuron shows: its map, the cells of its heuristic and the numbers its value vector votes for."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.lib.core.layered import LayerStore, widen
from stages.lib.core.shards import store_of
from stages.lib.core.tables import read_table
from stages.lib.drawing.maps import Example
from stages.lib.heuristics import asked
from stages.lib.heuristics.members import listed, members
from stages.lib.sql.database import Database


class Portrayer:
    """One operator's stores, and which cells its heuristics cover."""

    def __init__(self, subject: str, operator: str, numbers: int, data: Path = Path("data")):
        """numbers: how many of those that a value vector votes for are named."""
        self.operator, self.numbers = operator, numbers
        self.activations = store_of(data / subject / "store/activations", operator)
        self.votes = LayerStore(data / subject / "store/value_logits.h5")
        self.results = self.activations.columns["result"]
        self.cells = Database({"cells": [data / "corpus/cells.parquet"]}, threads=1)
        self.catalogue = read_table(data / "heuristics/heuristics.parquet")

    def best_and_median(self, labels: pl.DataFrame) -> list[list[Example]]:
        """Of every kind, apart for operands and the result, the labels of highest and of median corrected score."""
        of_result, rows = pl.col("quantity").is_in(["result", "asked"]), []
        for _, group in labels.sort(of_result, "kind").group_by(of_result, "kind", maintain_order=True):
            ranked = group.sort(-pl.col("corrected"), "layer", "neuron", "heuristic", "side").rows(named=True)
            chosen = {0: "best", len(ranked) // 2: f"median of {len(ranked)}"} if len(ranked) > 1 else {0: "the only one"}
            rows.append([self.example(ranked[place], name) for place, name in chosen.items()])
        return rows

    def example(self, label: dict[str, Any], place: str) -> Example:
        """The picture of a label: what was matched, on cells alone, and what the neuron's value vector votes for."""
        neuron = slice(label["neuron"], label["neuron"] + 1)
        values = widen(self.activations.read(label["layer"], neuron, slice(None)))[0]
        votes = self.votes.read(label["layer"], neuron, slice(None))[0]
        valid, of_result = self.results >= 0, label["quantity"] in ("result", "asked")
        if of_result:
            values = values * votes[asked.voted(self.activations, np.where(valid, self.results, 0))]
        named = " ".join(map(str, np.argsort(-votes, kind="stable")[: self.numbers]))
        lowest = " (lowest values)" if label["side"] == "bottom" else ""
        text = (
            f"{label['kind']} of {'the result' if of_result else 'operands'}, {place}: {label['heuristic']}{lowest}\n"
            f"layer {label['layer']}, neuron {label['neuron']} ({'direct' if label['direct'] else 'indirect'}): "
            f"score {label['score']:.2f}, corrected {label['corrected']:.2f}\nvalue vector: {named}"
        )
        return Example(text, np.where(valid, values, np.nan), self._members(label["heuristic"]) & valid)

    def _members(self, heuristic: str) -> np.ndarray:
        """Bool (op1, op2). Names that are not in the catalogue were found on a neuron's own map, and say what they mean."""
        cells = self.cells.sql("select op1, op2 from cells where operator = $operator order by op1, op2", operator=self.operator).pl()
        [holds] = members(self.cells, self.operator, listed(self.catalogue, self.operator, [heuristic]), asked.numbers(self.activations))
        cells = cells.filter(holds)
        cells = cells.filter(pl.col("op1") < self.results.shape[0], pl.col("op2") < self.results.shape[1])
        satisfied = np.zeros(self.results.shape, bool)
        satisfied[cells["op1"], cells["op2"]] = True
        return satisfied
