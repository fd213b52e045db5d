"""Heat maps of long tables: columns row, column and value."""

import math
from typing import Any

import numpy as np
import polars as pl

from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import Axes, Figure

SIZE = 7  # points, of all text in and beside a heat map
# The width of characters in parts of the text's size; of digits, unless they are here
WIDTHS = {".": 0.32, "-": 0.36}
DIGIT = 0.64
COLUMN = 0.26  # inches, at least, of a heat map's column
POINTS = 72 / drawing.plt.rcParams["figure.dpi"]  # of a pixel


def matrix(table: pl.DataFrame, rows: list[str], columns: list[str]) -> np.ndarray:
    """Return a long table's column `value` as (rows, columns); NaN where it has none.

    Without rows or columns, there is one.
    """
    values = np.full((max(len(rows), 1), max(len(columns), 1)), np.nan)
    down, across = ({name: place for place, name in enumerate(names)} for names in (rows, columns))
    for row, column, value in table.select("row", "column", "value").drop_nulls().iter_rows():
        values[down[row], across[column]] = value
    return values


def operator_maps(
    pairs_found: pl.DataFrame,
    table: pl.DataFrame,
    columns: list[str],
    title: str,
    limits: tuple[float, float],
    undefined: str,
) -> tuple[Figure, np.ndarray]:
    """Draw a heat map for each operator, all with the rows of `table`, in order of appearance.

    undefined: what to say of an operator whose values are all null.
    """
    rows = table["row"].unique(maintain_order=True).to_list()
    size = (max(1.7, COLUMN * len(columns)), min(max(0.17 * len(rows), 1.2), 9))
    figure, axes, panels = drawing.operator_panels(1, pairs_found, title, size, sharex=True, sharey=True)
    for operator, [axis], why in panels:
        part = table.filter(operator=operator)
        heat_table(axis, part, rows, columns, limits)
        if part["value"].drop_nulls().is_empty():
            drawing.absent(axis, why if part.is_empty() else undefined)
    return figure, axes


def heat_table(
    axis: Axes,
    table: pl.DataFrame,
    rows: list[str],
    columns: list[str],
    limits: tuple[float, float],
    *,
    is_logarithmic: bool = False,
) -> None:
    """Draw a heat map of a long table, as in `matrix`. Colours diverge if limits[0] < 0.

    `finish` writes the values into it and thins the names beside it out.
    """
    values, rows, columns = matrix(table, rows, columns), rows or [""], columns or [""]
    axis.imshow(values, **colours(limits, is_logarithmic), interpolation="nearest", aspect="auto")
    turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    axis.set_xticks(range(len(columns)), columns, **(turned if max(map(len, columns)) > 3 else {}))
    axis.set_yticks(range(len(rows)), rows)
    clear(axis)


def colours(limits: tuple[float, float], is_logarithmic: bool = False) -> dict[str, Any]:
    """Return what matplotlib must be told about colours: they diverge if limits[0] < 0."""
    scale = drawing.matplotlib.colormaps["RdBu_r" if limits[0] < 0 else "Blues"]
    norm = (drawing.matplotlib.colors.LogNorm if is_logarithmic else drawing.plt.Normalize)(*limits)
    return {"cmap": scale.with_extremes(bad=drawing.NO_CELL), "norm": norm}


def clear(axis: Axes) -> None:
    """Remove the lines in and around a panel that a heat map does not need."""
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)


def finish(figure: Figure) -> None:
    """Write values into the cells of all heat maps, and names beside them, where there is room.

    Nothing that takes room may be added to the figure after that.
    """
    drawing.settle(figure)
    for axis in figure.axes:
        if axis.images:
            _thin_out(axis)
            _write_values(axis)


def _thin_out(axis: Axes) -> None:
    """Keep every second name beside a heat map, or every third, so that none is on another."""
    places = axis.transData.transform([(0, 0), (1, 1)])
    width, height = np.abs(places[1] - places[0]) * POINTS
    columns, rows = axis.get_xticklabels(), axis.get_yticklabels()
    turned = any(name.get_rotation() for name in columns)
    longest = max((_width(name.get_text()) for name in columns), default=0)
    across = math.ceil((1.75 * SIZE if turned else longest) / width)
    down = math.ceil(1.1 * SIZE / height)
    for names, every in ((columns, across), (rows, down)):
        for number, name in enumerate(names):
            name.set_visible(name.get_visible() and number % every == 0)


def _write_values(axis: Axes) -> None:
    """Write each value into its cell, in as many digits as fit, at least two of the largest one."""
    cells = []
    for image in axis.images:
        values: np.ndarray = np.ma.filled(np.ma.asarray(image.get_array()), np.nan)
        limit = image.get_clim()[1]
        left, right, bottom, top = image.get_extent()
        width, height = (right - left) / values.shape[1], (bottom - top) / values.shape[0]
        places = axis.transData.transform([(0, 0), (width, height)])
        digits = _digits(values, limit, np.abs(places[1] - places[0]) * POINTS)
        if digits is None:
            return
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value):
                place = left + (column + 0.5) * width, top + (row + 0.5) * height
                cells.append((*place, f"{value:z.{digits}f}", abs(value) > 0.6 * limit))
    for x, y, text, is_dark in cells:
        axis.text(
            x,
            y,
            text,
            ha="center",
            va="center",
            fontsize=SIZE,
            color="white" if is_dark else "black",
        )


def _digits(values: np.ndarray, limit: float, room: np.ndarray) -> int | None:
    """Return the decimals of numbers that fit into cells; None if none do.

    room: points across and down.
    """
    first = -math.floor(math.log10(limit))
    most = min(max(2 + first, 1), 3)
    for digits in range(most, min(max(1 + first, 0), most) - 1, -1):
        texts = [f"{value:z.{digits}f}" for value in values[~np.isnan(values)]]
        if room[1] >= SIZE and room[0] >= max(map(_width, texts), default=0):
            return digits
    return None


def _width(text: str) -> float:
    """Return the points that a number takes, with some space."""
    return SIZE * (0.2 + sum(WIDTHS.get(character, DIGIT) for character in text))


def colour_bar(
    figure: Figure,
    axes: np.ndarray,
    limits: tuple[float, float],
    label: str,
    *,
    is_logarithmic: bool = False,
    **look: Any,
) -> None:
    """Draw the scale of all the heat maps of these axes.

    look: other colours (cmap), or where it stands (location).
    """
    scale = colours(limits, is_logarithmic)
    scale["cmap"] = look.pop("cmap", scale["cmap"])
    bar = figure.colorbar(
        drawing.plt.cm.ScalarMappable(**scale),
        ax=axes,
        shrink=0.8,
        aspect=30,
        pad=0.01,
        **look,
    )
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=SIZE)
