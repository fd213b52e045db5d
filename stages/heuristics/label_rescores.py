"""Score labels about results again, with measured changes of logits in place of value logits.

A label about the result describes the map activation x value logit of the cell's answer. Later
layers may change what the neuron promotes. So the same label is scored on activation x measured
change of the answer's logit (logit_shifts), and on activation x the changes of another labelled
neuron of the layer, as a control.

Table label_rescores: scores of labels about results on three maps
    subject             VARCHAR   the model
    operator            VARCHAR   add, subtract, multiply or divide
    layer               SMALLINT  decoder layer, from 0
    neuron              INTEGER   neuron of the layer's MLP, from 0, which is in logit_shifts
    heuristic           VARCHAR   name of the heuristic, as in labels
    side                VARCHAR   side of the label: top or bottom, the map's largest or smallest
                                  values
    chance_score        FLOAT     share of all cells that satisfy the heuristic, 0 to 1
    direct              FLOAT     score with value logits on the label's side, 0 to 1
    causal              FLOAT     score with measured changes on the label's side, 0 to 1
    causal_other_side   FLOAT     score with measured changes on the other side, 0 to 1
    control             FLOAT     score with the changes of another neuron, on the label's side, 0
                                  to 1; null if the layer has no other labelled neuron
    control_other_side  FLOAT     the same on the other side, 0 to 1
    direct_naming       FLOAT     correlation of the activation and the answer's value logit over
                                  cells, -1 to 1
    causal_naming       FLOAT     correlation of the activation and the answer's measured change
                                  over cells, -1 to 1
    control_naming      FLOAT     correlation of the activation and the changes of another neuron
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.lib.core import progress
from stages.lib.core.hdf5_store import LayerStore, widen
from stages.lib.core.tables import read_table, write_table
from stages.lib.heuristics import answer_tokens
from stages.lib.heuristics.grid import answered
from stages.lib.heuristics.members import listed, members
from stages.lib.heuristics.scores import Sets, scores, sets
from stages.lib.sql.database import Database
from stages.lib.subject import Subject

SCHEMA: dict[str, Any] = {
    "subject": pl.String,
    "operator": pl.String,
    "layer": pl.Int16,
    "neuron": pl.Int32,
    "heuristic": pl.String,
    "side": pl.String,
    **dict.fromkeys(
        [
            "chance_score",
            "direct",
            "causal",
            "causal_other_side",
            "control",
            "control_other_side",
            "direct_naming",
            "causal_naming",
            "control_naming",
        ],
        pl.Float32,
    ),
}


def main(name: str) -> None:
    """Score the labels of one model's neurons."""
    subject = Subject.named(name)
    of_results = pl.col("quantity").is_in(["result", "asked"])
    labels = subject.table("heuristics/labels.parquet").filter(of_results)
    votes = subject.table("neurons/logit_shifts.parquet").select(
        "operator", "layer", "neuron", "changes"
    )
    catalogue = read_table("data/heuristics/heuristics.parquet")
    database = Database({"cells": [Path("data/corpus/cells.parquet")]}, threads=1)
    frames = [pl.DataFrame(schema=SCHEMA)]
    for activations in subject.activation_stores():
        operator = activations.attributes["operator"]
        own = labels.join(votes, on=["operator", "layer", "neuron"]).filter(operator=operator)
        cells = ResultCells(database, catalogue, activations, own["heuristic"].unique().to_list())
        neurons = own.partition_by("layer", "neuron")
        for rows in progress.bar(neurons, desc=f"labels {name} {operator}", unit="neuron"):
            frames.append(rescored(cells, rows, own, subject.value_logits()))
    table = pl.concat(frames).with_columns(subject=pl.lit(name))
    keys = ["operator", "layer", "neuron", "heuristic", "side"]
    write_table(table.sort(keys), subject.path("heuristics/label_rescores.parquet"))


class ResultCells:
    """One operator's cells, and the sets of cells of some heuristics.

    numbers: (cells,) number whose logit is the answer's; shares: heuristic -> share of the cells.
    """

    def __init__(
        self,
        database: Database,
        catalogue: pl.DataFrame,
        activations: LayerStore,
        names: list[str],
    ):
        self.activations, self.names = activations, names
        operator, results = activations.attributes["operator"], activations.columns["result"]
        self.cells = np.flatnonzero(results.ravel() >= 0)
        own = results.ravel()[self.cells]
        self.numbers = answer_tokens.logit_numbers(activations, own)
        known = answered(database, operator, results)
        satisfied = members(
            database,
            operator,
            listed(catalogue, operator, names),
            answer_tokens.numbers(activations),
        )
        self.satisfied = satisfied[:, known]

    def sets(self, heuristics: list[str]) -> tuple[Sets, list[int]]:
        """Return some heuristics as sets of cells, and the set of each of them."""
        rows = self.satisfied[[self.names.index(name) for name in heuristics]]
        made, order = sets(rows, ["cells"] * len(rows), {"number": self.numbers})
        return made, np.argsort(order).tolist()

    def activation(self, layer: int, neuron: int) -> np.ndarray:
        """Return a neuron's activation in all cells."""
        values = widen(self.activations.read(layer, slice(neuron, neuron + 1), slice(None)))
        return values.ravel()[self.cells]


def rescored(
    cells: ResultCells, rows: pl.DataFrame, labelled: pl.DataFrame, value_logits: LayerStore
) -> pl.DataFrame:
    """Return the table's rows for the labels of one neuron.

    rows: its labels, with its `changes`; labelled: the same of all labelled neurons.
    """
    layer, neuron = rows.select("layer", "neuron").row(0)
    activation = cells.activation(layer, neuron)
    direct = value_logits.read(layer, slice(neuron, neuron + 1), slice(None))[0]
    votes = {"direct": direct, "causal": np.array(rows["changes"][0])}
    others = labelled.filter(pl.col("neuron") != neuron, layer=layer).sort("neuron")
    if len(others):  # the next labelled neuron, or the first one after the last
        after = others.filter(pl.col("neuron") > neuron)
        votes["control"] = np.array((after if len(after) else others)["changes"][0])
    made, places = cells.sets(rows["heuristic"].to_list())
    columns = {"chance_score": (made.k / len(cells.cells))[places]}
    is_bottom = (rows["side"] == "bottom").to_numpy().astype(int)
    for map_name, logits in votes.items():
        answers = logits[cells.numbers].astype(np.float32)
        both = scores(activation * answers, made)[:, places]
        columns[map_name] = both[is_bottom, np.arange(len(rows))]
        columns[f"{map_name}_other_side"] = both[1 - is_bottom, np.arange(len(rows))]
        columns[f"{map_name}_naming"] = np.full(len(rows), correlation(activation, answers))
    columns.pop("direct_other_side")
    keys = rows.select("operator", "layer", "neuron", "heuristic", "side")
    measured = [pl.Series(key, column, nan_to_null=True) for key, column in columns.items()]
    table = keys.with_columns(measured)
    whole = pl.concat([pl.DataFrame(schema=SCHEMA), table], how="diagonal_relaxed")
    return whole.cast(SCHEMA)  # type: ignore[arg-type]


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Return the correlation of two arrays, NaN if one of them is constant."""
    x, y = x - x.mean(dtype=np.float64), y - y.mean(dtype=np.float64)
    lengths = np.sqrt(np.square(x).sum() * np.square(y).sum())
    return round(float((x * y).sum() / lengths), 5) if lengths else float("nan")


if __name__ == "__main__":
    main(sys.argv[1])
