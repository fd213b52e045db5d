"""Draws the circuit: effects of components, circuits of heads, what can be read where, what heads look at, and cuts.

Components are Fig. 2a of the study, circuits of heads Fig. 11, probes Fig. 3, attention Fig. 14. A panel without data says why.
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib.drawing import drawing, heat
from stages.lib.drawing.drawing import ROLES, Figure, Tables

TABLES = [
    "circuit/component_effects.parquet", "circuit/component_stability.parquet", "circuit/head_faithfulness.parquet",
    "circuit/smallest_circuits.parquet", "circuit/circuit_heads.parquet", "circuit/probes.parquet", "circuit/late_layers.parquet",
    "circuit/attention_patterns.parquet", "circuit/cut_faithfulness.parquet", "circuit/pairs_found.parquet",
]  # fmt: skip
MEASURES = ["effect", "median_effect", "logit_effect"]
CUTS = {  # circuit -> label
    "everything": "model", "model_cut": "model,\ncut", "circuit": "circuit", "circuit_cut": "circuit,\ncut",
    "last_cut": "circuit,\nlast cut", "nothing": "nothing",
}  # fmt: skip
POSITIONS = {  # at which probes read -> colour
    "op1": drawing.ORANGE, "operator": drawing.GREEN, "op2": drawing.SKY, "last": drawing.VERMILION,
}  # fmt: skip
LOWEST = -1.0  # faithfulness below it is written, not drawn


def main(subject: str) -> None:
    tables, folder = drawing.tables(subject, TABLES), Path("reports") / subject / "circuit"
    drawing.write(FIGURES, folder / "figures", tables, subject, front="component_effects")


def component_effects(tables: Tables, subject: str) -> Figure:
    """Mean effect (Eq. 1) of every component and position, from 1e-9 to 1e9, hence its logarithm with the effect's sign."""
    value = pl.col("effect").sign() * pl.col("effect").abs().log1p()
    return _components(tables, value, f"{subject}: mean effect of patching a component", "sign(e) log(1 + |e|) of the mean effect e")


def component_effects_logit(tables: Tables, subject: str) -> Figure:
    """Mean logit effect of every component and position."""
    return _components(tables, pl.col("logit_effect"), f"{subject}: mean logit effect of patching a component", "mean logit effect, logits")


def _components(tables: Tables, value: pl.Expr, title: str, label: str) -> Figure:
    name = pl.concat_str(pl.lit("L"), "layer", pl.coalesce(pl.format(" head {}", "head"), pl.lit(" MLP")))
    table = tables["component_effects"].sort("layer", pl.col("head").fill_null(1 << 14))
    table = table.with_columns(row=name, column="position", value=value)
    limit = max(table["value"].drop_nulls().abs(), default=1.0) or 1.0
    figure, axes = _heats(tables["pairs_found"], table, ROLES, title, (-limit, limit))
    heat.colour_bar(figure, axes, (-limit, limit), label)
    return figure


def _heats(
    found: pl.DataFrame, table: pl.DataFrame, columns: list[str], title: str, limits: tuple[float, float]
) -> tuple[Figure, np.ndarray]:
    """A heat map of `value` per operator: its rows by the column `row` in order of appearance, its columns by `column`."""
    rows = table["row"].unique(maintain_order=True).to_list()
    figure, axes, panels = drawing.operator_panels(1, found, title, (1.7, min(max(0.17 * len(rows), 1.2), 9)), sharex=True, sharey=True)
    for operator, [axis], why in panels:
        part = table.filter(operator=operator).drop_nulls("value")
        heat.heat_table(axis, part, rows, columns, limits)
        if part.is_empty():
            drawing.absent(axis, why)
    return figure, axes


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
            axis.plot(xs, rows["rank_correlation"], "o", markersize=4, color=colour, label=measure)
        for x, (operator, why) in enumerate(asked.items()):
            if table.filter(operator=operator).is_empty():
                drawing.absent(axis, why, x)
        axis.set_xticks(range(len(asked)), list(asked))
        axis.set_xlim(-0.5, len(asked) - 0.5)
    axes[0, 0].set(ylabel="rank correlation", ylim=(min([0.0, *table["rank_correlation_min"]]) - 0.05, 1.03))
    drawing.legend(figure)
    return figure


def heads(tables: Tables, subject: str) -> Figure:
    """Circuits of heads; rings: the smallest that reach a faithfulness, which is written beside them."""
    title = f"{subject}: circuits of heads and all MLPs; rings: the smallest that reach the faithfulness written there"
    figure, axes = drawing.circuits(tables["head_faithfulness"], tables["pairs_found"], "heads", title)
    for place, operator in enumerate(drawing.operators(tables["pairs_found"])):
        marks = tables["smallest_circuits"].filter(operator=operator).drop_nulls("heads")
        marks = marks.group_by("heads", maintain_order=True).agg(pl.max("target"), pl.first("faithfulness", "accuracy"))
        for axis, measure in zip(axes[:, place], ["faithfulness", "accuracy"], strict=True):
            axis.plot(marks["heads"], marks[measure], "o", markersize=5, markerfacecolor="none", color="black", zorder=3)
        for count, target, height, _ in marks.iter_rows():
            axes[0, place].annotate(f"{target:g}", (count, height), (0, -6), textcoords="offset points", va="top", ha="center",
                rotation=90, fontsize=7)  # fmt: skip
        axes[1, place].set_xlabel("heads in the circuit")
    drawing.legend(figure)
    return figure


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
        rows = tables["probes"].filter(operator=operator).drop_nulls("accuracy").sort("layer")
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
            drawing.absent(axis, why)
        axis.set_xlabel("layer")
    axes[0, 0].set(ylabel="accuracy", ylim=(-0.03, 1.05), xlim=(-0.5, (layers or 1) - 0.5))
    axes[0, 0].xaxis.get_major_locator().set_params(integer=True)
    drawing.legend(figure)
    return figure


def attention(tables: Tables, subject: str) -> Figure:
    """Mean attention from the last position; frames: heads of the operator's circuit."""
    table = tables["attention_patterns"].filter(query_position="last").sort("layer", "head")
    table = table.with_columns(row=pl.format("L{} head {}", "layer", "head"), column="key_position", value="weight")
    others = sorted({*table["key_position"]} - {"bos", *ROLES}, key=lambda name: int(name.removeprefix("token ")))
    columns = ["bos"] * ("bos" in table["key_position"]) + ROLES + others
    title = f"{subject}: mean attention from the last position; framed: heads of the circuit"
    figure, axes = _heats(tables["pairs_found"], table, columns, title, (0, 1))
    heat.colour_bar(figure, axes, (0, 1), "attention weight")
    names = table["row"].unique(maintain_order=True).to_list()
    for axis, operator in zip(axes[0], drawing.operators(tables["pairs_found"]), strict=True):
        for layer, head in tables["circuit_heads"].filter(operator=operator).select("layer", "head").iter_rows():
            row = names.index(f"L{layer} head {head}")
            axis.hlines([row - 0.45, row + 0.45], -0.5, len(columns) - 0.5, color=drawing.OWN, linewidth=1.2)
            axis.vlines([-0.5, len(columns) - 0.5], row - 0.45, row + 0.45, color=drawing.OWN, linewidth=1.2)
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
