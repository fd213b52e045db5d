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
        "figure.dpi": 150,
        "savefig.dpi": 150,
        "font.size": 9,
        "axes.titlesize": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "svg.hashsalt": "fixed",
        "figure.constrained_layout.use": True,
    }
)
# Colour-blind readers can distinguish these eight.
BLUE, VERMILION, GREEN, PINK = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
ORANGE, SKY, WINE, GREY = "#e69f00", "#56b4e9", "#882255", "#777777"
GUIDE = "#555555"  # lines that are not data: chance, thresholds
NO_CELL = "#d0d0d0"  # cells of a map without a number
OWN, OTHERS = VERMILION, BLUE  # prompts of one heuristic, and all other prompts
COLOURS = {"add": BLUE, "subtract": VERMILION, "multiply": GREEN, "divide": PINK}
RANKINGS = {
    "effect": VERMILION,
    "effect_plus_std": ORANGE,
    "median_effect": GREEN,
    "logit_effect": BLUE,
    "attribution": GREEN,
    "own_means": WINE,
    "random": GREY,
}
MAJORITY = "most frequent answer"  # label of the accuracy of always predicting it
RANKING_NAMES = {
    "effect": "effect",
    "effect_plus_std": "effect + deviation",
    "median_effect": "median effect",
    "logit_effect": "logit effect",
    "attribution": "attribution",
    "own_means": "logit effect, own means",
    "random": "random",
}
UNDEFINED = "ablating everything leaves the answer's logit as it is"  # why faithfulness is null
NO_ROWS = "the table has no rows of this operator"
ROLES = ["op1", "operator", "op2", "last"]
ALONE = 4.2  # inches; smallest width of a panel without another beside it
IN_A_ROW = 4  # panels in a row, if there is one for each of many kinds
Tables = dict[str, pl.DataFrame]  # a table's name -> the table
Row = tuple[str, list[tuple[str, pl.DataFrame]]]  # a row's label, and its panels' titles and tables
# the columns of a long table for a heat map
LONG = {"row": pl.String, "column": pl.String, "value": pl.Float64, "p_value": pl.Float64}
Panel = TypeVar("Panel")


def tables(subject: str, files: list[str]) -> Tables:
    """Read the model's tables in these files, <chapter>/<table>.parquet below data/<subject>/."""
    folder = Path("data") / subject
    return {Path(file).stem: read_table(folder / file) for file in files}


def write(
    figures: dict[str, Callable[..., Figure]], folder: Path, *inputs: Any, front: str = ""
) -> None:
    """Draw each figure from the inputs, and save it in the folder under its name.

    front: name of the figure that READMEs show and Git holds; it is saved beside the folder.
    """
    paths = {name: folder / name for name in figures}
    if front:
        paths[front] = folder.parent / front
    units = {number: Unit(name, group=number) for number, name in enumerate(figures)}
    with local.ready(_drawing, figures, paths, inputs, fork=False) as workers:
        drawn = workers.do(units, _drawing(figures, paths, inputs))
        title = f"draws {folder}"
        for _ in progress.bar(drawn, total=len(figures), desc=title, unit="figure"):
            pass


def _drawing(
    figures: dict[str, Callable[..., Figure]], paths: dict[str, Path], inputs: tuple
) -> Do:
    """Return a function that draws and saves a figure, by its number."""
    names = list(figures)
    return lambda number, _: save(figures[names[number]](*inputs), paths[names[number]])


def save(figure: Figure, path: Path) -> None:
    """Write path.png for screens and path.svg for papers, without time stamps."""
    settle(figure)
    with replacing(path.with_suffix(".png")) as partial:
        FigureCanvasAgg(figure).print_png(partial, metadata={"Software": None})
    with replacing(path.with_suffix(".svg")) as partial:
        FigureCanvasSVG(figure).print_svg(partial, metadata={"Date": None})
    plt.close(figure)


def settle(figure: Figure) -> None:
    """Compute the layout once; otherwise, savefig would compute it twice for each file."""
    layout = figure.get_layout_engine()
    if layout:
        layout.execute(figure)
    for axis in figure.axes:
        # rounded to micrometres, since names of an SVG's parts depend on the last bits of a
        # logarithm
        axis.set_position(Bbox(axis.get_position(original=True).get_points().round(6)))
    figure.set_layout_engine("none")


def operators(pairs_found: pl.DataFrame) -> dict[str, str]:
    """Return every operator of the model, and why it may have no data.

    pairs_found: the table pairs_found. Only a split without any pair is a reason; NO_ROWS is any
    other.
    """
    none = pairs_found.filter(pl.col("found").fill_null(0) == 0).drop_nulls("problem")
    problems = dict(none.select("operator", "problem").iter_rows())
    known = set(pairs_found["operator"])
    return {operator: problems.get(operator, NO_ROWS) for operator in COLOURS if operator in known}


def panels(
    rows: int, columns: int, title: str, size: tuple[float, float] = (1.9, 1.8), **shared: Any
) -> tuple[Figure, np.ndarray]:
    """Return an empty figure and its axes (rows, columns).

    size: width and height of a panel, inches; shared: sharex or sharey. All text in the figure must
    have at least 7 points.
    """
    width = size[0] * columns + 0.3
    title = fill(title, int(15 * width))
    height = size[1] * rows + 0.6 + 0.14 * title.count("\n")
    figure, axes = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, **shared)
    figure.suptitle(title, fontsize=9)
    for axis in axes.flat:
        axis.tick_params(labelsize=7)
        axis.xaxis.label.set_size(8)
        axis.yaxis.label.set_size(8)
        axis.grid(alpha=0.3, linewidth=0.5)
    return figure, axes


def evenly(values: list[int], most: int) -> list[int]:
    """Return these values, or if there are more than `most`, some that are evenly spaced."""
    if not values:
        return []
    indices = np.unique(np.linspace(0, len(values) - 1, most).round().astype(int))
    return [values[index] for index in indices]


def in_rows(panels: list[Panel]) -> list[list[Panel]]:
    """Divide panels into rows of IN_A_ROW; the last row may have fewer."""
    return [panels[first : first + IN_A_ROW] for first in range(0, len(panels), IN_A_ROW)]


def rows_of_panels(
    rows: list[Row], title: str, size: tuple[float, float]
) -> tuple[Figure, list[tuple[Axes, pl.DataFrame]]]:
    """Return a figure of rows of different lengths, and every panel's axes and table.

    Without rows, the figure has one panel of an empty long table.
    """
    rows = rows or [("", [("", pl.DataFrame(schema=LONG))])]
    longest = max(len(row) for _, row in rows)
    figure, axes = panels(len(rows), longest, title, size)
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
    rows: int,
    pairs_found: pl.DataFrame,
    title: str,
    size: tuple[float, float] = (1.9, 1.8),
    **shared: Any,
) -> tuple[Figure, np.ndarray, list[tuple[str, np.ndarray, str]]]:
    """Return a figure with a column for each operator, its axes, and its columns.

    pairs_found: the table pairs_found. Each column is an operator, its axes from top to bottom, and
    why it may have no data.
    """
    reasons = operators(pairs_found)
    if len(reasons) == 1:
        size = (max(size[0], ALONE), size[1])
    figure, axes = panels(rows, len(reasons), title, size, **shared)
    for axis, operator in zip(axes[0], reasons, strict=True):
        axis.set_title(operator)
    return figure, axes, list(zip(reasons, axes.T, reasons.values(), strict=True))


def absent(axis: Axes, why: str, x: float | None = None) -> None:
    """Write into a panel why it has no data, or upright at x if only this place has none."""
    style: dict[str, Any] = {
        "ha": "center",
        "va": "center",
        "fontsize": 7,
        "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1},
    }
    text = f"no data: {why}"
    if x is None:
        axis.text(0.5, 0.5, fill(text, 22), transform=axis.transAxes, **style)
    else:
        upright = axis.get_xaxis_transform()
        axis.text(x, 0.5, fill(text, 26), transform=upright, rotation=90, **style)


def curve(
    axis: Axes,
    xs: Any,
    ys: Any,
    label: str,
    colour: Any,
    *,
    band: tuple[Any, Any] | None = None,
    **style: Any,
) -> None:
    """Draw a line; band: lower and upper edge of a band around it; style: of matplotlib's plot."""
    usual = {"label": label, "color": colour, "marker": "o", "markersize": 2, "linewidth": 1.2}
    axis.plot(xs, ys, **usual | style)
    if band:
        axis.fill_between(xs, *band, color=colour, alpha=0.2, linewidth=0)


def majority(axis: Axes, accuracies: pl.Series, *, vertical: bool = False) -> None:
    """Draw the accuracy of always predicting the most frequent answer, and label it.

    accuracies: a column `majority_accuracy`; the line is at its mean, if it has any value.
    """
    if not accuracies.count():
        return
    line = axis.axvline if vertical else axis.axhline
    style: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (5, 2, 1, 2)), "zorder": 1}
    line(accuracies.drop_nulls().to_numpy().mean(), label=MAJORITY, color=GUIDE, **style)


def legend(figure: Figure, columns: int = 6) -> None:
    """Draw one legend below all panels, in as many columns as fit into the figure."""
    handles: dict[str, Any] = {}
    for axis in figure.axes:
        own, labels = axis.get_legend_handles_labels()
        handles |= dict(zip(labels, own, strict=True))
    renderer = FigureCanvasAgg(figure).get_renderer()
    for number in range(min(columns, max(len(handles), 1)), 0, -1):
        made = figure.legend(
            [*handles.values()], [*handles], loc="outside lower center", ncols=number, fontsize=8
        )
        if number == 1 or made.get_window_extent(renderer).width <= figure.bbox.width:
            return
        made.remove()


def circuits(
    table: pl.DataFrame, pairs_found: pl.DataFrame, x: str, title: str, why: str = ""
) -> tuple[Figure, np.ndarray]:
    """Draw faithfulness and accuracy of circuits (rows) of each operator (columns) against size.

    table: has the column `x`, the circuits' size; why: the reason if an operator has no rows and
    pairs_found gives none. Each ranking has a line. Bands are bootstrap intervals of faithfulness,
    or the range of several random circuits of the same size. A dashed line is the accuracy of the
    most frequent answer.
    """
    figure, axes, columns = operator_panels(2, pairs_found, title, sharex=True, sharey="row")
    lowest = min([0.0, *table["faithfulness"].drop_nulls()])
    for operator, (upper, lower), reason in columns:
        rows = table.filter(operator=operator)
        part = rows.drop_nulls("faithfulness")
        majority(lower, part["majority_accuracy"])
        for axis, measure in ((upper, "faithfulness"), (lower, "accuracy")):
            axis.axhline(1, color=GUIDE, linewidth=0.6, linestyle=":")
            for ranking in RANKINGS:
                _circuit(axis, part.filter(circuit=ranking), x, measure, ranking)
            if part.is_empty():
                undefined = UNDEFINED if rows.height else ""
                absent(axis, undefined or why or reason)
    cut = "\n(cut off at -0.5)" if lowest < -0.5 else ""
    axes[0, 0].set(ylabel=f"faithfulness{cut}", ylim=(max(lowest, -0.5) - 0.05, 1.1))
    axes[1, 0].set(ylabel="accuracy", ylim=(-0.03, 1.05))
    return figure, axes


def _circuit(axis: Axes, rows: pl.DataFrame, x: str, measure: str, ranking: str) -> None:
    """Draw the line of one ranking, if it has rows."""
    if rows.is_empty():
        return
    low = high = measure
    if measure == "faithfulness" and rows["seed"].null_count() == rows.height:
        low, high = "ci_low", "ci_high"  # not random
    line = rows.group_by(x).agg(pl.mean(measure), low=pl.min(low), high=pl.max(high)).sort(x)
    band = line["low"], line["high"]
    curve(axis, line[x], line[measure], RANKING_NAMES[ranking], RANKINGS[ranking], band=band)
