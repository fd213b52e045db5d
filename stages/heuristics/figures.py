"""Draws which heuristics neurons stand for, how that compares with chance, and how much of the neurons it explains.

Neurons beside their heuristics are Fig. 1 and 5 and Tables 4-8 of the study. A panel without data says why.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from stages.heuristics.examples import Portrayer
from stages.heuristics.settings import Portraits
from stages.lib.core.settings import load
from stages.lib.core.shards import stores
from stages.lib.core.tables import read_table
from stages.lib.drawing import drawing, heat, maps, reasons
from stages.lib.drawing.drawing import BLUE, GREEN, VERMILION, Axes, Figure, Tables

TABLES = [f"heuristics/{name}.parquet" for name in ("labels", "label_limits", "matches", "classified_share", "explained")]
SETTING = Path("data/heuristics/label_setting.parquet")
CRITERIA = {  # criterion -> label, colour
    "raw": ("score", VERMILION), "corrected": ("corrected score", BLUE), "fdr": ("corrected score, FDR controlled", GREEN),
}  # fmt: skip
QUANTITIES = {"any": "any heuristic", "operands": "a heuristic of the operands", "result": "a heuristic of the result"}
FEW_LAYERS = 8  # most layers that a legend names; the colours of more have a scale
LOWEST = -0.2  # explained share below it is drawn there


@dataclass(frozen=True, eq=False)
class Study:
    """What is known of one subject. operators: those dumped; threshold: of the corrected score, None where none was found."""

    subject: str
    operators: list[str]
    tables: Tables
    threshold: float | None
    settings: Portraits


def main(subject: str) -> None:
    study = read(subject)
    neurons = {f"matched_neurons_{operator}": partial(matched_neurons, operator=operator) for operator in study.operators}
    drawing.write(neurons | FIGURES, Path("reports") / subject / "heuristics/figures", study, front="neurons_by_kind")


def read(subject: str) -> Study:
    dumped = {store.attributes["operator"] for store in stores(Path("data") / subject / "store/activations")}
    operators = [operator for operator in drawing.COLOURS if operator in dumped]
    threshold = next(iter(read_table(SETTING)["threshold"]), None)
    return Study(subject, operators, drawing.tables(subject, TABLES), threshold, load(Portraits))


def matched_neurons(study: Study, operator: str) -> Figure:
    """The best and the median label of every kind, apart for operands and results, by corrected score."""
    title = f"{study.subject}, {operator}: activations of the best and median label of a kind (of the result: x the answer's value logit)"
    portrayer = Portrayer(study.subject, operator, study.settings.numbers)
    rows = portrayer.best_and_median(study.tables["labels"].filter(operator=operator))
    if rows:
        return maps.examples(rows, title, study.settings.detail)
    figure, axes = drawing.panels(1, 1, title, (4.0, 1.5))
    drawing.absent(axes[0, 0], why_none(study, operator))
    return figure


def why_none(study: Study, operator: str) -> str:
    """Return why no neuron of an operator has a label."""
    return reasons.no_labels(study.tables["label_limits"], operator, study.threshold)


def neurons_by_kind(study: Study) -> Figure:
    """How many neurons of each layer have a label of each kind and quantity."""
    table = study.tables["labels"].with_columns(row=pl.format("{}, {}", "kind", "quantity")).sort("quantity", "kind")
    rows = [*table["row"].unique(maintain_order=True), "any"]
    layers = sorted({*table["layer"], *study.tables["classified_share"]["layer"]})
    title = f"{study.subject}: neurons by layer and by kind and quantity of their labels; a neuron may have several"
    size = (min(max(1.7, 0.22 * len(layers)), 4), max(0.17 * len(rows), 1.2))
    figure, axes = drawing.panels(1, len(study.operators), title, size, sharey=True)
    both = pl.concat([table, table.with_columns(row=pl.lit("any"))])
    counted = both.group_by("operator", "row", column=pl.col("layer").cast(pl.String)).agg(value=pl.n_unique("neuron"))
    for axis, operator in zip(axes[0], study.operators, strict=True):
        part = counted.filter(operator=operator)
        maps.counts(axis, part, rows, [str(layer) for layer in layers], max(counted["value"], default=1))
        axis.set(title=operator, xlabel="layer")
        if part.is_empty():
            drawing.absent(axis, why_none(study, operator))
    if len(layers) > maps.NUMBERED:
        heat.colour_bar(figure, axes, (0, max(counted["value"], default=1)), "neurons")
    return figure


def score_against_chance(study: Study) -> Figure:
    """Every match (grey: how many) by the score that chance gives, labels on top, with the thresholds."""
    matches, labels = study.tables["matches"], study.tables["labels"]
    keys = ["operator", "layer", "neuron", "heuristic", "side"]
    title = f"{study.subject}: scores of pairs of neuron and heuristic against chance, the share of cells that satisfy the heuristic"
    figure, axes = drawing.panels(1, len(study.operators), title, (2.1, 2.1), sharex=True, sharey=True)
    for axis, operator in zip(axes[0], study.operators, strict=True):
        part = matches.filter(operator=operator)
        labelled = part.join(labels.select(keys), on=keys, how="semi")
        axis.set(title=operator, xlabel="share of cells", xlim=(0, 1), ylim=(0, 1))
        if part.is_empty():
            drawing.absent(axis, "no heuristic is clearly better than chance")
            continue
        axis.hexbin(part["share"], part["score"], gridsize=45, extent=(0, 1, 0, 1), bins="log", cmap="Greys", mincnt=1, linewidths=0.1)
        axis.plot(labelled["share"], labelled["score"], ".", markersize=2, color=BLUE, label="labels", rasterized=True)
        axis.plot([0, 1], [0, 1], color=drawing.GUIDE, linewidth=0.8, linestyle="--", label="chance")
        axis.plot([0, 1], [study.settings.published] * 2, color=CRITERIA["raw"][1], linewidth=1, label="published threshold")
        if study.threshold is not None:
            axis.plot([0, 1], [study.threshold, 1], color="black", linewidth=1, label=f"chosen: corrected score {study.threshold:g}")
    axes[0, 0].set_ylabel("score")
    drawing.legend(figure)
    return figure


def classified_share(study: Study, quantities: str = "any") -> Figure:
    """Share of classified neurons against the threshold, dashed the same with operands relabelled, with 2 deviations around."""
    table = study.tables["classified_share"].filter(quantities=quantities).sort("threshold")
    shown = drawing.evenly(sorted({*table["layer"]}) or [0], study.settings.layers)
    title = f"{study.subject}: neurons with {QUANTITIES[quantities]} by threshold; dashed, with 2 deviations: operands relabelled"
    figure, axes = drawing.panels(len(shown), len(study.operators), title, (1.9, 1.4), sharex=True, sharey=True)
    for row, layer in zip(axes, shown, strict=True):
        for axis, operator in zip(row, study.operators, strict=True):
            part = table.filter(operator=operator, layer=layer)
            for criterion, (label, colour) in CRITERIA.items():
                _with_null(axis, part.filter(criterion=criterion), label, colour)
            if study.threshold is not None:
                axis.axvline(study.threshold, color="black", linewidth=0.8, linestyle=":", label="chosen threshold of the corrected score")
            if part.is_empty():
                drawing.absent(axis, "no neuron was scored")
        row[0].set_ylabel(f"layer {layer}\nshare of neurons")
    for axis, operator in zip(axes[0], study.operators, strict=True):
        axis.set(title=operator, ylim=(-0.03, 1.03))
    for axis in axes[-1]:
        axis.set_xlabel("threshold")
    drawing.legend(figure, 4)
    return figure


def _with_null(axis: Axes, part: pl.DataFrame, label: str, colour: str) -> None:
    drawing.curve(axis, part["threshold"], part["share"], label, colour)
    null = part.drop_nulls("null_share")
    mean, spread = null["null_share"], 2 * null["null_deviation"].fill_null(0)
    band = ((mean - spread).clip(0, 1), (mean + spread).clip(0, 1))
    drawing.curve(axis, null["threshold"], mean, f"_{label}", colour, band=band, marker="", linestyle="--", linewidth=0.9)


def explained(study: Study) -> Figure:
    """Every labelled neuron: variance that its heuristics explain against what as many Fourier terms do, on held-out cells."""
    keys = ["operator", "layer", "neuron", "map"]
    theories = study.tables["explained"].select(*keys, "theory", "explained").drop_nulls()
    labels, waves = (theories.filter(theory=theory).drop("theory") for theory in ("heuristics", "fourier"))
    table = labels.rename({"explained": "heuristics"}).join(waves.rename({"explained": "fourier"}), on=keys).sort(keys)
    title = f"{study.subject}: variance on held-out cells explained by a neuron's labels and by Fourier terms (no lower than {LOWEST:g})"
    figure, axes = drawing.panels(2, len(study.operators), title, (2.0, 1.9), sharex=True, sharey=True)
    layers = sorted({*table["layer"]}) or [0]
    # the last layer's yellow would be too pale
    scale = drawing.plt.Normalize(layers[0], layers[0] + max(layers[-1] - layers[0], 1) / 0.9)
    colours = {layer: drawing.matplotlib.colormaps["viridis"](scale(layer)) for layer in layers}
    for row, which in zip(axes, ("activation", "contribution"), strict=True):
        for axis, operator in zip(row, study.operators, strict=True):
            part = table.filter(operator=operator, map=which)
            if part.is_empty():
                labels = study.tables["labels"].filter(operator=operator)
                about = {"activation": "operands", "contribution": "the result"}[which]
                why = (
                    why_none(
                        study,
                        operator,
                    )
                    if labels.is_empty()
                    else f"no label is about {about}"
                )
                drawing.absent(axis, why)
            else:
                _theories(axis, part, colours)
        row[0].set_ylabel(f"{which}\nexplained by labels")
    axes[0, 0].set(xlim=(LOWEST - 0.03, 1.03), ylim=(LOWEST - 0.03, 1.45), yticks=[0, 0.25, 0.5, 0.75, 1])  # room for text
    for column, operator in zip(axes.T, study.operators, strict=True):
        column[0].set_title(operator)
        column[1].set_xlabel("explained by Fourier terms")
    if len(layers) > FEW_LAYERS:
        bar = figure.colorbar(
            drawing.plt.cm.ScalarMappable(scale, "viridis"),
            ax=axes,
            aspect=30,
            pad=0.01,
        )
        bar.set_label("layer", fontsize=8)
        bar.ax.tick_params(labelsize=7)
    drawing.legend(figure)
    return figure


def _theories(axis: Axes, part: pl.DataFrame, colours: dict[int, Any]) -> None:
    axis.plot([LOWEST, 1], [LOWEST, 1], color=drawing.GUIDE, linewidth=0.8, linestyle="--", label="equal")
    for (layer,), dots in part.sort("layer").group_by("layer", maintain_order=True):
        xs, ys = dots["fourier"].clip(LOWEST), dots["heuristics"].clip(LOWEST)
        label = f"layer {layer}" if len(colours) <= FEW_LAYERS else f"_layer {layer}"
        axis.plot(
            xs,
            ys,
            "o",
            markersize=2.5,
            alpha=0.6,
            markeredgewidth=0,
            color=colours[layer],
            label=label,
        )  # type: ignore[index]
    more = part.filter(pl.col("heuristics") > pl.col("fourier")).height / part.height
    medians = part.select(pl.median("heuristics", "fourier")).row(0)
    text = f"labels lead in {more:.0%} of {part.height}\nmedians {medians[0]:.2f} against {medians[1]:.2f}"
    axis.text(0.03, 0.97, text, transform=axis.transAxes, va="top", fontsize=7)


FIGURES: dict[str, Callable[[Study], Figure]] = {
    "neurons_by_kind": neurons_by_kind,
    "score_against_chance": score_against_chance,
    "classified_share": classified_share,
    "classified_share_operands": partial(classified_share, quantities="operands"),
    "classified_share_result": partial(classified_share, quantities="result"),
    "explained": explained,
}

if __name__ == "__main__":
    main(sys.argv[1])
