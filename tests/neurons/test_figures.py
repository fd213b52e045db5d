"""Figures of neurons show what is in the tables and say why where nothing is."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from stages.neurons import figures
from stages.neurons.figures import FIGURES
from tests import deep_tables
from tests.circuit import figure_tables
from tests.circuit.figure_tables import (
    KS,
    NEURONS,
    OPERATORS,
    SITES,
    WHY,
    Tables,
    cleared,
    image,
    line,
    lines_over_size,
    panels,
    pictures,
    texts,
    write,
)
from tests.made import only

DEEP = deep_tables.circuits(
    np.random.default_rng(0),
) | deep_tables.neurons(np.random.default_rng(1))
SITE_NAMES = [f"L{layer} {position}" for layer, position in deep_tables.SITES]
pytestmark = pytest.mark.usefixtures("close_figures")


@pytest.fixture(scope="module")
def tables() -> Tables:
    return figure_tables.tables()


@pytest.fixture(scope="module")
def empty(tables: Tables) -> Tables:
    return figure_tables.unanswered(tables)


def test_every_figure_is_written_even_without_data(
    empty: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    written = figure_tables.written_by(
        lambda: figures.main("s"), lambda folder: write(folder, empty), tmp_path, monkeypatch
    )
    assert written == pictures("s/neurons/figures", FIGURES, "top_k")


@pytest.mark.parametrize("name", FIGURES)
def test_a_panel_without_data_says_why(name: str, tables: Tables, empty: Tables):
    nothing = panels(FIGURES[name](empty, "s"))
    assert nothing
    for axis in nothing:
        assert "no data: " in texts(axis)
        # the first reason of two figures is that no layer is late
        assert WHY in texts(axis) or name in ("operator_overlaps", "top_k")
    explained = []
    for axis in FIGURES[name](tables, "s").axes:
        explained.append(WHY in texts(axis))
        assert "no data" not in texts(axis) or axis.get_title() not in OPERATORS
    assert any(explained) == (name != "operator_overlaps")


@pytest.mark.parametrize(
    ("draw", "prefix"), [(figures.top_k, ""), (figures.first_mlp_top_k, "first_mlp_")]
)
def test_circuits_are_lines_over_their_size(draw: Any, prefix: str, tables: Tables):
    lines_over_size(draw(tables, "s"), tables["faithfulness"], "neurons_per_layer", prefix)


def test_neuron_effects_fall_with_their_rank(tables: Tables):
    signed = tables["neuron_effects"].with_columns(effect=pl.col("effect") - 0.5)
    axis = figures.neuron_effects(tables | {"neuron_effects": signed}, "s").axes[1]
    wanted = signed.filter(pl.col("effect") > 0, operator="subtract", position="last")[
        "effect"
    ].sort(descending=True)
    drawn = line(axis, "L1 last")
    assert 0 < len(wanted) < NEURONS
    assert list(drawn.get_ydata()) == wanted.to_list()
    assert list(drawn.get_xdata()) == list(range(1, len(wanted) + 1))


def test_attribution_shows_recall_chance_and_correlation(tables: Tables):
    axes = figures.attribution(tables, "s").axes
    rows = tables["attribution_agreement"].filter(operator="add")
    wanted = rows.filter(against="logit_effect", position="op2")
    assert list(line(axes[0], "L0 op2").get_ydata()) == wanted["recall"].to_list()
    np.testing.assert_allclose(
        line(axes[0], "chance").get_ydata(),
        rows.group_by("k").agg(pl.mean("chance")).sort("k")["chance"],
    )
    dots = {float(line.get_ydata()[0]) for line in axes[3].lines if line.get_marker() == "o"}
    assert dots == set(rows.filter(k=KS[0])["rank_correlation"])


def test_rankings_show_what_is_shared(tables: Tables):
    axes = np.reshape(figures.rankings(tables, "s").axes, (3, 3))
    wanted = tables["ranking_agreement"].filter(
        operator="subtract", ranking_a="effect", ranking_b="logit_effect", position="op1"
    )
    assert list(line(axes[1, 1], "L0 op1").get_ydata()) == wanted["shared"].to_list()


def test_overlaps_are_above_the_diagonal_by_effect(tables: Tables):
    axes = np.reshape(figures.operator_overlaps(tables, "s").axes[:-1], (4, len(KS)))
    table = tables["operator_overlaps"]
    # all late layers, then the sites of the first
    sites = [{"layer": None, "position": "last"}, *SITES[:3]]
    for row, site in zip(axes, sites, strict=True):
        own = table.filter(pl.col("layer").eq_missing(site["layer"]), position=site["position"])
        for axis, k in zip(row, KS, strict=True):
            part = own.filter(k=k)
            drawn = image(axis)
            assert (drawn[0, 1], drawn[1, 0]) == tuple(part.sort("ranking")["iou"])
            assert np.isnan(drawn[[0, 1, 2, 2], [0, 1, 0, 1]]).all()
            assert f"{part['chance'][0]:.2f}" in axis.get_title()


def test_too_few_patched_neurons_are_why_nothing_overlaps(tables: Tables):
    few = tables | {"operator_overlaps": tables["operator_overlaps"].clear()}
    axes = figures.operator_overlaps(few, "s").axes
    why = f"{NEURONS} neurons a layer were patched: too few for the smallest k"
    assert why in texts(axes[0])


def test_token_activations_are_of_the_largest_neurons_once_each(tables: Tables):
    axes = np.reshape(figures.token_activations(tables, "s").axes, (3, figures.SHOWN))
    assert axes[:2].size == 6
    for neuron, axis in enumerate(axes[:2].flat):
        assert axis.get_title() == f"neuron {neuron}"
        activations = tables["token_activations"].filter(neuron=neuron)["activation"]
        assert list(axis.lines[0].get_ydata()) == activations.to_list()


@pytest.mark.parametrize("name", ["attribution", "rankings"])
def test_too_few_patched_neurons_are_why_nothing_is_ranked(name: str, tables: Tables):
    few = tables | cleared(only(tables, "attribution_agreement", "ranking_agreement"))
    add, *_, divide = panels(FIGURES[name](few, "s"))
    assert f"{NEURONS} neurons a layer were patched: too few for the smallest k" in texts(add)
    assert WHY in texts(divide)


def test_effects_below_0_are_why_there_is_no_curve(tables: Tables):
    below = tables["neuron_effects"].with_columns(pl.col("effect", "logit_effect") - 1)
    add, *_ = figures.neuron_effects(tables | {"neuron_effects": below}, "s").axes
    assert "no neuron has an effect above 0" in texts(add)


def test_without_a_late_layer_the_probes_say_why(tables: Tables):
    late = tables["late_layers"].with_columns(first_layer=pl.lit(None, pl.Int16))
    none = tables | {"late_layers": late, "faithfulness": tables["faithfulness"].clear()}
    unread = tables["probes"].with_columns(accuracy=pl.lit(None, pl.Float64))
    controls = pl.lit(0.1).alias("shuffled_accuracy"), pl.lit(0.0).alias("majority_accuracy")
    weak = tables["probes"].with_columns(*controls, accuracy=pl.lit(0.4))
    fading = pl.when(pl.col("layer") == 0).then(0.9).otherwise(0.1)
    for probes, why in (
        (unread, "too few prompts are answered correctly for a probe"),
        (weak, "the best probe has accuracy 0.40, at least 0.55 is needed (baseline 0.10)"),
        (weak.with_columns(accuracy=fading), "after the last layer, probes reach 0.00 of"),
    ):
        axis = figures.top_k(none | {"probes": probes}, "s").axes[0]
        assert f"no layer is late: {why}" in texts(axis)


def maps(name: str) -> tuple[list[Any], list[str]]:
    """The panels of a figure of the deep model by row and operator, and the names of their rows."""
    figure = FIGURES[name](DEEP, "s")
    assert deep_tables.crowded(figure) == []
    axes = panels(figure)
    assert deep_tables.WHY in texts(axes[3])
    return axes, [label.get_text() for label in axes[0].get_yticklabels()]


def values(rows: pl.DataFrame, value: str, columns: str) -> np.ndarray:
    """A table as (sites, columns), NaN where it has no row."""
    index = ["layer", "position"]
    wide = rows.pivot(on=columns, index=index, values=value)
    schema = {"layer": pl.Int16, "position": pl.String}
    sites = pl.DataFrame(deep_tables.SITES, schema=schema, orient="row")
    in_order = sites.join(wide, on=index, maintain_order="left")
    assert len(in_order) == len(wide)
    return in_order.select(sorted(in_order.columns[2:], key=int)).to_numpy()


def test_effects_of_many_layers_are_maps_of_sites_and_ranks():
    axes, names = maps("neuron_effects")
    assert names == SITE_NAMES[::2]
    ranks = [1, 2, 5, 10, 20, 50, 100, 200]
    for place, (measure, rank) in enumerate([("effect", "rank"), ("logit_effect", "rank_logit")]):
        for axis, operator in zip(axes[4 * place :], deep_tables.OPERATORS, strict=False):
            rows = DEEP["neuron_effects"].filter(pl.col(rank).is_in(ranks), operator=operator)
            expected = values(
                rows.with_columns(pl.when(pl.col(measure) > 0).then(measure)),
                measure,
                rank,
            )
            assert np.isnan(expected).any()
            np.testing.assert_allclose(image(axis), expected)


def test_rankings_of_many_layers_are_maps_of_sites_and_k():
    axes, names = maps("rankings")
    assert names == ["chance", *SITE_NAMES][::2]
    for place, (a, b) in enumerate(deep_tables.RANKED):
        for axis, operator in zip(axes[4 * place :], deep_tables.OPERATORS, strict=False):
            rows = DEEP["ranking_agreement"].filter(operator=operator, ranking_a=a, ranking_b=b)
            np.testing.assert_allclose(image(axis)[1:], values(rows, "shared", "k"))
            chance = np.array(deep_tables.KS) / deep_tables.NEURONS
            np.testing.assert_allclose(image(axis)[0], chance)


def test_attribution_in_many_layers_is_a_map_with_its_correlation():
    axes, names = maps("attribution")
    assert names[0] == "chance"
    for place, against in enumerate(["logit_effect", "effect"]):
        for axis, operator in zip(axes[4 * place :], deep_tables.OPERATORS, strict=False):
            rows = DEEP["attribution_agreement"].filter(operator=operator, against=against)
            np.testing.assert_allclose(image(axis)[1:, :-1], values(rows, "recall", "k"))
            once = rows.filter(k=deep_tables.KS[0])
            np.testing.assert_allclose(image(axis)[1:, [-1]], values(once, "rank_correlation", "k"))
