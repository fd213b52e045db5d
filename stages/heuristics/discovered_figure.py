"""Draw discovered predicates against the catalogue: explained variance, and numbers of neurons."""

import sys
from pathlib import Path
from typing import Any

import polars as pl

from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import BLUE, GREY, GUIDE, VERMILION, Axes, Figure, Tables

TABLES = ["heuristics/discovered.parquet", "heuristics/discovered_and_labels.parquet"]
LOWEST = -0.2  # a smaller explained share is drawn here
ATOMS = {1: ("one condition", BLUE), 2: ("two conditions", VERMILION)}
COUNTS = {  # column of discovered_and_labels -> label, colour
    "both": ("discovered and labelled", GREY),
    "only_discovered": ("discovered only", BLUE),
    "only_labelled": ("labelled only", VERMILION),
}


def main(subject: str) -> None:
    folder = Path("reports") / subject / "heuristics/discovered"
    drawing.write({"discovered": discovered}, folder, subject, drawing.tables(subject, TABLES))


def discovered(subject: str, tables: Tables) -> Figure:
    """Draw a column for each operator.

    Above: variance explained by the discovered predicate and by the catalogue, a dot per neuron.
    Below: neurons of each layer with a discovered predicate, a label, or both.
    """
    counts = tables["discovered_and_labels"]
    known = set(counts["operator"])
    operators = list(filter(known.__contains__, drawing.COLOURS)) or ["add"]
    title = (
        f"{subject}: variance of activations on held-out cells explained by discovered predicates "
        "and by the best heuristic of the catalogue; neurons with a discovered predicate or a label"
    )
    figure, axes = drawing.panels(2, len(operators), title, (2.1, 2.0))
    for (upper, lower), operator in zip(axes.T, operators, strict=True):
        upper.set(title=operator, xlabel="explained by the catalogue")
        lower.set(xlabel="layer")
        own = tables["discovered"].filter("discovered", operator=operator)
        _dots(upper, own.drop_nulls(["explained", "catalogue_explained"]))
        _bars(lower, counts.filter(operator=operator).drop_nulls("layer").sort("layer"))
    axes[0, 0].set_ylabel("explained by the\ndiscovered predicate")
    axes[1, 0].set_ylabel("neurons")
    drawing.legend(figure, 3)
    return figure


def _dots(axis: Axes, neurons: pl.DataFrame) -> None:
    """Draw a dot for each neuron with a discovered predicate, and write the medians."""
    if neurons.is_empty():
        drawing.absent(axis, "no predicate is discovered")
        return
    axis.plot([LOWEST, 1], [LOWEST, 1], color=GUIDE, linewidth=0.8, linestyle="--", label="equal")
    style: dict[str, Any] = {"markersize": 2.5, "alpha": 0.6, "markeredgewidth": 0}
    for atoms, (label, colour) in ATOMS.items():
        part = neurons.filter(atoms=atoms)
        xs, ys = part["catalogue_explained"].clip(LOWEST), part["explained"].clip(LOWEST)
        axis.plot(xs, ys, "o", **style, color=colour, label=label)
    medians = neurons.select(pl.median("explained", "catalogue_explained")).row(0)
    text = "{:,} neurons, medians:\npredicate {:.2f}\ncatalogue {:.2f}".format(
        neurons.height, *medians
    )
    axis.text(0.03, 0.97, text, transform=axis.transAxes, va="top", fontsize=7)
    axis.set(xlim=(LOWEST - 0.03, 1.03), ylim=(LOWEST - 0.03, 1.65))
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1])


def _bars(axis: Axes, layers: pl.DataFrame) -> None:
    """Draw a bar for each layer, divided by how its neurons are explained."""
    if layers.is_empty():
        drawing.absent(axis, drawing.NO_ROWS)
        return
    bottom = pl.Series([0] * layers.height)
    for column, (label, colour) in COUNTS.items():
        axis.bar(layers["layer"], layers[column], bottom=bottom, color=colour, label=label)
        bottom = bottom + layers[column]
    axis.set_xticks(drawing.evenly(layers["layer"].to_list(), 7))


if __name__ == "__main__":
    main(sys.argv[1])
