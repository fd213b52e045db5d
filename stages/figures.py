"""Draws a subject's neurons: activation maps of those that vary most, several of each operator, and the first of all operators together."""

import sys
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib import drawing
from stages.lib.params.figures import Figures
from stages.lib.params.sections import load
from stages.lib.params.subjects import load_subject
from stages.lib.sql import Database, subject_files

MAPS = """
    select rank, layer, neuron, op1, op2, activation
    from activations join neuron_variances using (subject, operator, layer, neuron)
    where operator = $operator and rank <= $count and result is not null
"""


def main(subject: str) -> None:
    database = Database(subject_files(subject, ["neuron_variances", "activations"]))
    folder = Path("reports") / subject
    first = []
    for operator in load_subject(subject).operators:
        maps = _maps(database.sql(MAPS, operator=operator, count=load(Figures).neurons_per_operator).pl())
        panels = [(f"layer {layer}, neuron {neuron}", values) for layer, neuron, values in maps]
        title = f"{subject}, {operator}: activations of the {len(panels)} neurons that vary most"
        drawing.save(drawing.maps(panels, title), folder / "figures" / f"neurons_{operator}")
        first.append((f"{operator}: {panels[0][0]}", panels[0][1]))
    drawing.save(drawing.maps(first, f"{subject}: activations of each operator's neuron that varies most"), folder / "neurons")


def _maps(cells: pl.DataFrame) -> list[tuple[int, int, np.ndarray]]:
    """(layer, neuron, activations (op1, op2)) by rank; NaN where a prompt is no cell."""
    side = (int(cells["op1"].max()) + 1, int(cells["op2"].max()) + 1)  # type: ignore[arg-type]
    maps = []
    for (_, layer, neuron), part in cells.sort("rank").group_by("rank", "layer", "neuron", maintain_order=True):
        values = np.full(side, np.nan, np.float32)
        values[part["op1"], part["op2"]] = part["activation"]
        maps.append((int(layer), int(neuron), values))  # type: ignore[call-overload]
    return maps


if __name__ == "__main__":
    main(sys.argv[1])
