"""Figures of training show what is in the tables of its points, and say so where nothing is."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes

from stages.lib.drawing import drawing
from stages.lib.drawing.steps import labels as step_labels
from stages.trajectory import figures
from stages.trajectory.figures import APPEARING, ARMS, FIGURES, KEPT, NO_NEURONS
from tests.circuit import figure_tables
from tests.circuit.figure_tables import Tables, by_operator, line, made, pictures, texts, written_by

STEPS, OPERATORS, COUNTS = [0, 250, 500, 1000, 6500], ["add", "subtract", "divide"], [5, 10, 25, 50]
TYPES = [
    ("op1", "range", 20),
    ("op1", "modulo", 19),
    ("result", "pattern", 999),
    ("result", "range", 60),
    ("result", "modulo", 90),
]
FAITHFULNESS = [f"faithfulness_{kept}{std}" for kept, std in product(KEPT, ("", "_std"))]
NOT_SHARED = {"shared_with_last": None, "shared_by_chance": None}


def point(step: int, operator: str) -> dict[str, Any]:
    return {
        "subject": f"run-{step}" if step != STEPS[-1] else "run",
        "last": "run",
        "step": step,
        "operator": operator,
    }


def prompts(step: int, operator: str) -> int:
    """Return how many are answered: none of divide, and none before there is training."""
    if step == 0 or operator == "divide":
        return 0
    return 40 if step < 1000 else 500


def tables() -> Tables:
    """Return a run that never learns to divide and at first answers few prompts; in no order."""
    bags, kinds, knockouts = [], [], []
    for step, operator in product(STEPS, OPERATORS):
        key = point(step, operator)
        bag = key | {"prompts": prompts(step, operator)}
        if bag["prompts"]:
            knockouts += figure_tables.crossed([bag], arm=ARMS, neurons_per_layer=COUNTS)
        else:
            bag |= dict.fromkeys(FAITHFULNESS)
        if operator == "divide":
            bag |= NOT_SHARED | {"accuracy_trained": 0.0, "accuracy_held_out": 0.0}
            key |= NOT_SHARED
        bags.append(bag)
        for quantity, kind, pairs in TYPES:
            last_pairs = 0 if operator == "divide" else pairs
            kinds.append(key | {"quantity": quantity, "kind": kind, "last_pairs": last_pairs})
    rows = {"trajectory": bags, "trajectory_kinds": kinds, "trajectory_knockouts": knockouts}
    return {
        name: made(name, several).sample(fraction=1, shuffle=True, seed=1).sort("step")
        for name, several in rows.items()
    }


MADE = tables()
WRONG = "no data: no prompt is answered correctly at any checkpoint"


pytestmark = pytest.mark.usefixtures("close_figures")


def write(folder: Path, tables: Tables) -> None:
    """A file for each point."""
    for name, table in tables.items():
        (folder / "data/trajectory" / name).mkdir(parents=True)
        for subject in MADE["trajectory"]["subject"].unique():
            table.filter(subject=subject).write_parquet(
                folder / "data/trajectory" / name / f"{subject}.parquet"
            )


def panels(name: str, tables: Tables = MADE) -> dict[str, list[Axes]]:
    return by_operator(FIGURES[name](tables, "run"), OPERATORS)


def drawn(axis: Axes, label: str) -> dict[int, float]:
    """Return step -> height of a line's points that are not NaN."""
    ends = line(axis, label).get_xydata()
    return dict(ends[~np.isnan(ends[:, 1])].tolist())


def points(rows: pl.DataFrame, measure: str | pl.Expr) -> dict[int, float]:
    return dict(rows.select("step", measure).drop_nulls().rows())


def edges(rows: pl.DataFrame, measure: str) -> set[tuple[float, float]]:
    """Return the corners of a band of standard deviations."""
    known = rows.select("step", mean=measure, std=f"{measure}_std").drop_nulls()
    low = known.select("step", pl.col("mean") - pl.col("std"))
    high = known.select("step", pl.col("mean") + pl.col("std"))
    return {*low.iter_rows(), *high.iter_rows()}


def corners(axis: Axes, label: str) -> set[tuple[float, float]]:
    """Return what is drawn around a line, by its colour."""
    colour = drawing.matplotlib.colors.to_rgb(line(axis, label).get_color())
    collected = set()
    for band in axis.collections:
        if tuple(band.get_facecolor()[0][:3]) == colour:
            for path in band.get_paths():
                collected |= set(map(tuple, path.vertices.tolist()))
    return collected


def test_a_figure_of_each_kind_is_written_for_every_last_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    another = pl.col("step") < 1000
    runs = {
        name: table.with_columns(last=pl.when(another).then(pl.lit("early")).otherwise("last"))
        for name, table in MADE.items()
    }
    written = written_by(figures.main, lambda folder: write(folder, runs), tmp_path, monkeypatch)
    names = [f"{last}_{name}" for last, name in product(("early", "run"), FIGURES)]
    assert written == pictures("trajectory/figures", names)


@pytest.mark.parametrize("folders", [[], list(MADE)])
def test_without_points_there_is_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: list[str]
):
    for name in folders:
        (tmp_path / "data/trajectory" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    figures.main()
    assert sorted(Path("reports").rglob("*")) == [
        Path("reports/trajectory"),
        Path("reports/trajectory/figures"),
    ]


def test_shares_and_accuracies_are_lines_over_steps():
    for operator, [axis] in panels("appearance").items():
        rows = MADE["trajectory"].filter(operator=operator)
        for measure, (label, *_) in APPEARING.items():
            assert drawn(axis, label) == points(rows, measure)
        assert (f"no data: {NO_NEURONS}" in texts(axis)) == (operator == "divide")


def test_faithfulness_has_a_line_for_all_that_is_kept_with_a_band():
    for operator, [axis] in panels("faithfulness").items():
        rows = MADE["trajectory"].filter(operator=operator)
        for kept, (label, _) in KEPT.items():
            assert drawn(axis, label) == points(rows, f"faithfulness_{kept}")
            assert edges(rows, f"faithfulness_{kept}") <= corners(axis, label)
            assert drawn(axis, f"_few, {label}") == points(
                rows.filter(pl.col("prompts") < 500), f"faithfulness_{kept}"
            )
        assert (WRONG in texts(axis)) == (operator == "divide")


def test_without_late_layers_a_model_that_is_right_says_so():
    silent = dict.fromkeys(FAITHFULNESS, pl.lit(None, pl.Float64))
    none = MADE["trajectory"].with_columns(**silent)
    knockouts = MADE["trajectory_knockouts"].clear()
    for name in ("faithfulness", "knockouts"):
        columns = panels(name, MADE | {"trajectory": none, "trajectory_knockouts": knockouts})
        assert "no data: no layer is late at the last checkpoint" in texts(columns["add"][0])
        assert WRONG in texts(columns["divide"][0])


def test_knock_outs_of_few_some_and_many_neurons_have_a_row_each():
    for operator, column in panels("knockouts").items():
        for axis, count in zip(column, (5, 25, 50), strict=True):
            for arm, (label, _) in ARMS.items():
                rows = MADE["trajectory_knockouts"].filter(
                    operator=operator, arm=arm, neurons_per_layer=count
                )
                assert drawn(axis, label) == points(rows, "accuracy")
                assert edges(rows, "accuracy") <= corners(axis, label)
                assert drawn(axis, f"_few, {label}") == points(
                    rows.filter(pl.col("prompts") < 500), "accuracy"
                )
            control = MADE["trajectory_knockouts"].filter(
                operator=operator,
                arm="control",
                neurons_per_layer=count,
            )
            assert drawn(axis, drawing.MAJORITY) == points(control, "majority_accuracy")
            assert (WRONG in texts(axis)) == (operator == "divide")
    single = MADE | {
        "trajectory_knockouts": MADE["trajectory_knockouts"].filter(neurons_per_layer=10)
    }
    assert panels("knockouts", single)["add"][0].get_ylabel() == "accuracy,\n10 neurons per layer"


def test_types_of_enough_pairs_are_lines_above_chance_by_quantity():
    above = (pl.col("shared_with_last") - pl.col("shared_by_chance")) / (
        1 - pl.col("shared_by_chance")
    )
    for operator, column in panels("kinds").items():
        shown = (
            {"op1": ["range"], "result": ["modulo", "pattern", "range"]}
            if operator != "divide"
            else {}
        )
        for axis, quantity in zip(column, ("op1", "result"), strict=True):
            assert sorted(drawn_line.get_label() for drawn_line in axis.lines) == shown.get(
                quantity, []
            )
            for kind in shown.get(quantity, []):
                rows = MADE["trajectory_kinds"].filter(
                    operator=operator, quantity=quantity, kind=kind
                )
                assert drawn(axis, kind) == pytest.approx(points(rows, above))
            assert ("no data: no type has 20 pairs" in texts(axis)) == (operator == "divide")
    colours = {}  # a kind has the same colour wherever it is
    for axis in FIGURES["kinds"](MADE, "run").axes:
        for drawn_line in axis.lines:
            colour = drawn_line.get_color()
            assert colours.setdefault(drawn_line.get_label(), colour) == colour
    assert len(colours) == len(set(colours.values())) == 3


@pytest.mark.parametrize("name", FIGURES)
def test_every_point_is_a_tick_and_early_ones_are_apart(name: str):
    for axis in FIGURES[name](MADE, "run").axes:
        assert list(axis.get_xticks()) == STEPS
        places = [axis.transData.transform((step, 0))[0] / axis.bbox.width for step in STEPS]
        assert min(np.diff(places)) > 0.05
        assert axis.get_xlim()[0] < 0 < STEPS[-1] < axis.get_xlim()[1]


@pytest.mark.parametrize(
    ("steps", "labels"),
    [
        (
            [0, 250, 500, 1000, 1500, 2000, 3500, 6500],
            ["0", "250", "500", "1000", "1500", "2000", "3500", "6500"],
        ),
        ([0, 10, 6400, 6500], ["", "10", "", "6500"]),
        ([0], ["0"]),
    ],
)
def test_labels_that_would_overlap_are_left_out(steps: list[int], labels: list[str]):
    assert step_labels(steps) == labels


def test_nothing_but_accuracy_is_drawn_where_there_is_nothing_else():
    first = figure_tables.cleared(MADE) | {"trajectory": MADE["trajectory"].filter(step=0)}
    for name in ("faithfulness", "knockouts", "kinds"):
        for [axis] in panels(name, first).values():
            assert "no data: " in texts(axis)


def test_what_lies_far_out_is_cut_and_that_is_said():
    far = MADE["trajectory"].with_columns(
        faithfulness_random=pl.col("faithfulness_random") * 40 - 20
    )
    [axis] = panels("faithfulness", MADE | {"trajectory": far})["add"]
    assert axis.get_ylim() == (-0.55, 1.55)
    assert "cut off" in axis.get_ylabel()
    assert "cut off" not in panels("faithfulness")["add"][0].get_ylabel()
