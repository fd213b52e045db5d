"""Draw heat maps of neurons with the outlines of sets of cells, and heat maps of counts."""

from dataclasses import dataclass
from itertools import product
from textwrap import fill
from typing import Any

import numpy as np
import polars as pl

from stages.lib.drawing import drawing, heat
from stages.lib.drawing.drawing import Axes, Figure

OUTLINE = "#111111"
NUMBERED = 12  # largest number of columns of counts of which each has numbers and a name
# Crossings of the outline per pair of neighbouring cells. Finer outlines hide what they surround.
FINE = 0.05
# inches
WIDTH, HEIGHT = 4.35, 2.32  # an example
LINE = 78  # characters above a map
TOP = 0.3  # space above all examples
MAP = 1.4  # side of a map
WHOLE, DETAIL, SCALE = 0.45, 2.25, 3.72  # left edges, in an example, of its maps and colour bar
BOTTOM = 0.36  # lower edge of the maps in an example
Window = tuple[slice, slice]  # operands op1 and op2


@dataclass(frozen=True, eq=False)
class Example:
    """A neuron's map and a heuristic.

    text: is written above the map; values: (op1, op2), drawn down and across, NaN for a prompt that
    is not a cell; members: (op1, op2) bool, the heuristic's cells.
    """

    text: str
    values: np.ndarray
    members: np.ndarray


def examples(rows: list[list[Example]], title: str, side: int) -> Figure:
    """Draw two examples in a row, each as a whole map and in detail.

    side: operands of the detail, whose location is a dashed frame in the whole map. Colours end at
    the value that 1 cell in 200 exceeds, so a few extreme cells do not make the rest pale.
    """
    size = (2 * WIDTH, HEIGHT * len(rows) + TOP)
    figure = drawing.plt.figure(figsize=size)
    figure.set_layout_engine("none")  # locations are given in inches below
    figure.text(0.5, 1 - 0.08 / size[1], title, fontsize=9, ha="center", va="top")
    for row, pair in enumerate(rows):
        for column, example in enumerate(pair):
            corner = column * WIDTH, size[1] - TOP - (row + 1) * HEIGHT
            _example(figure, example, corner, side)
    return figure


def _example(figure: Figure, example: Example, corner: tuple[float, float], side: int) -> None:
    """Draw an example; corner: its lower left corner, inches from that of the figure."""
    width, height = figure.get_size_inches()

    def box(left: float, across: float) -> Axes:
        x, y = corner[0] + left, corner[1] + BOTTOM
        return figure.add_axes((x / width, y / height, across / width, MAP / height))

    x, y = (corner[0] + 0.1) / width, (corner[1] + BOTTOM + MAP + 0.06) / height
    text = "\n".join(fill(line, LINE) for line in example.text.splitlines())
    figure.text(x, y, text, fontsize=7, va="bottom", linespacing=1.25)
    part = window(~np.isnan(example.values), example.members, side)
    whole, detail = box(WHOLE, MAP), box(DETAIL, MAP)
    rows, columns = example.values.shape
    image = _map(whole, example, (slice(0, rows), slice(0, columns)))
    _map(detail, example, part)
    _frame(whole, part)
    whole.set_ylabel("op1", fontsize=7, labelpad=1)
    low, high = image.get_clim()
    bar = figure.colorbar(image, cax=box(SCALE, 0.08), extend="both", ticks=[low, 0, high])
    bar.ax.set_yticklabels([_number(low), "0", _number(high)], fontsize=7)
    bar.ax.set_label("<colorbar>")


def _number(value: float) -> str:
    return f"{value:.2g}" if abs(value) >= 0.001 else f"{value:.0e}"


def _map(axis: Axes, example: Example, part: Window) -> Any:
    """Draw a part of a map, and the heuristic's outline unless it is too fine for the whole map."""
    values, members = example.values[part], example.members[part]
    size = np.abs(example.values[~np.isnan(example.values)])
    limit = 1.0
    if size.size:
        limit = float(np.quantile(size, 0.995) or size.max() or 1)
    colours = drawing.matplotlib.colormaps["RdBu_r"].with_extremes(bad=drawing.NO_CELL)
    top, bottom, left, right = _edges_of(part)
    image = axis.imshow(
        values,
        cmap=colours,
        vmin=-limit,
        vmax=limit,
        extent=(left, right, bottom, top),
        interpolation="auto",
        aspect="equal",
    )
    is_whole = values.shape == example.values.shape
    if not (is_whole and fineness(~np.isnan(values), members) > FINE):
        _outline(axis, members, (part[0].start, part[1].start))
    axis.set_xlabel("op2", fontsize=7, labelpad=1)
    axis.tick_params(labelsize=7, length=2)
    axis.spines[:].set_visible(False)
    return image


def _edges_of(part: Window) -> tuple[float, float, float, float]:
    """Return the outer edges of a window's cells: top, bottom, left, right."""
    rows, columns = part
    return rows.start - 0.5, rows.stop - 0.5, columns.start - 0.5, columns.stop - 0.5


def _outline(axis: Axes, members: np.ndarray, first: tuple[int, int]) -> None:
    """Draw lines between cells of the set and others, exactly on the cells' edges.

    first: operands of the upper left cell.
    """
    top, left = first
    rows, start, end = _edges(members)
    across = start + left - 0.5, end + left + 0.5
    axis.hlines(rows + top + 0.5, *across, color=OUTLINE, linewidth=0.6)
    columns, start, end = _edges(members.T)
    down = start + top - 0.5, end + top + 0.5
    axis.vlines(columns + left + 0.5, *down, color=OUTLINE, linewidth=0.6)


def _edges(members: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the unbroken edges between a row and the next: row, first column and last column."""
    rows, columns = np.argwhere(members[1:] != members[:-1]).T
    begins = np.ones(len(rows), bool)
    begins[1:] = (np.diff(rows) != 0) | (np.diff(columns) != 1)
    return rows[begins], columns[begins], columns[np.roll(begins, -1)]


def _frame(axis: Axes, part: Window) -> None:
    top, bottom, left, right = _edges_of(part)
    xs, ys = [left, right, right, left, left], [top, top, bottom, bottom, top]
    axis.plot(xs, ys, color=OUTLINE, linewidth=0.7, linestyle="--", clip_on=False)


def fineness(valid: np.ndarray, members: np.ndarray) -> float:
    """Return the share of neighbouring pairs of cells that the outline separates, 0 to 1.

    valid, members: (op1, op2) bool, which prompts are cells, and which belong to the set.
    """
    pairs = crossings = 0
    for cells, inside in [(valid, members), (valid.T, members.T)]:
        both = cells[1:] & cells[:-1]
        pairs += int(both.sum())
        crossings += int((both & (inside[1:] != inside[:-1])).sum())
    return crossings / max(pairs, 1)


def window(valid: np.ndarray, members: np.ndarray, side: int) -> Window:
    """Return the location of the detail: many cells, half of them in the set.

    Of nearly equal windows, it is the nearest to the middle of the cells. The map's values do not
    matter, so that the choice does not flatter the heuristic.
    """
    height, width = (min(side, length) for length in valid.shape)
    middle = np.argwhere(valid).mean(0) if valid.any() else np.zeros(2)
    windows = []
    for top, left in product(_starts(valid.shape[0], height), _starts(valid.shape[1], width)):
        part = slice(top, top + height), slice(left, left + width)
        cells, inside = int(valid[part].sum()), int((valid & members)[part].sum())
        centre = np.array([top, left]) + np.array([height, width]) / 2
        away = float(np.hypot(*(centre - middle)))
        windows.append((inside * (cells - inside) / max(cells, 1), -away, part))
    best = max(worth for worth, *_ in windows) or 1
    return max(windows, key=lambda item: (round(item[0] / best, 1), item[1]))[2]


def _starts(length: int, size: int) -> list[int]:
    """Return where windows of a size start on an axis: every quarter of it, and at the end."""
    return sorted({*range(0, length - size, max(size // 4, 1)), length - size})


def counts(
    axis: Axes, table: pl.DataFrame, rows: list[str], columns: list[str], largest: float
) -> None:
    """Draw a heat map of a long table of counts (see `heat.matrix`), 0 if the table has none.

    largest: count with the darkest colour. Up to NUMBERED columns, each cell has its count as text.
    """
    values, columns = np.nan_to_num(heat.matrix(table, rows, columns)), columns or [""]
    axis.imshow(values, cmap="Blues", vmin=0, vmax=largest, interpolation="nearest", aspect="auto")
    every = -(-len(columns) // NUMBERED)
    axis.set_xticks(range(0, len(columns), every), columns[::every])
    axis.set_yticks(range(len(rows)), rows)
    heat.clear(axis)
    if every > 1:
        return
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if value > 0.6 * largest else "black"
        axis.text(column, row, f"{value:.0f}", **style, color=colour)
