"""Figures of neurons show what is in the tables and say why where nothing is."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from stages.lib.drawing import drawing
from stages.neurons import figures
from stages.neurons.figures import FIGURES
from tests.circuit import figure_tables
from tests.circuit.figure_tables import KS, NEURONS, OPERATORS, WHY, Tables, image, line, lines_over_size, panels, pictures, texts, write

pytestmark = pytest.mark.usefixtures("close_figures")


@pytest.fixture(scope="module")
def tables() -> Tables:
    return figure_tables.tables()


@pytest.fixture(scope="module")
def empty(tables: Tables) -> Tables:
    return figure_tables.unanswered(tables)


def test_every_figure_is_written_even_without_data(empty: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written = figure_tables.written_by(lambda: figures.main("s"), lambda folder: write(folder, empty), tmp_path, monkeypatch)
    assert written == pictures("s/neurons/figures", FIGURES, "top_k")


@pytest.mark.parametrize("name", FIGURES)
def test_a_panel_without_data_says_why(name: str, tables: Tables, empty: Tables):
    nothing = panels(FIGURES[name](empty, "s"))
    assert nothing
    assert all("no data: " in texts(axis) for axis in nothing)
    if name not in ("operator_overlaps", "top_k"):
        assert all(WHY in texts(axis) for axis in nothing)
    without_divide = FIGURES[name](tables, "s")
    said = [axis for axis in without_divide.axes if WHY in texts(axis)]
    assert bool(said) == (name != "operator_overlaps")
    assert not any("no data" in texts(axis) for axis in without_divide.axes if axis.get_title() in OPERATORS)


@pytest.mark.parametrize(("draw", "prefix"), [(figures.top_k, ""), (figures.first_mlp_top_k, "first_mlp_")])
def test_circuits_are_lines_over_their_size(draw: Any, prefix: str, tables: Tables):
    lines_over_size(draw(tables, "s"), tables["faithfulness"], "neurons_per_layer", prefix)


def test_neuron_effects_fall_with_their_rank(tables: Tables):
    signed = tables["neuron_effects"].with_columns(effect=pl.col("effect") - 0.5)
    axis = figures.neuron_effects(tables | {"neuron_effects": signed}, "s").axes[1]
    wanted = signed.filter(pl.col("effect") > 0, operator="subtract", position="last")["effect"].sort(descending=True)
    drawn = line(axis, "L1 last")
    assert 0 < len(wanted) < NEURONS
    assert list(drawn.get_ydata()) == wanted.to_list()
    assert list(drawn.get_xdata()) == list(range(1, len(wanted) + 1))


def test_attribution_shows_recall_chance_and_correlation(tables: Tables):
    axes = figures.attribution(tables, "s").axes
    rows = tables["attribution_agreement"].filter(operator="add")
    wanted = rows.filter(against="logit_effect", position="op2")
    assert list(line(axes[0], "L0 op2").get_ydata()) == wanted["recall"].to_list()
    np.testing.assert_allclose(line(axes[0], "chance").get_ydata(), rows.group_by("k").agg(pl.mean("chance")).sort("k")["chance"])
    dots = {float(line.get_ydata()[0]) for line in axes[3].lines if line.get_marker() == "o"}
    assert dots == set(rows.filter(k=KS[0])["rank_correlation"])


def test_rankings_show_what_is_shared(tables: Tables):
    axes = np.reshape(figures.rankings(tables, "s").axes, (3, 3))
    wanted = tables["ranking_agreement"].filter(operator="subtract", ranking_a="effect", ranking_b="logit_effect", position="op1")
    assert list(line(axes[1, 1], "L0 op1").get_ydata()) == wanted["shared"].to_list()


def test_overlaps_are_above_the_diagonal_by_effect(tables: Tables):
    axes = np.reshape(figures.operator_overlaps(tables, "s").axes[:-1], (4, len(KS)))
    table = tables["operator_overlaps"]
    for row, chosen in enumerate([pl.col("layer").is_null(), *(pl.col("position") == p for p in drawing.ROLES[:3])]):
        for axis, k in zip(axes[row], KS, strict=True):
            part = table.filter(chosen, k=k)
            drawn = image(axis)
            assert (drawn[0, 1], drawn[1, 0]) == tuple(part.sort("ranking")["iou"])
            assert np.isnan(drawn[[0, 1, 2, 2], [0, 1, 0, 1]]).all()
            assert f"{part['chance'][0]:.2f}" in axis.get_title()


def test_too_few_patched_neurons_are_why_nothing_overlaps(tables: Tables):
    few = tables | {"operator_overlaps": tables["operator_overlaps"].clear()}
    axes = figures.operator_overlaps(few, "s").axes
    why = "fewer neurons a layer were patched, random ones aside, than the smallest k"
    assert why in texts(axes[0])


def test_token_activations_are_of_the_largest_neurons_once_each(tables: Tables):
    axes = np.reshape(figures.token_activations(tables, "s").axes, (3, figures.SHOWN))
    assert [axis.get_title() for axis in axes[:2].flat] == [f"neuron {n}" for n in range(6)]
    for neuron, axis in enumerate(axes[:2].flat):
        assert list(axis.lines[0].get_ydata()) == tables["token_activations"].filter(neuron=neuron)["activation"].to_list()
