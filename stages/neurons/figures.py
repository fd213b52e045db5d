"""Draw neurons: effects, attribution, rankings, circuits of top neurons, and overlaps of operators.

Effects are Fig. 4a and 12a of the study, circuits of top neurons Fig. 4b and 12b, overlaps of
operators Fig. 15, and activations on numbers Fig. 13. A panel without data says why.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.lib.drawing import drawing, heat
from stages.lib.drawing.drawing import Axes, Figure, Tables
from stages.neurons import site_maps, why

TABLES = [
    "neurons/neuron_effects.parquet",
    "neurons/attribution_agreement.parquet",
    "neurons/ranking_agreement.parquet",
    "neurons/attribution_recall.parquet",
    "neurons/faithfulness.parquet",
    "neurons/operator_overlaps.parquet",
    "neurons/token_activations.parquet",
    "circuit/late_layers.parquet",
    "circuit/pairs_found.parquet",
    "circuit/probes.parquet",
]
SHOWN = 3  # neurons of each operator in token_activations
OPERANDS = {  # positions of the first layer's neurons
    "op1": drawing.ORANGE,
    "operator": drawing.VERMILION,
    "op2": drawing.WINE,
}
TWO_RANKINGS = [
    ("effect", "effect_plus_std"),
    ("effect", "logit_effect"),
    ("effect_plus_std", "logit_effect"),
]


def main(subject: str) -> None:
    """Draw all figures of one model."""
    folder = Path("reports") / subject / "neurons/figures"
    drawing.write(FIGURES, folder, drawing.tables(subject, TABLES), subject, front="top_k")


def _sites(table: pl.DataFrame) -> dict[tuple[int, str], tuple[str, Any]]:
    """Return (layer, position) -> label and colour: operands, then late layers, blue to green."""
    distinct = table.select("layer", "position").drop_nulls().unique().rows()
    sites = sorted(distinct, key=lambda site: (drawing.ROLES.index(site[1]), site[0]))
    late = [site for site in sites if site[1] not in OPERANDS]
    winter = drawing.matplotlib.colormaps["winter"]
    colours: dict = dict(zip(late, map(winter, np.linspace(0.1, 0.75, len(late))), strict=True))
    return {site: (site_maps.site(*site), colours.get(site) or OPERANDS[site[1]]) for site in sites}


def neuron_effects(tables: Tables, subject: str) -> Figure:
    """Draw the measured effects above 0 of neurons, the largest first, on logarithmic axes."""
    table = tables["neuron_effects"].filter(method="exact")
    title = f"{subject}: effects above 0 of patching one neuron, the largest first"
    if site_maps.are_many(table):
        return site_maps.neuron_effects(tables, title)
    figure, axes, panels = drawing.operator_panels(
        2, tables["pairs_found"], title, sharex=True, sharey="row"
    )
    for operator, column, _ in panels:
        for axis, measure in zip(column, ["effect", "logit_effect"], strict=True):
            above = table.filter(pl.col(measure) > 0, operator=operator)
            part = above.sort(measure, descending=True)
            for (layer, position), (label, colour) in _sites(table).items():
                values = part.filter(layer=layer, position=position)[measure]
                ranks = np.arange(1, len(values) + 1)
                drawing.curve(axis, ranks, values, label, colour, marker="")
            axis.set(xscale="log", yscale="log")
            if part.is_empty():
                drawing.absent(axis, why.no_effect(tables, operator))
        column[1].set_xlabel("rank of the neuron")
    axes[0, 0].set_ylabel("mean effect (Eq. 1)")
    axes[1, 0].set_ylabel("mean logit effect, logits")
    drawing.legend(figure)
    return figure


def attribution(tables: Tables, subject: str) -> Figure:
    """Draw the recall of attribution against k, and its rank correlation with measured effects."""
    table = _with_estimated_recall(tables)
    if site_maps.are_many(table):
        title = f"{subject}: share of the k neurons of largest effect that attribution finds"
        return site_maps.attribution(tables | {"attribution_agreement": table}, title)
    title = (
        f"{subject}: does attribution find the neurons of largest logit effect (solid) and effect "
        "(dotted, rings)?"
    )
    figure, axes, panels = drawing.operator_panels(
        2, tables["pairs_found"], title, sharex="row", sharey="row"
    )
    sites = _sites(table)
    labels = [label for label, _ in sites.values()]
    for operator, (upper, lower), _ in panels:
        part = table.filter(operator=operator).sort("k")
        for x, ((layer, position), (label, colour)) in enumerate(sites.items()):
            rows = part.filter(layer=layer, position=position)
            _recall(upper, rows, label, colour)
            _correlation(lower, rows, x, colour)
        _chance(upper, part)
        lower.axhline(0, color=drawing.GUIDE, linewidth=0.8, linestyle="--")
        lower.set_xticks(range(len(sites)), labels, rotation=35, ha="right", rotation_mode="anchor")
        upper.set_xlabel("k")
        if part.is_empty():
            drawing.absent(upper, why.no_k(tables, operator))
            drawing.absent(lower, why.no_k(tables, operator))
    lowest = min([0.0, *table["rank_correlation"].drop_nulls()])
    axes[0, 0].set(ylabel="recall of the top k", ylim=(-0.02, 1.02))
    axes[1, 0].set(ylabel="rank correlation", ylim=(lowest - 0.08, 1.05))
    drawing.legend(figure)
    return figure


def _recall(axis: Axes, rows: pl.DataFrame, label: str, colour: Any) -> None:
    for against, dashes, text in [("logit_effect", "-", label), ("effect", ":", f"_{label}")]:
        line = rows.filter(against=against)
        drawing.curve(axis, line["k"], line["recall"], text, colour, linestyle=dashes)


def _correlation(axis: Axes, rows: pl.DataFrame, x: int, colour: Any) -> None:
    for against, face in [("logit_effect", colour), ("effect", "white")]:
        for value in rows.filter(against=against)["rank_correlation"][:1].drop_nulls():
            axis.plot([x], [value], "o", color=colour, markerfacecolor=face, markersize=4)


def _with_estimated_recall(tables: Tables) -> pl.DataFrame:
    """Return attribution_agreement with the estimated recall if not every neuron was patched."""
    keys, values = ["operator", "layer", "position", "k", "against"], ["recall", "chance"]
    estimates = tables["attribution_recall"].with_columns(against=pl.lit("logit_effect"))
    estimates = estimates.select(*keys, *values)
    joined = tables["attribution_agreement"].join(
        estimates, on=keys, how="left", suffix="_estimated", maintain_order="left"
    )
    return joined.with_columns(pl.coalesce(name, f"{name}_estimated") for name in values)


def _chance(axis: Axes, part: pl.DataFrame) -> None:
    """Draw the expected value of random rankings."""
    chance = part.group_by("k").agg(pl.mean("chance")).sort("k")
    ks, values = chance["k"], chance["chance"]
    style: dict[str, Any] = {"marker": "", "linestyle": "--", "linewidth": 0.8}
    drawing.curve(axis, ks, values, "chance", drawing.GUIDE, **style)


def rankings(tables: Tables, subject: str) -> Figure:
    """Draw the share of the top k neurons that two rankings (rows) have in common."""
    table = tables["ranking_agreement"]
    title = f"{subject}: share of the top k neurons that two rankings have in common"
    if site_maps.are_many(table):
        return site_maps.rankings(tables, TWO_RANKINGS, title)
    figure, axes, panels = drawing.operator_panels(
        len(TWO_RANKINGS), tables["pairs_found"], title, (1.9, 1.5), sharex=True, sharey=True
    )
    for operator, column, _ in panels:
        for axis, (a, b) in zip(column, TWO_RANKINGS, strict=True):
            part = table.filter(operator=operator, ranking_a=a, ranking_b=b).sort("k")
            for (layer, position), (label, colour) in _sites(table).items():
                line = part.filter(layer=layer, position=position)
                drawing.curve(axis, line["k"], line["shared"], label, colour)
            _chance(axis, part)
            if part.is_empty():
                drawing.absent(axis, why.no_k(tables, operator))
        column[-1].set_xlabel("k")
    for axis, (a, b) in zip(axes[:, 0], TWO_RANKINGS, strict=True):
        axis.set(ylabel=site_maps.both(a, b), ylim=(-0.02, 1.05))
    drawing.legend(figure)
    return figure


def top_k(tables: Tables, subject: str) -> Figure:
    """Draw circuits of the top neurons of each late layer."""
    [first] = tables["late_layers"]["first_layer"]
    where, problem = f"from layer {first} on", ""
    if first is None:
        where, problem = "none is late", why.no_late_layer(tables)
    title = (
        f"{subject}: circuits of heads and the top neurons of each late layer ({where}); all other "
        "neurons of these layers take their mean"
    )
    return _top_neurons(tables, "", title, problem)


def first_mlp_top_k(tables: Tables, subject: str) -> Figure:
    """Draw circuits of the top neurons of the first layer at each operand."""
    title = (
        f"{subject}: circuits of heads and the first layer's top neurons at op1, operator and op2; "
        "its other neurons take their mean there"
    )
    return _top_neurons(tables, "first_mlp_", title, "")


def _top_neurons(tables: Tables, prefix: str, title: str, problem: str) -> Figure:
    names = {prefix + ranking: ranking for ranking in drawing.RANKINGS}
    circuits = tables["faithfulness"].filter(experiment="neuron_circuit")
    table = circuits.filter(pl.col("circuit").is_in([*names]))
    table = table.with_columns(pl.col("circuit").replace(names))
    pairs_found = tables["pairs_found"]
    figure, axes = drawing.circuits(table, pairs_found, "neurons_per_layer", title, problem)
    counts = table["neurons_per_layer"].unique().sort().to_list()
    smallest = next(filter(None, counts), 1)
    for column, operator in zip(axes.T, drawing.operators(pairs_found), strict=True):
        heads = circuits.filter(operator=operator, circuit="heads")
        for axis, measure in zip(column, ["faithfulness", "accuracy"], strict=True):
            _all_neurons(axis, heads[measure])
            axis.set_xscale("symlog", linthresh=smallest, linscale=0.5)
            axis.set_xlim(-0.2 * smallest, max(counts, default=smallest) * 1.1)
            axis.set_xticks(counts or [0], counts or [0], rotation=90)
            axis.minorticks_off()
        column[1].set_xlabel("neurons per layer")
    drawing.legend(figure)
    return figure


def _all_neurons(axis: Axes, values: pl.Series) -> None:
    for value in values.drop_nulls():
        style: dict[str, Any] = {"color": "black", "linewidth": 0.8, "linestyle": "--"}
        axis.axhline(value, label="heads, all neurons", **style)


def operator_overlaps(tables: Tables, subject: str) -> Figure:
    """Draw the IoU of two operators' top neurons.

    Neurons are ranked by effect above the diagonal, by logit effect below it.
    """
    operators = list(drawing.operators(tables["pairs_found"]))
    table = _above_and_below(tables["operator_overlaps"], operators)
    ks = table["k"].unique().sort().to_list()
    sites = {"late layers": pl.col("layer").is_null()}
    sites |= {f"L0 {role}": pl.col("position") == role for role in OPERANDS}
    title = (
        f"{subject}: IoU of two operators' k top neurons; above the diagonal by effect, below by "
        "logit effect"
    )
    if not ks:
        figure, [[axis]] = drawing.panels(1, 1, title, (4.0, 1.0))
        axis.set(xticks=[], yticks=[])
        drawing.absent(axis, why.no_overlap(tables, "last"))
        return figure
    figure, axes = drawing.panels(len(sites), len(ks), title, (2.1, 1.6), sharex=True, sharey=True)
    for line, (site, own) in zip(axes, sites.items(), strict=True):
        for axis, k in zip(line, ks, strict=True):
            part = table.filter(own, k=k)
            heat.heat_table(axis, part, operators, operators, (0, 1))
            chance = f" (chance {part['chance'][0]:.2f})" if part.height else ""
            axis.set_title(f"k = {k}{chance}", fontsize=8, pad=3)
            if part.is_empty():
                position = "last" if site == "late layers" else site.removeprefix("L0 ")
                drawing.absent(axis, why.no_overlap(tables, position))
        line[0].set_ylabel(site)
    heat.colour_bar(figure, axes, (0, 1), "IoU")
    heat.finish(figure)
    return figure


def _above_and_below(table: pl.DataFrame, operators: list[str]) -> pl.DataFrame:
    """Return overlaps for a heat map: rankings by effect above the diagonal, others below."""
    order = pl.Enum(operators)
    is_sorted = pl.col("operator_a").cast(order) < pl.col("operator_b").cast(order)
    a_is_row = pl.when(is_sorted == (pl.col("ranking") == "effect"))
    return table.with_columns(
        row=a_is_row.then("operator_a").otherwise("operator_b"),
        column=a_is_row.then("operator_b").otherwise("operator_a"),
        value="iou",
    )


def token_activations(tables: Tables, subject: str) -> Figure:
    """Draw activations of the first layer's top neurons at op1 on every number.

    No neuron is drawn twice.
    """
    operators = drawing.operators(tables["pairs_found"])
    effects = tables["neuron_effects"].filter(method="exact", layer=0, position="op1")
    effects = effects.drop_nulls("effect").sort("rank")
    title = f"{subject}: first-layer neurons of largest effect at op1, on every number"
    figure, axes = drawing.panels(len(operators), SHOWN, title, (2.6, 1.3), sharex=True)
    drawn: list[int] = []
    for row, (operator, problem) in zip(axes, operators.items(), strict=True):
        row[0].set_ylabel(f"{operator}\nactivation")
        own = effects.filter(operator=operator)["neuron"]
        neurons = own.filter(~own.is_in(drawn)).head(SHOWN).to_list()
        drawn += neurons
        for axis, neuron in zip(row, neurons, strict=False):
            points = tables["token_activations"].filter(layer=0, neuron=neuron).sort("number")
            axis.set_title(f"neuron {neuron}", fontsize=8, pad=2)
            numbers, values = points["number"], points["activation"]
            colour = drawing.COLOURS[operator]
            drawing.curve(axis, numbers, values, "", colour, markersize=1.5, linewidth=0.2)
        for axis in row[len(neurons) :]:
            drawing.absent(axis, "its other neurons are drawn above" if len(own) else problem)
    for axis in axes[-1]:
        axis.set_xlabel("number at op1")
    return figure


FIGURES = {
    draw.__name__: draw
    for draw in (
        neuron_effects,
        attribution,
        rankings,
        top_k,
        first_mlp_top_k,
        operator_overlaps,
        token_activations,
    )
}

if __name__ == "__main__":
    main(sys.argv[1])
