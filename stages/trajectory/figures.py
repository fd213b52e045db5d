"""Draws the bag over training: when it appears, what it carries, and which types of heuristics come first.

They are Fig. 10a (appearance), 10b (faithfulness) and 10c (knockouts) of the study, once for every subject that training ended with;
without points of training there are none. A panel without data says why.
"""

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.lib.core.tables import read_table
from stages.lib.drawing import drawing, steps
from stages.lib.drawing.drawing import BLUE, GREEN, GREY, ORANGE, OTHERS, OWN, PINK, SKY, VERMILION, Axes, Figure, Tables

TABLES = ["trajectory", "trajectory_kinds", "trajectory_knockouts"]  # folders below data/trajectory/, a file for each point of training
FOLDER = Path("reports/trajectory/figures")
APPEARING: dict[str, tuple[str, str, dict[str, Any]]] = {  # columns of trajectory -> label, colour, style
    "shared_with_last": ("share of the last point's pairs", OWN, {"zorder": 3}),
    "shared_by_chance": ("of these, by chance", drawing.GUIDE, {"linestyle": "--", "marker": ""}),
    "accuracy_trained": ("accuracy, trained cells", OTHERS, {}),
    "accuracy_held_out": ("accuracy, held-out cells", SKY, {"linestyle": "--"}),
    "majority_accuracy_trained": (f"accuracy, {drawing.MAJORITY}", GREY, {"linestyle": "-.", "marker": ""}),
}
KEPT = {  # in faithfulness_… -> label, colour
    "all": ("all that stand for a heuristic", OWN), "shared": ("those that do so at the last point, too", ORANGE),
    "drawn": ("as many of all, drawn", GREEN), "random": ("as many as all, of any", GREY),
}  # fmt: skip
ARMS = {"heuristic": ("best of its heuristics", OWN), "control": ("other heuristics", OTHERS)}  # of trajectory_knockouts
FEWEST = 20  # pairs at the last point that a type needs to be drawn
QUANTITIES = ["op1", "op2", "both", "result"]
KINDS = [BLUE, PINK, GREEN, VERMILION, ORANGE, SKY]  # in order of their names
NOT_LATE = "no layer is late at the last point"
NO_NEURONS = "no late neuron stands for a heuristic at the last point"
SEEDS = "bands: standard deviation over seeds of prompts; hollow: fewer prompts than elsewhere, for want of correct ones"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = {name: sorted(Path("data/trajectory", name).glob("*.parquet")) for name in TABLES}
    if not all(files.values()):
        return
    tables = {name: pl.concat(map(read_table, paths)).sort("step") for name, paths in files.items()}
    for last in tables["trajectory"]["last"].unique().sort():
        here = {name: table.filter(last=last) for name, table in tables.items()}
        drawing.write({f"{last}_{name}": draw for name, draw in FIGURES.items()}, FOLDER, here, last)


def appearance(tables: Tables, last: str) -> Figure:
    """Whether the bag comes with memorisation or with generalisation."""
    figure, axes, columns = _over_steps(tables, 1, f"{last}: pairs of neuron and heuristic that are there already, and accuracy")
    for operator, [axis] in columns:
        rows = tables["trajectory"].filter(operator=operator)
        for measure, (label, colour, style) in APPEARING.items():
            drawing.curve(axis, rows["step"], steps.floats(rows, measure), label, colour, **style)
        if rows["shared_with_last"].drop_nulls().is_empty():
            drawing.absent(axis, NO_NEURONS)
    axes[0, 0].set(ylabel="share", ylim=(-0.03, 1.05))
    drawing.legend(figure, len(columns))
    return figure


def faithfulness(tables: Tables, last: str) -> Figure:
    """What neurons kept alone carry of the answer."""
    table = _with_few(tables["trajectory"])
    limits, cut = _limits(*(table[f"faithfulness_{kept}"] for kept in KEPT))
    title = f"{last}: neurons of the late layers that are kept, all others at their mean; {SEEDS}"
    figure, axes, columns = _over_steps(tables, 1, title)
    for operator, [axis] in columns:
        rows = table.filter(operator=operator)
        axis.axhline(1, color=drawing.GUIDE, linewidth=0.6, linestyle=":")
        for kept, (label, colour) in KEPT.items():
            _banded(axis, rows, f"faithfulness_{kept}", label, colour)
        if rows["faithfulness_all"].drop_nulls().is_empty():
            drawing.absent(axis, _no_prompts(tables, operator))
    axes[0, 0].set(ylabel="faithfulness" + cut, ylim=limits)
    drawing.legend(figure, 2)
    return figure


def knockouts(tables: Tables, last: str) -> Figure:
    """Rows: how many neurons of each late layer are silenced for each prompt, the fewest, the most and some number between."""
    table = _with_few(tables["trajectory_knockouts"])
    sizes = sorted({*table["neurons_per_layer"]}) or [0]
    shown = sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})
    title = f"{last}: for each prompt, up to so many neurons of each late layer set to 0; {SEEDS}"
    figure, axes, columns = _over_steps(tables, len(shown), title)
    for operator, column in columns:
        for axis, size in zip(column, shown, strict=True):
            rows = table.filter(operator=operator, neurons_per_layer=size)
            for arm, (label, colour) in ARMS.items():
                _banded(axis, rows.filter(arm=arm), "accuracy", label, colour)
            same = rows.filter(arm="control")  # both arms have the same prompts
            baseline = steps.floats(same, "majority_accuracy")
            drawing.curve(
                axis, same["step"], baseline, drawing.MAJORITY, GREY, linestyle="-.", marker=""
            )  # fmt: skip
            if rows.is_empty():
                drawing.absent(axis, _no_prompts(tables, operator))
    for axis, size in zip(axes[:, 0], shown, strict=True):
        axis.set(ylabel=f"accuracy,\n{size or 'no'} neurons per layer", ylim=(-0.03, 1.05))
    drawing.legend(figure, len(columns))
    return figure


def _no_prompts(tables: Tables, operator: str) -> str:
    """Return why nothing was measured on an operator's prompts."""
    rows = tables["trajectory"].filter(operator=operator)
    accuracies = rows.select(pl.max("accuracy_trained", "accuracy_held_out"))
    correct = any(accuracy for row in accuracies.rows() for accuracy in row)
    return NOT_LATE if correct else "no prompt is answered correctly at any point"


def kinds(tables: Tables, last: str) -> Figure:
    """Which types come first. Rows: quantities."""
    above = (pl.col("shared_with_last") - pl.col("shared_by_chance")) / (1 - pl.col("shared_by_chance"))
    table = tables["trajectory_kinds"].filter(pl.col("last_pairs") >= FEWEST).with_columns(above=above)
    colours = dict(zip(table["kind"].unique().sort(), cycle(KINDS), strict=False))
    limits, cut = _limits(table["above"])
    quantities = [quantity for quantity in QUANTITIES if quantity in set(table["quantity"])] or ["any quantity"]
    title = f"{last}: pairs of neuron and heuristic that are there already, by type of heuristic; 0 is as many as by chance, 1 is all"
    figure, axes, columns = _over_steps(tables, len(quantities), title)
    for operator, column in columns:
        for axis, quantity in zip(column, quantities, strict=True):
            rows = table.filter(operator=operator, quantity=quantity)
            for kind in rows["kind"].unique().sort():
                line = rows.filter(kind=kind)
                drawing.curve(axis, line["step"], steps.floats(line, "above"), kind, colours[kind])
            if rows.is_empty():
                drawing.absent(axis, f"no type has {FEWEST} pairs at the last point")
    for axis, quantity in zip(axes[:, 0], quantities, strict=True):
        axis.set(ylabel=f"{quantity}\nshare above chance{cut}", ylim=limits)
    drawing.legend(figure, len(columns))
    return figure


def _over_steps(tables: Tables, rows: int, title: str) -> tuple[Figure, np.ndarray, list[tuple[str, np.ndarray]]]:
    """An empty figure over the steps of training, its axes, and by column: an operator and its axes from top to bottom."""
    asked = [operator for operator in drawing.COLOURS if operator in set(tables["trajectory"]["operator"])]
    figure, axes = drawing.panels(rows, len(asked), title, (1.9, 1.8 if rows > 1 else 2.4), sharex=True, sharey=True)
    steps.axis(axes[0, 0], tables["trajectory"]["step"].unique().sort().to_list())
    for axis, operator in zip(axes[0], asked, strict=True):
        axis.set_title(operator)
    for axis in axes[-1]:
        axis.set_xlabel("training step")
        axis.tick_params(axis="x", rotation=90)
    return figure, axes, list(zip(asked, axes.T, strict=True))


def _with_few(table: pl.DataFrame) -> pl.DataFrame:
    """With a column `few`: fewer prompts than elsewhere in the table."""
    return table.with_columns(few=pl.col("prompts") < pl.col("prompts").max())


def _banded(axis: Axes, rows: pl.DataFrame, measure: str, label: str, colour: str) -> None:
    """A line with a band of standard deviations; hollow where it is of few prompts."""
    at, values, spread = rows["step"].to_numpy(), steps.floats(rows, measure), steps.floats(rows, f"{measure}_std")
    drawing.curve(axis, at, values, label, colour, band=(values - spread, values + spread))
    few = rows["few"].to_numpy()
    axis.plot(at[few], values[few], "o", markersize=3, color=colour, markerfacecolor="white", label=f"_few, {label}")


def _limits(*several: pl.Series) -> tuple[tuple[float, float], str]:
    """Limits of an axis that has 0 and 1 on it, and what to say where something lies far beyond."""
    values = [value for one in several for value in one.drop_nulls().drop_nans()]
    low, high = min([0.0, *values]), max([1.0, *values])
    cut = "\n(cut off at -0.5 and 1.5)" if low < -0.5 or high > 1.5 else ""
    return (max(low, -0.5) - 0.05, min(high, 1.5) + 0.05), cut


FIGURES = {draw.__name__: draw for draw in (appearance, faithfulness, knockouts, kinds)}

if __name__ == "__main__":
    main()
