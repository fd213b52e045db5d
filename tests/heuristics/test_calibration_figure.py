"""The figure of labels on planted truth shows its table, and says so where nothing was planted or chosen."""

import numpy as np
import polars as pl
import pytest

from stages.heuristics import calibration_figure
from tests.circuit.figure_tables import cleared, line, texts
from tests.heuristics import heuristic_figure_tables as tables
from tests.heuristics.heuristic_figure_tables import LEVEL, LEVELS, THRESHOLD, THRESHOLDS

TABLES = tables.calibration()


pytestmark = pytest.mark.usefixtures("close_figures")


@pytest.mark.parametrize(("name", "groups"), [("grades", calibration_figure.GRADES), ("kinds", tables.KINDS)])
def test_precision_and_recall_are_lines_per_level(name: str, groups: list[str]):
    table = TABLES["label_calibration"]
    axes = np.reshape(calibration_figure.FIGURES[name](*TABLES.values()).axes, (2, len(groups)))
    assert [axis.get_title() for axis in axes[0]] == groups
    for column, group in zip(axes.T, groups, strict=True):
        part = table.filter(grade=group, kind="all") if name == "grades" else table.filter(grade="exact", kind=group)
        for axis, measure in zip(column, ("precision", "recall"), strict=True):
            for level in LEVELS:
                drawn = line(axis, f"level {level:g}" if level < 1 else "not controlled")
                assert list(drawn.get_ydata()) == part.filter(level=level)[measure].to_list()
                assert list(drawn.get_xdata()) == THRESHOLDS
            ring = line(axis, "_used")
            [height] = part.filter(level=LEVEL, threshold=THRESHOLD)[measure]
            assert (list(ring.get_xdata()), list(ring.get_ydata())) == ([THRESHOLD], [height])


def test_noise_that_is_labelled_is_held_against_the_level():
    [axis] = calibration_figure.noise(*TABLES.values()).axes
    assert list(line(axis, "chance-corrected score 0.7").get_ydata()) == [0, 0.05, 0.95]
    assert list(line(axis, "chance-corrected score 0.3").get_ydata()) == list(line(axis, "chance-corrected score 0.3").get_xdata()) == LEVELS
    diagonal, ring = line(axis, "equal to the level"), line(axis, "_used")
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata())
    assert (list(ring.get_xdata()), list(ring.get_ydata())) == ([LEVEL], [LEVEL])


@pytest.mark.parametrize("name", calibration_figure.FIGURES)
def test_nothing_planted_and_nothing_chosen_is_said(name: str):
    figure = calibration_figure.FIGURES[name](*cleared(TABLES).values())
    assert all("no data: " in texts(axis) for axis in figure.axes)
    assert "none was selected" in figure.get_suptitle().replace("\n", " ")


def test_few_of_many_thresholds_are_drawn_and_the_chosen_one_with_them():
    shown = calibration_figure._spread(pl.Series([i / 100 for i in range(100)]), 0.33)
    assert len(shown) == calibration_figure.LINES + 1
    assert {0.0, 0.33, 0.99} <= set(shown)
