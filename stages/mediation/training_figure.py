"""Draws causal mediation over training: when late MLPs at the last position come to write the result.

One figure for every subject that training ended with; without points of training there is none.
"""

from pathlib import Path

import polars as pl

from stages.lib.core.tables import read_table
from stages.lib.drawing import drawing, steps
from stages.lib.drawing.drawing import BLUE, GREEN, ORANGE, PINK, VERMILION, Figure
from stages.mediation.conditions import CONDITIONS, TASKS, name, ordered

TABLE = (
    "trajectory_mediation"  # a folder below data/mediation/, with a file for each point of training
)
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
    FOLDER.mkdir(parents=True, exist_ok=True)
    if files := sorted(Path("data/mediation", TABLE).glob("*.parquet")):
        table = pl.concat(map(read_table, files)).filter(operator="all").sort("step")
        for last in table["last"].unique().sort():
            drawing.write({last: draw}, FOLDER, table.filter(last=last), last)


def draw(table: pl.DataFrame, last: str) -> Figure:
    """Columns: tasks; lines: conditions. Importance is a part of the sum below it, and says nothing where that is near 0."""
    tasks = ordered(table["task"], TASKS)
    title = f"{last}: late MLPs at the last position, over training; bands: intervals, none where log effects may add up to 0"
    figure, axes = drawing.panels(
        len(MEASURES), max(len(tasks), 1), title, (1.9, 1.6), sharex=True, sharey="row"
    )
    steps.axis(axes[0, 0], table["step"].unique().sort().to_list())
    for column, task in zip(axes.T, tasks, strict=False):
        column[0].set_title(name([task]))
        column[-1].set_xlabel("training step")
        column[-1].tick_params(axis="x", rotation=90)
        rows = table.filter(task=task)
        for condition in ordered(rows["condition"], CONDITIONS):
            line = rows.filter(condition=condition)
            for axis, measure in zip(column, MEASURES, strict=True):
                values = steps.floats(line, measure)
                band = (
                    (steps.floats(line, "ci_low"), steps.floats(line, "ci_high"))
                    if measure == "importance"
                    else None
                )
                drawing.curve(
                    axis,
                    line["step"],
                    values,
                    name([condition]),
                    COLOURS.get(condition, "black"),
                    band=band,
                )
        alike = rows.group_by("step").agg(pl.col("without_effect").mean()).sort("step")
        label = "if all effects were alike"
        drawing.curve(
            column[0],
            alike["step"],
            steps.floats(alike, "without_effect"),
            label,
            drawing.GUIDE,
            linestyle="--",
            marker="",
        )
    for axis, label in zip(axes[:, 0], MEASURES.values(), strict=True):
        axis.set_ylabel(label)
    axes[0, 0].set_ylim(LIMITS)
    axes[-1, 0].set_ylim(-0.03, 1.05)
    if not tasks:
        drawing.absent(axes[0, 0], NO_PAIRS)
    drawing.legend(figure, 3)
    return figure


if __name__ == "__main__":
    main()
