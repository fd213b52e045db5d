"""Counts the neurons that some heuristic describes if Algorithm 1 looks at the number of cells that the published code does.

Reads data/heuristics/heuristics.parquet, data/corpus/cells.parquet and the subject's stores; writes
data/<subject>/claims/fault_scores.parquet. Scores are raw, of the better side, as the study's are; sets of results, found on a map
instead of in the catalogue, have no such fault and are left out, as in null_shares.

Table fault_scores: neurons that the published sizes gain and lose
    subject     VARCHAR   the model
    operator    VARCHAR   add, subtract, multiply or divide
    layer       SMALLINT  decoder layer, from 0
    fault       VARCHAR   none; op2 range with op1's size; result modulo with (M // n)^2, M operands, cut off for × and ÷; or both
    quantities  VARCHAR   operands, result or any: whose heuristics count
    threshold   DOUBLE    the score from which a heuristic describes a neuron
    neurons     INTEGER   neurons of the layer
    classified  INTEGER   those that some heuristic describes
    gained      INTEGER   of them, those that none describes without the fault
    lost        INTEGER   neurons that some heuristic describes only without the fault
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl

from stages.claims.published_sizes import FAULTS, Sizes, best, operand_sizes, result_sizes
from stages.claims.settings import Faults
from stages.heuristics.settings import Nulls, Scores
from stages.lib.core import machine, progress
from stages.lib.core.layered import LayerStore
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.heuristics.square import Square
from stages.lib.sql.database import Database
from stages.lib.subject import Subject

SCHEMA = {
    "subject": pl.String, "operator": pl.String, "layer": pl.Int16, "fault": pl.String, "quantities": pl.String, "threshold": pl.Float64,
    "neurons": pl.Int32, "classified": pl.Int32, "gained": pl.Int32, "lost": pl.Int32,
}  # fmt: skip


def main(name: str) -> None:
    subject, scored, settings = Subject.named(name), load(Scores), load(Faults)
    thresholds = sorted({*load(Nulls).thresholds, settings.published})
    catalogue = read_table("data/heuristics/heuristics.parquet").filter("usable")
    database = Database({"cells": [Path("data/corpus/cells.parquet")]}, threads=1)
    votes = subject.votes()
    rows: list[dict[str, object]] = []
    for activations in subject.squares():
        square, layers = (
            Square(database, catalogue, activations, scored.least_cells),
            activations.layers,
        )
        sizes = operand_sizes(square), result_sizes(square, settings.cap)
        with progress.bar(total=len(layers) * activations.axes["neuron"], desc=f"faults {name} {square.operator}", unit="neuron") as bar:
            for layer in layers:
                found = layer_bests(square, layer, votes, sizes, scored, bar)
                keys = {"subject": name, "operator": square.operator, "layer": layer}
                rows += [keys | row for row in counted(found, thresholds)]
    table = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    write_table(table.sort("operator", "layer", "fault", "quantities", "threshold"), subject.path("claims/fault_scores.parquet"))


def layer_bests(
    square: Square, layer: int, votes: LayerStore, sizes: tuple[Sizes, Sizes], settings: Scores, bar: progress.Bar
) -> np.ndarray:
    """The best score of each neuron of a layer: (neurons, operands and result, right and published sizes)."""

    def score(of: tuple[int, np.ndarray, np.ndarray]) -> list[np.ndarray]:
        _, whole, logits = of
        activations = whole.ravel()[square.cells]
        bar.update()
        return [best(activations, sizes[0]), best(activations * logits[square.results], sizes[1])]

    with ThreadPoolExecutor(machine.workers()) as pool:
        return np.array([found for some in square.layer(layer, votes, settings.neurons_per_unit) for found in pool.map(score, some)])


def counted(bests: np.ndarray, thresholds: list[float]) -> list[dict[str, object]]:
    """The rows of one layer, without its name. bests: as layer_bests gives them."""
    reached = bests[..., None] >= np.array(thresholds, np.float32)  # (neurons, groups, sizes, thresholds)
    rows = []
    for fault, (operands, result) in FAULTS.items():
        now, right = (
            {"operands": reached[:, 0, o], "result": reached[:, 1, r], "any": reached[:, 0, o] | reached[:, 1, r]}
            for o, r in ((operands, result), FAULTS["none"])
        )
        for quantities, yes in now.items():
            counts = [which.sum(0) for which in (yes, yes & ~right[quantities], right[quantities] & ~yes)]
            for threshold, *found in zip(thresholds, *counts, strict=True):
                numbers = dict(zip(("classified", "gained", "lost"), map(int, found), strict=True))
                rows.append({"fault": fault, "quantities": quantities, "threshold": threshold, "neurons": len(bests)} | numbers)
    return rows


if __name__ == "__main__":
    main(sys.argv[1])
