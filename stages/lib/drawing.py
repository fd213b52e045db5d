"""One style for every figure: readable in print, the same bytes every time. The one importer of matplotlib."""

import math
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from stages.lib.files import replacing

plt.rcParams.update(
    {
        "figure.dpi": 150, "savefig.dpi": 150, "font.size": 9, "axes.titlesize": 9, "axes.spines.top": False,
        "axes.spines.right": False, "legend.frameon": False, "svg.hashsalt": "fixed", "figure.constrained_layout.use": True,
    }
)  # fmt: skip
COLOURS = {"add": "#0072b2", "subtract": "#d55e00", "multiply": "#009e73", "divide": "#cc79a7"}  # told apart by the colour-blind
RANKINGS = {
    "effect": "#d55e00", "effect_plus_std": "#e69f00", "median_effect": "#009e73", "logit_effect": "#0072b2", "attribution": "#009e73",
    "random": "#777777",
}  # fmt: skip
GUIDE = "#555555"  # lines that are no data: chance, thresholds
ROLES = ["op1", "operator", "op2", "last"]


def save(figure: Figure, path: Path) -> None:
    """Writes path.png for screens and path.svg for papers, without time stamps."""
    with replacing(path.with_suffix(".png")) as partial:
        figure.savefig(partial, format="png", metadata={"Software": None})
    with replacing(path.with_suffix(".svg")) as partial:
        figure.savefig(partial, format="svg", metadata={"Date": None})
    plt.close(figure)


def maps(panels: list[tuple[str, np.ndarray]], title: str, columns: int = 4) -> Figure:
    """Heat maps over op1 (down) and op2 (across), each with its own diverging scale centred at 0; NaN cells stay grey."""
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(2.3 * columns, 2.05 * rows + 0.4), squeeze=False, sharex=True, sharey=True)
    colours = matplotlib.colormaps["RdBu_r"].with_extremes(bad="#d0d0d0")
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


def operators(found: pl.DataFrame) -> dict[str, str]:
    """Every operator the subject was asked about -> why it may have no data; `found` is the table pairs_found."""
    problems = dict(found.drop_nulls("problem").select("operator", "problem").iter_rows())
    asked = set(found["operator"])
    return {operator: problems.get(operator, "no such rows") for operator in COLOURS if operator in asked}


def panels(rows: int, columns: int, title: str, size: tuple[float, float] = (1.9, 1.8), **shared: Any) -> tuple[Figure, np.ndarray]:
    """An empty figure and its axes (rows, columns); size: inches of one panel. All that is written in it is 7 points or larger."""
    width = size[0] * columns + 0.3
    title = fill(title, int(15 * width))
    space = 0.6 + 0.14 * title.count("\n")
    figure, axes = plt.subplots(rows, columns, figsize=(width, size[1] * rows + space), squeeze=False, **shared)
    figure.suptitle(title, fontsize=9)
    for axis in axes.flat:
        axis.tick_params(labelsize=7)
        axis.xaxis.label.set_size(8)
        axis.yaxis.label.set_size(8)
        axis.grid(alpha=0.3, linewidth=0.5)
    return figure, axes


def rows_of_panels(
    rows: list[tuple[str, list[tuple[str, pl.DataFrame]]]], title: str, size: tuple[float, float]
) -> tuple[Figure, list[tuple[Axes, pl.DataFrame]]]:
    """A figure of rows of unequal length: what is written left of each, and titles and tables of its panels. Also every panel's table."""
    figure, axes = panels(len(rows), max(len(row) for _, row in rows), title, size)
    filled = []
    for line, (label, row) in zip(axes, rows, strict=True):
        line[0].set_ylabel(label)
        for axis, (above, table) in zip(line, row, strict=False):
            axis.set_title(above, fontsize=8)
            filled.append((axis, table))
        for axis in line[len(row) :]:
            axis.remove()
    return figure, filled


def operator_panels(
    rows: int, found: pl.DataFrame, title: str, size: tuple[float, float] = (1.9, 1.8), **shared: Any
) -> tuple[Figure, np.ndarray, list[tuple[str, np.ndarray, str]]]:
    """The figure, its axes, and by column: an operator, its axes from top to bottom, and why it may have no data."""
    asked = operators(found)
    figure, axes = panels(rows, len(asked), title, size, **shared)
    for axis, operator in zip(axes[0], asked, strict=True):
        axis.set_title(operator)
    return figure, axes, list(zip(asked, axes.T, asked.values(), strict=True))


def absent(axis: Axes, why: str, x: float | None = None) -> None:
    """Says in a panel why nothing is drawn in it, or upright at x if nothing is drawn there."""
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}
    if x is None:
        axis.text(0.5, 0.5, fill(f"no data: {why}", 22), transform=axis.transAxes, **style)
    else:
        axis.text(x, 0.5, fill(f"no data: {why}", 26), transform=axis.get_xaxis_transform(), rotation=90, **style)


def heat(axis: Axes, values: np.ndarray, rows: list[str], columns: list[str], limits: tuple[float, float]) -> None:
    """A heat map (rows, columns) with its numbers, where there is room for them; NaN stays grey. Diverging if limits[0] < 0."""
    colours = matplotlib.colormaps["RdBu_r" if limits[0] < 0 else "Blues"].with_extremes(bad="#d0d0d0")
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
    scale = ScalarMappable(Normalize(*limits), "RdBu_r" if limits[0] < 0 else "Blues")
    bar = figure.colorbar(scale, ax=axes, shrink=0.8, aspect=30, pad=0.01)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)


def curve(axis: Axes, xs: Any, ys: Any, label: str, colour: Any, band: tuple[Any, Any] | None = None, **style: Any) -> None:
    """A line, with a band around it from band[0] to band[1]."""
    axis.plot(xs, ys, **{"label": label, "color": colour, "marker": "o", "markersize": 2, "linewidth": 1.2} | style)
    if band:
        axis.fill_between(xs, *band, color=colour, alpha=0.2, linewidth=0)


def legend(figure: Figure, columns: int = 6) -> None:
    """One legend below the panels for all of them."""
    handles = {label: handle for axis in figure.axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(columns, max(len(handles), 1)), fontsize=8)


def circuits(table: pl.DataFrame, found: pl.DataFrame, x: str, title: str, why: str = "") -> tuple[Figure, np.ndarray]:
    """Faithfulness and accuracy of circuits (rows) of each operator (columns) against their size, the column `x`, by ranking.

    Bands: bootstrap intervals of faithfulness; of several random circuits of one size, their range. why: what to say where
    an operator has no rows, if pairs_found does not.
    """
    figure, axes, columns = operator_panels(2, found, title, sharex=True, sharey="row")
    lowest = min([0.0, *table["faithfulness"].drop_nulls()])
    cut = "\n(cut off at -0.5)" if lowest < -0.5 else ""
    for operator, column, reason in columns:
        part = table.filter(operator=operator).drop_nulls("faithfulness")
        for axis, measure in zip(column, ["faithfulness", "accuracy"], strict=True):
            axis.axhline(1, color=GUIDE, linewidth=0.6, linestyle=":")
            for ranking, colour in RANKINGS.items():
                rows = part.filter(circuit=ranking)
                chosen = rows["seed"].null_count() == rows.height and measure == "faithfulness"
                low, high = ("ci_low", "ci_high") if chosen else (measure, measure)
                line = rows.group_by(x).agg(pl.mean(measure), low=pl.min(low), high=pl.max(high)).sort(x)
                if rows.height:
                    curve(axis, line[x], line[measure], ranking, colour, (line["low"], line["high"]))
            if part.is_empty():
                absent(axis, why or reason)
    axes[0, 0].set(ylabel=f"faithfulness{cut}", ylim=(max(lowest, -0.5) - 0.05, 1.1))
    axes[1, 0].set(ylabel="accuracy", ylim=(-0.03, 1.05))
    return figure, axes


def site_colours(sites: list[tuple[int, str]]) -> dict[tuple[int, str], Any]:
    """Colours of places (layer, position): warm ones of the operands' positions, blue to green along the layers at the last."""
    warm = {"op1": "#e69f00", "operator": "#d55e00", "op2": "#882255"}
    late = [site for site in sites if site[1] not in warm]
    cold = dict(zip(late, np.linspace(0.1, 0.75, len(late)), strict=True))
    return {site: warm.get(site[1]) or matplotlib.colormaps["winter"](cold[site]) for site in sites}
