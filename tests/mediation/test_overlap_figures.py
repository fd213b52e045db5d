"""Figures of neuron overlap show what is in the tables, in the right panels, and say so where nothing is."""

from itertools import product
from pathlib import Path

import polars as pl
import pytest
import yaml
from matplotlib.axes import Axes

from stages.mediation import overlap_figures
from stages.mediation.settings import OverlapFigures
from tests.circuit import figure_tables
from tests.circuit.figure_tables import (
    Tables,
    cleared,
    image,
    line,
    made,
    pictures,
    texts,
    write,
    written_by,
)

WIDTHS = {"neuron": 100, "coordinate": 20}
LAYERS, KS = [1, 2], [2, 10, 50]
QUESTIONS = ["arithmetic_words", "number_words", "factual", "odd"]  # as they are drawn
OPERATORS = ["add", "multiply"]
SETTINGS = OverlapFigures(drawn_share=0.11, level=0.3)  # 10 of 100 neurons, 2 of 20 coordinates


def tables() -> Tables:
    """In no order; one k does not fit into the coordinates."""
    sides = [("half", q, r) for q, r in product(QUESTIONS, QUESTIONS)] + [
        ("whole", q, r) for q, r in product(QUESTIONS, QUESTIONS) if q < r
    ]
    overlaps = [
        {"component": c, "layer": layer, "ranking": ranking, "k": k, "width": w, "sample": s, "question": q, "other": r, "chance": k / w}
        for (c, w), layer, ranking, k in product(WIDTHS.items(), LAYERS, ("effect", "logit_effect", "size"), KS) if k <= w for s, q, r in sides
    ]  # fmt: skip
    compared = [
        {"layer": layer, "ranking": ranking, "k": k, "width": 100, "question": q, "operator": o, "grid_operator": g, "members": m}
        for layer, ranking, k in product(LAYERS, ("effect", "size"), KS) for q in QUESTIONS[:2]
        for o, g, m in product(OPERATORS, OPERATORS, ("direct", "label", "top"))
    ]  # fmt: skip
    both = {
        "neuron_overlap": made("neuron_overlap", overlaps),
        "mediating_heuristics": made("mediating_heuristics", compared),
        "mediation_effects": made("mediation_effects", [{"task": "arithmetic"}]),
    }
    return {name: table.sample(fraction=1, shuffle=True, seed=0) for name, table in both.items()}


MADE = tables()
NOTHING = cleared(MADE)


pytestmark = pytest.mark.usefixtures("close_figures")


def panels(name: str, given: Tables = MADE) -> list[Axes]:
    return figure_tables.panels(overlap_figures.FIGURES[name](given, "s", SETTINGS))


def crossed(axis: Axes) -> set[tuple[int, int]]:
    """Rows and columns of a heat map's cells that are crossed out."""
    return {
        (round(line.get_ydata()[0] - 0.45), round(line.get_xdata()[0] + 0.45))
        for line in axis.lines
    }  # type: ignore[index]


def check(axis: Axes, rows: pl.DataFrame, downs: list[str], acrosses: list[str]) -> None:
    """Whether a panel shows the value of each row, and crosses those out that chance explains."""
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        one.replace("_", " ") for one in downs
    ]
    assert [label.get_text() for label in axis.get_xticklabels()] == [
        one.replace("_", " ") for one in acrosses
    ]
    assert len(rows) == len(downs) * len(acrosses)
    for down, across, value, p_value in rows.iter_rows():
        at = downs.index(down), acrosses.index(across)
        assert image(axis)[at] == pytest.approx(value)
        assert (at in crossed(axis)) == (p_value > 0.3)


def test_every_figure_is_written_even_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def prepare(folder: Path) -> None:
        write(folder, NOTHING)
        (folder / "params.yaml").write_text(
            yaml.safe_dump({"overlap_figures": SETTINGS.model_dump()})
        )

    written = written_by(lambda: overlap_figures.draw("s"), prepare, tmp_path, monkeypatch)
    assert written == pictures("s/mediation/overlap_figures", overlap_figures.FIGURES)


@pytest.mark.parametrize("name", overlap_figures.FIGURES)
@pytest.mark.parametrize(
    ("tasks", "why"),
    [([], overlap_figures.NO_PAIRS), (["arithmetic"], overlap_figures.NO_UNITS)],
)
def test_a_figure_without_data_says_why(name: str, tasks: list[str], why: str):
    effects = made("mediation_effects", [{"task": task} for task in tasks])
    assert all(
        f"no data: {why}" in texts(axis)
        for axis in panels(
            name,
            NOTHING | {"mediation_effects": effects},
        )
    )


def test_questions_that_are_not_arithmetic_are_not_compared_with_the_grid():
    effects = made("mediation_effects", [{"task": "factual"}])
    given = MADE | {
        "mediation_effects": effects,
        "mediating_heuristics": NOTHING["mediating_heuristics"],
    }
    assert all(
        "no pairs of arithmetic questions" in texts(axis)
        for axis in panels(
            "heuristics",
            given,
        )
    )


@pytest.mark.parametrize("name", overlap_figures.FIGURES)
def test_some_of_many_layers_are_drawn_and_the_title_says_so(name: str):
    names = ("neuron_overlap", "mediating_heuristics")
    layer = {name: MADE[name].filter(layer=1) for name in names}
    numbers = [pl.lit(n, pl.Int16).alias("layer") for n in range(20)]
    many = {name: pl.concat(map(table.with_columns, numbers)) for name, table in layer.items()}
    figure = overlap_figures.FIGURES[name](MADE | many, "s", SETTINGS)
    assert "4 of 20 layers" in figure.get_suptitle().replace("\n", " ")
    titles = {axis.get_title().split(":")[0] for axis in figure_tables.panels(figure)}
    assert titles == {"layer 0", "layer 6", "layer 13", "layer 19"}


@pytest.mark.parametrize(
    ("name", "ranking"), [("overlap", "effect"), ("overlap_logit", "logit_effect")]
)
def test_overlaps_are_maps_of_questions_at_the_k_closest_to_the_share(name: str, ranking: str):
    axes = panels(name)
    assert [axis.get_title() for axis in axes] == [
        f"layer {n}: {of}, chance 0.10" for of in ("10 of 100", "2 of 20") for n in LAYERS
    ]
    for axis, (component, layer) in zip(axes, product(WIDTHS, LAYERS), strict=True):
        k = {"neuron": 10, "coordinate": 2}[component]
        rows = MADE["neuron_overlap"].filter(
            component=component, layer=layer, ranking=ranking, k=k, sample="half"
        )
        check(axis, rows.select("question", "other", "share", "p_value"), QUESTIONS, QUESTIONS)


def test_overlaps_with_word_problems_are_lines_over_k():
    axes = panels("overlap_by_k")
    for axis, (component, layer) in zip(axes, product(WIDTHS, LAYERS), strict=True):
        rows = MADE["neuron_overlap"].filter(
            component=component, layer=layer, ranking="effect", sample="half"
        )
        ks = [k for k in KS if k <= WIDTHS[component]]
        assert list(line(axis, "chance").get_ydata()) == [k / WIDTHS[component] for k in ks]
        for other in QUESTIONS:
            both = [
                rows.filter(k=k, question=q, other=r)["share"].item()
                for k in ks
                for q, r in ((QUESTIONS[0], other), (other, QUESTIONS[0]))
            ]
            drawn = line(
                axis, other.replace("_", " ") if other != QUESTIONS[0] else "their own halves"
            )
            assert list(drawn.get_xdata()) == ks
            assert list(drawn.get_ydata()) == pytest.approx(
                [(one + two) / 2 for one, two in zip(both[::2], both[1::2], strict=True)]
            )


def test_mediators_are_maps_of_operators():
    axes = panels("heuristics")
    order = [
        (question, layer, members)
        for question in QUESTIONS[:2]
        for layer in LAYERS
        for members in overlap_figures.MEMBERS
    ]
    for axis, (question, layer, members) in zip(axes, order, strict=True):
        assert axis.get_title() == f"layer {layer}: {overlap_figures.MEMBERS[members]}"
        rows = MADE["mediating_heuristics"].filter(
            question=question, layer=layer, members=members, ranking="effect", k=10
        )
        check(
            axis,
            rows.select("operator", "grid_operator", pl.col("share") - pl.col("chance"), "p_value"),
            OPERATORS,
            OPERATORS,
        )
    assert [axis.get_ylabel() for axis in axes[::4]] == ["arithmetic words", "number words"]
