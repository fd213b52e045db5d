"""Draw how far labels can be trusted: precision and recall on the synthetic model `planted`.

The ground truth of this model is known. Two figures show precision and recall against the
threshold, by how exactly a neuron implements its heuristic, and by the heuristic's kind. A third
shows the share of noise neurons that get a label against the false discovery rate. A panel without
data says so.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.lib.core.tables import read_table
from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import Axes, Figure

CALIBRATION = Path("data/heuristics/label_calibration.parquet")
SETTING = Path("data/heuristics/label_setting.parquet")
GRADES = ["exact", "partial", "soft", "mixture", "all"]
LINES = 5  # levels, or thresholds, drawn in one panel
NOTHING = "no such neuron is in the synthetic model"


@dataclass(frozen=True)
class Setting:
    """The threshold and level in use, NaN if there are none, and a text about them."""

    threshold: float = math.nan
    level: float = math.nan
    text: str = "none was selected"


def main() -> None:
    inputs = read_table(CALIBRATION), read_table(SETTING)
    drawing.write(FIGURES, Path("reports/heuristics/calibration"), *inputs)


def grades(table: pl.DataFrame, setting: pl.DataFrame) -> Figure:
    """Draw a column for each grade: how exactly neurons implement their heuristic."""
    groups = {grade: table.filter(grade=grade, kind="all") for grade in GRADES}
    title = "Precision and recall of labels, by how exactly neurons implement their heuristic"
    return _curves(groups, setting, title)


def kinds(table: pl.DataFrame, setting: pl.DataFrame) -> Figure:
    """Draw a column for each kind of heuristic that neurons implement exactly."""
    exact = table.filter(pl.col("kind") != "all", grade="exact")
    groups = {kind: exact.filter(kind=kind) for kind in exact["kind"].unique().sort()}
    title = (
        "Precision and recall of labels on neurons that implement a heuristic exactly, by its kind"
    )
    return _curves(groups or {"any kind": exact}, setting, title)


def _curves(groups: dict[str, pl.DataFrame], setting: pl.DataFrame, title: str) -> Figure:
    """Draw precision and recall (rows) of each group (columns) against the threshold.

    Each level has a line. Rings mark the setting in use.
    """
    used = _used(setting)
    levels = _spread(pl.concat(groups.values())["level"], used.level)
    title = f"{title}; rings: {used.text}"
    figure, axes = drawing.panels(2, len(groups), title, (1.8, 1.6), sharex=True, sharey=True)
    for (upper, lower), (name, group) in zip(axes.T, groups.items(), strict=True):
        upper.set_title(name)
        lower.set_xlabel("threshold of the\nchance-corrected score")
        _by_threshold(upper, group, "precision", levels, used)
        _by_threshold(lower, group, "recall", levels, used)
    axes[0, 0].set(ylabel="precision", ylim=(-0.03, 1.03))
    axes[1, 0].set_ylabel("recall")
    drawing.legend(figure)
    return figure


def _by_threshold(
    axis: Axes, group: pl.DataFrame, measure: str, levels: dict[float, tuple], used: Setting
) -> None:
    """Draw a measure of one group against the threshold; levels: level -> colour."""
    for level, colour in levels.items():
        line = group.filter(level=level).drop_nulls(measure).sort("threshold")
        label = f"level {level:g}" if level < 1 else "not controlled"
        drawing.curve(axis, line["threshold"], line[measure], label, colour)
    ring = group.filter(level=used.level, threshold=used.threshold).drop_nulls(measure)
    _ring(axis, ring["threshold"], ring[measure])
    if group.is_empty():
        drawing.absent(axis, NOTHING)


def noise(table: pl.DataFrame, setting: pl.DataFrame) -> Figure:
    """Draw the share of noise neurons with a label against the false discovery rate.

    Noise neurons have no heuristic, so each label is a false discovery. The rate allows its share.
    """
    used = _used(setting)
    share = pl.col("labelled_neurons") / pl.col("neurons")
    part = table.filter(grade="noise", kind="all").with_columns(share=share)
    title = f"Noise neurons that get a label, by threshold; ring: {used.text}"
    figure, axes = drawing.panels(1, 1, title, (3.6, 2.8))
    axis = axes[0, 0]
    levels = part["level"].unique().sort().to_list() or [1.0]
    ends = [0, *levels]
    guide: dict[str, Any] = {"color": drawing.GUIDE, "linewidth": 0.8, "linestyle": "--"}
    axis.plot(ends, ends, **guide, label="equal to the level")
    for threshold, colour in _spread(part["threshold"], used.threshold).items():
        line = part.filter(threshold=threshold).sort("level")
        label = f"threshold {threshold:g}"
        drawing.curve(axis, line["level"], line["share"], label, colour)
    ring = part.filter(level=used.level, threshold=used.threshold)
    _ring(axis, ring["level"], ring["share"])
    smallest = min(filter(None, levels), default=1)
    for scale in (axis.set_xscale, axis.set_yscale):
        scale("symlog", linthresh=smallest)  # levels are decades apart, and shares may be 0
    names = [f"{level:g}" for level in levels]
    axis.set_xticks(levels, names)
    axis.set_yticks([0, *levels], ["0", *names])
    axis.minorticks_off()
    axis.set(xlabel="false discovery rate", ylabel="share of noise neurons with a label")
    axis.set_ylim(bottom=-0.1 * levels[0])
    if part.is_empty():
        drawing.absent(axis, NOTHING)
    drawing.legend(figure, 2)
    return figure


def _used(setting: pl.DataFrame) -> Setting:
    """Return the setting in use; setting: the table label_setting."""
    for threshold, level in setting.select("threshold", "level").iter_rows():
        text = f"setting in use, chance-corrected score {threshold:g} and level {level:g}"
        return Setting(threshold, level, text)
    return Setting()


def _ring(axis: Axes, xs: pl.Series, ys: pl.Series) -> None:
    style: dict[str, Any] = {
        "markersize": 6,
        "markerfacecolor": "none",
        "color": "black",
        "zorder": 3,
    }
    axis.plot(xs, ys, "o", **style, label="_used")


def _spread(numbers: pl.Series, used: float) -> dict[float, tuple]:
    """Return a few of these numbers, the ends and the used one among them, each with a colour."""
    every = numbers.unique().sort().to_list()
    shown = sorted({*drawing.evenly(every, LINES), *({used} & {*every})})
    shades = np.linspace(0, 0.85, len(shown))
    return dict(zip(shown, drawing.matplotlib.colormaps["viridis"](shades), strict=True))


FIGURES = {"grades": grades, "kinds": kinds, "noise": noise}

if __name__ == "__main__":
    main()
