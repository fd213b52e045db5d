"""Draw causal mediation over training: when late MLPs begin to write the result.

There is one figure for each model with which training ended, and none without checkpoints.
"""

from pathlib import Path

import polars as pl

from stages.lib.core.tables import read_table
from stages.lib.drawing import drawing, steps
from stages.lib.drawing.drawing import BLUE, GREEN, ORANGE, PINK, VERMILION, Axes, Figure
from stages.mediation.conditions import CONDITIONS, TASKS, name, ordered

TABLE = "trajectory_mediation"  # a folder below data/mediation/, with a file for each checkpoint
FOLDER = Path("reports/mediation/trajectory")
COLOURS = dict(zip(CONDITIONS, [VERMILION, BLUE, GREEN, PINK, ORANGE], strict=True))
MEASURES = {
    "importance": "relative importance\nof late MLPs",
    "log_effects": "sum of all MLPs'\nlog effects",
    "correct": "accuracy",
}
LIMITS = (-0.5, 1.5)  # of importance
NO_PAIRS = "no pairs of such prompts"


def main() -> None:
    """Draw the figures of all training runs."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = sorted(Path("data/mediation", TABLE).glob("*.parquet"))
    if not files:
        return
    table = pl.concat(map(read_table, files)).filter(operator="all").sort("step")
    for last in table["last"].unique().sort():
        drawing.write({last: draw}, FOLDER, table.filter(last=last), last)


def draw(table: pl.DataFrame, last: str) -> Figure:
    """Draw measures (rows) of each task (columns) and condition (lines) against training steps.

    Importance is a share of the sum below it. It means nothing where that sum is near 0.
    """
    tasks = ordered(table["task"], TASKS)
    title = (
        f"{last}: late MLPs at the last position over training; bands: intervals, absent where log "
        "effects may add up to 0"
    )
    size = (len(MEASURES), max(len(tasks), 1))
    figure, axes = drawing.panels(*size, title, (1.9, 1.6), sharex=True, sharey="row")
    steps.axis(axes[0, 0], table["step"].unique().sort().to_list())
    for column, task in zip(axes.T, tasks, strict=False):
        column[0].set_title(name([task]))
        column[-1].set_xlabel("training step")
        column[-1].tick_params(axis="x", rotation=90)
        rows = table.filter(task=task)
        for axis, measure in zip(column, MEASURES, strict=True):
            _curves(axis, rows, measure)
        _equal_effects(column[0], rows)
    for axis, label in zip(axes[:, 0], MEASURES.values(), strict=True):
        axis.set_ylabel(label)
    axes[0, 0].set_ylim(LIMITS)
    axes[-1, 0].set_ylim(-0.03, 1.05)
    if not tasks:
        drawing.absent(axes[0, 0], NO_PAIRS)
    drawing.legend(figure, 3)
    return figure


def _curves(axis: Axes, rows: pl.DataFrame, measure: str) -> None:
    """Draw a measure for each condition; importance with its interval."""
    for condition in ordered(rows["condition"], CONDITIONS):
        line = rows.filter(condition=condition)
        band = None
        if measure == "importance":
            band = steps.floats(line, "ci_low"), steps.floats(line, "ci_high")
        values, colour = steps.floats(line, measure), COLOURS.get(condition, "black")
        drawing.curve(axis, line["step"], values, name([condition]), colour, band=band)


def _equal_effects(axis: Axes, rows: pl.DataFrame) -> None:
    """Draw the importance that equal effects would give."""
    equal = rows.group_by("step").agg(pl.col("without_effect").mean()).sort("step")
    values, label = steps.floats(equal, "without_effect"), "if all effects were equal"
    drawing.curve(axis, equal["step"], values, label, drawing.GUIDE, linestyle="--", marker="")


if __name__ == "__main__":
    main()
