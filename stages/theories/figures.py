"""Draws numbers in the residual stream, what is left of the answer when a theory stands in for it, and the theories of late neurons.

A panel without data says why.
"""

import sys
from pathlib import Path

import polars as pl

from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import BLUE, GREEN, GREY, GUIDE, ORANGE, PINK, SKY, VERMILION, WINE, Axes, Figure, Tables

TABLES = [
    "theories/helix_fits.parquet", "theories/helix_effects.parquet", "theories/theories.parquet", "circuit/pairs_found.parquet",
]  # fmt: skip
OF_NUMBERS = {  # theory of a number -> colour; those of as many terms as the helix are drawn through, the others dashed
    "number": GREY, "pca": BLUE, "polynomial": GREEN, "helix": VERMILION, "other_periods": PINK, "circles": ORANGE, "circle": SKY,
    "line": WINE, "shuffled": GUIDE,
}  # fmt: skip
AS_MANY = ("pca", "polynomial", "helix", "other_periods")
OF_NEURONS = {"bag": VERMILION, "helix": BLUE, "waves": GREEN}
SITES = {  # the number, at its own token, and whether only numbers as small as the study's -> label
    ("op1", False): "op1", ("op1", True): "op1, small", ("result", False): "answer\nat last", ("result", True): "answer, small\nat last",
}  # fmt: skip
MEASURES = {
    "activation": "activations\n(held-out variance)", "written": "answer's logit,\nas written", "restored": "answer's logit,\nrestored",
    "accuracy": "accuracy",
}  # fmt: skip
SAME = "the residual stream is the same in all prompts"
NOT_LOST = "the stream of another number does not surely lower the answer's logit"
CONSTANT = "what is to be explained does not vary"
LOWEST, HIGHEST = -0.3, 1.2  # of what is drawn


def main(subject: str) -> None:
    folder = Path("reports") / subject / "theories/figures"
    drawing.write(FIGURES, folder, drawing.tables(subject, TABLES), subject, front="theories")


def _drawn(values: pl.Series) -> pl.Series:
    """Values beyond what is drawn stand at its edge."""
    return values.clip(LOWEST, HIGHEST)


def _number_curve(axis: Axes, part: pl.DataFrame, theory: str, value: str, edges: tuple[str, str] | None) -> None:
    """One theory's values by layer, with a band between these columns."""
    line = part.filter(theory=theory).drop_nulls(value).sort("layer")
    style = {"linestyle": "-" if theory in AS_MANY else ":" if theory == "shuffled" else "--"}
    band = (_drawn(line[edges[0]]), _drawn(line[edges[1]])) if edges else None
    drawing.curve(axis, line["layer"], _drawn(line[value]), theory, OF_NUMBERS[theory], band=band, **style)


def helix_fits(tables: Tables, subject: str) -> Figure:
    """How much of the stream each theory of a number explains, by layer, of all numbers and of those as small as the study's."""
    table = tables["helix_fits"]
    shuffled = table.filter(theory="helix").with_columns(theory=pl.lit("shuffled"), explained="shuffled")
    title = f"{subject}: share of the residual stream's held-out variance that a number explains, by the layer it enters"
    return _by_layer(pl.concat([table, shuffled]), tables["pairs_found"], "explained", title, SAME)


def helix_effects(tables: Tables, subject: str) -> Figure:
    """How much of the answer's logit each theory of a number restores, by layer, with bootstrap intervals."""
    quantity = pl.when(position="last").then(pl.lit("result")).otherwise("position")
    title = f"{subject}: share of the answer's logit that comes back when a theory of the number replaces the stream of another number"
    table = tables["helix_effects"].with_columns(quantity=quantity)
    return _by_layer(
        table,
        tables["pairs_found"],
        "restored",
        title,
        NOT_LOST,
        ("ci_low", "ci_high"),
    )


def _by_layer(
    table: pl.DataFrame,
    pairs_found: pl.DataFrame,
    value: str,
    title: str,
    undefined: str,
    edges: tuple[str, str] | None = None,
) -> Figure:
    """Draw a panel for each site and operator; undefined: what to say of one without values."""
    figure, axes, panels = drawing.operator_panels(len(SITES), pairs_found, title, (1.9, 1.4), sharex=True, sharey=True)
    for operator, column, why in panels:
        for axis, (quantity, small) in zip(column, SITES, strict=True):
            of_study = pl.col("numbers_below").is_not_null() == small
            own = pl.col("position") == ("last" if quantity == "result" else quantity)
            part = table.filter(of_study, own, operator=operator, quantity=quantity)
            for theory in OF_NUMBERS:
                if theory in part["theory"]:
                    _number_curve(axis, part, theory, value, edges)
            axis.axhline(0, color=GUIDE, linewidth=0.6)
            if part[value].drop_nulls().is_empty():
                drawing.absent(axis, why if operator not in table["operator"] else undefined)
        column[-1].set_xlabel("layer")
    layers = sorted({*table["layer"]}) or [0]
    axes[0, 0].set_xticks(layers[:: -(-len(layers) // 12)])
    axes[0, 0].set_ylim(LOWEST - 0.05, HIGHEST + 0.05)
    for axis, label in zip(axes[:, 0], SITES.values(), strict=True):
        axis.set_ylabel(label)
    drawing.legend(figure, 5)
    return figure


def theories(tables: Tables, subject: str) -> Figure:
    """Bag, helix and waves at equal numbers of parameters: what each explains of late neurons, and does in their place."""
    table = tables["theories"]
    title = f"{subject}: three theories of the late neurons at equal numbers of parameters; dotted: the same, operands relabelled"
    figure, axes, panels = drawing.operator_panels(len(MEASURES), tables["pairs_found"], title, (1.9, 1.4), sharex=True, sharey=True)
    for operator, column, why in panels:
        for axis, measure in zip(column, MEASURES, strict=True):
            rows = table.filter(operator=operator, what=measure)
            part = rows.drop_nulls("value")
            for theory, colour in OF_NEURONS.items():
                line = part.filter(theory=theory).sort("parameters")
                band = _drawn(line["ci_low"]), _drawn(line["ci_high"])
                drawing.curve(axis, line["parameters"], _drawn(line["value"]), theory, colour, band=band)
                chance = line.drop_nulls("relabelled")
                drawing.curve(axis, chance["parameters"], _drawn(chance["relabelled"]), "", colour, linestyle=":", marker="_")
            for value in part.filter(theory="mean")["value"]:
                axis.axhline(value, color=GUIDE, linewidth=0.8, linestyle="--", label="means alone")
            axis.axhline(0, color=GUIDE, linewidth=0.4)
            if part.is_empty():
                drawing.absent(axis, why if rows.is_empty() else CONSTANT)
        column[-1].set_xlabel("parameters of a neuron")
    budgets = table["parameters"].filter(table["parameters"] > 0).unique().sort().to_list() or [1]
    axes[0, 0].set_xscale("log", base=2)
    axes[0, 0].set_xticks(budgets, budgets)
    axes[0, 0].minorticks_off()
    axes[0, 0].set_ylim(LOWEST - 0.05, HIGHEST + 0.05)
    for axis, label in zip(axes[:, 0], MEASURES.values(), strict=True):
        axis.set_ylabel(label)
    drawing.legend(figure)
    return figure


FIGURES = {f.__name__: f for f in (helix_fits, helix_effects, theories)}

if __name__ == "__main__":
    main(sys.argv[1])
