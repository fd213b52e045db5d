"""Draw activation maps of the neurons that vary most, a figure for each operator.

Another figure has the first neuron of each operator.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import polars as pl

from stages.lib.core.settings import load
from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import Axes, Figure
from stages.lib.sql.database import Database
from stages.lib.sql.files import subject_files
from stages.lib.subject import load_subject
from stages.store.settings import Figures

MAPS = """
    select rank, layer, neuron, variance, op1, op2, activation
    from activations join neuron_variances using (subject, operator, layer, neuron)
    where operator = $operator and rank <= $count and result is not null
"""
COLUMNS = 3  # most maps in a row
SIDE = 300  # approximate pixels of a map; a cell is a whole number of pixels if possible
EXTREME = 0.995  # share of cells within the colour scale, so that a few do not pale the others
# Pixels: left of a row of maps, right of a map for its scale, above and below a map, and of a
# line of the title.
LEFT, RIGHT, ABOVE, BELOW, TOP = 70, 90, 42, 56, 30


@dataclass(frozen=True, eq=False)
class NeuronMap:
    """A neuron's activations over (op1, op2), NaN where there is no cell. rank: by variance."""

    rank: int
    layer: int
    neuron: int
    variance: float
    values: np.ndarray

    @property
    def name(self) -> str:
        neuron = f"layer {self.layer}, neuron {self.neuron}"
        return f"{neuron}\nrank {self.rank}, variance {self.variance:.3g}"


def main(subject: str) -> None:
    database = Database(subject_files(subject, ["neuron_variances", "activations"]))
    folder, count = Path("reports") / subject / "store", load(Figures).neurons_per_operator
    settings, first = load_subject(subject), []
    for operator in settings.operators:
        maps = read_maps(database.sql(MAPS, operator=operator, count=count).pl())
        title = f"{subject}, {operator}: activations of the {len(maps)} neurons that vary most"
        panels = [(neuron.name, neuron.values) for neuron in maps]
        figure = draw(panels, title, _why_none(settings.answer_token))
        drawing.save(figure, folder / "figures" / f"neurons_{operator}")
        first += [(f"{operator}: {name}", values) for name, values in panels[:1]]
    title = f"{subject}: activations of each operator's neuron that varies most"
    drawing.save(draw(first, title, _why_none(settings.answer_token)), folder / "neurons")


def read_maps(cells: pl.DataFrame) -> list[NeuronMap]:
    """Return the maps of neurons from the rows of MAPS, by rank."""
    ends = cells.select(pl.col("op1", "op2").max().fill_null(0) + 1)
    side = ends.row(0)
    keys = ["rank", "layer", "neuron", "variance"]
    maps = []
    for key, part in cells.sort("rank").group_by(keys, maintain_order=True):
        values = np.full(side, np.nan, np.float32)
        values[part["op1"], part["op2"]] = part["activation"]
        maps.append(NeuronMap(*key, values=values))  # type: ignore[arg-type, misc]
    return maps


def _why_none(answer_token: int | None) -> str:
    """Return the reason why an operator has no map."""
    if answer_token is None:
        return "no prompt has a one-token answer"
    return f"no answer has a token {answer_token}, counted from 0"


def draw(panels: list[tuple[str, np.ndarray]], title: str, why: str) -> Figure:
    """Draw maps over op1 (down) and op2 (across), each with its own scale centred at 0.

    panels: title and values of each map, NaN for grey; why: the text if there is no map.
    """
    if not panels:
        figure, [[axis]] = drawing.panels(1, 1, title, (4.0, 1.5))
        drawing.absent(axis, why)
        return figure
    columns = 2 if len(panels) == 4 else min(COLUMNS, len(panels))
    rows, sides = -(-len(panels) // columns), [_pixels(length) for length in panels[0][1].shape]
    across, down = sides[1] + RIGHT, sides[0] + ABOVE + BELOW
    lines = fill(title, (LEFT + columns * across) // 10).splitlines()
    size = np.array([LEFT + columns * across, TOP * len(lines) + rows * down])
    figure = drawing.plt.figure(figsize=size / drawing.plt.rcParams["figure.dpi"])
    figure.set_layout_engine("none")  # axes are placed by pixels
    figure.suptitle("\n".join(lines), fontsize=9, y=1 - 6 / size[1], va="top")
    for number, (name, values) in enumerate(panels):
        row, column = divmod(number, columns)
        corner = np.array([LEFT + column * across, (rows - row) * down - ABOVE - sides[0]])
        axis = _axis(figure, corner, sides[::-1])
        image = _map(axis, values)
        axis.set_title(name, fontsize=8, pad=3)
        axis.set_xlabel("op2", labelpad=1)
        axis.set_ylabel("op1" if column == 0 else "")
        axis.tick_params(labelleft=column == 0)
        scale = _axis(
            figure,
            corner + np.array([sides[1] + 8, sides[0] // 10]),
            [10, sides[0] * 8 // 10],
        )
        figure.colorbar(image, cax=scale, extend="both").ax.tick_params(labelsize=7)
        scale.set_label("<colorbar>")
    return figure


def _pixels(cells: int) -> int:
    """Return the pixels of `cells` cells in a row: a whole number for each cell, or SIDE."""
    return cells * max(round(SIDE / cells), 1) if cells < 2 * SIDE else SIDE


def _axis(figure: Figure, corner: np.ndarray, size: list[int]) -> Axes:
    """Return new axes of some pixels. corner: pixels from the figure's lower left corner."""
    whole = figure.get_size_inches() * figure.dpi
    return figure.add_axes((*(corner / whole), *(np.array(size) / whole)))


def _map(axis: Axes, values: np.ndarray) -> Any:
    sizes = np.abs(values[~np.isnan(values)])
    limit = float(np.quantile(sizes, EXTREME) or sizes.max() or 1.0)
    colours = drawing.matplotlib.colormaps["RdBu_r"].with_extremes(bad=drawing.NO_CELL)
    interpolation = "none" if max(values.shape) < 2 * SIDE else "auto"
    image = axis.imshow(
        values,
        cmap=colours,
        vmin=-limit,
        vmax=limit,
        interpolation=interpolation,
        aspect="auto",
    )
    axis.tick_params(labelsize=7, length=2)
    axis.xaxis.label.set_fontsize(8)
    axis.yaxis.label.set_fontsize(8)
    axis.spines[:].set_visible(False)
    return image


if __name__ == "__main__":
    main(sys.argv[1])
