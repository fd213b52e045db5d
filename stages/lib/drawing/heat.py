"""Heat maps of long tables: columns row, column and value."""

import math

import numpy as np
import polars as pl

from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import Axes, Figure


def matrix(table: pl.DataFrame, rows: list[str], columns: list[str]) -> np.ndarray:
    """A long table's column `value` as (rows, columns), at least one each, by its columns `row` and `column`; NaN where it has none."""
    values = np.full((max(len(rows), 1), max(len(columns), 1)), np.nan)
    for row, column, value in table.select("row", "column", "value").drop_nulls().iter_rows():
        values[rows.index(row), columns.index(column)] = value
    return values


def heat_table(axis: Axes, table: pl.DataFrame, rows: list[str], columns: list[str], limits: tuple[float, float]) -> None:
    """A heat map of a long table, as in `matrix`, with its numbers where there is room for them. Diverging if limits[0] < 0."""
    values, rows, columns = matrix(table, rows, columns), rows or [""], columns or [""]
    colours = drawing.matplotlib.colormaps["RdBu_r" if limits[0] < 0 else "Blues"].with_extremes(bad=drawing.NO_CELL)
    axis.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], interpolation="nearest", aspect="auto")
    every = -(-len(rows) // 45)
    digits = min(max(2 - math.floor(math.log10(limits[1])), 1), 3)
    axis.set_xticks(range(len(columns)), columns, rotation=35, ha="right", rotation_mode="anchor")
    axis.set_yticks(range(0, len(rows), every), rows[::every])
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    if every == 1:
        for (row, column), value in np.ndenumerate(values):
            dark = abs(value) > 0.6 * limits[1]
            text = "" if np.isnan(value) else f"{value:z.{digits}f}"
            axis.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")


def colour_bar(figure: Figure, axes: np.ndarray, limits: tuple[float, float], label: str) -> None:
    """One scale for all the heat maps of these axes."""
    scale = drawing.plt.cm.ScalarMappable(drawing.plt.Normalize(*limits), "RdBu_r" if limits[0] < 0 else "Blues")
    bar = figure.colorbar(scale, ax=axes, shrink=0.8, aspect=30, pad=0.01)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
