"""Heat maps of neurons with the outlines of sets of cells, whole and in detail, and heat maps of counts."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import polars as pl

from stages.lib.drawing import drawing, heat
from stages.lib.drawing.drawing import Axes, Figure

OUTLINE = "#111111"
NUMBERED = 12  # most columns of counts that have numbers and a name each
FINE = 0.05  # crossings of the outline per pair of neighbouring cells: beyond it, outlines hide what they surround
# Inches: of an example, of what is above all of them, of a map, and from an example's edges to its whole, its detail, its scale.
WIDTH, HEIGHT, TOP, MAP, WHOLE, DETAIL, SCALE, BOTTOM = 4.35, 2.2, 0.3, 1.4, 0.45, 2.25, 3.72, 0.36


@dataclass(frozen=True, eq=False)
class Example:
    """A map over op1 (down) and op2 (across), NaN where a prompt is no cell; the cells of a heuristic; what is written above."""

    text: str
    values: np.ndarray
    members: np.ndarray


def examples(rows: list[list[Example]], title: str, side: int) -> Figure:
    """Two examples a row, each as a whole and, where the dashed frame is, in a detail of so many cells a side.

    Colours run to the value that one cell in 200 exceeds, so that a few extreme cells do not pale the rest.
    """
    size = (2 * WIDTH, HEIGHT * len(rows) + TOP)
    figure = drawing.plt.figure(figsize=size)
    figure.set_layout_engine("none")  # places are given in inches below
    figure.text(0.5, 1 - 0.08 / size[1], title, fontsize=9, ha="center", va="top")
    for row, pair in enumerate(rows):
        for column, example in enumerate(pair):
            _example(figure, example, (column * WIDTH, size[1] - TOP - (row + 1) * HEIGHT), side)
    return figure


def _example(figure: Figure, example: Example, corner: tuple[float, float], side: int) -> None:
    """corner: inches from the figure's lower left corner to the example's."""
    width, height = figure.get_size_inches()

    def box(left: float, across: float, up: float = MAP) -> Axes:
        return figure.add_axes(((corner[0] + left) / width, (corner[1] + BOTTOM) / height, across / width, up / height))

    x, y = (corner[0] + 0.1) / width, (corner[1] + BOTTOM + MAP + 0.06) / height
    figure.text(x, y, example.text, fontsize=7, va="bottom", linespacing=1.25)
    at = window(~np.isnan(example.values), example.members, side)
    whole, detail = box(WHOLE, MAP), box(DETAIL, MAP)
    image = _map(whole, example, (slice(0, len(example.values)), slice(0, example.values.shape[1])))
    _map(detail, example, at)
    _frame(whole, at)
    whole.set_ylabel("op1", fontsize=7, labelpad=1)
    low, high = image.get_clim()
    bar = figure.colorbar(image, cax=box(SCALE, 0.08), extend="both", ticks=[low, 0, high])
    names = [f"{end:.2g}" if abs(end) >= 0.001 else f"{end:.0e}" for end in (low, high)]
    bar.ax.set_yticklabels([names[0], "0", names[1]], fontsize=7)
    bar.ax.set_label("<colorbar>")


def _map(axis: Axes, example: Example, at: tuple[slice, slice]) -> Any:
    """One part of a map, and the heuristic's outline where that is not too fine for it."""
    values, members = example.values[at], example.members[at]
    size = np.abs(example.values[~np.isnan(example.values)])
    limit = float(np.quantile(size, 0.995) or size.max() or 1) if size.size else 1.0
    colours = drawing.matplotlib.colormaps["RdBu_r"].with_extremes(bad=drawing.NO_CELL)
    edges = (at[1].start - 0.5, at[1].stop - 0.5, at[0].stop - 0.5, at[0].start - 0.5)
    image = axis.imshow(values, cmap=colours, vmin=-limit, vmax=limit, extent=edges, interpolation="auto", aspect="equal")
    whole = values.shape == example.values.shape
    if not (whole and fineness(~np.isnan(values), members) > FINE):
        _outline(axis, members, (at[0].start, at[1].start))
    axis.set_xlabel("op2", fontsize=7, labelpad=1)
    axis.tick_params(labelsize=7, length=2)
    axis.spines[:].set_visible(False)
    return image


def _outline(axis: Axes, members: np.ndarray, first: tuple[int, int]) -> None:
    """Lines between cells of the set and others, exactly on the cells' edges; first: the operands of the upper left cell."""
    top, left = first
    rows, start, end = _edges(members)
    axis.hlines(rows + top + 0.5, start + left - 0.5, end + left + 0.5, color=OUTLINE, linewidth=0.6)
    columns, start, end = _edges(members.T)
    axis.vlines(columns + left + 0.5, start + top - 0.5, end + top + 0.5, color=OUTLINE, linewidth=0.6)


def _edges(members: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unbroken edges between a row and the next: the row, the first and the last of the columns."""
    rows, columns = np.argwhere(members[1:] != members[:-1]).T
    begins = np.ones(len(rows), bool)
    begins[1:] = (np.diff(rows) != 0) | (np.diff(columns) != 1)
    return rows[begins], columns[begins], columns[np.roll(begins, -1)]


def _frame(axis: Axes, at: tuple[slice, slice]) -> None:
    top, bottom, left, right = at[0].start - 0.5, at[0].stop - 0.5, at[1].start - 0.5, at[1].stop - 0.5
    axis.plot(
        [left, right, right, left, left], [top, top, bottom, bottom, top], color=OUTLINE, linewidth=0.7, linestyle="--", clip_on=False
    )


def fineness(valid: np.ndarray, members: np.ndarray) -> float:
    """Share of neighbouring pairs of cells, down and across, of which the set holds one alone."""
    pairs = crossings = 0
    for cells, of in [(valid, members), (valid.T, members.T)]:
        both = cells[1:] & cells[:-1]
        pairs += int(both.sum())
        crossings += int((both & (of[1:] != of[:-1])).sum())
    return crossings / max(pairs, 1)


def window(valid: np.ndarray, members: np.ndarray, side: int) -> tuple[slice, slice]:
    """Where to look closer: much that is a cell, half of it in the set; of nearly equal places the one nearest to the middle.

    The map's values have no say, so that the place does not flatter the heuristic.
    """
    sizes = [min(side, length) for length in valid.shape]
    places = [sorted({*range(0, length - size, max(size // 4, 1)), length - size}) for length, size in zip(valid.shape, sizes, strict=True)]
    middle = np.argwhere(valid).mean(0) if valid.any() else np.zeros(2)

    found = []
    for top, left in product(*places):
        at = slice(top, top + sizes[0]), slice(left, left + sizes[1])
        cells, inside = int(valid[at].sum()), int((valid & members)[at].sum())
        away = float(np.hypot(*(np.array([top, left]) + np.array(sizes) / 2 - middle)))
        found.append((inside * (cells - inside) / max(cells, 1), -away, at))
    best = max(worth for worth, *_ in found) or 1
    return max(found, key=lambda place: (round(place[0] / best, 1), place[1]))[2]


def counts(axis: Axes, table: pl.DataFrame, rows: list[str], columns: list[str], largest: float) -> None:
    """A heat map of a long table of whole numbers, as in `heat.matrix`, 0 where it has none; with them where there is room."""
    values, columns = np.nan_to_num(heat.matrix(table, rows, columns)), columns or [""]
    axis.imshow(values, cmap="Blues", vmin=0, vmax=largest, interpolation="nearest", aspect="auto")
    every = -(-len(columns) // NUMBERED)
    axis.set_xticks(range(0, len(columns), every), columns[::every])
    axis.set_yticks(range(len(rows)), rows)
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    for (row, column), value in np.ndenumerate(values if every == 1 else np.zeros((0, 0))):
        dark = value > 0.6 * largest
        axis.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=7, color="white" if dark else "black")
