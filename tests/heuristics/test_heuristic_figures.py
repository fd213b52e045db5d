"""Figures about heuristics show their tables and stores, and say why if there is nothing."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.heuristics import calibration_figure, figures
from stages.heuristics.figures import LOWEST, Study
from stages.lib.drawing import drawing, maps
from tests.circuit.figure_tables import cleared, image, line, made, pictures, texts, written_by
from tests.heuristics import heuristic_figure_tables as tables
from tests.heuristics.heuristic_figure_tables import OP1, OP2, SIDE, THRESHOLD, value_logits

MADE, SHARED = tables.tables(), tables.calibration()
NEED_LABELS = ("neurons_by_kind", "explained", "label_votes")
NAMES = {*figures.FIGURES, "matched_neurons_add", "matched_neurons_subtract"}

pytestmark = pytest.mark.usefixtures("close_figures")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    tables.write(tmp_path, MADE, SHARED)
    monkeypatch.chdir(tmp_path)
    return figures.read("s")


def changed(study: Study, **other: pl.DataFrame) -> Study:
    """The study with some other tables."""
    return replace(study, tables=MADE | other)


def test_every_figure_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def both() -> None:
        figures.main("s")
        calibration_figure.main()

    def write(folder: Path) -> None:
        tables.write(folder, MADE, SHARED)

    own = pictures("s/heuristics/figures", NAMES, "neurons_by_kind")
    shared = pictures("heuristics/calibration", ["grades", "kinds", "noise"])
    assert written_by(both, write, tmp_path, monkeypatch) == own | shared


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_panel_without_data_says_so(study: Study, name: str):
    matches = study.matches.clear()
    nothing = replace(study, tables=cleared(MADE), matches=matches, threshold=None)
    panels = figures.FIGURES[name](nothing).axes
    assert len(panels) == (4 if name == "explained" else 2)
    assert all("no data: " in texts(axis) for axis in panels)
    add, subtract, *_ = figures.FIGURES[name](study).axes
    assert "no data: " not in texts(add)
    assert ("no data: " in texts(subtract)) == (name in NEED_LABELS)


def test_an_operator_without_labels_says_so(study: Study):
    [panel] = figures.matched_neurons(study, "subtract").axes
    assert "none of 500 neurons has a heuristic beyond chance" in texts(panel)


def test_the_first_reason_for_no_labels_is_given_with_numbers(study: Study):
    limits = {"operator": "add", "neurons": 500, "controlled": 7, "too_few_draws": False}
    given = changed(study, label_limits=made("label_limits", [limits]))
    reason = "none of 7 neurons beyond chance has a strong match with a score of 0.5"
    assert figures.why_none(given, "add") == reason
    assert figures.why_none(given, "divide") == "no neuron was tested"
    reason = "the calibration found no threshold for labels"
    assert figures.why_none(replace(given, threshold=None), "add") == reason


def test_if_all_labels_are_about_operands_no_contribution_is_explained(study: Study):
    operands = MADE["labels"].filter(pl.col("quantity") != "result")
    explained = MADE["explained"].filter(map="activation")
    figure = figures.explained(changed(study, labels=operands, explained=explained))
    assert "no label is about the result" in texts(np.reshape(figure.axes, (2, 2))[1, 0])


def in_layers(table: str, layers: range) -> pl.DataFrame:
    """The rows of a table's layer 0, in each of these layers."""
    rows = MADE[table].filter(layer=0)
    return pl.concat(rows.with_columns(layer=pl.lit(layer, pl.Int16)) for layer in layers)


def legend_of(figure: Figure) -> list[str]:
    [legend] = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_many_layers_have_a_colour_bar_instead_of_names(study: Study):
    many = figures.explained(changed(study, explained=in_layers("explained", range(30))))
    assert many.axes[-1].get_ylabel() == "layer"
    assert legend_of(many) == ["equal"]
    assert {*legend_of(figures.explained(study))} >= {"layer 0", "layer 1"}


def test_counts_of_many_layers_have_a_colour_bar_instead_of_numbers(study: Study):
    more = MADE["classified_share"].with_columns(layer=pl.col("layer") * 10)
    labels = in_layers("labels", range(20))
    figure = figures.neurons_by_kind(changed(study, classified_share=more, labels=labels))
    assert figure.axes[-1].get_ylabel() == "neurons"
    assert texts(figure.axes[0]) == ""


def test_best_and_median_of_each_kind_are_drawn_from_the_stores(study: Study):
    figure = figures.matched_neurons(study, "add")
    written = [text.get_text() for text in figure.texts[1:]]
    expected = {  # neuron -> layer, place, direct
        0: (0, "best", "indirect"),
        1: (0, "median of 3", "indirect"),
        3: (1, "the only one", "direct"),
        4: (1, "the only one", "indirect"),
    }
    panels = zip(expected.items(), written, figure.axes[0::3], figure.axes[1::3], strict=True)
    for (neuron, (layer, place, direct)), text, whole, detail in panels:
        [row] = MADE["labels"].filter(layer=layer, neuron=neuron).rows(named=True)
        logits = value_logits(layer)[neuron]
        promoted = " ".join(map(str, np.argsort(-logits)[:3]))
        neuron_text = f"layer {layer}, neuron {neuron} ({direct})"
        assert f"{place}: {row['heuristic']}\n{neuron_text}" in text
        assert f"score {row['score']:.2f}, chance_corrected {row['chance_corrected']:.2f}\n" in text
        assert f"value vector: {promoted}" in text
        values = tables.activations(layer, "add")[neuron].astype(np.float32)
        if layer == 1:  # labels of the result
            values = values * logits[OP1 + OP2]
        np.testing.assert_allclose(image(whole), values, rtol=1e-6)
        left, right, bottom, top = (int(edge + 0.5) for edge in detail.images[0].get_extent())
        np.testing.assert_array_equal(image(detail), image(whole)[top:bottom, left:right])


def test_prompts_without_an_answer_are_blank_and_lowest_values_are_named(study: Study):
    [row] = MADE["labels"].filter(side="bottom").rows(named=True)
    portrayer = figures.Portrayer("s", "subtract", 3)
    example = portrayer.example(row | {"operator": "subtract"}, "best")
    assert "(lowest values)" in example.text
    np.testing.assert_array_equal(np.isnan(example.values), OP1 < OP2)
    np.testing.assert_array_equal(example.members, (OP1 >= OP2) & (OP1 <= 9))


def segments(axis: Axes) -> set[tuple[float, float, float, float]]:
    """The outline's edges of unit length: x, y of both ends."""
    edges = set()
    for collection in axis.collections:
        for start, end in collection.get_segments():
            length = round(np.abs(end - start).sum())
            corners = np.linspace(start, end, length + 1).round(1).tolist()
            for first, second in pairwise(corners):
                edges.add((*first, *second))
    return edges


@pytest.mark.parametrize("seed", range(3))
def test_outlines_run_on_every_edge_of_the_set_and_no_other(seed: int):
    members = np.random.default_rng(seed).random((7, 9)) < 0.4
    axis = drawing.panels(1, 1, "")[1][0, 0]
    maps._outline(axis, members, (10, 30))
    expected = set()
    for y, x in np.argwhere(members[1:] != members[:-1]).tolist():
        expected.add((x + 29.5, y + 10.5, x + 30.5, y + 10.5))
    for y, x in np.argwhere(members[:, 1:] != members[:, :-1]).tolist():
        expected.add((x + 30.5, y + 9.5, x + 30.5, y + 10.5))
    assert segments(axis) == expected


def test_fine_sets_are_outlined_in_the_detail_only():
    fine, coarse = OP1 % 2 == 0, OP1 < 12
    assert maps.fineness(np.full_like(fine, True), fine) == 0.5
    examples = [maps.Example("", OP1 * 1.0, members) for members in (fine, coarse)]
    axes = maps.examples([examples], "", 8).axes
    outlined = [bool(segments(axis)) for axis in axes if axis.get_label() != "<colorbar>"]
    assert outlined == [False, True, True, True]


def test_the_detail_is_at_the_edge_of_the_set_whatever_the_map():
    valid = OP1 + OP2 < 30
    rows, columns = maps.window(valid, (OP1 == 20) & valid, 6)
    assert rows.start <= 20 < rows.stop
    assert valid[rows, columns].shape == (6, 6)
    assert valid[rows, columns].all()
    assert maps.window(valid, valid & False, 99) == (slice(0, SIDE), slice(0, SIDE))


def test_kinds_are_counted_by_layer(study: Study):
    # the same neuron counts once
    again = MADE["labels"].filter(neuron=0).with_columns(heuristic=pl.lit("op1 in 0..6"))
    given = changed(study, labels=pl.concat([MADE["labels"], again]))
    axis = figures.neurons_by_kind(given).axes[0]
    counts = {
        "range, op1": [1, 1, 0],
        "range, op2": [1, 0, 0],
        "modulo, result": [0, 1, 0],
        "multi-result, result": [0, 1, 0],
        "any": [2, 3, 0],
    }
    assert [label.get_text() for label in axis.get_yticklabels()] == [*counts]
    expected = np.array(list(counts.values()))
    np.testing.assert_array_equal(image(axis), expected)
    assert texts(axis).split() == expected.ravel().astype(str).tolist()


def test_scores_are_drawn_over_chance_with_both_thresholds(study: Study):
    axis = figures.score_against_chance(study).axes[0]
    matches = MADE["matches"].filter(operator="add")
    dots = line(axis, "labels").get_xydata()
    assert sorted(map(tuple, dots)) == sorted(matches.select("chance_score", "score").rows())
    assert axis.collections[0].get_array().sum() == matches.height
    assert list(line(axis, "published threshold").get_ydata()) == [0.6, 0.6]
    threshold = line(axis, f"threshold in use: chance-corrected score {THRESHOLD}")
    assert list(threshold.get_ydata()) == [THRESHOLD, 1]


def test_only_matches_with_a_label_are_dots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    labels = MADE["labels"].filter(operator="add").head(2)
    tables.write(tmp_path, MADE | {"labels": labels}, SHARED)
    monkeypatch.chdir(tmp_path)
    axis = figures.score_against_chance(figures.read("s")).axes[0]
    keys = ["operator", "layer", "neuron", "heuristic", "side"]
    matches = MADE["matches"].filter(operator="add")
    expected = matches.join(labels, on=keys, how="semi").select("chance_score", "score").rows()
    dots = line(axis, "labels").get_xydata()
    assert sorted(map(tuple, dots)) == sorted(expected)
    assert len(expected) == 2 < matches.height == axis.collections[0].get_array().sum()


def test_shares_of_labels_that_measured_changes_keep_are_lines(study: Study):
    add, subtract = figures.label_votes(study).axes
    kept, inverted = (list(line(add, name).get_ydata()) for name in ("kept", "inverted"))
    assert (kept, inverted) == ([0.5, 1.0], [0.25, 0.0])
    control = line(add, "kept with another neuron's change")
    assert list(control.get_ydata()) == [1 / 3, 0]  # one label has no control
    assert list(control.get_xdata()) == [1, 2]
    assert "none of 500 neurons has a heuristic beyond chance" in texts(subtract)


@pytest.mark.parametrize("quantities", figures.QUANTITIES)
def test_classified_shares_are_lines_beside_their_null(study: Study, quantities: str):
    axes = np.reshape(figures.classified_share(study, quantities).axes, (2, 2))
    assert [axis.get_ylabel().split("\n")[0] for axis in axes[:, 0]] == ["layer 0", "layer 2"]
    axis, keys = axes[1, 1], {"operator": "subtract", "layer": 2, "quantities": quantities}
    rows = MADE["classified_share"].filter(**keys)
    for (criterion, (label, _)), band in zip(
        figures.CRITERIA.items(), axis.collections, strict=True
    ):
        part = rows.filter(criterion=criterion)
        assert list(line(axis, label).get_ydata()) == part["share"].to_list()
        null = part.drop_nulls("null_share")
        assert list(line(axis, f"_{label}").get_ydata()) == null["null_share"].to_list()
        spread = 2 * null["null_std"]
        edges = np.concatenate([null["null_share"] - spread, null["null_share"] + spread])
        assert {*edges.clip(0, 1)} <= heights(band)
    threshold = line(axis, "threshold in use of the chance-corrected score")
    assert list(threshold.get_xdata()) == [THRESHOLD, THRESHOLD]


def heights(band: Any) -> set[float]:
    """The y values of a band's corners; a band of nothing has no path."""
    corners: set[float] = set()
    for path in band.get_paths():
        corners.update(path.vertices[:, 1])
    return corners


def test_two_theories_of_a_neuron_are_one_dot(study: Study):
    is_low = (pl.col("neuron") == 0) & (pl.col("theory") == "fourier")
    low = pl.when(is_low).then(-3).otherwise("explained").cast(pl.Float32)
    table = MADE["explained"].with_columns(explained=low)
    axes = np.reshape(figures.explained(changed(study, explained=table)).axes, (2, 2))
    rows = table.filter(map="activation", layer=0).sort("neuron")
    labels, components = rows.filter(theory="heuristics"), rows.filter(theory="fourier")
    dots = line(axes[0, 0], "layer 0")
    assert list(dots.get_ydata()) == labels["explained"].to_list()
    assert list(dots.get_xdata()) == [np.float32(LOWEST), components["explained"][1]]
    contributions = table.filter(map="contribution")
    whole = contributions.pivot(on="theory", index="neuron", values="explained")
    more = (whole["heuristics"] > whole["fourier"]).mean()
    text = f"labels explain more in {more:.0%} of 2 medians {whole['heuristics'].median():.2f}"
    assert text in texts(axes[1, 0])
