"""Test that figures of causal mediation show the tables, and say why a panel is empty."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes

from stages.mediation import figures
from stages.mediation.conditions import CONDITIONS, TASKS
from tests import deep_tables
from tests.circuit import figure_tables
from tests.circuit.figure_tables import Tables, image, line, made, names_along, texts

pytestmark = pytest.mark.usefixtures("close_figures")
LAYERS, HEADS = [0, 1], [0, 1]
KINDS = [
    *product(TASKS[:2], CONDITIONS[:3]),
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
UNITS = [("mlp", None), ("attention", None), *product(["head"], HEADS)]
NAMES = [f"{task}, {condition}".replace("_", " ") for task, condition in KINDS]
WHICH = ("all", "answered")
NO_INTERVAL = dict.fromkeys(("ci_low", "ci_high"))
NO_IMPORTANCE = NO_INTERVAL | dict.fromkeys(("importance", "last_layer"))
NO_ANSWER = NO_IMPORTANCE | {"floored": None, "pairs": 0}


def effects() -> pl.DataFrame:
    """Return mediation_effects; a user's own task has no effect."""
    rows = []
    for (task, condition), which in product(KINDS, WHICH):
        nulls: dict[str, Any] = {"desired": None} if condition == "result_fixed" else {}
        if task == "own":
            nulls["log_effect"] = None
        kind = {"task": task, "condition": condition, "which": which} | nulls
        places = product(["all", *OPERATORS.get(task, [])], UNITS, LAYERS, CLASSES[task])
        for operator, (component, head), layer, position in places:
            site = {"component": component, "head": head, "layer": layer}
            rows.append(kind | site | {"operator": operator, "position_class": position})
    return made("mediation_effects", rows)


def importance() -> pl.DataFrame:
    """Return relative_importance, with a kind of pair for each reason that a value is missing."""
    rows = []
    for (task, condition), which in product(KINDS, WHICH):
        nulls: dict[str, Any] = {}
        if task == "retrieval":
            nulls = NO_INTERVAL
        if condition == "odd":
            nulls = NO_IMPORTANCE
        if (condition, which) == ("operator_varies", "answered"):
            nulls = NO_ANSWER
        kind = {"task": task, "condition": condition, "which": which, "pairs": 9} | nulls
        rows += (kind | {"operator": name} for name in ["all", *OPERATORS.get(task, [])])
    return made("relative_importance", rows)


MADE = {
    "mediation_effects": effects().sample(fraction=1, shuffle=True, seed=0),
    "relative_importance": importance().sample(fraction=1, shuffle=True, seed=0),
}
NOTHING = figure_tables.cleared(MADE)


def panels(name: str, given: Tables = MADE) -> list[Axes]:
    return figure_tables.panels(figures.FIGURES[name](given, "s"))


def titles(axes: list[Axes]) -> list[str]:
    return [axis.get_title() for axis in axes]


def check_map(axis: Axes, column: str, **keys: str) -> None:
    """Assert that a heat map shows log effects by layer and this column."""
    rows = MADE["mediation_effects"].filter(which="all", **keys)
    down, across = names_along(axis.yaxis), names_along(axis.xaxis)
    assert down == [f"layer {layer}" for layer in LAYERS]
    for layer, name, value in rows.select("layer", column, "log_effect").iter_rows():
        shown = image(axis)[layer, across.index(str(name))]
        assert shown == pytest.approx(np.nan if value is None else value, nan_ok=True)
    assert len(rows) == image(axis).size


def test_every_figure_is_written_even_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def prepare(folder: Path) -> None:
        figure_tables.write(folder, NOTHING)

    written = figure_tables.written_by(lambda: figures.draw("s"), prepare, tmp_path, monkeypatch)
    assert written == figure_tables.pictures("s/mediation/figures", figures.FIGURES, "importance")


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_without_data_says_why(name: str):
    [axis] = panels(name, NOTHING)
    assert f"no data: {figures.NO_PAIRS}" in texts(axis)


def test_effects_of_every_kind_are_maps_of_layers_and_classes():
    axes = panels("effects")
    order = [*product(["mlp", "attention"], KINDS[:4]), *product(["mlp", "attention"], KINDS[4:])]
    for axis, (block, (task, condition)) in zip(axes, order, strict=True):
        assert axis.get_title() == f"{task}, {condition}".replace("_", " ")
        keys = {"task": task, "condition": condition, "operator": "all", "component": block}
        check_map(axis, "position_class", **keys)
        assert names_along(axis.xaxis) == CLASSES[task]
        assert (f"no data: {figures.NO_EFFECT}" in texts(axis)) == (task == "own")


@pytest.mark.parametrize("task", OPERATORS)
def test_effects_by_operator_have_a_row_for_each_condition_and_block(task: str):
    order = list(product(CONDITIONS[:3], ["mlp", "attention"], OPERATORS[task]))
    for axis, (condition, block, operator) in zip(panels(task), order, strict=True):
        assert axis.get_title() == operator
        keys = {"task": task, "condition": condition, "operator": operator, "component": block}
        check_map(axis, "position_class", **keys)


def test_heads_are_maps_of_layers_and_heads_at_the_last_position():
    axes = panels("heads")
    assert titles(axes) == NAMES
    for axis, (task, condition) in zip(axes, KINDS, strict=True):
        site = {"operator": "all", "component": "head", "position_class": "last"}
        check_map(axis, "head", task=task, condition=condition, **site)


def test_without_patched_heads_the_figure_says_so():
    blocks = MADE["mediation_effects"].filter(pl.col("component") != "head")
    [axis] = panels("heads", MADE | {"mediation_effects": blocks})
    assert f"no data: {figures.NO_HEADS}" in texts(axis)


def test_names_beside_maps_of_a_deep_model_do_not_overlap():
    effects = deep_tables.mediation()["mediation_effects"].filter(task="retrieval")
    figure = figures.heads({"mediation_effects": effects}, "s")
    assert deep_tables.crowded(figure) == []
    [axis] = figure_tables.panels(figure)
    rows = effects.filter(operator="all", component="head").sort("layer", "head")
    np.testing.assert_allclose(image(axis).ravel(), rows["log_effect"])
    assert not axis.texts  # there is no room for numbers


def test_changes_of_the_prediction_are_lines_over_layers():
    axes = panels("changes")
    assert titles(axes) == NAMES
    for axis, (task, condition) in zip(axes, KINDS, strict=True):
        kind = {"task": task, "condition": condition, "operator": "all", "which": "all"}
        rows = MADE["mediation_effects"].filter(position_class="last", **kind).sort("layer")
        changes = ["undesired"] if condition == "result_fixed" else ["desired", "undesired"]
        for (block, (label, _)), change in product(figures.BLOCKS.items(), changes):
            drawn, part = line(axis, f"{label}, {change}"), rows.filter(component=block)
            assert list(drawn.get_xdata()) == part["layer"].to_list()
            assert list(drawn.get_ydata()) == part[change].to_list()


def test_importance_is_labelled_with_its_value_and_sum_or_why_there_is_none():
    [axis] = panels("importance")
    shown = {}
    for text in axis.texts:
        shown[round(text.get_position()[0], 1)] = text.get_text().replace("\n", " ")
    ticks = names_along(axis.xaxis)
    for x, (task, condition) in enumerate(KINDS):
        kind = {"task": task, "condition": condition, "operator": "all"}
        rows = MADE["relative_importance"].filter(**kind).sort("which")
        assert ticks[x] == f"{NAMES[x]}, sum {rows['log_effects'][0]:.2g}"
        for shift, row in zip((-0.2, 0.2), rows.iter_rows(named=True), strict=True):
            label = shown[round(x + shift, 1)]
            if row["importance"] is None:
                why = figures.NO_SUM if row["pairs"] else figures.NO_ANSWER
                assert label == f"no data: {why}"
            else:
                assert label == f"{row['importance']:.0%}"


def test_bars_have_the_height_of_their_importance():
    [axis] = panels("importance")
    solid = [bar.get_height() for bar in axis.patches]
    table = MADE["relative_importance"].filter(operator="all")
    drawn = table["importance"].drop_nulls().to_list()
    last_layer = table.drop_nulls("ci_low")["last_layer"].to_list()
    assert sorted(solid) == pytest.approx(sorted([*drawn, *last_layer]))
