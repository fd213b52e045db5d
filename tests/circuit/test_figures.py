"""Figures of the circuit show their tables, and say why a panel has no data."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.text import Text

from stages.circuit import figures
from stages.lib.drawing import drawing
from tests import deep_tables
from tests.circuit import figure_tables
from tests.circuit.figure_tables import (
    OPERATORS,
    WHY,
    Tables,
    image,
    line,
    lines_over_size,
    majority_is_drawn,
    panels,
    pictures,
    texts,
    write,
    written_by,
)

FIGURES = figures.FIGURES
DEEP = deep_tables.circuits(np.random.default_rng(0))


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
    written = written_by(
        lambda: figures.main("s"), lambda folder: write(folder, empty), tmp_path, monkeypatch
    )
    assert written == pictures("s/circuit/figures", FIGURES, "component_effects")


@pytest.mark.parametrize("name", FIGURES)
def test_a_panel_without_data_says_why(name: str, tables: Tables, empty: Tables):
    nothing = panels(FIGURES[name](empty, "s"))
    assert nothing
    for axis in nothing:
        assert "no data: " in texts(axis)
        assert WHY in texts(axis)
    without_divide = FIGURES[name](tables, "s")
    assert any(WHY in texts(axis) for axis in without_divide.axes)
    is_shared = name in ("component_stability", "cuts")
    for axis in without_divide.axes:
        if axis.get_title() in OPERATORS and not is_shared:
            assert "no data" not in texts(axis)


def labels(ticks: Iterable[Text]) -> list[str]:
    return [tick.get_text() for tick in ticks]


def test_component_effects_are_logarithms_with_a_sign(tables: Tables):
    labelled, axis, *_ = figures.component_effects(tables, "s").axes
    names = labels(labelled.get_yticklabels())
    assert names == ["L0 head 0", "L0 head 1", "L0 MLP", "L1 head 0", "L1 head 1", "L1 MLP"]
    effects = (
        tables["component_effects"]
        .filter(operator="subtract")
        .sort("layer", "head", nulls_last=True)["effect"]
        .to_numpy()
    )
    assert effects.min() < -1 < 1 < effects.max()
    np.testing.assert_allclose(image(axis).ravel(), np.sign(effects) * np.log(1 + np.abs(effects)))


@pytest.mark.parametrize(
    ("draw", "table", "column"),
    [
        (figures.component_effects_logit, "component_effects", "logit_effect"),
        (figures.attention, "attention_patterns", "weight"),
    ],
)
def test_heat_maps_show_the_table(draw: Any, table: str, column: str, tables: Tables):
    for axis, operator in zip(draw(tables, "s").axes, OPERATORS, strict=False):
        rows = tables[table].filter(operator=operator)
        rows = (
            rows.sort("layer", "head", nulls_last=True, maintain_order=True)
            if "head" in rows.columns
            else rows
        )
        np.testing.assert_array_equal(image(axis).ravel(), rows[column].to_numpy())


def test_probes_are_lines_beside_the_most_frequent_answer(tables: Tables):
    for axis, operator in zip(figures.probes(tables, "s").axes, OPERATORS, strict=False):
        rows = tables["probes"].filter(operator=operator)
        for position in drawing.ROLES:
            drawn = line(axis, position)
            assert list(drawn.get_xdata()) == [0, 1]
            assert list(drawn.get_ydata()) == rows.filter(position=position)["accuracy"].to_list()
        majority_is_drawn(axis, rows["majority_accuracy"])


def test_without_late_layers_the_title_says_so(tables: Tables):
    none = tables["late_layers"].with_columns(first_layer=pl.lit(None, pl.Int16))
    figure = figures.probes(tables | {"late_layers": none}, "s")
    assert "no late layer" in figure.get_suptitle()


def test_an_undefined_effect_stays_grey(tables: Tables):
    hole = tables["component_effects"].with_columns(
        effect=pl.when(pl.col("position") != "op2").then("effect")
    )
    drawn = image(figures.component_effects(tables | {"component_effects": hole}, "s").axes[0])
    assert np.isnan(drawn[:, 2]).all()
    assert np.isfinite(drawn[:, [0, 1, 3]]).all()


def test_circuits_are_lines_over_their_size(tables: Tables):
    lines_over_size(figures.heads(tables, "s"), tables["head_faithfulness"], "heads")


def test_only_targets_that_are_reached_are_written(tables: Tables):
    axis = figures.heads(tables, "s").axes[0]
    assert "0.5" in texts(axis)
    assert "0.9" not in texts(axis)


def test_cuts_are_bars(tables: Tables):
    axes = figures.cuts(tables, "s").axes
    for axis, measure in zip(axes, ["faithfulness", "accuracy"], strict=True):
        heights = [bar.get_height() for bar in axis.patches]
        assert heights == tables["cut_faithfulness"][measure].to_list()


def test_an_operator_without_cuts_says_so(tables: Tables):
    is_cut = pl.col("circuit").str.ends_with("_cut")
    rows = tables["cut_faithfulness"].filter(~is_cut | (pl.col("operator") != "add"))
    figure = figures.cuts(tables | {"cut_faithfulness": rows}, "s")
    names = labels(figure.legends[0].get_texts())
    assert f"add: {figures.NOT_CUT}" in names
    assert "subtract" in names


def test_stability_is_a_dot_per_operator(tables: Tables):
    axis = figures.component_stability(tables, "s").axes[2]
    for measure in figures.MEASURES:
        wanted = tables["component_stability"].filter(component="mlp", measure=measure)[
            "rank_correlation"
        ]
        assert list(line(axis, drawing.RANKING_NAMES[measure]).get_ydata()) == wanted.to_list()
    assert list(line(axis, "chance").get_ydata()) == [0, 0]


@pytest.mark.parametrize(
    ("name", "effect"),
    [("component_effects", "effect"), ("component_effects_logit", "logit_effect")],
)
def test_a_deep_model_has_maps_of_layers_and_heads_and_a_list(name: str, effect: str):
    figure = FIGURES[name](DEEP, "s")
    assert deep_tables.crowded(figure) == []
    axes = np.reshape(panels(figure), (4, 5))
    value = pl.col(effect)
    if effect == "effect":
        value = value.sign() * value.abs().log1p()
    table = DEEP["component_effects"].with_columns(value=value)
    for row, operator in zip(axes, deep_tables.OPERATORS, strict=False):
        for axis, position in zip(row, drawing.ROLES, strict=False):
            assert axis.get_title() == position
            for part, component in zip(axis.images, ["head", "mlp"], strict=True):
                rows = table.filter(operator=operator, position=position, component=component).sort(
                    "layer",
                    "head",
                )
                drawn = np.asarray(part.get_array())
                heads = deep_tables.HEADS if component == "head" else 1
                assert drawn.shape == (deep_tables.LAYERS, heads)
                np.testing.assert_allclose(drawn.ravel(), rows["value"])
        assert_lists(row[-1], table.filter(operator=operator))
    assert deep_tables.WHY in texts(axes[3, 0])


def assert_lists(axis: Any, rows: pl.DataFrame) -> None:
    """Assert that a panel names the largest effects, and shows each as a bar."""
    largest = rows.sort(pl.col("value").abs(), descending=True)[:20]
    assert [bar.get_width() for bar in axis.patches] == pytest.approx(largest["value"].to_list())
    head = pl.format(".H{}", pl.col("head").fill_null(-1))
    unit = pl.when(component="head").then(head).otherwise(pl.lit(" MLP"))
    names = largest.select(pl.format("L{}{} at {}", "layer", unit, "position")).to_series()
    assert labels(axis.get_yticklabels()) == names.to_list()


def test_attention_to_solved_examples_is_one_column_beside_the_first_token_and_the_question():
    figure = figures.attention(DEEP, "s")
    assert deep_tables.crowded(figure) == []
    assert "30 of 420 heads" in figure.get_suptitle().replace("\n", " ")
    columns = ["op1, last but 1", "op1", "operator", "op2, last but 1", "op2", "last"]
    weights = DEEP["attention_patterns"]
    for axis, operator in zip(panels(figure), deep_tables.OPERATORS, strict=False):
        assert labels(axis.get_xticklabels()) == ["first token", "35 earlier tokens", *columns]
        names = labels(axis.get_yticklabels())
        heads = [tuple(map(int, re.findall(r"\d+", name))) for name in names]
        assert len(heads) == 30
        question, earlier = axis.images
        for row, (layer, head) in enumerate(heads):
            rows = weights.filter(operator=operator, layer=layer, head=head)["weight"].to_list()
            assert list(question.get_array()[row, 2:]) == pytest.approx(rows[36:])
            shown = list(earlier.get_array()[row])
            assert shown == pytest.approx([rows[0], sum(rows[1:36])], abs=1e-6)
        kept = DEEP["circuit_heads"].filter(pl.col("rank") <= 30, operator=operator)
        assert set(heads) >= set(kept.select("layer", "head").rows())


def test_a_circuit_of_all_heads_is_explained():
    axes = panels(figures.attention(DEEP, "s"))
    for axis, operator in zip(axes, deep_tables.OPERATORS, strict=False):
        is_whole = deep_tables.CIRCUITS[operator] == deep_tables.LAYERS * deep_tables.HEADS
        assert ("no circuit of up to 64 heads" in axis.get_xlabel()) == is_whole


def test_sizes_of_circuits_of_many_heads_stay_apart():
    figure = figures.heads(DEEP, "s")
    assert deep_tables.crowded(figure) == []
    why = "no circuit of up to 64 heads is\nfaithful enough: all 420 are kept"
    assert why in figure.axes[6].get_xlabel()
    assert figure.axes[4].get_xlabel() == "heads in the circuit"


def test_a_model_that_hides_its_attention_is_why_there_is_none(tables: Tables):
    hidden = tables | {"attention_patterns": tables["attention_patterns"].clear()}
    add, subtract, divide = panels(figures.attention(hidden, "s"))
    assert "does not return its attention weights" in texts(add)
    assert "does not return its attention weights" in texts(subtract)
    assert WHY in texts(divide)


def test_one_draw_of_prompts_is_why_rankings_are_not_compared(tables: Tables):
    pairs_found = tables["pairs_found"].with_columns(seed=pl.lit(0, pl.Int32))
    lonely = tables | {
        "component_stability": tables["component_stability"].clear(),
        "pairs_found": pairs_found,
    }
    assert "there is only one draw of prompts" in texts(
        figures.component_stability(lonely, "s").axes[0],
    )


def test_a_problem_of_a_split_that_has_pairs_is_not_the_reason(tables: Tables):
    pairs_found = tables["pairs_found"].with_columns(
        found=pl.when(pl.col("operator") != "add").then(0).otherwise(47),
        problem=pl.lit("few"),
    )
    assert drawing.operators(pairs_found) == {
        "add": drawing.NO_ROWS,
        "subtract": "few",
        "divide": "few",
    }
