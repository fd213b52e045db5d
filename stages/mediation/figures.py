"""Draw causal mediation: effects of components, changed predictions, and importance of late MLPs.

Effects are drawn as in Fig. 3 of the study. All pairs count, whether or not the model answers their
clean prompt correctly. A panel without data says why.
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
CLASSES = [  # of positions, in order
    "early",
    "op1",
    "operator",
    "middle",
    "op2",
    "op3",
    "query",
    "entity",
    "late",
    "last",
]
BLOCKS = {"mlp": ("MLPs", VERMILION), "attention": ("attention", BLUE)}
CHANGES = {"desired": "-", "undesired": (0, (2, 2))}
WHICH = {"all": ("all pairs", BLUE), "answered": ("correctly answered pairs", SKY)}
LOWEST, HIGHEST = -0.5, 1.5  # range of importance that is drawn
WITH_NUMBERS = 16  # largest number of layers for which a map has room for numbers
WIDTH = 0.36  # of a bar
NO_INTERVAL, NO_ANSWER = "log effects may add up to 0", "no prompt is answered correctly"
NO_PAIRS, NO_EFFECT = "no pairs of such prompts", "no pair has an effect"
NO_SUM = "log effects do not add up to more than 0"
NO_HEADS = "single heads of this model are not patched (setting single_heads)"


def main(subject: str) -> None:
    """Draw all figures of one model."""
    draw(subject)
    overlap_figures.draw(subject)


def draw(subject: str) -> None:
    """Draw the figures of this module."""
    folder = Path("reports") / subject / "mediation/figures"
    tables = drawing.tables(subject, TABLES)
    drawing.write(FIGURES, folder, tables, subject, front="importance")


def effects(tables: Tables, subject: str) -> Figure:
    """Draw the mean effect by layer and class of positions, for each task and condition.

    Maps of MLPs are above those of attention blocks.
    """
    table = _blocks(tables).filter(operator="all")
    rows = []
    for some_kinds in in_rows(kinds(table)):
        for block, (label, _) in BLOCKS.items():
            of_block = table.filter(component=block)
            rows.append((label, [(name(kind), rows_of(of_block, kind)) for kind in some_kinds]))
    title = f"{subject}: mean effect of patching a layer's MLP or attention block"
    return _maps(rows, CLASSES, title)


def by_operator(tables: Tables, subject: str, task: str) -> Figure:
    """Draw the mean effect for one task, by condition and operator of the clean prompt."""
    table = _blocks(tables).filter(pl.col("operator") != "all", task=task)
    operators = ordered(table["operator"], list(drawing.COLOURS))
    rows = []
    for kind in kinds(table):
        for block, (label, _) in BLOCKS.items():
            part = rows_of(table, kind).filter(component=block)
            maps = [(operator, part.filter(operator=operator)) for operator in operators]
            rows.append((f"{name(kind[1:])}\n{label}", maps))
    what = "mean effect of patching a layer's MLP or attention block"
    return _maps(rows, CLASSES, f"{subject}, {name([task])}: {what}")


def heads(tables: Tables, subject: str) -> Figure:
    """Draw the mean effect of single heads at the last position."""
    last = tables["mediation_effects"].filter(which="all", operator="all", position_class="last")
    table = _by_layer(last.filter(component="head"), pl.col("head").cast(pl.String))
    rows = []
    for some_kinds in in_rows(kinds(table)):
        rows.append(("", [(name(kind), rows_of(table, kind)) for kind in some_kinds]))
    columns = list(map(str, sorted({*table["head"]})))
    title = f"{subject}: mean effect of patching one head (across) at the last position"
    return _maps(rows, columns, title, NO_PAIRS if last.is_empty() else NO_HEADS)


def _blocks(tables: Tables) -> pl.DataFrame:
    """Return rows of MLPs and attention blocks, for heat maps by class of positions."""
    table = tables["mediation_effects"].filter(which="all")
    return _by_layer(table.filter(pl.col("component").is_in([*BLOCKS])), pl.col("position_class"))


def _by_layer(table: pl.DataFrame, across: pl.Expr) -> pl.DataFrame:
    """Return a table for heat maps, with layers down and the column `across` across."""
    layer = pl.format("layer {}", "layer")
    return table.sort("layer").with_columns(row=layer, column=across, value="log_effect")


def _maps(rows: list[Row], known: list[str], title: str, why: str = NO_PAIRS) -> Figure:
    """Draw heat maps with one scale: layers down, columns across in the order of `known`.

    why: text of a map without layers
    """
    tables = [table for _, row in rows for _, table in row]
    sizes = (abs(value) for table in tables for value in table["value"].drop_nulls())
    limit = max(sizes, default=1.0) or 1.0
    limits = (-limit, limit)
    most = max((table["row"].n_unique() for table in tables), default=0)
    height = max(0.17 * most, 0.6) if most <= WITH_NUMBERS else 0.075 * most
    figure, panels = drawing.rows_of_panels(rows, title, (2.6, height + 0.7))
    for axis, table in panels:
        layers = table["row"].unique(maintain_order=True).to_list()
        heat.heat_table(axis, table, layers, ordered(table["column"], known), limits)
        if table["value"].drop_nulls().is_empty():
            drawing.absent(axis, NO_EFFECT if layers else why)
    heat.colour_bar(figure, np.array(figure.axes), limits, "ln(1 + e) of the mean effect e")
    heat.finish(figure)
    return figure


def changes(tables: Tables, subject: str) -> Figure:
    """Draw how often patches at the last position change the prediction, by layer."""
    table = _blocks(tables).filter(operator="all", position_class="last")
    drawn = kinds(table) or [("", "")]
    title = (
        f"{subject}: patches at the last position that change the prediction to the other prompt's "
        "answer (desired) or to neither answer (undesired)"
    )
    rows, columns = len(in_rows(drawn)), min(len(drawn), IN_A_ROW)
    figure, axes = drawing.panels(rows, columns, title, (2.4, 1.8), sharey=True)
    for axis in axes.flat[len(drawn) :]:
        axis.remove()
    for axis, kind in zip(axes.flat, drawn, strict=False):
        _changes(axis, rows_of(table, kind))
        axis.set_title(name(kind).strip(", "), fontsize=8)
        axis.set_xlabel("layer")
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0, 0].set(ylim=(-0.03, 1.03), ylabel="share of patches")
    drawing.legend(figure)
    return figure


def _changes(axis: Axes, part: pl.DataFrame) -> None:
    for block, (label, colour) in BLOCKS.items():
        for change, dashes in CHANGES.items():
            line = part.filter(component=block).drop_nulls(change)
            if line.is_empty():
                continue
            text = f"{label}, {change}"
            drawing.curve(axis, line["layer"], line[change], text, colour, linestyle=dashes)
    if part.is_empty():
        drawing.absent(axis, NO_PAIRS)


def importance(tables: Tables, subject: str) -> Figure:
    """Draw the late MLPs' relative importance for each task and condition.

    Bars without an interval are hollow. Marks show the last layer's part, the importance if all
    effects were equal, and the importance with the published floor.
    """
    table = tables["relative_importance"].filter(operator="all")
    drawn = kinds(table)
    title = (
        f"{subject}: share of the late MLPs at the last position in the sum of all MLPs' log "
        "effects; each sum is below its bars"
    )
    figure, [[axis]] = drawing.panels(1, 1, title, (max(1.1 * len(drawn), 6.0), 2.4))
    labels = []
    for x, kind in enumerate(drawn):
        rows = rows_of(table, kind)
        for shift, (which, (label, colour)) in zip((-0.2, 0.2), WHICH.items(), strict=True):
            for row in rows.filter(which=which).iter_rows(named=True):
                _bar(axis, x + shift, row, colour, label)
        sums = rows.filter(which="all")["log_effects"].drop_nulls()
        total = next(iter(sums), 0)
        labels.append(name(kind).replace(", ", "\n") + f"\nsum {total:.2g}")
    if not drawn:
        drawing.absent(axis, NO_PAIRS)
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, LOWEST), min(max(1.05 * high, 0.5), HIGHEST))
    axis.set_xlim(-0.5, max(len(drawn), 1) - 0.5)
    axis.set_ylabel("relative importance")
    axis.set_xticks(range(len(drawn)), labels)
    axis.axhline(0, color="black", linewidth=0.6)
    axis.set_axisbelow(True)
    drawing.legend(figure, 4 if len(drawn) > 6 else 3)
    return figure


def _bar(axis: Axes, x: float, row: dict[str, Any], colour: str, label: str) -> None:
    """Draw one row of relative_importance as a bar at x, with its marks."""
    height = row["importance"]
    if height is None:
        drawing.absent(axis, NO_SUM if row["pairs"] else NO_ANSWER, x)
    else:
        _solid_or_hollow(axis, x, row, colour, label)
        marks = [row[mark] for mark in ("importance", "ci_high", "without_effect", "floored")]
        top = max(filter(lambda mark: mark is not None, marks))
        y = min(top + 0.02, HIGHEST - 0.1)
        axis.text(x, y, f"{height:.0%}", fontsize=7, ha="center", va="bottom")
    left, right = x - WIDTH / 2, x + WIDTH / 2
    equal, floored = row["without_effect"], row["floored"]
    axis.hlines(equal, left, right, "black", "--", linewidth=1, label="if all effects were equal")
    if floored is not None:
        axis.plot(x, floored, "kx", markersize=4, label="with the published floor")


def _solid_or_hollow(axis: Axes, x: float, row: dict[str, Any], colour: str, label: str) -> None:
    height = row["importance"]
    if row["ci_low"] is None:
        axis.bar(x, height, WIDTH, fill=False, edgecolor=colour, label=NO_INTERVAL)
        return
    axis.bar(x, height, WIDTH, color=colour, label=label)
    hatched: dict[str, Any] = {
        "fill": False,
        "hatch": "////",
        "edgecolor": drawing.GUIDE,
        "linewidth": 0,
    }
    axis.bar(x, row["last_layer"], WIDTH, label="of these, the last layer", **hatched)
    axis.vlines(x, row["ci_low"], row["ci_high"], "black", linewidth=0.8, label="interval")


FIGURES: dict[str, Callable[[Tables, str], Figure]] = {
    "effects": effects,
    "arithmetic": partial(by_operator, task="arithmetic"),
    "number_words": partial(by_operator, task="number_words"),
    "heads": heads,
    "changes": changes,
    "importance": importance,
}

if __name__ == "__main__":
    main(sys.argv[1])
