"""Draws a subject's neurons: activation maps of those that vary most, several of each operator, and the first of all operators together."""

import sys
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib.core.settings import load
from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import Figure
from stages.lib.sql.database import Database
from stages.lib.sql.files import subject_files
from stages.lib.subject import load_subject
from stages.store.settings import Figures

MAPS = """
    select rank, layer, neuron, op1, op2, activation
    from activations join neuron_variances using (subject, operator, layer, neuron)
    where operator = $operator and rank <= $count and result is not null
"""


def main(subject: str) -> None:
    database = Database(subject_files(subject, ["neuron_variances", "activations"]))
    folder = Path("reports") / subject / "store"
    first = []
    for operator in load_subject(subject).operators:
        maps = _maps(database.sql(MAPS, operator=operator, count=load(Figures).neurons_per_operator).pl())
        panels = [(f"layer {layer}, neuron {neuron}", values) for layer, neuron, values in maps]
        title = f"{subject}, {operator}: activations of the {len(panels)} neurons that vary most"
        drawing.save(draw(panels, title), folder / "figures" / f"neurons_{operator}")
        first.append((f"{operator}: {panels[0][0]}", panels[0][1]))
    drawing.save(draw(first, f"{subject}: activations of each operator's neuron that varies most"), folder / "neurons")


def _maps(cells: pl.DataFrame) -> list[tuple[int, int, np.ndarray]]:
    """(layer, neuron, activations (op1, op2)) by rank; NaN where a prompt is no cell."""
    side = (int(cells["op1"].max()) + 1, int(cells["op2"].max()) + 1)  # type: ignore[arg-type]
    maps = []
    for (_, layer, neuron), part in cells.sort("rank").group_by("rank", "layer", "neuron", maintain_order=True):
        values = np.full(side, np.nan, np.float32)
        values[part["op1"], part["op2"]] = part["activation"]
        maps.append((int(layer), int(neuron), values))  # type: ignore[call-overload]
    return maps


def draw(panels: list[tuple[str, np.ndarray]], title: str) -> Figure:
    """Heat maps over op1 (down) and op2 (across), each with its own diverging scale centred at 0; NaN cells stay grey."""
    columns = drawing.IN_A_ROW
    rows = -(-len(panels) // columns)
    size = (2.3 * columns, 2.05 * rows + 0.4)
    figure, axes = drawing.plt.subplots(rows, columns, figsize=size, squeeze=False, sharex=True, sharey=True)
    colours = drawing.matplotlib.colormaps["RdBu_r"].with_extremes(bad=drawing.NO_CELL)
    for axis, (name, values) in zip(axes.flat, panels, strict=False):
        limit = np.nanmax(np.abs(values)) or 1.0
        image = axis.imshow(values, cmap=colours, vmin=-limit, vmax=limit, origin="upper", interpolation="nearest", aspect="equal")
        axis.set_title(name, pad=3)
        axis.spines[:].set_visible(False)
        figure.colorbar(image, ax=axis, shrink=0.8, aspect=15).ax.tick_params(labelsize=6)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis in axes[:, 0]:
        axis.set_ylabel("op1")
    for axis in axes[-1, :]:
        axis.set_xlabel("op2")
    figure.suptitle(title, fontsize=10)
    return figure


if __name__ == "__main__":
    main(sys.argv[1])
