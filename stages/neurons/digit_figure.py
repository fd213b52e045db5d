"""Draw the effect of one digit's top neurons on the other digits, and how many they share."""

import sys
from pathlib import Path

import polars as pl

from stages.lib.core.tables import read_table
from stages.lib.drawing import drawing, heat
from stages.lib.drawing.drawing import Figure

DIGITS = {1: "first", 2: "second", 3: "third"}
NOTHING = "no layer is late for all digits, or too few prompts are answered correctly"
MEASURES = {
    "share": "effect / effect of\nits own top neurons",
    "matched_share": "the same of others of\nthe nearest variance",
    "iou": "neurons in both /\nin either",
}


def main(model: str) -> None:
    """Draw the figure of one model."""
    path = Path(f"reports/neurons/{model}")
    path.parent.mkdir(parents=True, exist_ok=True)
    table = read_table(Path(f"data/neurons/digit_circuits/{model}.parquet"))
    drawing.save(draw(table, model), path)


def draw(table: pl.DataFrame, model: str) -> Figure:
    """Draw effects, their control and overlaps of digits (rows) for each operator (columns).

    The rows of a map are the digits whose neurons are patched, its columns the measured digits.
    """
    k = table.select(pl.col("k").min()).item()
    names = [DIGITS[digit] for digit in table["digit"].unique().sort()]
    operators = table["operator"].unique().sort().to_list()
    title = (
        f"{model}: top neurons of one digit of the answer (down), measured on another digit "
        f"(across); {k} of each late layer"
    )
    size = (len(MEASURES), max(len(operators), 1))
    figure, axes = drawing.panels(*size, title, (2.1, 1.9))
    for axis, label in zip(axes[:, 0], MEASURES.values(), strict=True):
        axis.set_ylabel(label)
        if not operators:
            drawing.absent(axis, NOTHING)
    digits = pl.col("of_digit", "digit").replace_strict(DIGITS)
    named = table.with_columns(digits).rename({"of_digit": "row", "digit": "column"})
    for column, operator in zip(axes.T, operators, strict=False):
        column[0].set_title(operator)
        part = named.filter(operator=operator, k=k)
        for axis, measure in zip(column, MEASURES, strict=True):
            heat.heat_table(axis, part.with_columns(value=measure), names, names, (0, 1))
    heat.finish(figure)
    return figure


if __name__ == "__main__":
    main(sys.argv[1])
