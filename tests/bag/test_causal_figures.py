"""Figures of the causal tests show their tables, and say why a panel has no data."""

from pathlib import Path

import polars as pl
import pytest
from matplotlib.axes import Axes

from stages.bag import figures, steering_figure
from stages.lib.drawing import drawing
from tests.bag import causal_figure_tables
from tests.bag.causal_figure_tables import CRITERION, HEURISTICS, LAYERS
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

TABLES = causal_figure_tables.tables()
COUNTED = ["operator", "criterion", "layer", "late", "heuristic"]
COUNTS = TABLES["heuristic_neurons"].group_by(COUNTED).agg(neurons=pl.len())
MADE = TABLES | {"heuristic_neurons": COUNTS}  # as the figures get them
NOTHING = unanswered(MADE)
OPERATORS = ["add", "subtract", "divide"]


pytestmark = pytest.mark.usefixtures("close_figures")


def panels(name: str, tables: Tables = MADE) -> dict[str, list[Axes]]:
    return by_operator(figures.FIGURES[name](tables, "s"), OPERATORS)


def shown(name: str, operator: str) -> tuple[list[Axes], dict[str, str]]:
    """Return an operator's panels of the figure that has data for it, and which rows they show."""
    criterion = CRITERION[operator]
    column = panels(name + "_threshold" * (criterion == "threshold"))[operator]
    return column, {"operator": operator, "criterion": criterion}


def test_every_figure_is_written_even_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def prepare(folder: Path) -> None:
        write(folder, unanswered(TABLES))

    written = written_by(lambda: figures.main("s"), prepare, tmp_path, monkeypatch)
    assert written == pictures("s/bag/figures", figures.FIGURES, "bag_alone")


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_panel_without_data_says_why(name: str):
    nothing = figures.FIGURES[name](NOTHING, "s").axes
    assert nothing
    for axis in nothing:
        assert f"no data: {WHY}" in texts(axis)
    for operator, column in panels(name).items():
        silent = operator == "divide" or (operator == "subtract" and name.startswith("failure"))
        for row, axis in enumerate(column):
            in_called = name == "knockouts_by_heuristic" or ("prompt" in name and row == 0)
            uncalled = operator == "subtract" and in_called
            assert ("neuron has a heuristic beyond chance" in texts(axis)) == uncalled
            assert ("no data: " in texts(axis)) == (silent or uncalled)


def test_heuristic_neurons_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, TABLES)
    monkeypatch.chdir(tmp_path)
    counts = figures.read("s")["heuristic_neurons"]
    assert counts.rows() == sorted(COUNTS.select(*COUNTED, "neurons").rows())
    assert counts["neurons"].sum() == TABLES["heuristic_neurons"].height


def reasons(name: str, **changed: pl.DataFrame) -> str:
    """Return the text of a figure's first panel without rows, with some tables changed."""
    return texts(panels(name, MADE | {name: MADE[name].clear()} | changed)["add"][0])


@pytest.mark.parametrize("name", ["knockouts_by_prompt", "bag_alone", "knockouts_by_neuron"])
def test_without_a_late_layer_the_probes_are_the_reason(name: str):
    late = MADE["late_layers"].with_columns(first_layer=pl.lit(None, pl.Int16))
    unreadable = "no layer is late: after the last layer, probes reach 0.00 of"
    assert unreadable in reasons(name, late_layers=late)
    early = MADE["probes"].filter(layer=0)
    never = "no layer is late: the best probe has accuracy 0.10, at least 0.55 is needed"
    assert never in reasons(name, late_layers=late, probes=early)


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
    empty = {"knockouts_by_prompt": MADE["knockouts_by_prompt"].clear()}
    _, scored = panels("knockouts_by_prompt", MADE | changed | empty)["add"]
    assert "no label is possible" not in texts(scored)


def test_small_heuristics_and_few_others_are_reasons_with_numbers():
    small = "no heuristic has enough neurons to be ablated: at most 4"
    assert small in reasons("knockouts_by_heuristic")
    missing = pl.lit(None, pl.Float64)
    empty = MADE["knockouts_by_heuristic"].with_columns(accuracy_associated=missing)
    accuracy, logit = panels("knockouts_by_heuristic", MADE | {"knockouts_by_heuristic": empty})[
        "add"
    ]
    assert "the heuristics hold for no prompt, or for every prompt" in texts(accuracy)
    assert "no data" not in texts(logit)
    by_neuron = MADE["knockouts_by_neuron"]
    few = by_neuron.with_columns(null_neurons=pl.lit(3, pl.Int64))
    both = few.vstack(by_neuron.filter(operator="subtract"))
    axis, _ = panels("knockouts_by_neuron", MADE | {"knockouts_by_neuron": both})["add"]
    fewer = "fewer than 19 neurons of other heuristics to compare with"
    assert f"{fewer} in layer {LAYERS[0]}: at most 3" in texts(axis)


@pytest.mark.parametrize("operator", CRITERION)
def test_each_heuristic_is_a_dot_and_the_most_frequent_answer_a_line(operator: str):
    (accuracy, logit), which = shown("knockouts_by_heuristic", operator)
    rows = MADE["knockouts_by_heuristic"].filter(**which, ablation="zero")
    for axis, measure in ((accuracy, "accuracy"), (logit, "logit_change")):
        for arm in ("heuristic", "control"):
            dots, drawn = line(axis, arm), rows.filter(arm=arm)
            assert drawn.height == HEURISTICS
            assert list(dots.get_xdata()) == drawn[f"{measure}_other"].to_list()
            assert list(dots.get_ydata()) == drawn[f"{measure}_associated"].to_list()
    across, up = (line for line in accuracy.lines if line.get_label() == drawing.MAJORITY)
    means = rows.select(pl.mean("majority_accuracy_associated", "majority_accuracy_other")).row(0)
    assert (across.get_ydata()[0], up.get_xdata()[0]) == pytest.approx(means)


@pytest.mark.parametrize("operator", CRITERION)
def test_means_and_p_values_are_written_above_their_panel(operator: str):
    column, which = shown("knockouts_by_heuristic", operator)
    for axis, measure in zip(column, ("accuracy", "logit"), strict=True):
        rows = MADE["knockout_tests"].filter(**which, ablation="zero", measure=measure)
        [test] = rows.iter_rows(named=True)
        own = f"{test['associated']:.2f} / {test['other']:.2f}"
        control = f"{test['control_associated']:.2f} / {test['control_other']:.2f}"
        assert axis.get_title() == (
            f"{operator}\n{HEURISTICS} heuristics: {own}\n"
            f"control: {control}, p = {test['p_value']:.2g}"
        )
        assert axis.get_xlim() == axis.get_ylim()  # the diagonal is where both are equal


@pytest.mark.parametrize("operator", CRITERION)
@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_arms_are_lines_over_ablated_neurons(operator: str, ablation: str):
    name = "knockouts_by_prompt" + "_mean" * (ablation == "mean")
    for axis, criterion in zip(panels(name)[operator], ("fdr", "threshold"), strict=True):
        which = {"operator": operator, "criterion": criterion, "ablation": ablation}
        rows = MADE["knockouts_by_prompt"].filter(**which)
        if rows.is_empty():
            assert (operator, criterion) == ("subtract", "fdr")
            continue
        majority_is_drawn(axis, rows["majority_accuracy"])
        for arm, (label, *_) in figures.ARMS.items():
            drawn = rows.filter(arm=arm)
            assert list(line(axis, label).get_xdata()) == drawn["neurons"].to_list()
            assert list(line(axis, label).get_ydata()) == drawn["accuracy"].to_list()


@pytest.mark.parametrize("operator", CRITERION)
def test_shares_of_small_p_values_are_written_with_their_number(operator: str):
    enough = MADE["knockouts_by_neuron"].filter(pl.col("null_neurons") >= 19, ablation="zero")
    for axis, layer in zip(panels("knockouts_by_neuron")[operator], LAYERS, strict=True):
        rows = enough.filter(operator=operator, layer=layer)
        is_scored = pl.col("criterion") == "threshold"
        for name, group in (
            ("threshold only", rows.filter(is_scored)),
            ("fdr", rows.filter(~is_scored)),
        ):
            small = group.filter(pl.col("p_value") <= 0.05).height
            written = f"{name}: {small / max(group.height, 1):.0%} of {group.height}"
            assert (written in texts(axis)) == (group.height > 0)
            assert (group.height > 0) == (name == "threshold only" or operator == "add")


@pytest.mark.parametrize("operator", CRITERION)
def test_bags_are_bars_below_the_number_of_heuristic_neurons(operator: str):
    rows_of_panels = [("mean", "accuracy"), ("zero", "accuracy"), ("mean", "recovered")]
    for axis, (ablation, value) in zip(panels("bag_alone")[operator], rows_of_panels, strict=True):
        rows = MADE["bag_alone"].filter(operator=operator, ablation=ablation)
        if value == "accuracy":
            majority_is_drawn(axis, rows["majority_accuracy"])
        assert {bar.get_height() for bar in axis.patches} == set(rows[value])
        counted = rows.filter(pl.col("kept").is_in(["heuristic", "everything", "nothing"]))
        written = sorted(text.get_text() for text in axis.texts)
        assert written == sorted(f"{neurons:,}" for neurons in counted["neurons"])


def test_a_share_of_no_difference_is_not_drawn():
    nothing = MADE["bag_alone"].with_columns(recovered=pl.lit(None, pl.Float64))
    accuracy, _, recovered = panels("bag_alone", MADE | {"bag_alone": nothing})["add"]
    assert accuracy.patches
    assert not recovered.patches
    assert "the logit difference is not clearly smaller" in texts(recovered)


@pytest.mark.parametrize("operator", CRITERION)
def test_steering_is_drawn_for_other_digits_only(operator: str):
    places = steering_figure.places_of(MADE["steering"])
    for axis, place in zip(panels("steering")[operator], places, strict=True):
        rows = MADE["steering"].filter(operator=operator, place=place, target="other")
        for arm, (label, _) in steering_figure.ARMS.items():
            drawn = rows.filter(arm=arm)
            assert list(line(axis, label).get_xdata()) == drawn["neurons"].to_list()
            assert list(line(axis, label).get_ydata()) == drawn["follows"].to_list()


@pytest.mark.parametrize("name", ["failures", "failures_threshold"])
def test_densities_have_the_test_beside_them(name: str):
    criterion = "threshold" if name == "failures_threshold" else "fdr"
    tests = MADE["failure_tests"].filter(operator="add", criterion=criterion)
    for axis, measure in zip(
        panels(name)["add"], ("associated_neurons", "answer_contribution"), strict=True
    ):
        [test] = tests.filter(measure=measure).iter_rows(named=True)
        correct, incorrect = axis.lines
        assert correct.get_xdata()[0] == test["mean_correct"]
        assert incorrect.get_xdata()[0] == test["mean_incorrect"]
        for label, key in (("d", "d"), ("AUC", "auc")):
            interval = f"({test[key + '_ci_low']:.2f} to {test[key + '_ci_high']:.2f})"
            assert f"{label} {test[key]:.2f} {interval}" in texts(axis)


@pytest.mark.parametrize(
    ("right", "wrong", "why"),
    [
        (90, 0, "no cell is answered wrongly"),
        (90, 1, "only 1 cell is answered wrongly"),
        (4, 90, "only 4 cells are answered correctly"),
        (5, 5, ""),
    ],
)
def test_few_cells_are_not_compared(right: int, wrong: int, why: str):
    counts = {"cells_correct": pl.lit(right), "cells_incorrect": pl.lit(wrong)}
    tests = MADE["failure_tests"].with_columns(**counts)
    for name in ("failures", "failure_inputs"):
        for axis in panels(name, MADE | {"failure_tests": tests})["add"]:
            assert (f"no data: {why}" in texts(axis)) == bool(why)


def test_cells_without_associated_neurons_are_not_drawn():
    none = MADE["failures"].with_columns(associated_neurons=pl.lit(0, pl.Int32))
    late = MADE["heuristic_neurons"].with_columns(late=pl.lit(False))
    unsatisfied, not_late = {"failures": none}, {"failures": none, "heuristic_neurons": late}
    for axis in panels("failures", MADE | unsatisfied)["add"]:
        assert "no data: no cell satisfies a heuristic of a late neuron" in texts(axis)
    for axis in panels("failures", MADE | not_late)["add"]:
        assert "no data: no late neuron has a heuristic beyond chance" in texts(axis)


def test_the_most_informative_features_are_bars_in_order_of_value():
    wanted = {
        "add: slack": ["1", "2..3", "8..15", "16..31"],
        "split": ["held-out", "train"],
        "units of op1": ["0", "9"],
    }
    column = panels("failure_inputs")["add"]
    for axis, (title, values) in zip(column, wanted.items(), strict=True):
        assert axis.get_title() == title
        assert [label.get_text() for label in axis.get_yticklabels()] == values
        feature = title.removeprefix("add: ")
        rows = MADE["failure_inputs"].filter(operator="add", feature=feature)
        rows = pl.DataFrame({"value": values}).join(rows, on="value", maintain_order="left")
        assert [bar.get_width() for bar in axis.patches] == rows["share"].to_list()
        counts = rows.select(pl.format(" {} of {}", "failures", "cells")).to_series()
        assert [text.get_text() for text in axis.texts] == counts.to_list()
