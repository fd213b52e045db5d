"""Draws the circuit: effects of components, circuits of heads, what can be read where, what heads look at, and cuts.

Components are Fig. 2a of the study, circuits of heads Fig. 11, probes Fig. 3, attention Fig. 14. A panel without data says why.
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

from stages.circuit.attention_figure import attention, no_circuit
from stages.circuit.component_figures import component_effects, component_effects_logit
from stages.lib.drawing import drawing, steps
from stages.lib.drawing.drawing import Figure, Tables

TABLES = [
    "circuit/component_effects.parquet", "circuit/component_stability.parquet", "circuit/head_faithfulness.parquet",
    "circuit/smallest_circuits.parquet", "circuit/circuit_heads.parquet", "circuit/probes.parquet", "circuit/late_layers.parquet",
    "circuit/attention_patterns.parquet", "circuit/cut_faithfulness.parquet", "circuit/pairs_found.parquet",
    "circuit/pairs.parquet",
]  # fmt: skip
MEASURES = ["effect", "median_effect", "logit_effect"]
CUTS = {  # circuit -> label
    "everything": "model", "model_cut": "model,\ncut", "circuit": "circuit", "circuit_cut": "circuit,\ncut",
    "last_cut": "circuit,\nlast cut", "nothing": "nothing",
}  # fmt: skip
POSITIONS = {  # at which probes read -> colour
    "op1": drawing.ORANGE, "operator": drawing.GREEN, "op2": drawing.SKY, "last": drawing.VERMILION,
}  # fmt: skip
NO_PROBE = "too few prompts are answered correctly for a probe"
MANY = 100  # heads, from which on sizes of circuits are spread by their square roots
LOWEST = -1.0  # faithfulness below it is written, not drawn


def main(subject: str) -> None:
    tables, folder = drawing.tables(subject, TABLES), Path("reports") / subject / "circuit"
    drawing.write(FIGURES, folder / "figures", tables, subject, front="component_effects")


def component_stability(tables: Tables, subject: str) -> Figure:
    """Dots: mean rank correlation over pairs of seeds; lines: down to the smallest."""
    asked, table = drawing.operators(tables["pairs_found"]), tables["component_stability"].drop_nulls("rank_correlation")
    figure, axes = drawing.panels(1, 3, f"{subject}: do two draws of prompts rank components alike?", (2.4, 2.0), sharey=True)
    for axis, component in zip(axes[0], ["both", "head", "mlp"], strict=True):
        axis.set_title({"both": "heads and MLPs", "head": "heads", "mlp": "MLPs"}[component])
        axis.axhline(0, color=drawing.GUIDE, linewidth=0.8, linestyle="--", label="chance")
        for shift, measure in enumerate(MEASURES):
            rows = table.filter(component=component, measure=measure)
            xs = [list(asked).index(operator) + (shift - 1) * 0.22 for operator in rows["operator"]]
            colour = drawing.RANKINGS[measure]
            axis.vlines(xs, rows["rank_correlation_min"], rows["rank_correlation"], color=colour, linewidth=1.2)
            axis.plot(
                xs,
                rows["rank_correlation"],
                "o",
                markersize=4,
                color=colour,
                label=drawing.RANKING_NAMES[measure],
            )
        for x, (operator, why) in enumerate(asked.items()):
            if table.filter(operator=operator).is_empty():
                drawing.absent(
                    axis,
                    why if why != drawing.NO_ROWS else _not_ranked(tables, operator),
                    x,
                )
        axis.set_xticks(range(len(asked)), list(asked))
        axis.set_xlim(-0.5, len(asked) - 0.5)
    axes[0, 0].set(ylabel="rank correlation", ylim=(min([0.0, *table["rank_correlation_min"]]) - 0.05, 1.03))
    drawing.legend(figure)
    return figure


def _not_ranked(tables: Tables, operator: str) -> str:
    """Return why the rankings of an operator's components were not compared."""
    if tables["pairs_found"]["seed"].n_unique() < 2:
        return "there is only one draw of prompts (setting pairs.seeds)"
    ranked = operator in tables["component_stability"]["operator"]
    return "all effects are equal" if ranked else drawing.NO_ROWS


def heads(tables: Tables, subject: str) -> Figure:
    """Draw circuits of heads; rings: the smallest that reach the faithfulness written there."""
    title = f"{subject}: circuits of heads and all MLPs; rings: the smallest that reach the faithfulness written there"
    figure, axes = drawing.circuits(tables["head_faithfulness"], tables["pairs_found"], "heads", title)
    sizes = tables["head_faithfulness"]["heads"].unique().sort().to_list()
    for place, operator in enumerate(drawing.operators(tables["pairs_found"])):
        marks = tables["smallest_circuits"].filter(operator=operator).drop_nulls("heads")
        marks = marks.group_by("heads", maintain_order=True).agg(pl.max("target"), pl.first("faithfulness", "accuracy"))
        for axis, measure in zip(axes[:, place], ["faithfulness", "accuracy"], strict=True):
            axis.plot(marks["heads"], marks[measure], "o", markersize=5, markerfacecolor="none", color="black", zorder=3)
        for number, (count, target, height, _) in enumerate(marks.iter_rows()):
            # points; every second label stands lower, as rings lie close together
            below = (0, -6 - 18 * (number % 2))
            style = {"va": "top", "ha": "center", "rotation": 90, "fontsize": 7}
            axes[0, place].annotate(
                f"{target:g}",
                (count, height),
                below,
                textcoords="offset points",
                **style,
            )
        axes[1, place].set_xlabel(
            "\n".join(["heads in the circuit", *no_circuit(tables, operator)]),
        )
        if max(sizes, default=0) > MANY:
            _spread(axes[:, place], sizes)
    drawing.legend(figure)
    return figure


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
        tried = tables["probes"].filter(operator=operator)
        rows = tried.drop_nulls("accuracy").sort("layer")
        drawing.majority(axis, rows["majority_accuracy"])
        for position, colour in POSITIONS.items():
            line = rows.filter(position=position)
            drawing.curve(axis, line["layer"], line["accuracy"], position, colour)
        shuffled = rows.filter(position="last")
        drawing.curve(
            axis, shuffled["layer"], shuffled["shuffled_accuracy"], "last, answers shuffled",
            drawing.GREY, linestyle=":",
        )  # fmt: skip
        if first is not None:
            shade = {"color": drawing.NO_CELL, "alpha": 0.5, "linewidth": 0, "zorder": 0}
            axis.axvspan(first - 0.5, layers - 0.5, **shade)
        if rows.is_empty():
            drawing.absent(axis, NO_PROBE if tried.height else why)
        axis.set_xlabel("layer")
    axes[0, 0].set(ylabel="accuracy", ylim=(-0.03, 1.05), xlim=(-0.5, (layers or 1) - 0.5))
    axes[0, 0].xaxis.get_major_locator().set_params(integer=True)
    drawing.legend(figure)
    return figure
    return figure


def cuts(tables: Tables, subject: str) -> Figure:
    """Bars of each circuit with and without cut attention, by operator, with the bootstrap interval of faithfulness."""
    table, asked = tables["cut_faithfulness"], drawing.operators(tables["pairs_found"])
    title = f"{subject}: attention cut into the positions that the circuit reads (cut), or from the last position to them (last cut)"
    figure, axes = drawing.panels(1, 2, title, (3.7, 2.3))
    absent = [operator for operator in asked if table.filter(operator=operator).is_empty()]
    for axis, measure in zip(axes[0], ["faithfulness", "accuracy"], strict=True):
        for place, operator in enumerate(asked):
            shift, rows = (place - (len(asked) - 1) / 2) * 0.2, table.filter(operator=operator).drop_nulls(measure)
            xs = np.array([list(CUTS).index(circuit) for circuit in rows["circuit"]]) + shift
            if rows.height:
                axis.bar(xs, rows[measure], 0.18, color=drawing.COLOURS[operator], label=operator)
            if measure == "accuracy":
                ends = {"xmin": xs - 0.09, "xmax": xs + 0.09}
                dashes = {"color": "black", "linewidth": 1, "linestyles": (0, (2, 1))}
                axis.hlines(rows["majority_accuracy"], **ends, **dashes, label=drawing.MAJORITY)
            if measure == "faithfulness":
                axis.vlines(xs, rows["ci_low"], rows["ci_high"], color="black", linewidth=0.8)
                for x, value in zip(xs, rows[measure], strict=True):
                    if value < LOWEST:
                        axis.text(x + 0.12, LOWEST + 0.02, f"{value:.1f}", fontsize=7, va="bottom")
        for place, operator in enumerate(absent):
            drawing.absent(axis, f"{operator}: {asked[operator]}", len(CUTS) + 0.6 * place)
        axis.axhline(0, color="black", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.set_ylim(max(axis.get_ylim()[0], LOWEST), 1.08)
        axis.set_xticks(range(len(CUTS)), CUTS.values())
        axis.set(title=measure, xlim=(-0.6, len(CUTS) - 0.4 + 0.6 * len(absent)))
    drawing.legend(figure)
    return figure


FIGURES = {draw.__name__: draw for draw in (
    component_effects, component_effects_logit, component_stability, heads, probes, attention, cuts,
)}  # fmt: skip

if __name__ == "__main__":
    main(sys.argv[1])
