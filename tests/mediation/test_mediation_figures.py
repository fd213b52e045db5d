"""Figures of causal mediation show what is in the tables, in the right panels, and say so where nothing is."""

from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes

from stages.mediation import figures
from stages.mediation.conditions import CONDITIONS, TASKS
from tests import deep_tables
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

LAYERS, HEADS = [0, 1], [0, 1]
KINDS = [(task, condition) for task in TASKS[:2] for condition in CONDITIONS[:3]] + [
    (TASKS[3], CONDITIONS[3]),
    ("own", "odd"),
]
CLASSES = {
    "arithmetic": ["early", "op1", "last"],
    "number_words": ["op1", "op2", "last"],
    "retrieval": ["query", "last"],
    "own": ["last", "zone"],
}
OPERATORS = {"arithmetic": ["add", "subtract", "divide"], "number_words": ["multiply", "divide"]}
UNITS = [("mlp", None), ("attention", None), *(("head", head) for head in HEADS)]
NAMES = [f"{task}, {condition}".replace("_", " ") for task, condition in KINDS]


def tables() -> Tables:
    """Every task but one, in no order; without a total in one condition, without an interval in another, without answers in a third."""
    effects = [
        {"task": t, "condition": c, "operator": o, "which": w, "component": unit, "layer": layer, "head": head, "position_class": p}
        | ({"desired": None} if c == "result_fixed" else {}) | ({"log_effect": None} if t == "own" else {})
        for t, c in KINDS for o in ["all", *OPERATORS.get(t, [])] for w in ("all", "answered") for unit, head in UNITS for layer in LAYERS
        for p in CLASSES[t]
    ]  # fmt: skip
    nothing = dict.fromkeys(["importance", "ci_low", "ci_high", "last_layer"])
    parts = [
        {"task": t, "condition": c, "operator": o, "which": w, "pairs": 9}
        | ({"ci_low": None, "ci_high": None} if t == "retrieval" else {}) | (nothing if c == "odd" else {})
        | (nothing | {"floored": None, "pairs": 0} if (c, w) == ("operator_varies", "answered") else {})
        for t, c in KINDS for o in ["all", *OPERATORS.get(t, [])] for w in ("all", "answered")
    ]  # fmt: skip
    both = {
        "mediation_effects": made("mediation_effects", effects),
        "relative_importance": made("relative_importance", parts),
    }
    return {name: table.sample(fraction=1, shuffle=True, seed=0) for name, table in both.items()}


MADE = tables()
NOTHING = cleared(MADE)


pytestmark = pytest.mark.usefixtures("close_figures")


def panels(name: str, given: Tables = MADE) -> list[Axes]:
    return figure_tables.panels(figures.FIGURES[name](given, "s"))


def shown(axis: Axes) -> dict[tuple[str, str], float]:
    """A heat map's values by the names of its row and column."""
    rows, columns = (
        [label.get_text() for label in labels]
        for labels in (axis.get_yticklabels(), axis.get_xticklabels())
    )
    return dict(zip(product(rows, columns), image(axis).ravel(), strict=True))


def wanted(column: str, **of: str) -> dict[tuple[str, str], float]:
    rows = (
        MADE["mediation_effects"]
        .filter(which="all", **of)
        .with_columns(pl.col("log_effect").fill_null(np.nan))
    )
    return {
        (f"layer {layer}", name): value
        for layer, name, value in rows.select("layer", column, "log_effect").iter_rows()
    }


def test_every_figure_is_written_even_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written = written_by(
        lambda: figures.draw("s"), lambda folder: write(folder, NOTHING), tmp_path, monkeypatch
    )
    assert written == pictures("s/mediation/figures", figures.FIGURES, "importance")


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_without_data_says_why(name: str):
    [axis] = panels(name, NOTHING)
    assert f"no data: {figures.NO_PAIRS}" in texts(axis)


def test_effects_of_every_task_and_condition_are_maps_of_layers_and_classes():
    axes, blocks = panels("effects"), ["mlp", "attention"]
    order = [
        (block, kind) for first in (0, 4) for block in blocks for kind in KINDS[first : first + 4]
    ]
    assert [axis.get_title() for axis in axes] == [NAMES[KINDS.index(kind)] for _, kind in order]
    assert [axis.get_ylabel() for axis in axes[::4]] == ["MLPs", "attention"] * 2
    for axis, (block, (task, condition)) in zip(axes, order, strict=True):
        expected = wanted(
            "position_class", task=task, condition=condition, operator="all", component=block
        )
        assert shown(axis) == pytest.approx(expected, nan_ok=True)
        assert [label.get_text() for label in axis.get_xticklabels()] == CLASSES[task]
        assert (f"no data: {figures.NO_EFFECT}" in texts(axis)) == (task == "own")
    assert len({axis.images[0].get_clim() for axis in axes}) == 1


@pytest.mark.parametrize("task", OPERATORS)
def test_effects_by_operator_have_a_row_for_each_condition_and_block(task: str):
    axes, operators = panels(task), OPERATORS[task]
    order = list(product(CONDITIONS[:3], ["mlp", "attention"], operators))
    assert [axis.get_title() for axis in axes] == [operator for *_, operator in order]
    for axis, (condition, block, operator) in zip(axes, order, strict=True):
        assert shown(axis) == pytest.approx(
            wanted(
                "position_class", task=task, condition=condition, operator=operator, component=block
            )
        )
    rows = [
        f"{condition.replace('_', ' ')}\n{label}"
        for condition in CONDITIONS[:3]
        for label in ("MLPs", "attention")
    ]
    assert [axis.get_ylabel() for axis in axes[:: len(operators)]] == rows


def test_heads_are_maps_of_layers_and_heads_at_the_last_position():
    axes = panels("heads")
    assert [axis.get_title() for axis in axes] == NAMES
    for axis, (task, condition) in zip(axes, KINDS, strict=True):
        expected = wanted(
            "head",
            task=task,
            condition=condition,
            operator="all",
            component="head",
            position_class="last",
        )
        assert shown(axis) == pytest.approx(
            {(layer, str(head)): value for (layer, head), value in expected.items()},
            nan_ok=True,
        )


def test_heads_that_are_not_patched_are_why_there_is_no_map_of_them():
    blocks = MADE["mediation_effects"].filter(pl.col("component") != "head")
    [axis] = panels("heads", MADE | {"mediation_effects": blocks})
    assert f"no data: {figures.NO_HEADS}" in texts(axis)


def test_names_beside_maps_of_a_deep_model_stay_apart():
    effects = deep_tables.mediation()["mediation_effects"].filter(task="retrieval")
    figure = figures.heads({"mediation_effects": effects}, "s")
    assert deep_tables.crowded(figure) == []
    [axis] = figure_tables.panels(figure)
    assert image(axis).shape == (deep_tables.LAYERS, deep_tables.HEADS)
    rows = effects.filter(operator="all", component="head").sort("layer", "head")
    np.testing.assert_allclose(image(axis).ravel(), rows["log_effect"])
    assert not axis.texts  # there is no room for numbers


def test_changes_of_the_prediction_are_lines_over_layers():
    axes = panels("changes")
    assert [axis.get_title() for axis in axes] == NAMES
    for axis, (task, condition) in zip(axes, KINDS, strict=True):
        rows = (
            MADE["mediation_effects"]
            .filter(
                task=task, condition=condition, operator="all", which="all", position_class="last"
            )
            .sort("layer")
        )
        changes = ["undesired"] if condition == "result_fixed" else ["desired", "undesired"]
        for (block, (label, _)), change in product(figures.BLOCKS.items(), changes):
            drawn, part = line(axis, f"{label}, {change}"), rows.filter(component=block)
            assert (
                list(zip(drawn.get_xdata(), drawn.get_ydata(), strict=True))
                == part.select("layer", change).rows()
            )
        assert len(axis.lines) == 2 * len(changes)


def test_importance_is_a_bar_with_its_interval_last_layer_and_marks():
    [axis] = panels("importance")
    whole = MADE["relative_importance"].filter(operator="all", which="all").iter_rows(named=True)
    sums = {(row["task"], row["condition"]): row["log_effects"] for row in whole}
    labels = [f"{text}, sum {sums[kind]:.2g}" for text, kind in zip(NAMES, KINDS, strict=True)]
    assert [label.get_text().replace("\n", ", ") for label in axis.get_xticklabels()] == labels
    bars: dict[float, list] = {}
    for bar in axis.patches:
        bars.setdefault(round(bar.get_x() + bar.get_width() / 2, 2), []).append(bar)
    segments = {
        tuple(round(float(n), 6) for n in np.ravel(ends))
        for collection in axis.collections
        for ends in collection.get_segments()
    }
    marks = {
        (round(float(x), 2), float(y))
        for mark in axis.lines
        if mark.get_marker() == "x"
        for x, y in mark.get_xydata()
    }
    for place, (task, condition) in enumerate(KINDS):
        for x, which in ((round(place - 0.2, 2), "all"), (round(place + 0.2, 2), "answered")):
            [row] = (
                MADE["relative_importance"]
                .filter(task=task, condition=condition, which=which, operator="all")
                .iter_rows(named=True)
            )
            heights = (
                [row["importance"], row["last_layer"]]
                if row["ci_low"] is not None
                else [row["importance"]] * (row["importance"] is not None)
            )
            assert [bar.get_height() for bar in bars.get(x, [])] == heights
            assert [bar.get_fill() for bar in bars.get(x, [])][:1] == [
                row["ci_low"] is not None
            ] * bool(heights)
            interval = (x, row["ci_low"], x, row["ci_high"])
            assert row["ci_low"] is None or tuple(round(n, 6) for n in interval) in segments
            assert (
                round(x - 0.18, 6),
                round(row["without_effect"], 6),
                round(x + 0.18, 6),
                round(row["without_effect"], 6),
            ) in segments
            assert ((x, row["floored"]) in marks) == (row["floored"] is not None)
            assert [
                text.get_text().replace("\n", " ")
                for text in axis.texts
                if round(text.get_position()[0], 2) == x
            ] == [
                f"{row['importance']:.0%}"
                if heights
                else f"no data: {figures.NO_SUM if row['pairs'] else figures.NO_ANSWER}"
            ]
