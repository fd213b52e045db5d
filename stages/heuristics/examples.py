"""Collect what the figure of a labelled neuron shows.

It shows the neuron's map, the cells of its heuristic, and the numbers that its value vector
promotes most, by direct logit attribution.
"""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.lib.core.hdf5_store import LayerStore, widen
from stages.lib.core.shards import store_of
from stages.lib.core.tables import read_table
from stages.lib.drawing.maps import Example
from stages.lib.heuristics import answer_tokens
from stages.lib.heuristics.grid import answered
from stages.lib.heuristics.members import listed, members
from stages.lib.sql.database import Database


class Portrayer:
    """One operator's stores, and which cells its heuristics cover."""

    def __init__(self, subject: str, operator: str, numbers: int, data: Path = Path("data")):
        """Open the stores; numbers: how many of the most promoted numbers are listed."""
        self.operator, self.numbers = operator, numbers
        self.activations = store_of(data / subject / "store/activations", operator)
        self.value_logits = LayerStore(data / subject / "store/value_logits.h5")
        self.results = self.activations.columns["result"]
        self.cells = Database({"cells": [data / "corpus/cells.parquet"]}, threads=1)
        self.catalogue = read_table(data / "heuristics/heuristics.parquet")

    def best_and_median(self, labels: pl.DataFrame) -> list[list[Example]]:
        """Return the labels of highest and of median score of every kind, operands before results.

        labels: of this operator; the score is chance-corrected.
        """
        keys = [pl.col("quantity").is_in(["result", "asked"]), pl.col("kind")]
        order = [-pl.col("chance_corrected"), "layer", "neuron", "heuristic", "side"]
        rows = []
        for _, group in labels.sort(keys).group_by(keys, maintain_order=True):
            ranked = group.sort(order).rows(named=True)
            if len(ranked) == 1:
                rows.append([self.example(ranked[0], "the only one")])
                continue
            median = ranked[len(ranked) // 2]
            best = self.example(ranked[0], "best")
            rows.append([best, self.example(median, f"median of {len(ranked)}")])
        return rows

    def example(self, label: dict[str, Any], place: str) -> Example:
        """Return what to draw for one label: the map on which it was scored, and its text.

        label: a row of the table labels; place: its rank, in words.
        """
        neuron = slice(label["neuron"], label["neuron"] + 1)
        values = widen(self.activations.read(label["layer"], neuron, slice(None)))[0]
        logits = self.value_logits.read(label["layer"], neuron, slice(None))[0]
        valid, about = self.results >= 0, "operands"
        if label["quantity"] in ("result", "asked"):
            about = "the result"
            answers = np.where(valid, self.results, 0)
            values = values * logits[answer_tokens.logit_numbers(self.activations, answers)]
        promoted = np.argsort(-logits, kind="stable")[: self.numbers]
        lowest = " (lowest values)" if label["side"] == "bottom" else ""
        direct = "direct" if label["direct"] else "indirect"
        text = (
            f"{label['kind']} of {about}, {place}: {label['heuristic']}{lowest}\n"
            f"layer {label['layer']}, neuron {label['neuron']} ({direct}): "
            f"score {label['score']:.2f}, chance_corrected {label['chance_corrected']:.2f}\n"
            f"value vector: {' '.join(map(str, promoted))}"
        )
        map_of_cells = np.where(valid, values, np.nan)
        return Example(text, map_of_cells, self._members(label["heuristic"]))

    def _members(self, heuristic: str) -> np.ndarray:
        """Return which cells of the store satisfy a heuristic: (op1, op2) bool.

        A heuristic that is not in the catalogue was found on a neuron's map, and its name is
        parsed.
        """
        known = listed(self.catalogue, self.operator, [heuristic])
        numbers = answer_tokens.numbers(self.activations)
        [holds] = members(self.cells, self.operator, known, numbers)
        satisfied = self.results >= 0
        satisfied[satisfied] = holds[answered(self.cells, self.operator, self.results)]
        return satisfied
