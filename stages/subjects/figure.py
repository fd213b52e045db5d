"""Draws the accuracy of models of our own over training, on cells they are trained on and held-out ones, and on prompts of the tasks."""

from pathlib import Path

import polars as pl

from stages.lib.core.tables import read_table
from stages.lib.core.words import TASKS
from stages.lib.drawing import drawing

TASK_COLOURS = dict(
    zip(TASKS, (drawing.ORANGE, drawing.SKY, drawing.WINE, drawing.GREY, "black"), strict=True)
)
PANELS = {
    "train cells": pl.col("operator").is_not_null() & (pl.col("split") == "train"),
    "held-out cells": pl.col("operator").is_not_null() & (pl.col("split") == "held-out"),
    "held-out prompts, trained facts": pl.col("task").is_not_null()
    & ((pl.col("split") == "held-out") | (pl.col("task") == "factual")),
}


def main() -> None:
    table = read_table("data/subjects/training.parquet")
    subjects = table["subject"].unique(maintain_order=True)
    panels = {title: which for title, which in PANELS.items() if table.filter(which).height}
    size = (3.4 * len(panels), 0.4 + 2.4 * len(subjects))
    figure, axes = drawing.plt.subplots(
        len(subjects), len(panels), figsize=size, sharex="row", sharey=True, squeeze=False
    )
    for row, subject in zip(axes, subjects, strict=True):
        for axis, (title, which) in zip(row, panels.items(), strict=True):
            found = table.filter(which, subject=subject)
            for name, colour in (drawing.COLOURS | TASK_COLOURS).items():
                curve = found.filter(pl.coalesce("operator", "task") == name).sort("step")
                if curve.height:
                    drawing.curve(
                        axis, curve["step"], curve["accuracy"], name.replace("_", " "), colour
                    )
            if not found.height:
                drawing.absent(axis, "not measured")
            axis.set(
                title=title if subject == subjects[0] else "",
                xlabel="optimiser step",
                ylim=(-0.02, 1.02),
            )
            axis.grid(alpha=0.3, linewidth=0.5)
        row[0].set_ylabel(f"{subject}\naccuracy")
    drawing.legend(figure)
    figure.suptitle("Accuracy over training (fixed samples)", fontsize=10)
    drawing.save(figure, Path("reports/subjects/training"))


if __name__ == "__main__":
    main()
