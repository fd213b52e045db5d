"""Draws which kinds of question share neurons, and whether those that mediate word problems are the heuristic neurons of the grid.

Questions are compared by halves of their pairs, so that the diagonal, a question's own two halves, is what noise leaves of a full overlap.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib.core.settings import load
from stages.lib.drawing import drawing, heat
from stages.lib.drawing.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    VERMILION,
    WINE,
    Axes,
    Figure,
    Row,
    Tables,
    in_rows,
)
from stages.mediation.conditions import TASKS, name, ordered
from stages.mediation.settings import OverlapFigures

TABLES = [
    "mediation/neuron_overlap.parquet",
    "mediation/mediating_heuristics.parquet",
    "mediation/mediation_effects.parquet",
]
REFERENCE = "arithmetic_words"  # whose overlap with the others is drawn for every k
QUESTIONS = [REFERENCE, "arithmetic_symbols", *TASKS[1:]]  # then a user's own
GRID_TASKS = ["arithmetic", "number_words"]  # whose questions are those of the grid
COMPONENTS = {"neuron": "neurons", "coordinate": "coordinates"}
MEMBERS = {"label": "labelled", "top": "top of the grid"}
LINES = [BLUE, SKY, GREEN, ORANGE, PINK, VERMILION, WINE, GREY]
LAYERS = 4  # most layers that are drawn
NO_UNITS = "no unit of this model is patched by itself (setting single_units)"
NO_PAIRS = "no pairs of such prompts"
TOO_FEW = "too few units have an effect to rank them"


def draw(subject: str) -> None:
    folder = Path("reports") / subject / "mediation/overlap_figures"
    drawing.write(FIGURES, folder, drawing.tables(subject, TABLES), subject, load(OverlapFigures))


def overlap(tables: Tables, subject: str, settings: OverlapFigures, ranking: str) -> Figure:
    """Heat maps of questions: top units that the first half of one's pairs has in common with the second half of another's."""
    table = (
        tables["neuron_overlap"]
        .filter(ranking=ranking, sample="half")
        .with_columns(row="question", column="other", value="share")
    )
    rows: list[Row] = []
    for component, plural in COMPONENTS.items():
        part = _closest(table.filter(component=component), settings.drawn_share)
        panels = [(f"layer {layer}: {_numbers(rows)}", rows) for layer, rows in _by_layer(part)]
        rows += [(plural, some) for some in in_rows(panels)]
    above = f"{subject}: share of the units of largest {name([ranking])} that halves of two questions' pairs have in common"
    return _maps(rows, above + _layers(table), QUESTIONS, settings.level, _why(tables))


def by_k(tables: Tables, subject: str, _: OverlapFigures, ranking: str) -> Figure:
    """The same share, of word problems with every other question, against the number of units."""
    first, second = pl.col("question") == REFERENCE, pl.col("other") == REFERENCE
    table = tables["neuron_overlap"].filter(first | second, ranking=ranking, sample="half")
    table = table.with_columns(against=pl.when(first).then("other").otherwise("question")).sort(
        "k", "question", "other"
    )
    layers = drawing.evenly(sorted({*table["layer"]}) or [0], LAYERS)
    above = f"{subject}: share of the units of largest {name([ranking])} that word problems have in common with other questions"
    figure, axes = drawing.panels(
        len(COMPONENTS),
        len(layers),
        above + _layers(table),
        (2.6, 1.9),
        sharey=True,
    )
    colours = dict(zip(ordered(table["against"], QUESTIONS), LINES, strict=False))
    for line, (component, plural) in zip(axes, COMPONENTS.items(), strict=True):
        for axis, layer in zip(line, layers, strict=True):
            axis.set_title(f"layer {layer}", fontsize=8)
            axis.set_xlabel(f"number of {plural}")
            _curves(axis, table.filter(component=component, layer=layer), colours, _why(tables))
        line[0].set(ylim=(-0.03, 1.03), ylabel="share of units")
    drawing.legend(figure, 4)
    return figure


def _curves(axis: Axes, table: pl.DataFrame, colours: dict[str, str], why: str) -> None:
    if table.is_empty():
        drawing.absent(axis, why)
        return
    axis.set_xscale("log")
    chance = table.unique("k", keep="first", maintain_order=True)
    drawing.curve(
        axis, chance["k"], chance["chance"], "chance", drawing.GUIDE, linestyle="--", marker=""
    )
    for against, colour in colours.items():
        mean = (
            table.filter(against=against).group_by("k", maintain_order=True).agg(pl.mean("share"))
        )
        drawing.curve(
            axis,
            mean["k"],
            mean["share"],
            "their own halves" if against == REFERENCE else name([against]),
            colour,
        )


def heuristics(tables: Tables, subject: str, settings: OverlapFigures, ranking: str) -> Figure:
    """Heat maps of operators: of the top neurons of an operator's questions, those that the grid names for an operator, above chance."""
    table = _closest(tables["mediating_heuristics"].filter(ranking=ranking), settings.drawn_share)
    table = table.with_columns(
        row="operator", column="grid_operator", value=pl.col("share") - pl.col("chance")
    )
    rows: list[Row] = []
    for question in ordered(table["question"], QUESTIONS):
        panels = [
            (f"layer {layer}: {title}", rows.filter(members=members))
            for layer, rows in _by_layer(table.filter(question=question))
            for members, title in MEMBERS.items()
        ]
        rows += [(name([question]), some) for some in in_rows(panels)]
    above = f"{subject}: neurons of largest {name([ranking])} on an operator's questions that the grid names for one (across), above chance"
    return _maps(
        rows,
        above + _layers(table),
        list(drawing.COLOURS),
        settings.level,
        _why(tables, "mediating_heuristics"),
        (-1, 1),
    )


def _closest(table: pl.DataFrame, share: float) -> pl.DataFrame:
    """The rows of the one k that is closest to this share of the width."""
    off = (pl.col("k") / pl.col("width") - share).abs()
    return table.filter(pl.col("k") == pl.col("k").sort_by(off, "k").first())


def _by_layer(table: pl.DataFrame) -> list[tuple[int, pl.DataFrame]]:
    """Return the rows of each layer that is drawn."""
    layers = drawing.evenly(sorted({*table["layer"]}), LAYERS)
    return [(layer, table.filter(layer=layer)) for layer in layers]


def _layers(table: pl.DataFrame) -> str:
    """Return what a title says of layers that are not drawn."""
    count = table["layer"].n_unique()
    return f"; {LAYERS} of {count} layers" if count > LAYERS else ""


def _why(tables: Tables, table: str = "neuron_overlap") -> str:
    """Return why a table of compared units has no rows."""
    tasks = set(tables["mediation_effects"]["task"])
    if not tasks:
        return NO_PAIRS
    if table == "mediating_heuristics" and not tasks & set(GRID_TASKS):
        return "no pairs of arithmetic questions"
    return NO_UNITS if tables["neuron_overlap"].is_empty() else TOO_FEW


def _numbers(table: pl.DataFrame) -> str:
    k, width, chance = table.select("k", "width", "chance").row(0)
    return f"{k} of {width}, chance {chance:.2f}"


def _maps(
    rows: list[Row],
    title: str,
    known: list[str],
    level: float,
    why: str,
    limits: tuple[float, float] = (0, 1),
) -> Figure:
    """Draw heat maps with one scale, rows and columns in the order of `known`.

    What chance explains is crossed out. why: what to say of one without rows.
    """
    figure, panels = drawing.rows_of_panels(
        rows, f"{title}; crossed out: p > {level:g}", (2.7, 2.2)
    )
    for axis, table in panels:
        downs, acrosses = (
            [name([one]) for one in ordered(table[side], known)] for side in ("row", "column")
        )
        named = table.with_columns(pl.col("row", "column").str.replace_all("_", " "))
        heat.heat_table(axis, named, downs, acrosses, limits)
        p_values = heat.matrix(named.with_columns(value="p_value"), downs, acrosses)
        for y, x in np.argwhere(p_values > level):
            axis.plot(
                [x - 0.45, x + 0.45], [y + 0.45, y - 0.45], color=drawing.GUIDE, linewidth=0.6
            )
        if table.is_empty():
            drawing.absent(axis, why)
    heat.finish(figure)
    return figure


FIGURES: dict[str, Callable[[Tables, str, OverlapFigures], Figure]] = {
    "overlap": partial(overlap, ranking="effect"), "overlap_logit": partial(overlap, ranking="logit_effect"),
    "overlap_by_k": partial(by_k, ranking="effect"), "heuristics": partial(heuristics, ranking="effect"),
}  # fmt: skip
