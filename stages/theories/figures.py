"""Draw how the residual stream encodes numbers, and how theories of late neurons compare.

A panel without data says why.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import (
    BLUE,
    GREEN,
    GREY,
    GUIDE,
    ORANGE,
    PINK,
    SKY,
    VERMILION,
    WINE,
    Axes,
    Figure,
    Tables,
)

TABLES = [
    "theories/helix_fits.parquet",
    "theories/helix_effects.parquet",
    "theories/theories.parquet",
    "circuit/pairs_found.parquet",
]
# Theory of a number -> its label, colour and line. Lines are solid if the theory has as many terms
# as the helix, or one more, as random periods may have.
NUMBER_THEORIES = {
    "number": ("mean of each number", GREY, "--"),
    "pca": ("principal components", BLUE, "-"),
    "polynomial": ("polynomial", GREEN, "-"),
    "helix": ("helix", VERMILION, "-"),
    "other_periods": ("helix, random periods", PINK, "-"),
    "circles": ("circles", ORANGE, "--"),
    "circle": ("one circle", SKY, "--"),
    "line": ("line", WINE, "--"),
    "shuffled": ("helix, shuffled numbers", GUIDE, ":"),
}
NEURON_THEORIES = {  # theory of neurons -> its label and colour
    "bag": ("heuristics", VERMILION),
    "helix": ("helix", BLUE),
    "waves": ("Fourier components", GREEN),
}
NAMED_THEORIES = {  # theory whose terms a table names -> its label, colour and marker
    "labels": ("labels", ORANGE, "s"),
    "discovered": ("discovered predicates", PINK, "D"),
}
SITES = {  # (number at its own token, whether only small numbers are used) -> label of the row
    ("op1", False): "op1",
    ("op1", True): "op1, small",
    ("result", False): "answer\nat last",
    ("result", True): "answer, small\nat last",
}
MEASURES = {
    "activation": "activations\n(held-out variance)",
    "written": "answer's logit,\nas written",
    "restored": "answer's logit,\nrestored",
    "accuracy": "accuracy",
}
EXPLAINED = {
    "restored": "share of the\nanswer's logit",
    "accuracy": "accuracy above\nmajority, share",
}
ALWAYS = "all prompts have the same answer"
SAME = "the residual stream is the same in all prompts"
NOT_LOST = "another number's residual stream does not clearly lower the answer's logit"
CONSTANT = "the quantity to be explained does not vary"
NOT_LOWERED = "the neurons' means do not clearly lower the answer's logit"
LOWEST, HIGHEST = -0.3, 1.2  # values outside this range are drawn at its edge


def main(subject: str) -> None:
    """Draw all figures of one model."""
    folder = Path("reports") / subject / "theories/figures"
    drawing.write(FIGURES, folder, drawing.tables(subject, TABLES), subject, front="theories")


def helix_fits(tables: Tables, subject: str) -> Figure:
    """Draw the share of the residual stream's variance that each theory of a number explains.

    Rows are sites, with all numbers and with small ones; columns are operators.
    """
    table = tables["helix_fits"]
    helix = table.filter(theory="helix")
    shuffled = helix.with_columns(theory=pl.lit("shuffled"), explained="shuffled")
    both = pl.concat([table, shuffled])
    title = f"{subject}: held-out variance of the residual stream that a number explains, by layer"
    return _by_layer(both, tables["pairs_found"], "explained", title, SAME)


def helix_effects(tables: Tables, subject: str) -> Figure:
    """Draw the share of the answer's logit that each theory of a number restores."""
    quantity = pl.when(position="last").then(pl.lit("result")).otherwise("position")
    table = tables["helix_effects"].with_columns(quantity=quantity)
    title = (
        f"{subject}: share of the answer's logit that is restored when a theory's prediction "
        "replaces another number's residual stream"
    )
    edges = ("ci_low", "ci_high")
    return _by_layer(table, tables["pairs_found"], "restored", title, NOT_LOST, edges)


def _by_layer(
    table: pl.DataFrame,
    pairs_found: pl.DataFrame,
    value: str,
    title: str,
    undefined: str,
    edges: tuple[str, str] | None = None,
) -> Figure:
    """Draw a column of values by layer, with a panel for each site and operator.

    edges: columns of the ends of the interval; undefined: text of a panel without values
    """
    figure, axes, panels = drawing.operator_panels(
        len(SITES), pairs_found, title, (1.9, 1.4), sharex=True, sharey=True
    )
    for operator, column, why in panels:
        for axis, (quantity, small) in zip(column, SITES, strict=True):
            position = "last" if quantity == "result" else quantity
            of_study = pl.col("numbers_below").is_not_null() == small
            own = {"operator": operator, "quantity": quantity, "position": position}
            part = table.filter(of_study, **own)
            _number_curves(axis, part.drop_nulls(value), value, edges)
            axis.axhline(0, color=GUIDE, linewidth=0.6)
            if part[value].drop_nulls().is_empty():
                drawing.absent(axis, undefined if operator in table["operator"] else why)
        column[-1].set_xlabel("layer")
    layers = sorted({*table["layer"]}) or [0]
    axes[0, 0].set_xticks(drawing.evenly(layers, 7))
    _label_rows(axes, list(SITES.values()))
    drawing.legend(figure, 5)
    return figure


def _number_curves(
    axis: Axes, part: pl.DataFrame, value: str, edges: tuple[str, str] | None
) -> None:
    """Draw one curve for each theory of a number, with a band between the columns `edges`."""
    for theory, (label, colour, dashes) in NUMBER_THEORIES.items():
        line = part.filter(theory=theory).sort("layer")
        if line.is_empty():
            continue
        band = (_clip(line[edges[0]]), _clip(line[edges[1]])) if edges else None
        drawing.curve(
            axis,
            line["layer"],
            _clip(line[value]),
            label,
            colour,
            band=band,
            linestyle=dashes,
        )


def _label_rows(axes: np.ndarray, labels: list[str]) -> None:
    axes[0, 0].set_ylim(LOWEST - 0.05, HIGHEST + 0.05)
    for axis, label in zip(axes[:, 0], labels, strict=True):
        axis.set_ylabel(label)


def _clip(values: pl.Series) -> pl.Series:
    return values.clip(LOWEST, HIGHEST)


def theories(tables: Tables, subject: str) -> Figure:
    """Draw what heuristics, helix and Fourier components explain, against parameters per neuron."""
    table = tables["theories"]
    title = (
        f"{subject}: three theories of the late neurons with equal numbers of parameters; "
        "dotted: fits to relabelled operands"
    )
    figure, axes = _theory_panels(
        tables["pairs_found"], table, MEASURES, title, "parameters per neuron", _neuron_curves
    )
    budgets = table["parameters"].filter(table["parameters"] > 0).unique().sort().to_list() or [1]
    axes[0, 0].set_xticks(budgets, budgets)
    axes[0, 0].minorticks_off()
    drawing.legend(figure)
    return figure


def _theory_panels(
    pairs_found: pl.DataFrame,
    table: pl.DataFrame,
    measures: dict[str, str],
    title: str,
    size: str,
    draw: Callable[[Axes, pl.DataFrame], None],
) -> tuple[Figure, np.ndarray]:
    """Return a figure of theories of neurons, with a row for each measure, and its axes.

    table: as `theories`; measures: what is measured -> the row's label; size: label of the x axis;
    draw: draws the rows of a panel that have a value.
    """
    figure, axes, panels = drawing.operator_panels(
        len(measures), pairs_found, title, (1.9, 1.6), sharex=True, sharey=True
    )
    for operator, column, why in panels:
        for axis, measure in zip(column, measures, strict=True):
            rows = table.filter(operator=operator, what=measure)
            part = rows.drop_nulls("value")
            draw(axis, part)
            axis.axhline(0, color=GUIDE, linewidth=0.5)
            if part.is_empty():
                undefined = {"accuracy": ALWAYS, "restored": NOT_LOWERED}.get(measure, CONSTANT)
                drawing.absent(axis, why if rows.is_empty() else undefined)
        column[-1].set_xlabel(size)
    axes[0, 0].set_xscale("log", base=2)
    _label_rows(axes, list(measures.values()))
    return figure, axes


def _neuron_curves(axis: Axes, part: pl.DataFrame) -> None:
    """Draw each theory of neurons with its interval, its control, and the neurons' means alone."""
    for theory, (label, colour) in NEURON_THEORIES.items():
        line = part.filter(theory=theory).sort("parameters")
        band = _clip(line["ci_low"]), _clip(line["ci_high"])
        values = _clip(line["value"])
        drawing.curve(axis, line["parameters"], values, label, colour, band=band)
        control = line.drop_nulls("relabelled")
        x, values = control["parameters"], _clip(control["relabelled"])
        drawing.curve(axis, x, values, "", colour, linestyle=":", marker="_")
    for value in part.filter(theory="mean")["value"]:
        axis.axhline(value, color=GUIDE, linewidth=0.8, linestyle="--", label="means alone")


def explained_by_bits(tables: Tables, subject: str) -> Figure:
    """Draw what each theory explains of the answer, against its description length.

    Accuracies are shares of what is above the accuracy of the most frequent answer.
    """
    measures = pl.col("value", "ci_low", "ci_high", "relabelled")
    majority = pl.when(what="accuracy").then("majority_accuracy").otherwise(0.0)
    shares = (measures - majority) / (1 - majority)
    table = tables["theories"].with_columns(pl.when(majority < 1).then(shares))
    title = (
        f"{subject}: what theories of all late neurons explain of the answer, by description "
        "length; hollow: controls"
    )
    of_terms = table.filter(pl.col("bits") > 0)  # the neurons' means alone take none
    figure, axes = _theory_panels(
        tables["pairs_found"], of_terms, EXPLAINED, title, "bits per neuron", _lengths
    )
    bits = of_terms["bits"].to_list() or [1]
    axes[0, 0].set_xlim(min(bits) / 1.3, max(bits) * 1.3)
    axes[0, 0].xaxis.set_major_formatter("{x:g}")
    drawing.legend(figure)
    return figure


def _lengths(axis: Axes, part: pl.DataFrame) -> None:
    """Draw searched theories as lines and named ones as points, with intervals and controls."""
    for theory, (label, colour) in NEURON_THEORIES.items():
        line = part.filter(theory=theory).sort("bits")
        band = _clip(line["ci_low"]), _clip(line["ci_high"])
        drawing.curve(axis, line["bits"], _clip(line["value"]), label, colour, band=band)
        _control(axis, line, colour, "o")
    for theory, (label, colour, marker) in NAMED_THEORIES.items():
        point = part.filter(theory=theory)
        style: dict[str, Any] = {"marker": marker, "markersize": 4, "linestyle": "none"}
        drawing.curve(axis, point["bits"], _clip(point["value"]), label, colour, **style)
        ends = _clip(point["ci_low"]), _clip(point["ci_high"])
        axis.vlines(point["bits"], *ends, color=colour, linewidth=1)
        _control(axis, point, colour, marker)


def _control(axis: Axes, part: pl.DataFrame, colour: str, marker: str) -> None:
    """Draw the controls of a theory as hollow markers."""
    known = part.drop_nulls("relabelled")
    style: dict[str, Any] = {"markersize": 4, "markerfacecolor": "none", "linestyle": "none"}
    drawing.curve(
        axis, known["bits"], _clip(known["relabelled"]), "", colour, marker=marker, **style
    )


FIGURES = {
    figure.__name__: figure for figure in (helix_fits, helix_effects, theories, explained_by_bits)
}

if __name__ == "__main__":
    main(sys.argv[1])
