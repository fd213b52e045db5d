"""Draw heat maps of long tables: tables with the columns row, column and value."""

import math
from typing import Any

import numpy as np
import polars as pl

from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import Axes, Figure

SIZE = 7  # points; size of all text in and beside a heat map
# widths of characters, as a share of the text's size
WIDTHS = {".": 0.32, "-": 0.36}
DIGIT = 0.64  # width of any other character
COLUMN = 0.26  # inches; smallest width of a heat map's column
POINTS = 72 / drawing.plt.rcParams["figure.dpi"]  # points of a pixel


def matrix(table: pl.DataFrame, rows: list[str], columns: list[str]) -> np.ndarray:
    """Return a long table's values as a matrix (rows, columns), NaN where the table has none.

    If there are no rows or no columns, the matrix has one.
    """
    values = np.full((max(len(rows), 1), max(len(columns), 1)), np.nan)
    down = dict(zip(rows, range(len(rows)), strict=True))
    across = dict(zip(columns, range(len(columns)), strict=True))
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

    limits: values of the first and the last colour; undefined: why an operator's values may all be
    null.
    """
    rows = table["row"].unique(maintain_order=True).to_list()
    size = (max(1.7, COLUMN * len(columns)), min(max(0.17 * len(rows), 1.2), 9))
    figure, axes, panels = drawing.operator_panels(
        1, pairs_found, title, size, sharex=True, sharey=True
    )
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
    """Draw a heat map of a long table (see `matrix`).

    limits: values of the first and the last colour; colours diverge if the first is negative.
    `finish` writes the values into the map, and hides names beside it if there is no room.
    """
    values, rows, columns = matrix(table, rows, columns), rows or [""], columns or [""]
    axis.imshow(values, **colours(limits, is_logarithmic), interpolation="nearest", aspect="auto")
    turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    is_long = max(map(len, columns)) > 3
    axis.set_xticks(range(len(columns)), columns, **(turned if is_long else {}))
    axis.set_yticks(range(len(rows)), rows)
    clear(axis)


def colours(limits: tuple[float, float], is_logarithmic: bool = False) -> dict[str, Any]:
    """Return matplotlib's options for colours, which diverge if the first limit is negative."""
    scale = drawing.matplotlib.colormaps["RdBu_r" if limits[0] < 0 else "Blues"]
    norm = drawing.matplotlib.colors.LogNorm if is_logarithmic else drawing.plt.Normalize
    return {"cmap": scale.with_extremes(bad=drawing.NO_CELL), "norm": norm(*limits)}


def clear(axis: Axes) -> None:
    """Remove the lines in and around a panel that a heat map does not need."""
    axis.tick_params(left=False, bottom=False)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)


def finish(figure: Figure) -> None:
    """Write values into the cells of all heat maps, and hide names beside them, to fit the room.

    Names that a map has in common with the map on its left, or below it, are not repeated.
    Afterwards, nothing that takes room may be added to the figure.
    """
    _share_names(figure)
    drawing.settle(figure)
    for axis in figure.axes:
        if axis.images:
            _thin_out(axis)
            _write_values(axis)


def _share_names(figure: Figure) -> None:
    """Hide names of rows that the map on the left has, too, and of columns that the map below has.

    Also if that map's names are hidden: then another one farther away has them.
    """
    maps: dict[tuple[int, int], Axes] = {}
    for axis in figure.axes:
        place = axis.get_subplotspec()
        if axis.images and place:
            maps[place.rowspan.start, place.colspan.start] = axis
    for (row, column), axis in maps.items():
        left, below = maps.get((row, column - 1)), maps.get((row + 1, column))
        if left and _names(left.yaxis) == _names(axis.yaxis):
            axis.tick_params(labelleft=False)
        if below and _names(below.xaxis) == _names(axis.xaxis):
            axis.tick_params(labelbottom=False)


def _names(axis: Any) -> list[str]:
    """Return the names beside a map, along its x axis or its y axis."""
    return axis.get_major_formatter().format_ticks(axis.get_majorticklocs())


def _thin_out(axis: Axes) -> None:
    """Hide all but every n-th name beside a heat map, so that names do not overlap."""
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
    """Write each value into its cell, if at least two digits of the largest value fit."""
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
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SIZE}
    for x, y, text, is_dark in cells:
        axis.text(x, y, text, **style, color="white" if is_dark else "black")


def _digits(values: np.ndarray, limit: float, room: np.ndarray) -> int | None:
    """Return how many decimals of the values fit into cells, or None if not enough do.

    room: width and height of a cell, points.
    """
    first = -math.floor(math.log10(limit))
    most = min(max(2 + first, 1), 3)
    for digits in range(most, min(max(1 + first, 0), most) - 1, -1):
        texts = [f"{value:z.{digits}f}" for value in values[~np.isnan(values)]]
        if room[1] >= SIZE and room[0] >= max(map(_width, texts), default=0):
            return digits
    return None


def _width(text: str) -> float:
    """Return the width of a text in points, with some space."""
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
    """Draw the colour bar of all heat maps in these axes.

    look: other colours (cmap), or the side on which the bar is (location).
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
