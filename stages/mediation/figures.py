"""Draws causal mediation: where effects are, which heads have them, what they do to predictions, and how much late MLPs matter.

Effects are Fig. 3 of the study. All pairs count, whether or not their clean prompt is answered correctly. A panel without data says why.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.lib.drawing import drawing, heat
from stages.lib.drawing.drawing import (
    BLUE,
    IN_A_ROW,
    SKY,
    VERMILION,
    Axes,
    Figure,
    Row,
    Tables,
    in_rows,
)
from stages.mediation import overlap_figures
from stages.mediation.conditions import kinds, name, ordered, rows_of

TABLES = ["mediation/mediation_effects.parquet", "mediation/relative_importance.parquet"]
CLASSES = ["early", "op1", "operator", "middle", "op2", "op3", "query", "entity", "late", "last"]
BLOCKS = {"mlp": ("MLPs", VERMILION), "attention": ("attention", BLUE)}
CHANGES = {"desired": "-", "undesired": (0, (2, 2))}
WHICH = {"all": ("all pairs", BLUE), "answered": ("those answered correctly", SKY)}
LOWEST, HIGHEST = -0.5, 1.5  # importance drawn
WITH_NUMBERS = 16  # most layers of a map with room for numbers
NO_INTERVAL, NO_ANSWER = "log effects may add up to 0", "no prompt is answered correctly"
NO_PAIRS, NO_EFFECT, NO_SUM = (
    "no pairs of such prompts",
    "no pair has an effect",
    "log effects do not add up to more than 0",
)
NO_HEADS = "heads of this model are not patched one by one (setting single_heads)"


def main(subject: str) -> None:
    draw(subject)
    overlap_figures.draw(subject)


def draw(subject: str) -> None:
    drawing.write(
        FIGURES,
        Path("reports") / subject / "mediation/figures",
        drawing.tables(subject, TABLES),
        subject,
        front="importance",
    )


def effects(tables: Tables, subject: str) -> Figure:
    """Mean effect by layer and class of positions, of MLPs above that of attention blocks, for every task and condition."""
    table = _blocks(tables).filter(operator="all")
    rows = [
        (label, [(name(kind), rows_of(table, kind).filter(component=block)) for kind in some])
        for some in in_rows(kinds(table))
        for block, (label, _) in BLOCKS.items()
    ]
    return _maps(
        rows, CLASSES, f"{subject}: mean effect of patching a layer's MLP or attention block"
    )


def by_operator(tables: Tables, subject: str, task: str) -> Figure:
    """The same of one task, by operator of the clean prompt."""
    table = _blocks(tables).filter(pl.col("operator") != "all", task=task)
    operators = ordered(table["operator"], list(drawing.COLOURS))
    rows = [
        (
            f"{name(kind[1:])}\n{label}",
            [(o, rows_of(table, kind).filter(component=block, operator=o)) for o in operators],
        )
        for kind in kinds(table)
        for block, (label, _) in BLOCKS.items()
    ]
    return _maps(
        rows,
        CLASSES,
        f"{subject}, {name([task])}: mean effect of patching a layer's MLP or attention block",
    )


def heads(tables: Tables, subject: str) -> Figure:
    """Mean effect of single heads at the last position."""
    every = tables["mediation_effects"].filter(which="all", operator="all", position_class="last")
    table = _by_layer(every.filter(component="head"), pl.col("head").cast(pl.String))
    rows = [
        ("", [(name(kind), rows_of(table, kind)) for kind in some]) for some in in_rows(kinds(table))
    ]
    columns = [str(head) for head in sorted({*table["head"]})]
    title = f"{subject}: mean effect of patching one head (across) at the last position"
    return _maps(rows, columns, title, NO_PAIRS if every.is_empty() else NO_HEADS)


def _blocks(tables: Tables) -> pl.DataFrame:
    """Rows of MLPs and attention blocks, all pairs, as a heat map wants them."""
    return _by_layer(
        tables["mediation_effects"].filter(pl.col("component").is_in(list(BLOCKS)), which="all"),
        pl.col("position_class"),
    )


def _by_layer(table: pl.DataFrame, across: pl.Expr) -> pl.DataFrame:
    """In order of layers, which are the rows of a heat map, with its columns."""
    return table.sort("layer").with_columns(
        row=pl.format("layer {}", "layer"), column=across, value="log_effect"
    )


def _maps(rows: list[Row], known: list[str], title: str, why: str = NO_PAIRS) -> Figure:
    """Draw heat maps with one scale: layers down, columns across in the order of `known`.

    why: what to say of one without layers.
    """
    tables = [table for _, row in rows for _, table in row]
    limit = (
        max((abs(value) for table in tables for value in table["value"].drop_nulls()), default=1.0)
        or 1.0
    )
    most = max((table["row"].n_unique() for table in tables), default=0)
    height = max(0.17 * most, 0.6) if most <= WITH_NUMBERS else 0.075 * most
    figure, panels = drawing.rows_of_panels(rows, title, (2.6, height + 0.7))
    for axis, table in panels:
        layers = table["row"].unique(maintain_order=True).to_list()
        heat.heat_table(axis, table, layers, ordered(table["column"], known), (-limit, limit))
        if table["value"].drop_nulls().is_empty():
            drawing.absent(axis, NO_EFFECT if layers else why)
    heat.colour_bar(
        figure, np.array(figure.axes), (-limit, limit), "ln(1 + e) of the mean effect e"
    )
    heat.finish(figure)
    return figure


def changes(tables: Tables, subject: str) -> Figure:
    """What patches at the last position do to the prediction, by layer."""
    table = _blocks(tables).filter(operator="all", position_class="last")
    asked = kinds(table) or [("", "")]
    title = f"{subject}: patches at the last position that change the prediction to the other prompt's answer (desired) or to neither"
    figure, axes = drawing.panels(
        len(in_rows(asked)), min(len(asked), IN_A_ROW), title, (2.4, 1.8), sharey=True
    )
    for axis in axes.flat[len(asked) :]:
        axis.remove()
    for axis, kind in zip(axes.flat, asked, strict=False):
        part = rows_of(table, kind)
        for block, (label, colour) in BLOCKS.items():
            for change, dashes in CHANGES.items():
                line = part.filter(component=block).drop_nulls(change)
                if line.height:
                    drawing.curve(
                        axis,
                        line["layer"],
                        line[change],
                        f"{label}, {change}",
                        colour,
                        linestyle=dashes,
                    )
        if part.is_empty():
            drawing.absent(axis, NO_PAIRS)
        axis.set_title(name(kind).strip(", "), fontsize=8)
        axis.set_xlabel("layer")
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0, 0].set(ylim=(-0.03, 1.03), ylabel="share of patches")
    drawing.legend(figure)
    return figure


def importance(tables: Tables, subject: str) -> Figure:
    """Bars with their intervals, hollow if they have none; also the last layer's part, and the values of all effects alike and floored."""
    table = tables["relative_importance"].filter(operator="all")
    asked = kinds(table)
    title = f"{subject}: late MLPs' part, at the last position, of the sum of all MLPs' log effects, which is written"
    figure, [[axis]] = drawing.panels(1, 1, title, (max(1.1 * len(asked), 6.0), 2.4))
    for place, kind in enumerate(asked):
        for shift, (which, (label, colour)) in zip((-0.2, 0.2), WHICH.items(), strict=True):
            for row in rows_of(table, kind).filter(which=which).iter_rows(named=True):
                _bar(axis, place + shift, row, colour, label)
    if not asked:
        drawing.absent(axis, NO_PAIRS)
    low, high = axis.get_ylim()
    axis.set(
        ylim=(max(low, LOWEST), min(max(1.05 * high, 0.5), HIGHEST)),
        xlim=(-0.5, max(len(asked), 1) - 0.5),
        ylabel="relative importance",
    )
    sums = [
        next(iter(rows_of(table, kind).filter(which="all")["log_effects"].drop_nulls()), 0)
        for kind in asked
    ]
    labels = [
        name(kind).replace(", ", "\n") + f"\nsum {total:.2g}"
        for kind, total in zip(asked, sums, strict=True)
    ]
    axis.set_xticks(range(len(asked)), labels)
    axis.axhline(0, color="black", linewidth=0.6)
    axis.set_axisbelow(True)
    drawing.legend(figure, 4 if len(asked) > 6 else 3)
    return figure


def _bar(axis: Axes, x: float, row: dict[str, Any], colour: str, label: str) -> None:
    height, drawn = (
        row["importance"],
        [
            row[end]
            for end in ("importance", "ci_high", "without_effect", "floored")
            if row[end] is not None
        ],
    )
    if height is None:
        drawing.absent(axis, NO_SUM if row["pairs"] else NO_ANSWER, x)
    elif row["ci_low"] is None:
        axis.bar(x, height, 0.36, fill=False, edgecolor=colour, label=NO_INTERVAL)
    else:
        axis.bar(x, height, 0.36, color=colour, label=label)
        axis.bar(
            x,
            row["last_layer"],
            0.36,
            fill=False,
            hatch="////",
            edgecolor=drawing.GUIDE,
            linewidth=0,
            label="of these, the last layer",
        )
        axis.vlines(
            x, row["ci_low"], row["ci_high"], color="black", linewidth=0.8, label="interval"
        )
    if height is not None:
        axis.text(
            x,
            min(max(drawn) + 0.02, HIGHEST - 0.1),
            f"{height:.0%}",
            fontsize=7,
            ha="center",
            va="bottom",
        )
    axis.hlines(
        row["without_effect"],
        x - 0.18,
        x + 0.18,
        color="black",
        linestyle="--",
        linewidth=1,
        label="all effects alike",
    )
    if row["floored"] is not None:
        axis.plot(
            x, row["floored"], "x", color="black", markersize=4, label="with the published floor"
        )


FIGURES: dict[str, Callable[[Tables, str], Figure]] = {
    "effects": effects, "arithmetic": partial(by_operator, task="arithmetic"), "number_words": partial(by_operator, task="number_words"),
    "heads": heads, "changes": changes, "importance": importance,
}  # fmt: skip

if __name__ == "__main__":
    main(sys.argv[1])
