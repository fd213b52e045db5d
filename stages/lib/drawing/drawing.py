"""Draw every figure in one style, readable in print, with the same bytes every time.

This module is the one importer of matplotlib.
Neither a user's matplotlibrc nor the backend that Jupyter asks for changes a figure.
"""

import os
from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import Any, TypeVar

os.environ["MPLBACKEND"] = "agg"
os.environ["MATPLOTLIBRC"] = os.devnull
import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from stages.lib.core import progress
from stages.lib.core.files import replacing
from stages.lib.core.tables import read_table
from stages.lib.units import local
from stages.lib.units.pool import Do
from stages.lib.units.queue import Unit

# reset settings of an earlier importer of matplotlib, or of a matplotlibrc in the working folder
matplotlib.rcdefaults()
plt.rcParams.update(
    {
        "figure.dpi": 150, "savefig.dpi": 150, "font.size": 9, "axes.titlesize": 9, "axes.spines.top": False,
        "axes.spines.right": False, "legend.frameon": False, "svg.hashsalt": "fixed", "figure.constrained_layout.use": True,
    }
)  # fmt: skip
BLUE, VERMILION, GREEN, PINK = "#0072b2", "#d55e00", "#009e73", "#cc79a7"  # these eight are told apart by the colour-blind
ORANGE, SKY, WINE, GREY = "#e69f00", "#56b4e9", "#882255", "#777777"
GUIDE = "#555555"  # lines that are no data: chance, thresholds
NO_CELL = "#d0d0d0"  # places of a map without a number
OWN, OTHERS = VERMILION, BLUE  # of one heuristic, and of others
COLOURS = {"add": BLUE, "subtract": VERMILION, "multiply": GREEN, "divide": PINK}
RANKINGS = {
    "effect": VERMILION, "effect_plus_std": ORANGE, "median_effect": GREEN, "logit_effect": BLUE,
    "attribution": GREEN, "own_means": WINE, "random": GREY,
}  # fmt: skip
MAJORITY = "most frequent answer"  # label of the accuracy of always predicting it
RANKING_NAMES = {
    "effect": "effect", "effect_plus_std": "effect + deviation", "median_effect": "median effect",
    "logit_effect": "logit effect", "attribution": "attribution",
    "own_means": "logit effect, own means", "random": "random",
}  # fmt: skip
UNDEFINED = "ablating everything leaves the answer's logit as it is"  # why faithfulness is null
NO_ROWS = "the table has no rows of this operator"
ROLES = ["op1", "operator", "op2", "last"]
ALONE = 4.2  # inches, at least, of a panel beside which there is no other
IN_A_ROW = 4  # panels, where there is one for each of many kinds
Tables = dict[str, pl.DataFrame]  # a table's name -> the table
Row = tuple[str, list[tuple[str, pl.DataFrame]]]  # of panels: what is written left of it, their titles and what they show
LONG = {"row": pl.String, "column": pl.String, "value": pl.Float64, "p_value": pl.Float64}  # a long table for a heat map
One = TypeVar("One")


def tables(subject: str, files: list[str]) -> Tables:
    """The subject's tables in these files, <chapter>/<table>.parquet below data/<subject>/."""
    return {Path(file).stem: read_table(Path("data") / subject / file) for file in files}


def write(figures: dict[str, Callable[..., Figure]], folder: Path, *given: Any, front: str = "") -> None:
    """Draws each figure from what is given, and saves it in the folder under its name; `front`, for READMEs and in Git, beside it."""
    places = {name: folder.parent / name if name == front else folder / name for name in figures}
    with local.ready(_drawing, figures, places, given, fork=False) as workers:
        units = {number: Unit(name, group=number) for number, name in enumerate(figures)}
        drawn = workers.do(units, _drawing(figures, places, given))
        for _ in progress.bar(drawn, total=len(figures), desc=f"draws {folder}", unit="figure"):
            pass


def _drawing(figures: dict[str, Callable[..., Figure]], places: dict[str, Path], given: tuple) -> Do:
    """What draws and saves a figure, by its number."""
    names = list(figures)
    return lambda number, _: save(figures[names[number]](*given), places[names[number]])


def save(figure: Figure, path: Path) -> None:
    """Write path.png for screens and path.svg for papers, without time stamps."""
    settle(figure)
    with replacing(path.with_suffix(".png")) as partial:
        FigureCanvasAgg(figure).print_png(partial, metadata={"Software": None})
    with replacing(path.with_suffix(".svg")) as partial:
        FigureCanvasSVG(figure).print_svg(partial, metadata={"Date": None})
    plt.close(figure)


def settle(figure: Figure) -> None:
    """Make the layout, once and for all: savefig would make it for each file, twice."""
    if layout := figure.get_layout_engine():
        layout.execute(figure)
    for axis in figure.axes:
        # to whole micrometres: names of parts of an SVG depend on the last bits of a logarithm
        axis.set_position(Bbox(axis.get_position(original=True).get_points().round(6)))
    figure.set_layout_engine("none")


def operators(pairs_found: pl.DataFrame) -> dict[str, str]:
    """Return every operator that the model was asked about, and why it may have no data.

    pairs_found: the table pairs_found. Only a split without any pair is a reason; NO_ROWS is any other.
    """
    none = pairs_found.filter(pl.col("found").fill_null(0) == 0).drop_nulls("problem")
    problems = dict(none.select("operator", "problem").iter_rows())
    known = set(pairs_found["operator"])
    return {operator: problems.get(operator, NO_ROWS) for operator in COLOURS if operator in known}


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


def evenly(values: list[int], most: int) -> list[int]:
    """Return these values in order, or if they are too many, some that are evenly spread."""
    places = np.unique(np.linspace(0, len(values) - 1, most).round().astype(int))
    return [values[place] for place in places] if values else []


def in_rows(panels: list[One]) -> list[list[One]]:
    """The same, so many in a row, in the last perhaps fewer."""
    return [panels[first : first + IN_A_ROW] for first in range(0, len(panels), IN_A_ROW)]


def rows_of_panels(rows: list[Row], title: str, size: tuple[float, float]) -> tuple[Figure, list[tuple[Axes, pl.DataFrame]]]:
    """A figure of rows of unequal length, and every panel's table; without rows, one panel of a long table that is empty."""
    rows = rows or [("", [("", pl.DataFrame(schema=LONG))])]
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
    reasons = operators(found)
    if len(reasons) == 1:
        size = (max(size[0], ALONE), size[1])
    figure, axes = panels(rows, len(reasons), title, size, **shared)
    for axis, operator in zip(axes[0], reasons, strict=True):
        axis.set_title(operator)
    return figure, axes, list(zip(reasons, axes.T, reasons.values(), strict=True))


def absent(axis: Axes, why: str, x: float | None = None) -> None:
    """Says in a panel why nothing is drawn in it, or upright at x if nothing is drawn there."""
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}
    if x is None:
        axis.text(0.5, 0.5, fill(f"no data: {why}", 22), transform=axis.transAxes, **style)
    else:
        axis.text(x, 0.5, fill(f"no data: {why}", 26), transform=axis.get_xaxis_transform(), rotation=90, **style)


def curve(axis: Axes, xs: Any, ys: Any, label: str, colour: Any, *, band: tuple[Any, Any] | None = None, **style: Any) -> None:
    """A line, with a band around it from band[0] to band[1]."""
    axis.plot(xs, ys, **{"label": label, "color": colour, "marker": "o", "markersize": 2, "linewidth": 1.2} | style)
    if band:
        axis.fill_between(xs, *band, color=colour, alpha=0.2, linewidth=0)


def majority(axis: Axes, accuracies: pl.Series, *, vertical: bool = False) -> None:
    """Draw the accuracy of always predicting the most frequent answer, and label it.

    accuracies: a column `majority_accuracy`; the line is at its mean, if it has any value.
    """
    style: dict[str, Any] = {"color": GUIDE, "linewidth": 1, "linestyle": (0, (5, 2, 1, 2)), "zorder": 1}
    line = axis.axvline if vertical else axis.axhline
    if accuracies.count():
        line(accuracies.drop_nulls().to_numpy().mean(), label=MAJORITY, **style)


def legend(figure: Figure, columns: int = 6) -> None:
    """One legend below the panels for all of them, in as many columns as fit into the figure."""
    handles = {label: handle for axis in figure.axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    for number in range(min(columns, max(len(handles), 1)), 0, -1):
        made = figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=number, fontsize=8)
        if number == 1 or made.get_window_extent(FigureCanvasAgg(figure).get_renderer()).width <= figure.bbox.width:
            return
        made.remove()


def circuits(table: pl.DataFrame, found: pl.DataFrame, x: str, title: str, why: str = "") -> tuple[Figure, np.ndarray]:
    """Faithfulness and accuracy of circuits (rows) of each operator (columns) against their size, the column `x`, by ranking.

    Bands: bootstrap intervals of faithfulness; of several random circuits of one size, their range.
    A dashed line: the accuracy of the most frequent answer. why: what to say where an operator has
    no rows, if pairs_found does not.
    """
    figure, axes, columns = operator_panels(2, found, title, sharex=True, sharey="row")
    lowest = min([0.0, *table["faithfulness"].drop_nulls()])
    cut = "\n(cut off at -0.5)" if lowest < -0.5 else ""
    for operator, column, reason in columns:
        rows = table.filter(operator=operator)
        part = rows.drop_nulls("faithfulness")
        undefined = UNDEFINED if rows.height else ""
        majority(column[1], part["majority_accuracy"])
        for axis, measure in zip(column, ["faithfulness", "accuracy"], strict=True):
            axis.axhline(1, color=GUIDE, linewidth=0.6, linestyle=":")
            for ranking, colour in RANKINGS.items():
                rows = part.filter(circuit=ranking)
                chosen = rows["seed"].null_count() == rows.height and measure == "faithfulness"
                low, high = ("ci_low", "ci_high") if chosen else (measure, measure)
                line = rows.group_by(x).agg(pl.mean(measure), low=pl.min(low), high=pl.max(high)).sort(x)
                if rows.height:
                    curve(
                        axis,
                        line[x],
                        line[measure],
                        RANKING_NAMES[ranking],
                        colour,
                        band=(line["low"], line["high"]),
                    )
            if part.is_empty():
                absent(axis, undefined or why or reason)
    axes[0, 0].set(ylabel=f"faithfulness{cut}", ylim=(max(lowest, -0.5) - 0.05, 1.1))
    axes[1, 0].set(ylabel="accuracy", ylim=(-0.03, 1.05))
    return figure, axes
