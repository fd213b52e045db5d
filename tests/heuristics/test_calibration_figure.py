"""Figures of labels on the synthetic model show their table, and say so if there is nothing."""

import numpy as np
import polars as pl
import pytest

from stages.heuristics import calibration_figure
from tests.circuit.figure_tables import cleared, line, texts
from tests.heuristics import heuristic_figure_tables as tables
from tests.heuristics.heuristic_figure_tables import LEVEL, LEVELS, THRESHOLD, THRESHOLDS

TABLES = tables.calibration()
GROUPS = {"grades": calibration_figure.GRADES, "kinds": tables.KINDS}

pytestmark = pytest.mark.usefixtures("close_figures")


@pytest.mark.parametrize("name", GROUPS)
def test_precision_and_recall_are_lines_per_level(name: str):
    table, groups = TABLES["label_calibration"], GROUPS[name]
    figure = calibration_figure.FIGURES[name](*TABLES.values())
    axes = np.reshape(figure.axes, (2, len(groups)))
    assert [axis.get_title() for axis in axes[0]] == groups
    for (upper, lower), group in zip(axes.T, groups, strict=True):
        keys = {
            "grades": {"grade": group, "kind": "all"},
            "kinds": {"grade": "exact", "kind": group},
        }
        part = table.filter(**keys[name])
        for axis, measure in ((upper, "precision"), (lower, "recall")):
            for level in LEVELS:
                drawn = line(axis, f"level {level:g}" if level < 1 else "not controlled")
                assert list(drawn.get_ydata()) == part.filter(level=level)[measure].to_list()
                assert list(drawn.get_xdata()) == THRESHOLDS
            ring = line(axis, "_used")
            [height] = part.filter(level=LEVEL, threshold=THRESHOLD)[measure]
            assert ring.get_xydata().tolist() == [[THRESHOLD, height]]


def test_labelled_noise_is_compared_with_the_level():
    [axis] = calibration_figure.noise(*TABLES.values()).axes
    assert list(line(axis, "threshold 0.7").get_ydata()) == [0, 0.05, 0.95]
    lowest, diagonal = line(axis, "threshold 0.3"), line(axis, "equal to the level")
    assert list(lowest.get_ydata()) == list(lowest.get_xdata()) == LEVELS
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata())
    assert line(axis, "_used").get_xydata().tolist() == [[LEVEL, LEVEL]]


@pytest.mark.parametrize("name", calibration_figure.FIGURES)
def test_figures_without_data_say_so(name: str):
    figure = calibration_figure.FIGURES[name](*cleared(TABLES).values())
    assert figure.axes
    assert all("no data: " in texts(axis) for axis in figure.axes)
    assert "none was selected" in figure.get_suptitle().replace("\n", " ")


def test_a_few_thresholds_are_drawn_and_the_used_one_is_among_them():
    shown = calibration_figure._spread(pl.Series([i / 100 for i in range(100)]), 0.33)
    assert len(shown) == calibration_figure.LINES + 1
    assert {0.0, 0.33, 0.99} <= set(shown)
