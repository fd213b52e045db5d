"""Draws how far labels can be trusted, on planted neurons. A panel without data says so.

Precision and recall against the threshold, by how exactly a neuron implements its heuristic and by the heuristic's kind; and the
share of noise neurons that get a label against the level of false discovery.
"""

import math
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib.core.tables import read_table
from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import Axes, Figure

CALIBRATION, SETTING = Path("data/heuristics/label_calibration.parquet"), Path("data/heuristics/label_setting.parquet")
GRADES = ["exact", "partial", "soft", "mixture", "all"]
LINES = 5  # levels, or thresholds, drawn in one panel
NOTHING = "no such neuron was planted"


def main() -> None:
    drawing.write(FIGURES, Path("reports/heuristics/calibration"), read_table(CALIBRATION), read_table(SETTING))


def grades(table: pl.DataFrame, setting: pl.DataFrame) -> Figure:
    """Columns: how well the planted neurons implement their heuristic."""
    groups = {grade: table.filter(grade=grade, kind="all") for grade in GRADES}
    return _curves(groups, setting, "Labels of planted neurons, by how exactly they implement their heuristic")


def kinds(table: pl.DataFrame, setting: pl.DataFrame) -> Figure:
    """Columns: kinds of heuristic, of neurons that implement it exactly."""
    exact = table.filter(pl.col("kind") != "all", grade="exact")
    groups = {kind: exact.filter(kind=kind) for kind in exact["kind"].unique().sort()}
    return _curves(groups or {"any kind": exact}, setting, "Labels of planted neurons that implement one heuristic exactly, by its kind")


def _curves(groups: dict[str, pl.DataFrame], setting: pl.DataFrame, title: str) -> Figure:
    """Precision and recall (rows) of each group (columns) against the threshold, a line per level; rings: the chosen setting."""
    threshold, level, chosen_text = _chosen(setting)
    levels = _spread(pl.concat(groups.values())["level"], level)
    title = f"{title}; rings: {chosen_text}"
    figure, axes = drawing.panels(2, len(groups), title, (1.8, 1.6), sharex=True, sharey=True)
    for column, (name, group) in zip(axes.T, groups.items(), strict=True):
        column[0].set_title(name)
        for axis, measure in zip(column, ("precision", "recall"), strict=True):
            for number, colour in levels.items():
                line = group.filter(level=number).drop_nulls(measure).sort("threshold")
                drawing.curve(axis, line["threshold"], line[measure], f"level {number:g}" if number < 1 else "not controlled", colour)
            chosen = group.filter(level=level, threshold=threshold).drop_nulls(measure)
            _ring(axis, chosen["threshold"], chosen[measure])
            if group.is_empty():
                drawing.absent(axis, NOTHING)
        column[1].set_xlabel("threshold of the\ncorrected score")
    axes[0, 0].set(ylabel="precision", ylim=(-0.03, 1.03))
    axes[1, 0].set_ylabel("recall")
    drawing.legend(figure)
    return figure


def noise(table: pl.DataFrame, setting: pl.DataFrame) -> Figure:
    """Noise neurons have no heuristic: a label of one is a false discovery, of which a level allows its share."""
    threshold, level, chosen_text = _chosen(setting)
    part = table.filter(grade="noise", kind="all").with_columns(share=pl.col("labelled_neurons") / pl.col("neurons"))
    title = f"Neurons planted as noise that get a label; ring: {chosen_text}"
    figure, axes = drawing.panels(1, 1, title, (3.6, 2.8))
    axis = axes[0, 0]
    levels = part["level"].unique().sort().to_list() or [1.0]
    axis.plot([0, *levels], [0, *levels], color=drawing.GUIDE, linewidth=0.8, linestyle="--", label="equal to the level")
    for number, colour in _spread(part["threshold"], threshold).items():
        line = part.filter(threshold=number).sort("level")
        drawing.curve(axis, line["level"], line["share"], f"corrected score {number:g}", colour)
    chosen = part.filter(level=level, threshold=threshold)
    _ring(axis, chosen["level"], chosen["share"])
    for scale in (axis.set_xscale, axis.set_yscale):
        scale("symlog", linthresh=min((number for number in levels if number > 0), default=1))  # levels lie decades apart, shares may be 0
    axis.set_xticks(levels, [f"{number:g}" for number in levels])
    axis.set_yticks([0, *levels], ["0", *(f"{number:g}" for number in levels)])
    axis.minorticks_off()
    axis.set(xlabel="level of false discovery", ylabel="share of noise neurons with a label")
    axis.set_ylim(bottom=-0.1 * levels[0])
    if part.is_empty():
        drawing.absent(axis, NOTHING)
    drawing.legend(figure, 2)
    return figure


def _chosen(setting: pl.DataFrame) -> tuple[float, float, str]:
    """The threshold and the level that were chosen, and how that is said; NaN where nothing was labelled."""
    for threshold, level in setting.select("threshold", "level").iter_rows():
        return threshold, level, f"chosen, corrected score {threshold:g} and level {level:g}"
    return math.nan, math.nan, "none was chosen"


def _ring(axis: Axes, xs: pl.Series, ys: pl.Series) -> None:
    axis.plot(xs, ys, "o", markersize=6, markerfacecolor="none", color="black", zorder=3, label="_chosen")


def _spread(numbers: pl.Series, chosen: float) -> dict[float, tuple]:
    """A few of these numbers, the ends and the chosen one among them, with a colour each."""
    every = numbers.unique().sort().to_list()
    places = {*np.linspace(0, len(every) - 1, LINES).round().astype(int).tolist()} if every else set()
    shown = [number for place, number in enumerate(every) if place in places or number == chosen]
    return dict(zip(shown, drawing.matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(shown))), strict=True))


FIGURES = {draw.__name__: draw for draw in (grades, kinds, noise)}

if __name__ == "__main__":
    main()
