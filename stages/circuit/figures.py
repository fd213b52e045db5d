"""Draw the circuit: effects of components, circuits of heads, probes, attention and cuts.

Effects of components are Fig. 2a of the study, circuits of heads Fig. 11, probes Fig. 3 and
attention Fig. 14. A panel without data says why.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.circuit.attention_figure import attention, no_circuit
from stages.circuit.component_figures import component_effects, component_effects_logit
from stages.lib.drawing import drawing, steps
from stages.lib.drawing.drawing import Axes, Figure, Tables

TABLES = [
    "circuit/component_effects.parquet",
    "circuit/component_stability.parquet",
    "circuit/head_faithfulness.parquet",
    "circuit/smallest_circuits.parquet",
    "circuit/circuit_heads.parquet",
    "circuit/probes.parquet",
    "circuit/late_layers.parquet",
    "circuit/attention_patterns.parquet",
    "circuit/cut_faithfulness.parquet",
    "circuit/pairs_found.parquet",
    "circuit/pairs.parquet",
]
MEASURES = ["effect", "median_effect", "logit_effect"]
COMPONENTS = {"both": "heads and MLPs", "head": "heads", "mlp": "MLPs"}
CUTS = {  # circuit -> label
    "everything": "model",
    "model_cut": "model,\ncut",
    "circuit": "circuit",
    "circuit_cut": "circuit,\ncut",
    "last_cut": "circuit,\nlast cut",
    "nothing": "nothing",
}
POSITIONS = {  # at which probes read -> colour
    "op1": drawing.ORANGE,
    "operator": drawing.GREEN,
    "op2": drawing.SKY,
    "last": drawing.VERMILION,
}
NOT_CUT = "no edge is cut, or numbers have several tokens"
NO_PROBE = "too few prompts are answered correctly for a probe"
MANY = 100  # heads, from which on sizes of circuits are spread by their square roots
LOWEST = -1.0  # lower values of faithfulness are written, not drawn


def main(subject: str) -> None:
    tables, folder = drawing.tables(subject, TABLES), Path("reports") / subject / "circuit"
    drawing.write(FIGURES, folder / "figures", tables, subject, front="component_effects")


def component_stability(tables: Tables, subject: str) -> Figure:
    """Draw the mean rank correlation over pairs of seeds as dots, with lines to the smallest."""
    operators = drawing.operators(tables["pairs_found"])
    table = tables["component_stability"].drop_nulls("rank_correlation")
    title = f"{subject}: do two draws of prompts rank components alike?"
    figure, axes = drawing.panels(1, 3, title, (2.4, 2.0), sharey=True)
    for axis, (component, name) in zip(axes[0], COMPONENTS.items(), strict=True):
        axis.set_title(name)
        dashes: dict[str, Any] = {"color": drawing.GUIDE, "linewidth": 0.8, "linestyle": "--"}
        axis.axhline(0, **dashes, label="chance")
        for shift, measure in zip((-0.22, 0, 0.22), MEASURES, strict=True):
            rows = table.filter(component=component, measure=measure)
            xs = [list(operators).index(operator) + shift for operator in rows["operator"]]
            mean, smallest = rows["rank_correlation"], rows["rank_correlation_min"]
            colour, label = drawing.RANKINGS[measure], drawing.RANKING_NAMES[measure]
            axis.vlines(xs, smallest, mean, color=colour, linewidth=1.2)
            axis.plot(xs, mean, "o", markersize=4, color=colour, label=label)
        for x, (operator, why) in enumerate(operators.items()):
            if table.filter(operator=operator).is_empty():
                reason = _not_ranked(tables, operator) if why == drawing.NO_ROWS else why
                drawing.absent(axis, reason, x)
        axis.set_xticks(range(len(operators)), list(operators))
        axis.set_xlim(-0.5, len(operators) - 0.5)
    lowest = min([0.0, *table["rank_correlation_min"]])
    axes[0, 0].set(ylabel="rank correlation", ylim=(lowest - 0.05, 1.03))
    drawing.legend(figure)
    return figure


def _not_ranked(tables: Tables, operator: str) -> str:
    """Return why the rankings of an operator's components were not compared."""
    if tables["pairs_found"]["seed"].n_unique() < 2:
        return "there is only one draw of prompts (setting pairs.seeds)"
    ranked = operator in tables["component_stability"]["operator"]
    return "all effects are equal" if ranked else drawing.NO_ROWS


def heads(tables: Tables, subject: str) -> Figure:
    """Draw faithfulness and accuracy of circuits of heads against their size.

    Rings mark the smallest circuit that reaches the faithfulness written below it.
    """
    title = (
        f"{subject}: circuits of heads, with all MLPs; "
        "rings: the smallest circuit that reaches the written faithfulness"
    )
    circuits, pairs_found = tables["head_faithfulness"], tables["pairs_found"]
    figure, axes = drawing.circuits(circuits, pairs_found, "heads", title)
    sizes = circuits["heads"].unique().sort().to_list()
    for column, operator in zip(axes.T, drawing.operators(pairs_found), strict=True):
        rings = tables["smallest_circuits"].filter(operator=operator).drop_nulls("heads")
        _rings(column, rings)
        lines = ["heads in the circuit", *no_circuit(tables, operator)]
        column[1].set_xlabel("\n".join(lines))
        if max(sizes, default=0) > MANY:
            _spread(column, sizes)
    drawing.legend(figure)
    return figure


def _rings(axes: np.ndarray, rings: pl.DataFrame) -> None:
    """Draw the smallest circuits of an operator in its panels of faithfulness and accuracy."""
    by_size = rings.group_by("heads", maintain_order=True)
    marks = by_size.agg(pl.max("target"), pl.first("faithfulness", "accuracy"))
    style: dict[str, Any] = {
        "markersize": 5,
        "markerfacecolor": "none",
        "color": "black",
        "zorder": 3,
    }
    for axis, measure in zip(axes, ["faithfulness", "accuracy"], strict=True):
        axis.plot(marks["heads"], marks[measure], "o", **style)
    labels = marks.select("heads", "target", "faithfulness").rows()
    for number, (count, target, height) in enumerate(labels):
        # points; every second label is lower, because rings are close together
        below = (0, -6 - 18 * (number % 2))
        text: dict[str, Any] = {"va": "top", "ha": "center", "rotation": 90, "fontsize": 7}
        where: dict[str, Any] = {
            "xy": (count, height),
            "xytext": below,
            "textcoords": "offset points",
        }
        axes[0].annotate(f"{target:g}", **where, **text)


def _spread(axes: np.ndarray, sizes: list[int]) -> None:
    """Spread sizes of circuits by their square roots, with a tick where there is room."""
    ticks = {size: label for size, label in zip(sizes, steps.labels(sizes), strict=True) if label}
    for axis in axes:
        steps.axis(axis, sizes)
        axis.set_xticks(list(ticks), list(ticks.values()), rotation=90)


def probes(tables: Tables, subject: str) -> Figure:
    """Draw the accuracy of linear probes against layers; late layers are shaded.

    A line for each position; dashed is the accuracy of always predicting the most frequent answer.
    """
    first, layers = tables["late_layers"].select("first_layer", "layers").row(0)
    late = "no late layer" if first is None else f"late layers (shaded) from layer {first} on"
    rule = "by how far the last position is above the most frequent answer"
    title = f"{subject}: accuracy of a linear probe for the answer; {late}, {rule}"
    pairs_found = tables["pairs_found"]
    figure, axes, panels = drawing.operator_panels(1, pairs_found, title, sharex=True, sharey=True)
    for operator, [axis], why in panels:
        probed = tables["probes"].filter(operator=operator)
        rows = probed.drop_nulls("accuracy").sort("layer")
        drawing.majority(axis, rows["majority_accuracy"])
        for position, colour in POSITIONS.items():
            line = rows.filter(position=position)
            drawing.curve(axis, line["layer"], line["accuracy"], position, colour)
        shuffled = rows.filter(position="last")
        xs, ys = shuffled["layer"], shuffled["shuffled_accuracy"]
        drawing.curve(axis, xs, ys, "last, answers shuffled", drawing.GREY, linestyle=":")
        if first is not None:
            shade: dict[str, Any] = {
                "color": drawing.NO_CELL,
                "alpha": 0.5,
                "linewidth": 0,
                "zorder": 0,
            }
            axis.axvspan(first - 0.5, layers - 0.5, **shade)
        if rows.is_empty():
            drawing.absent(axis, NO_PROBE if probed.height else why)
        axis.set_xlabel("layer")
    axes[0, 0].set(ylabel="accuracy", ylim=(-0.03, 1.05), xlim=(-0.5, (layers or 1) - 0.5))
    axes[0, 0].xaxis.get_major_locator().set_params(integer=True)
    drawing.legend(figure)
    return figure


def cuts(tables: Tables, subject: str) -> Figure:
    """Draw faithfulness and accuracy of each circuit with and without cut attention, as bars.

    Lines on the bars of faithfulness are bootstrap intervals.
    """
    table, operators = tables["cut_faithfulness"], drawing.operators(tables["pairs_found"])
    title = (
        f"{subject}: attention edges cut into the positions that the circuit reads (cut), "
        "or from the last position to them (last cut)"
    )
    figure, axes = drawing.panels(1, 2, title, (3.7, 2.3))
    shifts = 0.2 * (np.arange(len(operators)) - (len(operators) - 1) / 2)
    absent = [operator for operator in operators if table.filter(operator=operator).is_empty()]
    for axis, measure in zip(axes[0], ["faithfulness", "accuracy"], strict=True):
        for shift, operator in zip(shifts, operators, strict=True):
            rows = table.filter(operator=operator).drop_nulls(measure)
            xs = np.array([list(CUTS).index(circuit) for circuit in rows["circuit"]]) + shift
            if rows.height:
                colour = drawing.COLOURS[operator]
                is_cut = "circuit_cut" in rows["circuit"]
                label = operator if is_cut else f"{operator}: {NOT_CUT}"
                axis.bar(xs, rows[measure], 0.18, color=colour, label=label)
            if measure == "accuracy":
                _most_frequent(axis, xs, rows)
            else:
                _intervals(axis, xs, rows)
        for number, operator in enumerate(absent):
            x = len(CUTS) + 0.6 * number
            drawing.absent(axis, f"{operator}: {operators[operator]}", x)
        axis.axhline(0, color="black", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.set_ylim(max(axis.get_ylim()[0], LOWEST), 1.08)
        axis.set_xticks(range(len(CUTS)), CUTS.values())
        axis.set(title=measure, xlim=(-0.6, len(CUTS) - 0.4 + 0.6 * len(absent)))
    drawing.legend(figure)
    return figure


def _most_frequent(axis: Axes, xs: np.ndarray, rows: pl.DataFrame) -> None:
    """Draw the accuracy of always predicting the most frequent answer across each bar."""
    ends: dict[str, Any] = {"xmin": xs - 0.09, "xmax": xs + 0.09}
    dashes: dict[str, Any] = {"color": "black", "linewidth": 1, "linestyles": (0, (2, 1))}
    axis.hlines(rows["majority_accuracy"], **ends, **dashes, label=drawing.MAJORITY)


def _intervals(axis: Axes, xs: np.ndarray, rows: pl.DataFrame) -> None:
    """Draw intervals of faithfulness, and write values that are below the axis."""
    axis.vlines(xs, rows["ci_low"], rows["ci_high"], color="black", linewidth=0.8)
    for x, value in zip(xs, rows["faithfulness"], strict=True):
        if value < LOWEST:
            axis.text(x + 0.12, LOWEST + 0.02, f"{value:.1f}", fontsize=7, va="bottom")


DRAWN = [
    component_effects,
    component_effects_logit,
    component_stability,
    heads,
    probes,
    attention,
    cuts,
]
FIGURES = {draw.__name__: draw for draw in DRAWN}

if __name__ == "__main__":
    main(sys.argv[1])
