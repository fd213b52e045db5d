"""Figures of the causal tests show what is in the tables, by the right neurons, and say so where nothing is."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from stages.bag import failure_figures, figures
from stages.lib.drawing import drawing
from tests.bag import causal_figure_tables
from tests.bag.causal_figure_tables import HEURISTICS, LAYERS, CRITERION, histogram
from tests.circuit.figure_tables import (
    WHY,
    Tables,
    by_operator,
    line,
    made,
    majority_is_drawn,
    pictures,
    texts,
    unanswered,
    write,
    written_by,
)

MADE = causal_figure_tables.tables()
NOTHING = unanswered(MADE)
OPERATORS = ["add", "subtract", "divide"]


pytestmark = pytest.mark.usefixtures("close_figures")


def panels(name: str, tables: Tables = MADE) -> dict[str, list[Axes]]:
    return by_operator(figures.FIGURES[name](tables, "s"), OPERATORS)


def shown(name: str, operator: str) -> tuple[list[Axes], dict[str, str]]:
    """An operator's panels of the figure of called neurons, or of that of scored ones; which rows of the tables they show."""
    criterion = CRITERION[operator]
    return panels(name + "_scored" * (criterion == "threshold"))[operator], {
        "operator": operator,
        "criterion": criterion,
    }


def test_every_figure_is_written_even_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written = written_by(
        lambda: figures.main("s"), lambda folder: write(folder, NOTHING), tmp_path, monkeypatch
    )
    assert written == pictures("s/bag/figures", figures.FIGURES, "bag_alone")


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_panel_without_data_says_why(name: str):
    nothing = figures.FIGURES[name](NOTHING, "s").axes
    assert nothing
    assert all(f"no data: {WHY}" in texts(axis) for axis in nothing)
    for operator, column in panels(name).items():
        silent = operator == "divide" or (operator == "subtract" and name.startswith("failure"))
        uncalled = [
            operator == "subtract"
            and (name == "knockouts_by_heuristic" or ("prompt" in name and row == 0))
            for row in range(len(column))
        ]
        absent = "neuron has a heuristic beyond chance"
        assert [absent in texts(axis) for axis in column] == uncalled
        assert ["no data: " in texts(axis) for axis in column] == [
            silent or alone for alone in uncalled
        ]


ABLATED = ["knockouts_by_heuristic", "knockouts_by_prompt", "bag_alone", "knockouts_by_neuron"]


def reasons(name: str, **changed: pl.DataFrame) -> str:
    """What the figure of addition says where there are no rows, with some tables changed."""
    [column] = [panels(name, MADE | {name: MADE[name].clear()} | changed)["add"]]
    return texts(column[0])


@pytest.mark.parametrize("name", ABLATED[1:3])
def test_without_a_late_layer_the_best_probe_is_the_reason(name: str):
    late = MADE["late_layers"].with_columns(first_layer=pl.lit(None, pl.Int16))
    best = MADE["probes"]["accuracy"].max()
    assert f"no layer is late: the best probe has accuracy {best:.2f}" in reasons(
        name,
        late_layers=late,
    )


def test_too_few_draws_are_why_no_neuron_is_called():
    limits = {
        "operator": "add",
        "draws": 120,
        "needed": 2298,
        "at_floor": 664,
        "too_few_draws": True,
    }
    neurons = MADE["heuristic_neurons"].filter(criterion="threshold")
    changed = {"heuristic_neurons": neurons, "label_limits": made("label_limits", [limits])}
    why = "with 120 draws: at least 2,298 neurons at the floor are needed, 664 are"
    assert why in reasons("knockouts_by_heuristic", **changed)
    assert why in reasons("knockouts_by_prompt", **changed)
    [scored] = [
        panels(
            "knockouts_by_prompt",
            MADE | changed | {"knockouts_by_prompt": MADE["knockouts_by_prompt"].clear()},
        )["add"][1]
    ]
    assert "no label is possible" not in texts(scored)


def test_small_heuristics_and_few_others_are_reasons_with_numbers():
    assert "no heuristic has enough neurons to be ablated: at most 4" in reasons(
        "knockouts_by_heuristic",
    )
    empty = MADE["knockouts_by_heuristic"].with_columns(
        accuracy_associated=pl.lit(None, pl.Float64),
    )
    [accuracy, logit] = panels(
        "knockouts_by_heuristic",
        MADE | {"knockouts_by_heuristic": empty},
    )["add"]
    assert "the heuristics hold for no prompt, or for every prompt" in texts(accuracy)
    assert "no data" not in texts(logit)
    few = MADE["knockouts_by_neuron"].with_columns(null_neurons=pl.lit(3, pl.Int64))
    [axis, _] = panels(
        "knockouts_by_neuron",
        MADE
        | {
            "knockouts_by_neuron": few.vstack(
                MADE["knockouts_by_neuron"].filter(operator="subtract"),
            )
        },
    )["add"]
    fewer = "fewer than 19 neurons of other heuristics to compare with"
    assert f"{fewer} in layer {LAYERS[0]}: at most 3" in texts(axis)


@pytest.mark.parametrize("operator", CRITERION)
@pytest.mark.parametrize("arm", ["heuristic", "control"])
def test_each_heuristic_is_a_dot_with_intervals(operator: str, arm: str):
    (accuracy, logit), which = shown("knockouts_by_heuristic", operator)
    rows = MADE["knockouts_by_heuristic"].filter(**which, arm=arm, ablation="zero")
    assert rows.height == HEURISTICS
    for axis, measure in ((accuracy, "accuracy"), (logit, "logit_change")):
        dots = line(axis, arm)
        assert list(dots.get_xdata()) == rows[f"{measure}_other"].to_list()
        assert list(dots.get_ydata()) == rows[f"{measure}_associated"].to_list()
    drawn = set()
    for collection in accuracy.collections:
        assert isinstance(collection, LineCollection)
        drawn |= {tuple(map(float, np.ravel(ends))) for ends in collection.get_segments()}
    ends = rows.select(
        "accuracy_other",
        "other_low",
        "other_high",
        "accuracy_associated",
        "associated_low",
        "associated_high",
    ).rows()
    assert {
        edge
        for x, left, right, y, low, high in ends
        for edge in ((left, y, right, y), (x, low, x, high))
    } <= drawn
    assert len(drawn) == 4 * HEURISTICS


@pytest.mark.parametrize("operator", CRITERION)
def test_knock_outs_are_drawn_beside_the_most_frequent_answer(operator: str):
    (accuracy, logit), which = shown("knockouts_by_heuristic", operator)
    rows = MADE["knockouts_by_heuristic"].filter(**which, ablation="zero")
    across, up = (line for line in accuracy.lines if line.get_label() == drawing.MAJORITY)
    means = rows.select(pl.mean("majority_accuracy_associated", "majority_accuracy_other")).row(0)
    assert (across.get_ydata()[0], up.get_xdata()[0]) == pytest.approx(means)
    assert not [line for line in logit.lines if line.get_label() == drawing.MAJORITY]


@pytest.mark.parametrize("operator", CRITERION)
def test_means_and_p_values_are_written_above_their_panel(operator: str):
    column, which = shown("knockouts_by_heuristic", operator)
    for axis, measure in zip(column, ("accuracy", "logit"), strict=True):
        [test] = (
            MADE["knockout_tests"]
            .filter(**which, ablation="zero", measure=measure)
            .iter_rows(named=True)
        )
        assert axis.get_title() == (
            f"{operator}\n{HEURISTICS} heuristics: {test['associated']:.2f} / {test['other']:.2f}\n"
            f"control: {test['control_associated']:.2f} / {test['control_other']:.2f}, p = {test['p_value']:.2g}"
        )
    assert (
        len({*axis.get_xlim(), *axis.get_ylim()}) == 2
    )  # so that the diagonal is where both are equal


@pytest.mark.parametrize("operator", CRITERION)
@pytest.mark.parametrize(
    ("name", "ablation"), [("knockouts_by_prompt", "zero"), ("knockouts_by_prompt_mean", "mean")]
)
def test_arms_are_lines_over_the_neurons_silenced(operator: str, name: str, ablation: str):
    called, scored = panels(name)[operator]
    for axis, criterion in ((called, "fdr"), (scored, "threshold"))[operator == "subtract" :]:
        assert len(axis.lines) - 1 == len(axis.collections) == len(figures.ARMS)
        chosen = {"operator": operator, "criterion": criterion, "ablation": ablation}
        majority_is_drawn(axis, MADE["knockouts_by_prompt"].filter(**chosen)["majority_accuracy"])
        for (arm, (label, *_)), band in zip(figures.ARMS.items(), axis.collections, strict=True):
            rows = MADE["knockouts_by_prompt"].filter(
                operator=operator, criterion=criterion, arm=arm, ablation=ablation
            )
            assert list(line(axis, label).get_xdata()) == rows["neurons"].to_list()
            assert list(line(axis, label).get_ydata()) == rows["accuracy"].to_list()
            edges = {
                *rows.select("neurons", "ci_low").rows(),
                *rows.select("neurons", "ci_high").rows(),
            }
            assert edges <= {tuple(corner) for corner in band.get_paths()[0].vertices}


@pytest.mark.parametrize(
    ("operator", "place"),
    [(operator, place) for operator in CRITERION for place in range(len(LAYERS))],
)
def test_p_values_are_counted_in_twentieths_with_their_upper_edge(operator: str, place: int):
    axis = panels("knockouts_by_neuron")[operator][place]
    rows = MADE["knockouts_by_neuron"].filter(
        pl.col("null_neurons") >= 19, operator=operator, layer=LAYERS[place], ablation="zero"
    )
    groups = {
        "fdr": rows.filter(pl.col("criterion") != "threshold"),
        "only scored": rows.filter(criterion="threshold"),
    }
    groups = {name: group["p_value"].to_numpy() for name, group in groups.items() if group.height}
    assert list(groups) == (["fdr", "only scored"] if operator == "add" else ["only scored"])
    assert len(axis.patches) == len(groups)
    for patch, (name, values) in zip(axis.patches, groups.items(), strict=True):
        shares, edges, _ = patch.get_data()
        assert patch.get_label() == f"neurons {name}"
        np.testing.assert_allclose(shares, histogram(values, edges))
        assert f"{name}: {np.mean(values <= 0.05):.0%} of {len(values)}" in texts(axis)


@pytest.mark.parametrize("operator", CRITERION)
def test_bags_are_bars_with_their_neurons(operator: str):
    column = panels("bag_alone")[operator]
    names = {
        tick: label.get_text()
        for tick, label in zip(column[1].get_xticks(), column[1].get_xticklabels(), strict=True)
    }
    colours = {
        drawing.matplotlib.colors.to_rgba(colour): kept
        for kept, (_, colour) in figures.KEPT.items()
    }
    ends = {"none": (None, "nothing"), "all": (None, "everything")}
    for axis, ablation in zip(column, ("mean", "zero"), strict=True):
        neurons = {round(text.get_position()[0], 2): int(text.get_text()) for text in axis.texts}
        drawn = set()
        for bar in axis.patches:
            x = round(bar.get_x() + bar.get_width() / 2, 2)
            name = names[round(x)]
            drawn.add(
                (
                    *ends.get(name, (name, colours.get(bar.get_facecolor()))),
                    bar.get_height(),
                    neurons[x],
                )
            )
        rows = MADE["bag_alone"].filter(operator=operator, ablation=ablation)
        majority_is_drawn(axis, rows["majority_accuracy"])
        assert drawn == set(rows.select("criterion", "with_activations", "accuracy", "neurons").iter_rows())


@pytest.mark.parametrize("criterion", ["fdr", "threshold"])
def test_densities_are_shares_of_each_side_with_the_test_beside_them(criterion: str):
    column = panels("failures" + "_scored" * (criterion == "threshold"))["add"]
    for axis, measure in zip(column, failure_figures.MEASURES, strict=True):
        rows, tests = (
            MADE[name].filter(operator="add", criterion=criterion)
            for name in ("failures", "failure_tests")
        )
        [test] = tests.filter(measure=measure).iter_rows(named=True)
        for patch, side in zip(axis.patches, (True, False), strict=True):
            values = rows.filter(correct=side)[measure].to_numpy()
            shares, edges, _ = patch.get_data()
            assert len(values) == test["cells_correct" if side else "cells_incorrect"]
            np.testing.assert_allclose(
                shares[1:-1], (np.histogram(values, edges)[0] / len(values))[1:-1]
            )
            assert sum(shares) == pytest.approx(1)  # rarer values lie in the outermost
        assert [mean.get_xdata()[0] for mean in axis.lines] == [
            test["mean_correct"],
            test["mean_incorrect"],
        ]
        for name, key in (("d", "d"), ("AUC", "auc")):
            assert (
                f"{name} {test[key]:.2f} ({test[key + '_ci_low']:.2f} to {test[key + '_ci_high']:.2f})"
                in texts(axis)
            )


def test_whole_numbers_get_bins_of_whole_width():
    shares, edges, _ = panels("failures")["add"][0].patches[0].get_data()
    assert set(np.diff(edges)) == {3}  # 100 values, at most 40 bins
    assert all(edge % 1 == 0.5 for edge in edges)
    assert len(shares) <= failure_figures.BINS


@pytest.mark.parametrize(
    ("right", "wrong", "why"),
    [
        (90, 0, "no cell is answered wrongly"), (90, 1, "only 1 cell is answered wrongly"), (4, 90, "only 4 cells are answered correctly"),
        (5, 5, ""),
    ],
)  # fmt: skip
def test_few_cells_are_not_compared(right: int, wrong: int, why: str):
    tests = MADE["failure_tests"].with_columns(
        cells_correct=pl.lit(right), cells_incorrect=pl.lit(wrong)
    )
    for name in ("failures", "failure_inputs"):
        for axis in panels(name, MADE | {"failure_tests": tests})["add"]:
            assert (f"no data: {why}" in texts(axis)) == bool(why)


def test_cells_without_associated_neurons_are_not_drawn():
    none = MADE["failures"].with_columns(associated_neurons=pl.lit(0, pl.Int32))
    for axis in panels("failures", MADE | {"failures": none})["add"]:
        assert "no data: no cell satisfies a heuristic of a late neuron" in texts(axis)
    late = MADE["heuristic_neurons"].with_columns(late=pl.lit(False))
    for axis in panels("failures", MADE | {"failures": none, "heuristic_neurons": late})["add"]:
        assert "no data: no late neuron has a heuristic beyond chance" in texts(axis)


def test_features_that_tell_most_are_bars_in_order_of_value():
    table = MADE["failure_inputs"].filter(operator="add")
    usual = (
        MADE["failure_inputs"]
        .filter(operator="add", feature="slack")
        .select(pl.sum("failures") / pl.sum("cells"))
        .item()
    )
    wanted = {
        "slack": ["1", "2..3", "8..15", "16..31"],
        "split": ["held-out", "train"],
        "units of op1": ["0", "9"],
    }
    column = panels("failure_inputs")["add"]
    assert [axis.get_title() for axis in column] == ["add: slack", "split", "units of op1"]
    for axis, (feature, values) in zip(column, wanted.items(), strict=True):
        assert [label.get_text() for label in axis.get_yticklabels()] == values
        rows = table.filter(feature=feature).sort(
            pl.col("value").replace_strict({value: n for n, value in enumerate(values)})
        )
        assert [bar.get_width() for bar in axis.patches] == rows["share"].to_list()
        assert [text.get_text() for text in axis.texts] == [
            f" {wrong} of {cells}" for wrong, cells in rows.select("failures", "cells").iter_rows()
        ]
    assert column[0].lines[0].get_xdata()[0] == pytest.approx(usual)
