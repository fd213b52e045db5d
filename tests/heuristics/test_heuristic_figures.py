"""Figures about heuristics show what is in tables and stores, outline the right cells, and say so where nothing is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from stages.heuristics import calibration_figure, figures
from stages.heuristics.figures import LOWEST, Study
from stages.lib.drawing import drawing, maps
from tests.circuit.figure_tables import cleared, image, line, made, pictures, texts, written_by
from tests.heuristics import heuristic_figure_tables as tables
from tests.heuristics.heuristic_figure_tables import OP1, OP2, SIDE, THRESHOLD, value_logits

MADE, CHOSEN = tables.tables(), tables.calibration()
NAMES = {*figures.FIGURES, "matched_neurons_add", "matched_neurons_subtract"}


pytestmark = pytest.mark.usefixtures("close_figures")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    tables.write(tmp_path, MADE, CHOSEN)
    monkeypatch.chdir(tmp_path)
    return figures.read("s")


def nothing(study: Study) -> Study:
    return replace(study, tables=cleared(MADE), threshold=None)


def test_every_figure_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def both() -> None:
        figures.main("s")
        calibration_figure.main()

    written = written_by(
        both, lambda folder: tables.write(folder, MADE, CHOSEN), tmp_path, monkeypatch
    )
    assert written == pictures("s/heuristics/figures", NAMES, "neurons_by_kind") | pictures(
        "heuristics/calibration", ["grades", "kinds", "noise"]
    )


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_panel_without_data_says_so(study: Study, name: str):
    panels = figures.FIGURES[name](nothing(study)).axes
    assert len(panels) == 2 * (1 + (name == "explained"))
    assert all("no data: " in texts(axis) for axis in panels)
    for panel, operator in zip(
        figures.FIGURES[name](study).axes, ["add", "subtract"], strict=False
    ):
        unlabelled = operator == "subtract" and name in ("neurons_by_kind", "explained")
        assert ("no data: " in texts(panel)) == unlabelled, (name, operator)


def test_an_operator_without_labels_says_so(study: Study):
    [panel] = figures.matched_neurons(study, "subtract").axes
    assert "none of 500 neurons has a heuristic beyond chance" in texts(panel)


def test_without_labels_the_first_reason_is_given_with_numbers(study: Study):
    limits = {"operator": "add", "neurons": 500, "controlled": 7, "too_few_draws": False}
    given = replace(study, tables=MADE | {"label_limits": made("label_limits", [limits])})
    assert (
        figures.why_none(
            given,
            "add",
        )
        == "none of 7 neurons beyond chance has a strong match with a score of 0.5"
    )
    assert figures.why_none(given, "divide") == "no neuron was tested"
    assert (
        figures.why_none(
            replace(given, threshold=None),
            "add",
        )
        == "the calibration found no threshold for labels"
    )


def test_labels_about_operands_alone_are_why_no_contribution_is_explained(study: Study):
    operands = MADE["labels"].filter(pl.col("quantity") != "result")
    explained = MADE["explained"].filter(map="activation")
    given = replace(study, tables=MADE | {"labels": operands, "explained": explained})
    assert "no label is about the result" in texts(
        np.reshape(figures.explained(given).axes, (2, 2))[1, 0],
    )


def test_colours_of_many_layers_have_a_scale_instead_of_names(study: Study):
    table = MADE["explained"].filter(layer=0)
    many = pl.concat(table.with_columns(layer=pl.lit(n, pl.Int16)) for n in range(30))
    figure = figures.explained(replace(study, tables=MADE | {"explained": many}))
    assert figure.axes[-1].get_ylabel() == "layer"
    assert [text.get_text() for legend in figure.legends for text in legend.get_texts()] == [
        "equal",
    ]
    few = figures.explained(study)
    assert {text.get_text() for legend in few.legends for text in legend.get_texts()} >= {
        "layer 0",
        "layer 1",
    }


def test_counts_of_many_layers_have_a_scale_instead_of_numbers(study: Study):
    more = MADE["classified_share"].with_columns(layer=pl.col("layer") * 10)
    figure = figures.neurons_by_kind(
        replace(study, tables=MADE | {"classified_share": more, "labels": labels_in(range(20))}),
    )
    assert figure.axes[-1].get_ylabel() == "neurons"
    assert not figure.axes[0].texts


def labels_in(layers: range) -> pl.DataFrame:
    return pl.concat(MADE["labels"].with_columns(layer=pl.lit(n, pl.Int16)) for n in layers)


def test_best_and_median_of_each_kind_are_drawn_from_the_stores(study: Study):
    figure = figures.matched_neurons(study, "add")
    said = [text.get_text() for text in figure.texts[1:]]
    chosen = [(0, 0, "best"), (0, 1, "median of 3"), (1, 3, "the only one"), (1, 4, "the only one")]
    assert len(said) == len(chosen)
    wholes, details = figure.axes[0::3], figure.axes[1::3]
    for (layer, neuron, place), text, whole, detail in zip(
        chosen, said, wholes, details, strict=True
    ):
        row = MADE["labels"].row(
            by_predicate=(pl.col("layer") == layer) & (pl.col("neuron") == neuron), named=True
        )
        best = sorted(
            range(2 * SIDE),
            key=lambda number, of=(layer, neuron): -value_logits(of[0])[of[1], number],
        )[:3]
        assert (
            f"{place}: {row['heuristic']}\nlayer {layer}, neuron {neuron} ({'direct' if neuron == 3 else 'indirect'})"
            in text
        )
        assert (
            f"score {row['score']:.2f}, chance_corrected {row['chance_corrected']:.2f}\nvalue vector: {' '.join(map(str, best))}"
            in text
        )
        values = tables.activations(layer, "add")[neuron].astype(np.float32)
        if layer == 1:
            values = values * value_logits(layer)[neuron][OP1 + OP2]
        np.testing.assert_allclose(image(whole), values, rtol=1e-6)
        left, right, bottom, top = (int(edge + 0.5) for edge in detail.images[0].get_extent())
        np.testing.assert_array_equal(image(detail), image(whole)[top:bottom, left:right])


def test_prompts_without_answer_stay_grey_and_lowest_values_are_told(study: Study):
    row = next(row for row in MADE["labels"].iter_rows(named=True) if row["side"] == "bottom") | {
        "operator": "subtract"
    }
    example = figures.Portrayer("s", "subtract", 3).example(row, "best")
    assert "(lowest values)" in example.text
    np.testing.assert_array_equal(np.isnan(example.values), OP1 < OP2)
    np.testing.assert_array_equal(example.members, (OP1 >= OP2) & (OP1 <= 9))


def segments(axis: Axes) -> set[tuple[float, float, float, float]]:
    """The outline's unit edges: x, y of both ends."""
    edges = set()
    for collection in axis.collections:
        assert isinstance(collection, LineCollection)
        for (x0, y0), (x1, y1) in collection.get_segments():
            steps = round(abs(x1 - x0) + abs(y1 - y0))
            dx, dy = (x1 - x0) / steps, (y1 - y0) / steps
            edges |= {
                (x0 + i * dx, y0 + i * dy, x0 + (i + 1) * dx, y0 + (i + 1) * dy)
                for i in range(steps)
            }
    return edges


@pytest.mark.parametrize("seed", range(3))
def test_outlines_run_on_every_edge_of_the_set_and_no_other(seed: int):
    members = np.random.default_rng(seed).random((7, 9)) < 0.4
    axis = drawing.panels(1, 1, "")[1][0, 0]
    maps._outline(axis, members, (10, 30))
    wanted = {
        (x + 29.5, y + 10.5, x + 30.5, y + 10.5) for y in range(6) for x in range(9) if members[y, x] != members[y + 1, x]
    } | {(x + 30.5, y + 9.5, x + 30.5, y + 10.5) for y in range(7) for x in range(8) if members[y, x] != members[y, x + 1]}  # fmt: skip
    assert segments(axis) == wanted


def test_fine_sets_are_outlined_in_the_detail_alone():
    fine, coarse = OP1 % 2 == 0, OP1 < 12
    assert maps.fineness(fine | True, fine) == 0.5
    figure = maps.examples(
        [[maps.Example("", OP1 * 1.0, fine), maps.Example("", OP1 * 1.0, coarse)]], "", 8
    )
    assert [bool(segments(axis)) for axis in figure.axes if axis.get_label() != "<colorbar>"] == [
        False,
        True,
        True,
        True,
    ]


def test_the_detail_is_where_the_set_begins_whatever_the_map():
    valid = OP1 + OP2 < 30
    rows, columns = maps.window(valid, (OP1 == 20) & valid, 6)
    assert rows.start <= 20 < rows.stop
    assert valid[rows, columns].all()
    assert (rows.stop - rows.start, columns.stop - columns.start) == (6, 6)
    assert maps.window(valid, valid & False, 99) == (slice(0, SIDE), slice(0, SIDE))


def test_kinds_are_counted_by_layer(study: Study):
    more = (
        MADE["labels"].filter(neuron=0).with_columns(heuristic=pl.lit("op1 in 0..6"))
    )  # the same neuron counts once
    given = replace(study, tables=MADE | {"labels": pl.concat([MADE["labels"], more])})
    axis = figures.neurons_by_kind(given).axes[0]
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == ["range, op1", "range, op2", "modulo, result", "multi-result, result", "any"]
    np.testing.assert_array_equal(
        axis.images[0].get_array(), [[1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [2, 3, 0]]
    )
    assert texts(axis).split() == [f"{n}" for n in [1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 2, 3, 0]]


def test_scores_are_drawn_over_chance_with_both_thresholds(study: Study):
    axis = figures.score_against_chance(study).axes[0]
    matches = MADE["matches"].filter(operator="add")
    drawn = line(axis, "labels")
    assert set(zip(drawn.get_xdata(), drawn.get_ydata(), strict=True)) == set(
        matches.select("chance_score", "score").iter_rows()
    )
    assert axis.collections[0].get_array().sum() == matches.height
    assert list(line(axis, "published threshold").get_ydata()) == [0.6, 0.6]
    assert list(
        line(axis, f"threshold in use: chance-corrected score {THRESHOLD}").get_ydata()
    ) == [THRESHOLD, 1]


@pytest.mark.parametrize("quantities", figures.QUANTITIES)
def test_classified_shares_are_lines_beside_their_null(study: Study, quantities: str):
    axes = np.reshape(figures.classified_share(study, quantities).axes, (2, 2))
    assert [axis.get_ylabel().split("\n")[0] for axis in axes[:, 0]] == ["layer 0", "layer 2"]
    rows = MADE["classified_share"].filter(operator="subtract", layer=2, quantities=quantities)
    bands = iter(axes[1, 1].collections)
    for criterion, (label, _) in figures.CRITERIA.items():
        part = rows.filter(criterion=criterion)
        assert list(line(axes[1, 1], label).get_ydata()) == part["share"].to_list()
        null, band = line(axes[1, 1], f"_{label}"), next(bands)
        assert list(null.get_ydata()) == part["null_share"].drop_nulls().to_list()
        if criterion != "fdr":
            low, high = (
                np.clip(part["null_share"] + side * part["null_std"], 0, 1)
                for side in (-2, 2)
            )
            corners = band.get_paths()[0].vertices[:, 1]
            assert {*low, *high} <= {*corners}
    assert list(axes[0, 0].lines[-1].get_xdata()) == [THRESHOLD, THRESHOLD]


def test_two_theories_of_a_neuron_are_one_dot(study: Study):
    low = (
        pl.when(pl.col("neuron") == 0, pl.col("theory") == "fourier")
        .then(-3)
        .otherwise("explained")
        .cast(pl.Float32)
    )
    table = MADE["explained"].with_columns(explained=low)
    axes = np.reshape(
        figures.explained(replace(study, tables=MADE | {"explained": table})).axes, (2, 2)
    )
    activation = table.filter(map="activation", layer=0).sort("neuron")
    dots = line(axes[0, 0], "layer 0")
    assert list(dots.get_ydata()) == activation.filter(theory="heuristics")["explained"].to_list()
    assert list(dots.get_xdata()) == [
        np.float32(LOWEST),
        activation.filter(theory="fourier")["explained"][1],
    ]
    whole = table.filter(map="contribution").pivot(on="theory", index="neuron", values="explained")
    leads = whole.filter(pl.col("heuristics") > pl.col("fourier")).height / whole.height
    assert (
        f"labels explain more in {leads:.0%} of 2 medians {whole['heuristics'].median():.2f}"
        in texts(axes[1, 0])
    )
