"""Test that figures of neuron overlap show the tables, and say why a panel is empty."""

from itertools import product
from pathlib import Path

import polars as pl
import pytest
import yaml
from matplotlib.axes import Axes

from stages.mediation import overlap_figures
from stages.mediation.settings import OverlapFigures
from tests.circuit import figure_tables
from tests.circuit.figure_tables import Tables, image, line, made, names_along, texts

pytestmark = pytest.mark.usefixtures("close_figures")
WIDTHS = {"neuron": 100, "coordinate": 20}
LAYERS, KS = [1, 2], [2, 10, 50]
QUESTIONS = ["arithmetic_words", "number_words", "factual", "odd"]  # in the order of figures
OPERATORS = ["add", "multiply"]
SETTINGS = OverlapFigures(drawn_share=0.11, level=0.3)  # 10 of 100 neurons, 2 of 20 coordinates
RANKINGS = ("effect", "logit_effect", "size")


def overlaps() -> pl.DataFrame:
    """Return neuron_overlap; the largest k does not fit the coordinates."""
    rows = []
    for (component, width), layer, ranking, k in product(WIDTHS.items(), LAYERS, RANKINGS, KS):
        if k > width:
            continue
        sizes = {"k": k, "width": width, "chance": k / width}
        site = {"component": component, "layer": layer, "ranking": ranking} | sizes
        for question, other in product(QUESTIONS, QUESTIONS):
            row = site | {"question": question, "other": other}
            rows.append(row | {"sample": "half"})
            if question < other:
                rows.append(row | {"sample": "whole"})
    return made("neuron_overlap", rows)


def mediating() -> pl.DataFrame:
    """Return mediating_heuristics."""
    rows = []
    for layer, ranking, k, question in product(LAYERS, ("effect", "size"), KS, QUESTIONS[:2]):
        site = {"layer": layer, "ranking": ranking, "k": k, "width": 100, "question": question}
        for operator, grid, members in product(OPERATORS, OPERATORS, ("direct", "label", "top")):
            sides = {"operator": operator, "grid_operator": grid, "members": members}
            rows.append(site | sides)
    return made("mediating_heuristics", rows)


MADE = {
    "neuron_overlap": overlaps().sample(fraction=1, shuffle=True, seed=0),
    "mediating_heuristics": mediating().sample(fraction=1, shuffle=True, seed=0),
    "mediation_effects": made("mediation_effects", [{"task": "arithmetic"}]),
}
NOTHING = figure_tables.cleared(MADE)


def panels(name: str, given: Tables = MADE) -> list[Axes]:
    return figure_tables.panels(overlap_figures.FIGURES[name](given, "s", SETTINGS))


def crossed(axis: Axes) -> set[tuple[int, int]]:
    """Return row and column of the cells of a heat map that are crossed out."""
    cells = set()
    for drawn in axis.lines:
        x, y = drawn.get_xydata()[0]
        cells.add((round(y - 0.45), round(x + 0.45)))
    return cells


def check(axis: Axes, rows: pl.DataFrame, sides: list[str]) -> None:
    """Assert that a panel shows the value of each row, and crosses those that chance explains."""
    words = [side.replace("_", " ") for side in sides]
    assert names_along(axis.yaxis) == names_along(axis.xaxis) == words
    assert len(rows) == len(sides) ** 2
    for down, across, value, p_value in rows.iter_rows():
        cell = sides.index(down), sides.index(across)
        assert image(axis)[cell] == pytest.approx(value)
        assert (cell in crossed(axis)) == (p_value > 0.3)


def test_every_figure_is_written_even_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def prepare(folder: Path) -> None:
        figure_tables.write(folder, NOTHING)
        settings = {"overlap_figures": SETTINGS.model_dump()}
        (folder / "params.yaml").write_text(yaml.safe_dump(settings))

    written = figure_tables.written_by(
        lambda: overlap_figures.draw("s"), prepare, tmp_path, monkeypatch
    )
    assert written == figure_tables.pictures("s/mediation/overlap_figures", overlap_figures.FIGURES)


@pytest.mark.parametrize("name", overlap_figures.FIGURES)
@pytest.mark.parametrize(
    ("tasks", "why"),
    [([], overlap_figures.NO_PAIRS), (["arithmetic"], overlap_figures.NO_UNITS)],
)
def test_a_figure_without_data_says_why(name: str, tasks: list[str], why: str):
    effects = made("mediation_effects", [{"task": task} for task in tasks])
    axes = panels(name, NOTHING | {"mediation_effects": effects})
    assert axes
    for axis in axes:
        assert f"no data: {why}" in texts(axis)


def test_questions_that_are_not_arithmetic_are_not_compared_with_the_grid():
    effects = made("mediation_effects", [{"task": "factual"}])
    none = NOTHING["mediating_heuristics"]
    given = MADE | {"mediation_effects": effects, "mediating_heuristics": none}
    [axis] = panels("heuristics", given)
    assert "no pairs of arithmetic questions" in texts(axis)


@pytest.mark.parametrize("name", overlap_figures.FIGURES)
def test_of_many_layers_some_are_drawn_and_the_title_says_so(name: str):
    numbers = [pl.lit(n, pl.Int16).alias("layer") for n in range(20)]
    given = dict(MADE)
    for table in ("neuron_overlap", "mediating_heuristics"):
        first = MADE[table].filter(layer=1)
        given[table] = pl.concat(map(first.with_columns, numbers))
    figure = overlap_figures.FIGURES[name](given, "s", SETTINGS)
    assert "4 of 20 layers" in figure.get_suptitle().replace("\n", " ")
    titles = {axis.get_title().split(":")[0] for axis in figure_tables.panels(figure)}
    assert titles == {"layer 0", "layer 6", "layer 13", "layer 19"}


@pytest.mark.parametrize(
    ("name", "ranking"), [("overlap", "effect"), ("overlap_logit", "logit_effect")]
)
def test_overlaps_are_maps_of_questions_at_the_k_closest_to_the_share(name: str, ranking: str):
    sites = product({"neuron": 10, "coordinate": 2}.items(), LAYERS)
    for axis, ((component, k), layer) in zip(panels(name), sites, strict=True):
        assert axis.get_title() == f"layer {layer}: {k} of {WIDTHS[component]}, chance 0.10"
        keys = {"component": component, "layer": layer, "ranking": ranking, "k": k}
        rows = MADE["neuron_overlap"].filter(sample="half", **keys)
        check(axis, rows.select("question", "other", "share", "p_value"), QUESTIONS)


def test_overlaps_with_word_problems_are_lines_over_k():
    first = QUESTIONS[0]
    table = MADE["neuron_overlap"].filter(ranking="effect", sample="half")
    sites = product(WIDTHS, LAYERS)
    for axis, (component, layer) in zip(panels("overlap_by_k"), sites, strict=True):
        rows = table.filter(component=component, layer=layer)
        chance = rows.unique("k").sort("k")
        assert list(line(axis, "chance").get_xdata()) == chance["k"].to_list()
        assert list(line(axis, "chance").get_ydata()) == chance["chance"].to_list()
        for other in QUESTIONS:
            pairs = pl.col("question").is_in([first, other]) & pl.col("other").is_in([first, other])
            if other != first:
                pairs &= pl.col("question") != pl.col("other")
            mean = rows.filter(pairs).group_by("k").agg(pl.mean("share")).sort("k")
            label = "their own halves" if other == first else other.replace("_", " ")
            assert list(line(axis, label).get_ydata()) == pytest.approx(mean["share"].to_list())


def test_mediating_neurons_are_maps_of_operators():
    above_chance = pl.col("share") - pl.col("chance")
    order = product(QUESTIONS[:2], LAYERS, overlap_figures.MEMBERS.items())
    for axis, (question, layer, (members, title)) in zip(panels("heuristics"), order, strict=True):
        assert axis.get_title() == f"layer {layer}: {title}"
        keys = {"question": question, "layer": layer, "members": members, "k": 10}
        rows = MADE["mediating_heuristics"].filter(ranking="effect", **keys)
        check(axis, rows.select("operator", "grid_operator", above_chance, "p_value"), OPERATORS)
