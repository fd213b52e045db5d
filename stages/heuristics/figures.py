"""Draw which heuristics neurons implement, scores against chance, and explained variance.

Maps of neurons with their heuristics are as in Fig. 1 and 5 and Tables 4-8 of Nikankin et al. 2025.
A panel without data says why.
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
from stages.lib.drawing.drawing import BLUE, GREEN, GUIDE, VERMILION, Axes, Figure, Tables
from stages.lib.sql.database import Database
from stages.lib.sql.files import subject_files

TABLES = [
    "heuristics/labels.parquet",
    "heuristics/label_limits.parquet",
    "heuristics/label_votes.parquet",
    "heuristics/classified_share.parquet",
    "heuristics/explained.parquet",
]
SETTING = Path("data/heuristics/label_setting.parquet")
# The whole table of a model with many neurons exceeds the memory.
MATCHES = """
    select operator, chance_score, matches.score, labels.neuron is not null as has_label
    from matches left join labels using (operator, layer, neuron, heuristic, side)
"""
CRITERIA = {  # criterion -> label, colour
    "raw": ("score", VERMILION),
    "chance_corrected": ("chance-corrected score", BLUE),
    "fdr": ("chance-corrected score, FDR controlled", GREEN),
}
QUANTITIES = {
    "any": "any heuristic",
    "operands": "a heuristic of the operands",
    "result": "a heuristic of the result",
}
VERDICTS = {  # of the measured change on a label -> its name in a figure
    ("verdict", "kept"): ("kept", BLUE),
    ("verdict", "inverted"): ("inverted", VERMILION),
    ("control_verdict", "kept"): ("kept with another neuron's change", GUIDE),
}
ABOUT = {"activation": "operands", "contribution": "the result"}  # map -> what its labels are about
FEW_LAYERS = 8  # largest number of layers that a legend names; more layers have a colour bar
LOWEST = -0.2  # a smaller explained share is drawn here
DASHED: dict[str, Any] = {"color": GUIDE, "linewidth": 0.8, "linestyle": "--"}


@dataclass(frozen=True, eq=False)
class Study:
    """What is drawn of one model.

    operators: those in its store; matches: operator, chance score, score, and whether it has a
    label, of each match; threshold: of the chance-corrected score, None if there is none.
    """

    subject: str
    operators: list[str]
    tables: Tables
    matches: pl.DataFrame
    threshold: float | None
    settings: Portraits

    def panels(
        self, rows: int, title: str, size: tuple[float, float], **shared: Any
    ) -> tuple[Figure, Any]:
        """Return a figure with a column for each operator, and its axes (rows, operators)."""
        title = f"{self.subject}: {title}"
        return drawing.panels(rows, len(self.operators), title, size, sharey=True, **shared)


def main(subject: str) -> None:
    study = read(subject)
    figures = dict(FIGURES)
    for operator in study.operators:
        figures[f"matched_neurons_{operator}"] = partial(matched_neurons, operator=operator)
    folder = Path("reports") / subject / "heuristics/figures"
    drawing.write(figures, folder, study, front="neurons_by_kind")


def read(subject: str) -> Study:
    """Read a model's tables, and which operators its store has."""
    folder = Path("data") / subject / "store/activations"
    stored = {store.attributes["operator"] for store in stores(folder)}
    operators = list(filter(stored.__contains__, drawing.COLOURS))
    threshold = next(iter(read_table(SETTING)["threshold"]), None)
    tables = drawing.tables(subject, TABLES)
    files = subject_files(subject, ["labels", "matches"])
    matches = Database(files, threads=1).sql(MATCHES).pl()  # one thread keeps their order
    return Study(subject, operators, tables, matches, threshold, load(Portraits))


def matched_neurons(study: Study, operator: str) -> Figure:
    """Draw the labels of highest and of median score of every kind, operands before results."""
    title = (
        f"{study.subject}, {operator}: activations of the best and the median label of each kind "
        "(for the result: times the answer's value logit)"
    )
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
    """Draw how many neurons of each layer have a label of each kind and quantity."""
    kind = pl.format("{}, {}", "kind", "quantity")
    table = study.tables["labels"].with_columns(row=kind).sort("quantity", "kind")
    rows = [*table["row"].unique(maintain_order=True), "any"]
    layers = sorted({*table["layer"], *study.tables["classified_share"]["layer"]})
    title = "neurons by layer and by kind and quantity of their labels; a neuron may have several"
    size = (min(max(1.7, 0.22 * len(layers)), 4), max(0.17 * len(rows), 1.2))
    figure, axes = study.panels(1, title, size)
    both = pl.concat([table, table.with_columns(row=pl.lit("any"))])
    layer = pl.col("layer").cast(pl.String)
    counted = both.group_by("operator", "row", column=layer).agg(value=pl.n_unique("neuron"))
    largest = max(counted["value"], default=1)
    for axis, operator in zip(axes[0], study.operators, strict=True):
        part = counted.filter(operator=operator)
        maps.counts(axis, part, rows, list(map(str, layers)), largest)
        axis.set(title=operator, xlabel="layer")
        if part.is_empty():
            drawing.absent(axis, why_none(study, operator))
    if len(layers) > maps.NUMBERED:
        heat.colour_bar(figure, axes, (0, largest), "neurons")
    return figure


def score_against_chance(study: Study) -> Figure:
    """Draw every match by the score that chance gives (grey: number), labels, and thresholds."""
    title = (
        "scores of pairs of neuron and heuristic against chance, the share of cells that satisfy"
    )
    figure, axes = study.panels(1, f"{title} the heuristic", (2.1, 2.1), sharex=True)
    for axis, operator in zip(axes[0], study.operators, strict=True):
        part = study.matches.filter(operator=operator)
        axis.set(title=operator, xlabel="share of cells", xlim=(0, 1), ylim=(0, 1))
        if part.is_empty():
            drawing.absent(axis, "no heuristic is clearly better than chance")
        else:
            _scores(axis, part, study)
    axes[0, 0].set_ylabel("score")
    drawing.legend(figure)
    return figure


def _scores(axis: Axes, matches: pl.DataFrame, study: Study) -> None:
    """Draw one operator's matches and the thresholds."""
    labelled = matches.filter("has_label")
    axis.hexbin(
        matches["chance_score"],
        matches["score"],
        gridsize=45,
        extent=(0, 1, 0, 1),
        bins="log",
        cmap="Greys",
        mincnt=1,
        linewidths=0.1,
    )
    dots: dict[str, Any] = {"markersize": 2, "color": BLUE, "rasterized": True}
    axis.plot(labelled["chance_score"], labelled["score"], ".", **dots, label="labels")
    axis.plot([0, 1], [0, 1], **DASHED, label="chance")
    published, colour = study.settings.published, CRITERIA["raw"][1]
    axis.plot([0, 1], [published] * 2, color=colour, linewidth=1, label="published threshold")
    if study.threshold is not None:
        label = f"threshold in use: chance-corrected score {study.threshold:g}"
        axis.plot([0, 1], [study.threshold, 1], color="black", linewidth=1, label=label)


def classified_share(study: Study, quantities: str = "any") -> Figure:
    """Draw the share of classified neurons against the threshold.

    Dashed: the same with operands relabelled, with a band of 2 standard deviations.
    """
    table = study.tables["classified_share"].filter(quantities=quantities).sort("threshold")
    shown = drawing.evenly(sorted({*table["layer"]}) or [0], study.settings.layers)
    title = (
        f"neurons with {QUANTITIES[quantities]}, by threshold; dashed, with 2 standard deviations: "
        "operands relabelled"
    )
    figure, axes = study.panels(len(shown), title, (1.9, 1.4), sharex=True)
    for row, layer in zip(axes, shown, strict=True):
        row[0].set_ylabel(f"layer {layer}\nshare of neurons")
        for axis, operator in zip(row, study.operators, strict=True):
            part = table.filter(operator=operator, layer=layer)
            for criterion, (label, colour) in CRITERIA.items():
                _with_null(axis, part.filter(criterion=criterion), label, colour)
            if study.threshold is not None:
                style: dict[str, Any] = {"color": "black", "linewidth": 0.8, "linestyle": ":"}
                label = "threshold in use of the chance-corrected score"
                axis.axvline(study.threshold, **style, label=label)
            if part.is_empty():
                drawing.absent(axis, "no neuron was scored")
    for axis, operator in zip(axes[0], study.operators, strict=True):
        axis.set(title=operator, ylim=(-0.03, 1.03))
    for axis in axes[-1]:
        axis.set_xlabel("threshold")
    drawing.legend(figure, 4)
    return figure


def _with_null(axis: Axes, part: pl.DataFrame, label: str, colour: str) -> None:
    """Draw the share by one criterion, and dashed the share with operands relabelled."""
    drawing.curve(axis, part["threshold"], part["share"], label, colour)
    null = part.drop_nulls("null_share")
    mean, spread = null["null_share"], 2 * null["null_std"].fill_null(0)
    drawing.curve(
        axis,
        null["threshold"],
        mean,
        f"_{label}",
        colour,
        band=((mean - spread).clip(0, 1), (mean + spread).clip(0, 1)),
        marker="",
        linestyle="--",
        linewidth=0.9,
    )


def explained(study: Study) -> Figure:
    """Draw the variance that each neuron's labels explain against that of Fourier components.

    Both have as many coefficients, and are scored on held-out cells.
    """
    table = _theories(study.tables["explained"])
    title = "variance on held-out cells explained by a neuron's labels and by Fourier components"
    title = f"{title}, at least {LOWEST:g}"
    figure, axes = study.panels(2, title, (2.0, 1.9), sharex=True)
    layers = sorted({*table["layer"]}) or [0]
    # the last layer's yellow would be too pale
    scale = drawing.plt.Normalize(layers[0], layers[0] + max(layers[-1] - layers[0], 1) / 0.9)
    shades = drawing.matplotlib.colormaps["viridis"]
    colours = {layer: shades(scale(layer)) for layer in layers}
    for row, which in zip(axes, ABOUT, strict=True):
        row[0].set_ylabel(f"{which}\nexplained by labels")
        for axis, operator in zip(row, study.operators, strict=True):
            part = table.filter(operator=operator, map=which)
            if part.is_empty():
                drawing.absent(axis, _why_not_explained(study, operator, which))
            else:
                _dots(axis, part, colours)
    limits = LOWEST - 0.03, 1.03
    axes[0, 0].set(xlim=limits, yticks=[0, 0.25, 0.5, 0.75, 1])
    axes[0, 0].set_ylim(LOWEST - 0.03, 1.65)  # room for text
    for (upper, lower), operator in zip(axes.T, study.operators, strict=True):
        upper.set_title(operator)
        lower.set_xlabel("explained by\nFourier components")
    if len(layers) > FEW_LAYERS:
        colour_map = drawing.plt.cm.ScalarMappable(scale, "viridis")
        bar = figure.colorbar(colour_map, ax=axes, aspect=30, pad=0.01)
        bar.set_label("layer", fontsize=8)
        bar.ax.tick_params(labelsize=7)
    drawing.legend(figure)
    return figure


def _theories(table: pl.DataFrame) -> pl.DataFrame:
    """Put both theories of a map into one row, as columns; table: explained."""
    keys = ["operator", "layer", "neuron", "map"]
    known = table.drop_nulls("explained")
    labels = known.filter(theory="heuristics").select(*keys, heuristics="explained")
    components = known.filter(theory="fourier").select(*keys, fourier="explained")
    return labels.join(components, on=keys).sort(keys)


def _why_not_explained(study: Study, operator: str, which: str) -> str:
    """Return why an operator's maps of this kind, activation or contribution, have no row."""
    if study.tables["labels"].filter(operator=operator).is_empty():
        return why_none(study, operator)
    return f"no label is about {ABOUT[which]}"


def _dots(axis: Axes, part: pl.DataFrame, colours: dict[Any, Any]) -> None:
    """Draw a dot for each neuron, and write how often labels explain more."""
    axis.plot([LOWEST, 1], [LOWEST, 1], **DASHED, label="equal")
    hidden = "" if len(colours) <= FEW_LAYERS else "_"
    style: dict[str, Any] = {"markersize": 2.5, "alpha": 0.6, "markeredgewidth": 0}
    for (layer,), dots in part.sort("layer").group_by("layer", maintain_order=True):
        xs, ys = dots["fourier"].clip(LOWEST), dots["heuristics"].clip(LOWEST)
        axis.plot(xs, ys, "o", **style, color=colours[layer], label=f"{hidden}layer {layer}")
    more = part.filter(pl.col("heuristics") > pl.col("fourier")).height / part.height
    labels, components = part.select(pl.median("heuristics", "fourier")).row(0)
    text = f"labels explain more\nin {more:.0%} of {part.height:,}"
    text = f"{text}\nmedians {labels:.2f} and {components:.2f}"
    axis.text(0.03, 0.97, text, transform=axis.transAxes, va="top", fontsize=7)


def label_votes(study: Study) -> Figure:
    """Draw which share of labels about the result the measured changes of logits keep."""
    title = "labels about the result that hold for the measured change of logits, by layer"
    figure, axes = study.panels(1, title, (2.0, 1.8))
    axes[0, 0].set_ylabel("share of labels")
    for axis, operator in zip(axes[0], study.operators, strict=True):
        axis.set(title=operator, xlabel="layer", ylim=(-0.05, 1.05))
        rows = study.tables["label_votes"].filter(operator=operator)
        if rows.is_empty():
            drawing.absent(axis, _why_no_votes(study, operator))
            continue
        for (column, verdict), (label, colour) in VERDICTS.items():
            known = rows.drop_nulls(column).group_by("layer")
            shares = known.agg(share=(pl.col(column) == verdict).mean()).sort("layer")
            drawing.curve(axis, shares["layer"], shares["share"], label, colour)
        axis.set_xticks(drawing.evenly(rows["layer"].unique().sort().to_list(), 6))
    drawing.legend(figure)
    return figure


def _why_no_votes(study: Study, operator: str) -> str:
    """Return why no label of an operator was scored on measured changes."""
    labels = study.tables["labels"].filter(operator=operator)
    if labels.is_empty():
        return why_none(study, operator)
    if labels.filter(quantity="result").is_empty():
        return f"no label is about {ABOUT['contribution']}"
    return "no neuron with a label about the result was shifted"


FIGURES: dict[str, Callable[[Study], Figure]] = {
    "neurons_by_kind": neurons_by_kind,
    "score_against_chance": score_against_chance,
    "classified_share": classified_share,
    "classified_share_operands": partial(classified_share, quantities="operands"),
    "classified_share_result": partial(classified_share, quantities="result"),
    "explained": explained,
    "label_votes": label_votes,
}

if __name__ == "__main__":
    main(sys.argv[1])
