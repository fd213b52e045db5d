"""Draws what one digit's top neurons do to the other digits of the answer, and how many of them they share."""

import sys
from pathlib import Path

import polars as pl

from stages.lib.core.tables import read_table
from stages.lib.drawing import drawing, heat
from stages.lib.drawing.drawing import Figure

DIGITS = {1: "first", 2: "second", 3: "third"}
NOTHING = "no layer that is late for all digits has enough patched neurons for the smallest k"
MEASURES = {"share": "effect / that of\nits own top neurons", "iou": "neurons in both /\nin either"}


def main(model: str) -> None:
    path = Path(f"reports/neurons/{model}")
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.save(draw(read_table(Path(f"data/neurons/digit_circuits/{model}.parquet")), model), path)


def draw(table: pl.DataFrame, model: str) -> Figure:
    """Columns: operators. Above, how much of a digit's effect (across) the top neurons of another (down) have; below, their overlap."""
    k, names = table.select(pl.col("k").min()).item(), list(DIGITS.values())
    operators = table["operator"].unique().sort().to_list()
    title = f"{model}: the top neurons of one digit of the answer (down), for another (across); {k} of each late layer"
    figure, axes = drawing.panels(len(MEASURES), max(len(operators), 1), title, (2.1, 1.9))
    for axis, label in zip(axes[:, 0], MEASURES.values(), strict=True):
        axis.set_ylabel(label)
        if not operators:
            drawing.absent(axis, NOTHING)
    for column, operator in zip(axes.T, operators, strict=False):
        column[0].set_title(operator)
        rows = table.filter(operator=operator, k=k)
        for axis, measure in zip(column, MEASURES, strict=True):
            said = rows.select(row=pl.col("of_digit").replace_strict(DIGITS), column=pl.col("digit").replace_strict(DIGITS), value=measure)
            heat.heat_table(axis, said, names, names, (0, 1))
    heat.finish(figure)
    return figure


if __name__ == "__main__":
    main(sys.argv[1])
