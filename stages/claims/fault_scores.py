"""Count the neurons that some heuristic describes with the faulty sizes of the published code.

Algorithm 1 then looks at the number of cells that the published code uses. The stage reads
data/heuristics/heuristics.parquet, data/corpus/cells.parquet and the model's HDF5 stores. It writes
data/<subject>/claims/fault_scores.parquet. Scores are not corrected for chance and are those of the
better side, as in the study. Sets of results have no such fault and are left out, as in
null_shares: they come from a neuron's map, not from the catalogue.

Table fault_scores: neurons that the published sizes gain and lose
    subject     VARCHAR   the model
    operator    VARCHAR   add, subtract, multiply or divide
    layer       SMALLINT  decoder layer, from 0
    fault       VARCHAR   none; op2 range with op1's size; result modulo with (M // n)^2, where M is
                          the number of operands, cut off for × and ÷; or both
    quantities  VARCHAR   heuristics that count: those of operands, of result, or any
    threshold   DOUBLE    least score with which a heuristic describes a neuron, 0 to 1
    neurons     INTEGER   number of neurons of the layer
    classified  INTEGER   number of neurons that some heuristic describes
    gained      INTEGER   number of neurons that some heuristic describes only with the fault
    lost        INTEGER   number of neurons that some heuristic describes only without the fault
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from stages.claims.published_sizes import FAULTS, CoveredCells, best, operand_sizes, result_sizes
from stages.claims.settings import Faults
from stages.heuristics.settings import PermutationTests, Scores
from stages.lib.core import environment, progress
from stages.lib.core.hdf5_store import LayerStore
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.heuristics.grid import Neuron, OperandGrid
from stages.lib.sql.database import Database
from stages.lib.subject import Subject

SCHEMA = {
    "subject": pl.String,
    "operator": pl.String,
    "layer": pl.Int16,
    "fault": pl.String,
    "quantities": pl.String,
    "threshold": pl.Float64,
    "neurons": pl.Int32,
    "classified": pl.Int32,
    "gained": pl.Int32,
    "lost": pl.Int32,
}
ORDER = ["operator", "layer", "fault", "quantities", "threshold"]


def main(name: str) -> None:
    subject, scored, settings = Subject.named(name), load(Scores), load(Faults)
    thresholds = sorted({*load(PermutationTests).thresholds, settings.published})
    catalogue = read_table("data/heuristics/heuristics.parquet").filter("usable")
    database = Database({"cells": [Path("data/corpus/cells.parquet")]}, threads=1)
    value_logits = subject.value_logits()
    frames = [pl.DataFrame(schema=SCHEMA)]
    for activations in subject.activation_stores():
        grid = OperandGrid(database, catalogue, activations, scored.least_cells)
        sizes = operand_sizes(grid), result_sizes(grid, settings.cap)
        total = len(activations.layers) * activations.axes["neuron"]
        title = f"faults {name} {grid.operator}"
        with progress.bar(total=total, desc=title, unit="neuron") as bar:
            for layer in activations.layers:
                bests = layer_bests(grid, layer, value_logits, sizes, scored, bar)
                keys = {"subject": name, "operator": grid.operator, "layer": layer}
                rows = counted(bests, thresholds).with_columns(**_literals(keys))
                frames.append(rows.select(pl.col(key).cast(kind) for key, kind in SCHEMA.items()))
    write_table(pl.concat(frames).sort(ORDER), subject.path("claims/fault_scores.parquet"))


def _literals(values: dict[str, object]) -> dict[str, pl.Expr]:
    return dict(zip(values, map(pl.lit, values.values()), strict=True))


def layer_bests(
    grid: OperandGrid,
    layer: int,
    value_logits: LayerStore,
    sizes: tuple[CoveredCells, CoveredCells],
    settings: Scores,
    bar: progress.Bar,
) -> np.ndarray:
    """Return the best score of each neuron of a layer.

    The result is (neurons, operands and result, right and published sizes).
    """
    bests: list[list[np.ndarray]] = []
    score = partial(_score, grid, sizes)
    with ThreadPoolExecutor(environment.workers()) as pool:
        for neurons in grid.layer(layer, value_logits, settings.neurons_per_unit):
            for scores in pool.map(score, neurons):
                bests.append(scores)
                bar.update()
    return np.array(bests)


def _score(
    grid: OperandGrid, sizes: tuple[CoveredCells, CoveredCells], neuron: Neuron
) -> list[np.ndarray]:
    _, maps, logits = neuron
    activations = maps.ravel()[grid.cells]
    contributions = activations * logits[grid.results]
    return [best(activations, sizes[0]), best(contributions, sizes[1])]


def counted(bests: np.ndarray, thresholds: list[float]) -> pl.DataFrame:
    """Return the rows of one layer, without its name; bests: as layer_bests returns them."""
    # (neurons, groups of heuristics, sizes, thresholds)
    reached = bests[..., None] >= np.array(thresholds, np.float32)
    without = _described(reached, *FAULTS["none"])
    frames = []
    for fault, sizes in FAULTS.items():
        for quantities, described in _described(reached, *sizes).items():
            counts = {
                "classified": described,
                "gained": described & ~without[quantities],
                "lost": without[quantities] & ~described,
            }
            columns = {name: neurons.sum(0) for name, neurons in counts.items()}
            frame = pl.DataFrame({"threshold": thresholds, **columns})
            keys = {"fault": fault, "quantities": quantities, "neurons": len(bests)}
            frames.append(frame.with_columns(**_literals(keys)))
    return pl.concat(frames)


def _described(reached: np.ndarray, operands: int, result: int) -> dict[str, np.ndarray]:
    """Return whether some heuristic describes each neuron, by quantities: (neurons, thresholds).

    operands, result: with which sizes the two groups of heuristics are scored, RIGHT or PUBLISHED.
    """
    by_operands, by_result = reached[:, 0, operands], reached[:, 1, result]
    return {"operands": by_operands, "result": by_result, "any": by_operands | by_result}


if __name__ == "__main__":
    main(sys.argv[1])
