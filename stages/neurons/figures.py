"""Draws neurons: their effects, how attribution and rankings agree, circuits of the top ones, and what they have in common.

Effects are Fig. 4a and 12a of the study, circuits of top neurons Fig. 4b and 12b, overlaps of operators Fig. 15, activations on numbers
Fig. 13. A panel without data says why.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.lib.drawing import drawing, heat, reasons
from stages.lib.drawing.drawing import Figure, Tables
from stages.neurons import site_maps, why

TABLES = [
    "neurons/neuron_effects.parquet", "neurons/attribution_agreement.parquet", "neurons/ranking_agreement.parquet",
    "neurons/attribution_recall.parquet",
    "neurons/faithfulness.parquet", "neurons/operator_overlaps.parquet", "neurons/token_activations.parquet",
    "circuit/late_layers.parquet", "circuit/pairs_found.parquet", "circuit/probes.parquet",
]  # fmt: skip
SHOWN = 3  # neurons of each operator in token_activations
OPERANDS = {"op1": drawing.ORANGE, "operator": drawing.VERMILION, "op2": drawing.WINE}  # positions of the first layer's neurons


def main(subject: str) -> None:
    drawing.write(FIGURES, Path("reports") / subject / "neurons/figures", drawing.tables(subject, TABLES), subject, front="top_k")


def _sites(table: pl.DataFrame) -> dict[tuple[int, str], tuple[str, Any]]:
    """(layer, position) -> label and colour, the first layer's positions before the late layers, which go from blue to green."""
    sites = sorted(table.select("layer", "position").drop_nulls().unique().rows(), key=lambda site: (drawing.ROLES.index(site[1]), site[0]))
    late = [site for site in sites if site[1] not in OPERANDS]
    cold = dict(zip(late, np.linspace(0.1, 0.75, len(late)), strict=True))
    colours = {site: OPERANDS.get(site[1]) or drawing.matplotlib.colormaps["winter"](cold[site]) for site in sites}
    return {site: (site_maps.site(*site), colours[site]) for site in sites}


def neuron_effects(tables: Tables, subject: str) -> Figure:
    """Measured effects of neurons, the largest first, on logarithmic axes: a curve ends where they are no longer above 0."""
    table = tables["neuron_effects"].filter(method="exact")
    title = f"{subject}: effects of patching one neuron, those above 0, the largest first"
    if site_maps.are_many(table):
        return site_maps.neuron_effects(tables, title)
    figure, axes, panels = drawing.operator_panels(2, tables["pairs_found"], title, sharex=True, sharey="row")
    for operator, column, _ in panels:
        for axis, measure in zip(column, ["effect", "logit_effect"], strict=True):
            part = table.filter(pl.col(measure) > 0, operator=operator).sort(measure, descending=True)
            for (layer, position), (label, colour) in _sites(table).items():
                values = part.filter(layer=layer, position=position)[measure]
                drawing.curve(axis, np.arange(1, len(values) + 1), values, label, colour, marker="")
            axis.set(xscale="log", yscale="log")
            if part.is_empty():
                drawing.absent(axis, why.no_effect(tables, operator))
        column[1].set_xlabel("rank of the neuron")
    axes[0, 0].set_ylabel("mean effect (Eq. 1)")
    axes[1, 0].set_ylabel("mean logit effect, logits")
    drawing.legend(figure)
    return figure


def attribution(tables: Tables, subject: str) -> Figure:
    """How many of the k neurons of largest measured effect attribution finds, and its rank correlation with the effect."""
    tables = tables | {"attribution_agreement": _estimated(tables)}
    table = tables["attribution_agreement"]
    if site_maps.are_many(table):
        return site_maps.attribution(
            tables,
            f"{subject}: share of the k neurons of largest effect that attribution finds",
        )
    title = f"{subject}: does attribution find the neurons of largest logit effect (solid) and effect (dotted, rings)?"
    figure, axes, panels = drawing.operator_panels(2, tables["pairs_found"], title, sharex="row", sharey="row")
    sites = _sites(table)
    for operator, (upper, lower), _ in panels:
        part = table.filter(operator=operator).sort("k")
        for x, ((layer, position), (label, colour)) in enumerate(sites.items()):
            for against, dashes, face in [("logit_effect", "-", colour), ("effect", ":", "white")]:
                line = part.filter(against=against, layer=layer, position=position)
                drawing.curve(upper, line["k"], line["recall"], label if dashes == "-" else f"_{label}", colour, linestyle=dashes)
                lower.plot([x] * min(line.height, 1), line["rank_correlation"][:1], "o", color=colour, markerfacecolor=face, markersize=4)
        _chance(upper, part)
        lower.axhline(0, color=drawing.GUIDE, linewidth=0.8, linestyle="--")
        lower.set_xticks(range(len(sites)), [label for label, _ in sites.values()], rotation=35, ha="right", rotation_mode="anchor")
        upper.set_xlabel("k")
        for axis in (upper, lower) if part.is_empty() else ():
            drawing.absent(axis, why.no_k(tables, operator))
    axes[0, 0].set(ylabel="recall of the top k", ylim=(-0.02, 1.02))
    axes[1, 0].set(ylabel="rank correlation", ylim=(min([0.0, *table["rank_correlation"].drop_nulls()]) - 0.08, 1.05))
    drawing.legend(figure)
    return figure


def _estimated(tables: Tables) -> pl.DataFrame:
    """Return attribution_agreement with the estimated recall where not every neuron was patched."""
    keys, values = ["operator", "layer", "position", "k", "against"], ["recall", "chance"]
    estimates = tables["attribution_recall"].with_columns(against=pl.lit("logit_effect"))
    estimates = estimates.select(*keys, *values)
    joined = tables["attribution_agreement"].join(estimates, on=keys, how="left", suffix="_estimated", maintain_order="left")
    return joined.with_columns(pl.coalesce(name, f"{name}_estimated") for name in values)


def _chance(axis: drawing.Axes, part: pl.DataFrame) -> None:
    """The share that two random rankings have in common."""
    chance = part.group_by("k").agg(pl.mean("chance")).sort("k")
    drawing.curve(axis, chance["k"], chance["chance"], "chance", drawing.GUIDE, marker="", linestyle="--", linewidth=0.8)


def rankings(tables: Tables, subject: str) -> Figure:
    """Share of the k highest neurons that two rankings have in common (rows: which two)."""
    table = tables["ranking_agreement"]
    twos = [("effect", "effect_plus_std"), ("effect", "logit_effect"), ("effect_plus_std", "logit_effect")]
    title = f"{subject}: share of the k highest neurons that two rankings have in common"
    if site_maps.are_many(table):
        return site_maps.rankings(tables, twos, title)
    figure, axes, panels = drawing.operator_panels(3, tables["pairs_found"], title, (1.9, 1.5), sharex=True, sharey=True)
    for operator, column, _ in panels:
        for axis, (a, b) in zip(column, twos, strict=True):
            part = table.filter(operator=operator, ranking_a=a, ranking_b=b).sort("k")
            for (layer, position), (label, colour) in _sites(table).items():
                line = part.filter(layer=layer, position=position)
                drawing.curve(axis, line["k"], line["shared"], label, colour)
            _chance(axis, part)
            if part.is_empty():
                drawing.absent(axis, why.no_k(tables, operator))
        column[-1].set_xlabel("k")
    for axis, (a, b) in zip(axes[:, 0], twos, strict=True):
        axis.set(ylabel=site_maps.both(a, b), ylim=(-0.02, 1.05))
    drawing.legend(figure)
    return figure


def top_k(tables: Tables, subject: str) -> Figure:
    """Circuits of the top neurons of each late layer."""
    [first] = tables["late_layers"]["first_layer"]
    where = "none is late" if first is None else f"from layer {first} on"
    title = f"{subject}: circuits of heads and the top neurons of each late layer ({where}); all other neurons of these take their mean"
    return _top_neurons(
        tables,
        "",
        title,
        reasons.no_late_layer(tables["probes"]) if first is None else "",
    )


def first_mlp_top_k(tables: Tables, subject: str) -> Figure:
    """Circuits of the top neurons of the first layer at each operand."""
    title = f"{subject}: circuits of heads and the first layer's top neurons at op1, operator and op2; others there take their mean"
    return _top_neurons(tables, "first_mlp_", title, "")


def _top_neurons(tables: Tables, prefix: str, title: str, problem: str) -> Figure:
    names = {prefix + ranking: ranking for ranking in drawing.RANKINGS}
    table = tables["faithfulness"].filter(pl.col("circuit").is_in(list(names)), experiment="neuron_circuit")
    table = table.with_columns(pl.col("circuit").replace(names))
    figure, axes = drawing.circuits(
        table,
        tables["pairs_found"],
        "neurons_per_layer",
        title,
        problem,
    )
    counts = table["neurons_per_layer"].unique().sort().to_list()
    smallest = next((count for count in counts if count), 1)
    for place, operator in enumerate(drawing.operators(tables["pairs_found"])):
        heads = tables["faithfulness"].filter(operator=operator, experiment="neuron_circuit", circuit="heads")
        for axis, measure in zip(axes[:, place], ["faithfulness", "accuracy"], strict=True):
            for value in heads[measure].drop_nulls():
                axis.axhline(value, color="black", linewidth=0.8, linestyle="--", label="heads, all neurons")
            axis.set_xscale("symlog", linthresh=smallest, linscale=0.5)
            axis.set_xlim(-0.2 * smallest, max(counts, default=smallest) * 1.1)
            axis.set_xticks(counts or [0], counts or [0], rotation=90)
            axis.minorticks_off()
        axes[1, place].set_xlabel("neurons per layer")
    drawing.legend(figure)
    return figure


def operator_overlaps(tables: Tables, subject: str) -> Figure:
    """IoU of two operators' top neurons: above the diagonal ranked by effect, below it by logit effect."""
    table, asked = tables["operator_overlaps"], list(drawing.operators(tables["pairs_found"]))
    first, second = (pl.col(name).cast(pl.Enum(asked)) for name in ("operator_a", "operator_b"))
    a_is_row = pl.when((first < second) == (pl.col("ranking") == "effect"))
    row, column = a_is_row.then("operator_a").otherwise("operator_b"), a_is_row.then("operator_b").otherwise("operator_a")
    table = table.with_columns(row=row, column=column, value="iou")
    ks = table["k"].unique().sort().to_list()
    sites = {"late layers": pl.col("layer").is_null()} | {f"L0 {role}": pl.col("position") == role for role in drawing.ROLES[:3]}
    title = f"{subject}: IoU of two operators' k top neurons; above the diagonal by effect, below by logit effect"
    figure, axes = drawing.panels(len(sites), max(len(ks), 1), title, (2.1, 1.6), sharex=True, sharey=True)
    for line, (site, chosen) in zip(axes, sites.items(), strict=True):
        for axis, k in zip(line, ks or [0], strict=True):
            part = table.filter(chosen, k=k)
            heat.heat_table(axis, part, asked, asked, (0, 1))
            chance = f" (chance {part['chance'][0]:.2f})" if part.height else ""
            axis.set_title(f"k = {k}{chance}", fontsize=8, pad=3)
            if part.is_empty():
                position = "last" if site == "late layers" else site.removeprefix("L0 ")
                drawing.absent(axis, why.no_overlap(tables, position))
        line[0].set_ylabel(site)
    heat.colour_bar(figure, axes, (0, 1), "IoU")
    heat.finish(figure)
    return figure


def token_activations(tables: Tables, subject: str) -> Figure:
    """What the first layer's neurons of largest effect at op1, none shown twice, do on every number."""
    asked = drawing.operators(tables["pairs_found"])
    effects = tables["neuron_effects"].filter(method="exact", layer=0, position="op1").drop_nulls("effect").sort("rank")
    figure, axes = drawing.panels(
        len(asked), SHOWN, f"{subject}: first-layer neurons of largest effect at op1, on every number", (2.6, 1.3), sharex=True
    )
    shown: list[int] = []
    for row, (operator, problem) in zip(axes, asked.items(), strict=True):
        row[0].set_ylabel(f"{operator}\nactivation")
        ranked = effects.filter(~pl.col("neuron").is_in(shown), operator=operator)["neuron"].head(SHOWN).to_list()
        shown += ranked
        for axis, neuron in zip(row, ranked + [None] * (SHOWN - len(ranked)), strict=True):
            if neuron is None:
                patched = effects.filter(operator=operator).height
                drawing.absent(axis, "its other neurons are drawn above" if patched else problem)
                continue
            points = tables["token_activations"].filter(layer=0, neuron=neuron).sort("number")
            axis.set_title(f"neuron {neuron}", fontsize=8, pad=2)
            drawing.curve(axis, points["number"], points["activation"], "", drawing.COLOURS[operator], markersize=1.5, linewidth=0.2)
    for axis in axes[-1]:
        axis.set_xlabel("number at op1")
    return figure


FIGURES = {draw.__name__: draw for draw in (
    neuron_effects, attribution, rankings, top_k, first_mlp_top_k, operator_overlaps, token_activations,
)}  # fmt: skip

if __name__ == "__main__":
    main(sys.argv[1])
