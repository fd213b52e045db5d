"""Draw which kinds of question share neurons, and whether heuristic neurons mediate word problems.

Questions are compared by halves of their pairs. The diagonal compares the two halves of one
question: it shows how much of a full overlap remains despite noise.
"""

from collections.abc import Callable, Iterator
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
REFERENCE = "arithmetic_words"  # the question whose overlap with the others is drawn for every k
QUESTIONS = [REFERENCE, "arithmetic_symbols", *TASKS[1:]]  # a user's own tasks follow
GRID_TASKS = ["arithmetic", "number_words"]  # tasks whose questions are those of the grid
COMPONENTS = {"neuron": "neurons", "coordinate": "coordinates"}
MEMBERS = {"label": "labelled", "top": "top of the grid"}
LINES = [BLUE, SKY, GREEN, ORANGE, PINK, VERMILION, WINE, GREY]
LAYERS = 4  # largest number of layers that are drawn
NO_UNITS = "single units of this model are not patched (setting single_units)"
NO_PAIRS = "no pairs of such prompts"
NO_ARITHMETIC = "no pairs of arithmetic questions"
TOO_FEW = "too few units have an effect to rank them"


def draw(subject: str) -> None:
    """Draw the figures of one model."""
    folder = Path("reports") / subject / "mediation/overlap_figures"
    tables, settings = drawing.tables(subject, TABLES), load(OverlapFigures)
    drawing.write(FIGURES, folder, tables, subject, settings)


def overlap(tables: Tables, subject: str, settings: OverlapFigures, ranking: str) -> Figure:
    """Draw the share of top units that two questions have in common, as heat maps.

    Rows use the first half of a question's pairs, columns the second half.
    """
    table = tables["neuron_overlap"].filter(ranking=ranking, sample="half")
    table = table.with_columns(row="question", column="other", value="share")
    rows: list[Row] = []
    for component, plural in COMPONENTS.items():
        part = _closest(table.filter(component=component), settings.drawn_share)
        maps = [(_numbers(layer, of_layer), of_layer) for layer, of_layer in _by_layer(part)]
        rows += [(plural, some_maps) for some_maps in in_rows(maps)]
    title = (
        f"{subject}: share of the units of largest {name([ranking])} that halves of two questions' "
        f"pairs have in common{_some_layers(table)}"
    )
    why = _why_no_overlap(tables)
    return _maps(rows, title, QUESTIONS, settings.level, why)


def by_k(tables: Tables, subject: str, _: OverlapFigures, ranking: str) -> Figure:
    """Draw the share of word problems with every other question against the number of units."""
    first, second = pl.col("question") == REFERENCE, pl.col("other") == REFERENCE
    table = tables["neuron_overlap"].filter(first | second, ranking=ranking, sample="half")
    against = pl.when(first).then("other").otherwise("question")
    table = table.with_columns(against=against).sort("k", "question", "other")
    layers = drawing.evenly(sorted({*table["layer"]}) or [0], LAYERS)
    title = (
        f"{subject}: share of the units of largest {name([ranking])} that word problems have in "
        f"common with other questions{_some_layers(table)}"
    )
    size = (len(COMPONENTS), len(layers))
    figure, axes = drawing.panels(*size, title, (2.6, 1.9), sharey=True)
    colours = dict(zip(ordered(table["against"], QUESTIONS), LINES, strict=False))
    for line, (component, plural) in zip(axes, COMPONENTS.items(), strict=True):
        for axis, layer in zip(line, layers, strict=True):
            axis.set_title(f"layer {layer}", fontsize=8)
            axis.set_xlabel(f"number of {plural}")
            part = table.filter(component=component, layer=layer)
            _curves(axis, part, colours, _why_no_overlap(tables))
        line[0].set(ylim=(-0.03, 1.03), ylabel="share of units")
    drawing.legend(figure, 4)
    return figure


def _curves(axis: Axes, table: pl.DataFrame, colours: dict[str, str], why: str) -> None:
    if table.is_empty():
        drawing.absent(axis, why)
        return
    axis.set_xscale("log")
    chance = table.unique("k", keep="first", maintain_order=True)
    ks, shares = chance["k"], chance["chance"]
    drawing.curve(axis, ks, shares, "chance", drawing.GUIDE, linestyle="--", marker="")
    for against, colour in colours.items():
        rows = table.filter(against=against)
        mean = rows.group_by("k", maintain_order=True).agg(pl.mean("share"))
        label = "their own halves" if against == REFERENCE else name([against])
        drawing.curve(axis, mean["k"], mean["share"], label, colour)


def heuristics(tables: Tables, subject: str, settings: OverlapFigures, ranking: str) -> Figure:
    """Draw the share of an operator's top neurons that the grid names, above chance.

    Rows are operators of the question, columns operators for which the grid names neurons.
    """
    table = _closest(tables["mediating_heuristics"].filter(ranking=ranking), settings.drawn_share)
    above_chance = pl.col("share") - pl.col("chance")
    table = table.with_columns(row="operator", column="grid_operator", value=above_chance)
    rows: list[Row] = []
    for question in ordered(table["question"], QUESTIONS):
        maps = []
        for layer, of_layer in _by_layer(table.filter(question=question)):
            for members, title in MEMBERS.items():
                maps.append((f"layer {layer}: {title}", of_layer.filter(members=members)))
        rows += [(name([question]), some_maps) for some_maps in in_rows(maps)]
    title = (
        f"{subject}: share of the neurons of largest {name([ranking])} on an operator's questions "
        f"that the grid names for an operator (across), above chance{_some_layers(table)}"
    )
    why, operators = _why_no_heuristics(tables), list(drawing.COLOURS)
    return _maps(rows, title, operators, settings.level, why, limits=(-1, 1))


def _closest(table: pl.DataFrame, share: float) -> pl.DataFrame:
    """Return the rows of the k that is closest to this share of the layer's units."""
    distance = (pl.col("k") / pl.col("width") - share).abs()
    return table.filter(pl.col("k") == pl.col("k").sort_by(distance, "k").first())


def _by_layer(table: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    """Yield the rows of each layer that is drawn."""
    for layer in drawing.evenly(sorted({*table["layer"]}), LAYERS):
        yield layer, table.filter(layer=layer)


def _some_layers(table: pl.DataFrame) -> str:
    """Return a note for the title if some layers are not drawn."""
    count = table["layer"].n_unique()
    return f"; {LAYERS} of {count} layers" if count > LAYERS else ""


def _why_no_overlap(tables: Tables) -> str:
    """Return why there are no units to compare."""
    if tables["mediation_effects"].is_empty():
        return NO_PAIRS
    return NO_UNITS if tables["neuron_overlap"].is_empty() else TOO_FEW


def _why_no_heuristics(tables: Tables) -> str:
    """Return why there are no neurons to compare with those that the grid names."""
    tasks = set(tables["mediation_effects"]["task"])
    if tasks and not tasks & set(GRID_TASKS):
        return NO_ARITHMETIC
    return _why_no_overlap(tables)


def _numbers(layer: int, table: pl.DataFrame) -> str:
    k, width, chance = table.select("k", "width", "chance").row(0)
    return f"layer {layer}: {k} of {width}, chance {chance:.2f}"


def _maps(
    rows: list[Row],
    title: str,
    known: list[str],
    level: float,
    why: str,
    limits: tuple[float, float] = (0, 1),
) -> Figure:
    """Draw heat maps with one scale, rows and columns in the order of `known`.

    level: shares with a larger p-value are crossed out; why: text of a map without rows
    """
    crossed = f"{title}; crossed out: p > {level:g}"
    figure, panels = drawing.rows_of_panels(rows, crossed, (2.7, 2.2))
    for axis, table in panels:
        down = [name([value]) for value in ordered(table["row"], known)]
        across = [name([value]) for value in ordered(table["column"], known)]
        named = table.with_columns(pl.col("row", "column").str.replace_all("_", " "))
        heat.heat_table(axis, named, down, across, limits)
        p_values = heat.matrix(named.with_columns(value="p_value"), down, across)
        for y, x in np.argwhere(p_values > level):
            ends = [x - 0.45, x + 0.45], [y + 0.45, y - 0.45]
            axis.plot(*ends, color=drawing.GUIDE, linewidth=0.6)
        if table.is_empty():
            drawing.absent(axis, why)
    heat.finish(figure)
    return figure


FIGURES: dict[str, Callable[[Tables, str, OverlapFigures], Figure]] = {
    "overlap": partial(overlap, ranking="effect"),
    "overlap_logit": partial(overlap, ranking="logit_effect"),
    "overlap_by_k": partial(by_k, ranking="effect"),
    "heuristics": partial(heuristics, ranking="effect"),
}
