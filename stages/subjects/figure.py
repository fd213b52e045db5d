"""Draw the accuracy of the models trained here over training, on cells and on prompts of tasks."""

from pathlib import Path

import polars as pl

from stages.lib.core.tables import read_table
from stages.lib.core.vocabulary import TASKS
from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import Axes

TASK_COLOURS = (drawing.ORANGE, drawing.SKY, drawing.WINE, drawing.GREY, "black")
COLOURS = drawing.COLOURS | dict(zip(TASKS, TASK_COLOURS, strict=True))
IS_CELLS, IS_TASK = pl.col("operator").is_not_null(), pl.col("task").is_not_null()
IS_HELD_OUT = pl.col("split") == "held-out"
PANELS = {
    "train cells": IS_CELLS & ~IS_HELD_OUT,
    "held-out cells": IS_CELLS & IS_HELD_OUT,
    "held-out prompts, trained facts": IS_TASK & (IS_HELD_OUT | (pl.col("task") == "factual")),
}


def main() -> None:
    table = read_table("data/subjects/training.parquet")
    subjects = table["subject"].unique(maintain_order=True)
    panels = {title: which for title, which in PANELS.items() if table.filter(which).height}
    size = (3.4 * len(panels), 0.4 + 2.4 * len(subjects))
    figure, axes = drawing.plt.subplots(
        len(subjects),
        len(panels),
        figsize=size,
        sharex="row",
        sharey=True,
        squeeze=False,
    )
    for row, subject in zip(axes, subjects, strict=True):
        for axis, which in zip(row, panels.values(), strict=True):
            _curves(axis, table.filter(which, subject=subject))
        row[0].set_ylabel(f"{subject}\naccuracy")
    for axis, title in zip(axes[0], panels, strict=True):
        axis.set_title(title)
    drawing.legend(figure)
    figure.suptitle("Accuracy over training (fixed samples)", fontsize=10)
    drawing.save(figure, Path("reports/subjects/training"))


def _curves(axis: Axes, accuracies: pl.DataFrame) -> None:
    """Draw a model's accuracy over steps, a curve for each operator or task."""
    for name, colour in COLOURS.items():
        curve = accuracies.filter(pl.coalesce("operator", "task") == name).sort("step")
        if curve.height:
            label = name.replace("_", " ")
            drawing.curve(axis, curve["step"], curve["accuracy"], label, colour)
    if not accuracies.height:
        drawing.absent(axis, "not measured")
    axis.set(xlabel="optimiser step", ylim=(-0.02, 1.02))
    axis.grid(alpha=0.3, linewidth=0.5)


if __name__ == "__main__":
    main()
