"""Draws the accuracy of our own subject over training: reports/training.png and .svg, from data/training.parquet."""

from pathlib import Path

import polars as pl

from stages.lib import drawing


def main() -> None:
    table = pl.read_parquet("data/training.parquet")
    series = {}
    for split, part in table.sort("split", "step", descending=[True, False]).group_by("split", maintain_order=True):
        curves = []
        for operator, colour in drawing.COLOURS.items():
            curve = part.filter(pl.col("operator") == operator)
            curves.append((curve["step"].to_numpy(), curve["accuracy"].to_numpy(), operator, colour))
        series[f"{split[0]} cells"] = curves
    drawing.save(
        drawing.lines(series, "optimiser step", "accuracy", "Accuracy over training (fixed sample of cells)"), Path("reports/training")
    )


if __name__ == "__main__":
    main()
