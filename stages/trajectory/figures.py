"""Draw the bag over training: when it appears, what it carries, and which heuristics come first.

The figures are Fig. 10a (appearance), 10b (faithfulness) and 10c (knockouts) of the study, once for
every model that training ended with. Without checkpoints there are none. A panel without data says
why.
"""

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.lib.core.tables import read_table
from stages.lib.drawing import drawing, steps
from stages.lib.drawing.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    OTHERS,
    OWN,
    PINK,
    SKY,
    VERMILION,
    Axes,
    Figure,
    Tables,
)

# folders below data/trajectory/, with a file for each checkpoint
TABLES = ["trajectory", "trajectory_kinds", "trajectory_knockouts"]
FOLDER = Path("reports/trajectory/figures")
# columns of trajectory -> label, colour, style
APPEARING: dict[str, tuple[str, str, dict[str, Any]]] = {
    "shared_with_last": ("share of the last checkpoint's pairs", OWN, {"zorder": 3}),
    "shared_by_chance": ("share expected by chance", drawing.GUIDE, {"ls": "--", "marker": ""}),
    "accuracy_trained": ("accuracy, trained cells", OTHERS, {}),
    "accuracy_held_out": ("accuracy, held-out cells", SKY, {"ls": "--"}),
    "majority_accuracy_trained": (
        f"accuracy, {drawing.MAJORITY}",
        GREY,
        {"ls": "-.", "marker": ""},
    ),
}
KEPT = {  # in faithfulness_… -> label, colour
    "all": ("all heuristic neurons", OWN),
    "shared": ("those shared with the last checkpoint", ORANGE),
    "drawn": ("equally many random heuristic neurons", GREEN),
    "random": ("random neurons, as many as all", GREY),
}
ARMS = {  # of trajectory_knockouts -> label, colour
    "heuristic": ("best of its heuristics", OWN),
    "control": ("other heuristics", OTHERS),
}
FEWEST = 20  # pairs at the last checkpoint that a type needs to be drawn
QUANTITIES = ["op1", "op2", "both", "result"]
KINDS = [BLUE, PINK, GREEN, VERMILION, ORANGE, SKY]  # in order of their names
NOT_LATE = "no layer is late at the last checkpoint"
NO_NEURONS = "no late neuron has a heuristic at the last checkpoint"
SEEDS = "bands: standard deviation over seeds; hollow: fewer prompts, as fewer are correct"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = {name: sorted(Path("data/trajectory", name).glob("*.parquet")) for name in TABLES}
    if not all(files.values()):
        return
    tables = {name: pl.concat(map(read_table, paths)).sort("step") for name, paths in files.items()}
    for last in tables["trajectory"]["last"].unique().sort():
        own = {name: table.filter(last=last) for name, table in tables.items()}
        figures = {f"{last}_{name}": draw for name, draw in FIGURES.items()}
        drawing.write(figures, FOLDER, own, last)


def appearance(tables: Tables, last: str) -> Figure:
    """Draw the share of the last checkpoint's pairs, and accuracy, over training.

    The figure shows whether the bag comes with memorisation or with generalisation.
    """
    title = f"{last}: pairs of neuron and heuristic that are already present, and accuracy"
    figure, axes, columns = _over_steps(tables, 1, title)
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
    """Draw the faithfulness of kept neurons over training."""
    table = _with_few(tables["trajectory"])
    limits, cut = _limits(table.select(f"faithfulness_{kept}" for kept in KEPT))
    title = f"{last}: faithfulness of kept late neurons, all others at their mean; {SEEDS}"
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
    """Draw accuracy after ablations by prompt over training.

    Rows are numbers of neurons of each late layer: the fewest, a middle one, and the most.
    """
    table = _with_few(tables["trajectory_knockouts"])
    sizes = sorted({*table["neurons_per_layer"]}) or [0]
    shown = sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})
    title = f"{last}: accuracy with neurons of each prompt's heuristics set to 0; {SEEDS}"
    figure, axes, columns = _over_steps(tables, len(shown), title)
    for operator, column in columns:
        for axis, size in zip(column, shown, strict=True):
            rows = table.filter(operator=operator, neurons_per_layer=size)
            for arm, (label, colour) in ARMS.items():
                _banded(axis, rows.filter(arm=arm), "accuracy", label, colour)
            control = rows.filter(arm="control")  # both arms have the same prompts
            majority = steps.floats(control, "majority_accuracy")
            style: dict[str, Any] = {"linestyle": "-.", "marker": ""}
            drawing.curve(axis, control["step"], majority, drawing.MAJORITY, GREY, **style)
            if rows.is_empty():
                drawing.absent(axis, _no_prompts(tables, operator))
    for axis, size in zip(axes[:, 0], shown, strict=True):
        axis.set(ylabel=f"accuracy,\n{size or 'no'} neurons per layer", ylim=(-0.03, 1.05))
    drawing.legend(figure, len(columns))
    return figure


def _no_prompts(tables: Tables, operator: str) -> str:
    """Return why nothing was measured on an operator's prompts."""
    rows = tables["trajectory"].filter(operator=operator)
    [accuracies] = rows.select(pl.max("accuracy_trained", "accuracy_held_out")).rows()
    return NOT_LATE if any(accuracies) else "no prompt is answered correctly at any checkpoint"


def kinds(tables: Tables, last: str) -> Figure:
    """Draw the share of the last checkpoint's pairs over training by type; rows are quantities."""
    chance = pl.col("shared_by_chance")
    above = (pl.col("shared_with_last") - chance) / (1 - chance)
    table = tables["trajectory_kinds"].filter(pl.col("last_pairs") >= FEWEST)
    table = table.with_columns(above=above)
    colours = dict(zip(table["kind"].unique().sort(), cycle(KINDS), strict=False))
    limits, cut = _limits(table.select("above"))
    present = set(table["quantity"])
    quantities = [each for each in QUANTITIES if each in present] or ["any quantity"]
    title = (
        f"{last}: pairs of neuron and heuristic that are already present, by type of heuristic; "
        "0: as many as by chance, 1: all"
    )
    figure, axes, columns = _over_steps(tables, len(quantities), title)
    for operator, column in columns:
        for axis, quantity in zip(column, quantities, strict=True):
            rows = table.filter(operator=operator, quantity=quantity)
            for kind in rows["kind"].unique().sort():
                line = rows.filter(kind=kind)
                drawing.curve(axis, line["step"], steps.floats(line, "above"), kind, colours[kind])
            if rows.is_empty():
                drawing.absent(axis, f"no type has {FEWEST} pairs at the last checkpoint")
    for axis, quantity in zip(axes[:, 0], quantities, strict=True):
        axis.set(ylabel=f"{quantity}\nshare above chance{cut}", ylim=limits)
    drawing.legend(figure, len(columns))
    return figure


def _over_steps(
    tables: Tables, rows: int, title: str
) -> tuple[Figure, np.ndarray, list[tuple[str, np.ndarray]]]:
    """Return an empty figure over the steps of training, and its axes.

    The list has for each column an operator and its axes from top to bottom.
    """
    present = set(tables["trajectory"]["operator"])
    operators = [operator for operator in drawing.COLOURS if operator in present]
    size = (1.9, 1.8 if rows > 1 else 2.4)
    figure, axes = drawing.panels(rows, len(operators), title, size, sharex=True, sharey=True)
    steps.axis(axes[0, 0], tables["trajectory"]["step"].unique().sort().to_list())
    for axis, operator in zip(axes[0], operators, strict=True):
        axis.set_title(operator)
    for axis in axes[-1]:
        axis.set_xlabel("training step")
        axis.tick_params(axis="x", rotation=90)
    return figure, axes, list(zip(operators, axes.T, strict=True))


def _with_few(table: pl.DataFrame) -> pl.DataFrame:
    """Add a column `few`: whether a row has fewer prompts than others of the table."""
    return table.with_columns(few=pl.col("prompts") < pl.col("prompts").max())


def _banded(axis: Axes, rows: pl.DataFrame, measure: str, label: str, colour: str) -> None:
    """Draw a line with a band of standard deviations; markers of few prompts are hollow."""
    xs = rows["step"].to_numpy()
    values, spread = steps.floats(rows, measure), steps.floats(rows, f"{measure}_std")
    drawing.curve(axis, xs, values, label, colour, band=(values - spread, values + spread))
    few = rows["few"].to_numpy()
    style: dict[str, Any] = {"markersize": 3, "color": colour, "markerfacecolor": "white"}
    axis.plot(xs[few], values[few], "o", **style, label=f"_few, {label}")


def _limits(columns: pl.DataFrame) -> tuple[tuple[float, float], str]:
    """Return limits of an axis that shows 0 and 1, and a text if values beyond are cut off."""
    values = np.concatenate([column.cast(pl.Float64).to_numpy() for column in columns])
    values = values[~np.isnan(values)]
    low, high = values.min(initial=0), values.max(initial=1)
    cut = "\n(cut off at -0.5 and 1.5)" if low < -0.5 or high > 1.5 else ""
    return (max(low, -0.5) - 0.05, min(high, 1.5) + 0.05), cut


FIGURES = {draw.__name__: draw for draw in (appearance, faithfulness, knockouts, kinds)}

if __name__ == "__main__":
    main()
