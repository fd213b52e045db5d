"""Figures show what is in the tables, say why where nothing is, and come out the same twice."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest

from stages.circuit import figures
from stages.lib.drawing import drawing
from stages.neurons import figures
from tests.circuit import figure_tables
from tests.circuit.figure_tables import KS, NEURONS, OPERATORS, WHY, Tables, image, line, panels, pictures, texts, write, written_twice

FIGURES = {
    circuit_figures: figures.FIGURES | {"component_effects": figures.component_effects},
    neuron_figures: figures.FIGURES,
}


pytestmark = pytest.mark.usefixtures("close_figures")


@pytest.fixture(scope="module")
def tables() -> Tables:
    return figure_tables.tables()


@pytest.fixture(scope="module")
def empty(tables: Tables) -> Tables:
    return figure_tables.unanswered(tables)


@pytest.mark.parametrize("stage", FIGURES)
@pytest.mark.parametrize("kind", ["tables", "empty"])
def test_every_figure_is_written_the_same_bytes_twice(
    stage: ModuleType, kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tables = request.getfixturevalue(kind)
    written = written_twice(lambda: stage.main("s"), lambda folder: write(folder, tables), tmp_path, monkeypatch)
    folder = "s/" + stage.__name__.removeprefix("stages.")
    assert written == pictures(folder, stage.FIGURES) | pictures("s", FIGURES[stage].keys() - stage.FIGURES)


@pytest.mark.parametrize(("stage", "name"), [(stage, name) for stage in FIGURES for name in FIGURES[stage]])
def test_a_panel_without_data_says_why(stage: ModuleType, name: str, tables: Tables, empty: Tables):
    nothing = panels(FIGURES[stage][name](empty, "s"))
    assert nothing
    assert all("no data: " in texts(axis) for axis in nothing)
    if name not in ("operator_overlaps", "top_k"):
        assert all(WHY in texts(axis) for axis in nothing)
    without_divide = FIGURES[stage][name](tables, "s")
    said = [axis for axis in without_divide.axes if WHY in texts(axis)]
    assert bool(said) == (name != "operator_overlaps")
    shared = name in ("component_stability", "cuts")
    assert shared or not any("no data" in texts(axis) for axis in without_divide.axes if axis.get_title() in OPERATORS)


def test_component_effects_are_logarithms_with_a_sign(tables: Tables):
    labelled, axis, *_ = figures.component_effects(tables, "s").axes
    names = [label.get_text() for label in labelled.get_yticklabels()]
    assert names == ["L0 head 0", "L0 head 1", "L0 MLP", "L1 head 0", "L1 head 1", "L1 MLP"]
    effects = tables["component_effects"].filter(operator="subtract").sort("layer", "head", nulls_last=True)["effect"].to_numpy()
    assert effects.min() < -1 < 1 < effects.max()
    np.testing.assert_allclose(image(axis).ravel(), np.sign(effects) * np.log(1 + np.abs(effects)))


@pytest.mark.parametrize(
    ("draw", "table", "column"),
    [
        (figures.component_effects_logit, "component_effects", "logit_effect"),
        (figures.probes, "probes", "accuracy"),
        (figures.attention, "attention_patterns", "weight"),
    ],
)
def test_heat_maps_show_the_table(draw: Any, table: str, column: str, tables: Tables):
    for axis, operator in zip(draw(tables, "s").axes, OPERATORS, strict=False):
        rows = tables[table].filter(operator=operator)
        rows = rows.sort("layer", "head", nulls_last=True, maintain_order=True) if "head" in rows.columns else rows
        np.testing.assert_array_equal(image(axis).ravel(), rows[column].to_numpy())


def test_an_undefined_effect_stays_grey(tables: Tables):
    hole = tables["component_effects"].with_columns(effect=pl.when(pl.col("position") != "op2").then("effect"))
    drawn = image(figures.component_effects(tables | {"component_effects": hole}, "s").axes[0])
    assert np.isnan(drawn[:, 2]).all()
    assert np.isfinite(drawn[:, [0, 1, 3]]).all()


@pytest.mark.parametrize(
    ("draw", "table", "prefix", "x"),
    [
        (figures.heads, "head_faithfulness", "", "heads"),
        (figures.top_k, "faithfulness", "", "neurons_per_layer"),
        (figures.first_mlp_top_k, "faithfulness", "first_mlp_", "neurons_per_layer"),
    ],
)
def test_circuits_are_lines_over_their_size(draw: Any, table: str, prefix: str, x: str, tables: Tables):
    figure = draw(tables, "s")
    axes = np.reshape(figure.axes, (2, 3))
    for column, operator in enumerate(OPERATORS):
        for axis, measure in zip(axes[:, column], ["faithfulness", "accuracy"], strict=True):
            for ranking in ("effect", "logit_effect", "random"):
                rows = tables[table].filter(operator=operator, circuit=prefix + ranking)
                mean = rows.group_by(x).agg(pl.mean(measure)).sort(x)
                drawn = line(axis, ranking)
                np.testing.assert_array_equal(drawn.get_xdata(), mean[x])
                np.testing.assert_allclose(drawn.get_ydata(), mean[measure])


def test_bands_are_intervals_and_ranges_over_seeds(tables: Tables):
    axis = figures.heads(tables, "s").axes[0]
    rows = tables["head_faithfulness"].filter(operator="add")
    bands = {tuple(band.get_facecolor()[0][:3]): band.get_paths()[0].vertices for band in axis.collections}
    assert len(bands) == 3
    random = rows.filter(circuit="random").group_by("heads").agg(low=pl.min("faithfulness"), high=pl.max("faithfulness")).sort("heads")
    chosen = rows.filter(circuit="effect").select("heads", low="ci_low", high="ci_high")
    for ranking, wanted in [("random", random), ("effect", chosen)]:
        colour = tuple(int(drawing.RANKINGS[ranking][i : i + 2], 16) / 255 for i in (1, 3, 5))
        corners = {(x, y) for x, y in bands[colour].tolist()}
        assert {(float(n), value) for n, *edges in wanted.rows() for value in edges} <= corners


def test_smallest_circuits_are_ringed(tables: Tables):
    axis = figures.heads(tables, "s").axes[0]
    [small] = tables["smallest_circuits"].filter(operator="add", target=0.5)["faithfulness"]
    rings = [line for line in axis.lines if line.get_markerfacecolor() == "none"]
    assert [(list(r.get_xdata()), list(r.get_ydata())) for r in rings] == [([1], [small])]
    assert "0.5" in texts(axis)
    assert "0.9" not in texts(axis)


def test_cuts_are_bars(tables: Tables):
    for axis, measure in zip(figures.cuts(tables, "s").axes, ["faithfulness", "accuracy"], strict=True):
        heights = [bar.get_height() for bar in axis.patches]
        assert heights == tables["faithfulness"].filter(experiment="cut")[measure].to_list()


def test_stability_is_a_dot_per_operator(tables: Tables):
    axis = figures.component_stability(tables, "s").axes[2]
    for measure in figures.MEASURES:
        wanted = tables["component_stability"].filter(component="mlp", measure=measure)["rank_correlation"]
        assert list(line(axis, measure).get_ydata()) == wanted.to_list()
    assert list(line(axis, "chance").get_ydata()) == [0, 0]


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


def test_token_activations_are_of_the_largest_neurons_once_each(tables: Tables):
    axes = np.reshape(figures.token_activations(tables, "s").axes, (3, figures.SHOWN))
    assert [axis.get_title() for axis in axes[:2].flat] == [f"neuron {n}" for n in range(6)]
    for neuron, axis in enumerate(axes[:2].flat):
        assert list(axis.lines[0].get_ydata()) == tables["token_activations"].filter(neuron=neuron)["activation"].to_list()
