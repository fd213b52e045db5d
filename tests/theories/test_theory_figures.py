"""Test that figures of theories show the values of the tables, and say why a panel is empty."""

from itertools import product
from pathlib import Path

import polars as pl
import pytest

from stages.lib.drawing.drawing import Axes, Tables
from stages.theories import figures
from stages.theories.figures import FIGURES
from tests.circuit.figure_tables import (
    OPERATORS,
    WHY,
    line,
    made,
    pairs_found_table,
    pictures,
    texts,
    write,
    written_by,
)

pytestmark = pytest.mark.usefixtures("close_figures")
SITES = [("op1", "op1"), ("last", "result")]
WHATS = ("activation", "written", "restored", "accuracy")


def tables(operators: list[str] = OPERATORS) -> Tables:
    fits = []
    for operator, (position, quantity), layer, theory, below in product(
        operators, SITES, range(3), ("helix", "pca", "line"), (None, 100)
    ):
        site = {"operator": operator, "position": position, "quantity": quantity, "layer": layer}
        fits.append(site | {"theory": theory, "numbers_below": below})
    helix_fits = made("helix_fits", fits)
    effects = helix_fits.select("operator", "position", "layer", "theory", "numbers_below")
    compared = []
    for operator, what in product(operators, WHATS):
        row = {"operator": operator, "what": what}
        for theory, parameters in product(("bag", "helix", "waves"), (2, 4)):
            value = 0.9 if theory == "bag" else 0.2
            compared.append(row | {"theory": theory, "parameters": parameters, "value": value})
    for operator in operators:
        row = {"operator": operator, "what": "accuracy", "theory": "mean", "parameters": 0}
        compared.append(row | {"value": 0.1})
    return {
        "helix_fits": helix_fits,
        "helix_effects": made("helix_effects", effects.to_dicts()),
        "theories": made("theories", compared),
        "pairs_found": pairs_found_table(operators),
    }


def first_rows(name: str, given: Tables) -> list[Axes]:
    """Return the first operator's panels, from top to bottom."""
    axes = FIGURES[name](given, "s").axes
    return axes[:: len(OPERATORS) + 1]


def test_every_figure_is_written_even_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def prepare(folder: Path) -> None:
        write(folder, tables([]))

    written = written_by(lambda: figures.main("s"), prepare, tmp_path, monkeypatch)
    assert written == pictures("s/theories/figures", FIGURES, "theories")


def test_curves_show_the_table_and_an_operator_without_pairs_says_why():
    given = tables()
    axes = first_rows("theories", given)
    assert list(line(axes[0], "heuristics").get_ydata()) == [0.9, 0.9]
    assert list(line(axes[0], "helix").get_ydata()) == [0.2, 0.2]
    assert list(line(axes[WHATS.index("accuracy")], "means alone").get_ydata()) == [0.1, 0.1]
    assert WHY in texts(figures.theories(given, "s").axes[len(OPERATORS)])


def test_accuracy_above_the_most_frequent_answer_is_drawn_against_bits():
    given = tables()
    row = {"operator": "add", "bits": 8.0, "majority_accuracy": 0.6, "value": 0.8}
    # a percentile interval may leave the value out
    row |= {"ci_low": 0.85, "ci_high": 1.0, "relabelled": 0.6}
    rows = []
    for theory, what in product(("bag", "labels"), ("restored", "accuracy")):
        rows.append(row | {"theory": theory, "what": what})
    given["theories"] = made("theories", rows)
    upper, lower = first_rows("explained_by_bits", given)
    for axis, value, control in ((upper, 0.8, 0.6), (lower, 0.5, 0)):
        drawn = [tuple(map(float, point)) for point in points(axis)]
        assert drawn.count((8, pytest.approx(value))) == 2
        assert drawn.count((8, pytest.approx(control))) == 2
    always = rows[-1] | {"majority_accuracy": 1.0}
    given["theories"] = made("theories", [always])
    assert figures.ALWAYS in texts(first_rows("explained_by_bits", given)[1])


def points(axis: Axes) -> list[tuple]:
    """Return the points of all lines of a panel that are not guides."""
    drawn = []
    for curve in axis.lines:
        if curve.get_marker() not in ("None", None, ""):
            drawn += zip(curve.get_xdata(), curve.get_ydata(), strict=True)
    return drawn


def test_small_numbers_have_rows_of_their_own():
    given = tables()
    small = pl.col("numbers_below").is_not_null()
    explained = pl.when(small).then(0.75).otherwise(0.25)
    given["helix_fits"] = given["helix_fits"].with_columns(explained=explained)
    axes = first_rows("helix_fits", given)
    for axis, (_, is_small) in zip(axes, figures.SITES, strict=True):
        assert set(line(axis, "helix").get_ydata()) == {0.75 if is_small else 0.25}


@pytest.mark.parametrize(
    ("name", "column", "why", "row"),
    [
        ("helix_effects", "restored", figures.NOT_LOST, 0),
        ("theories", "value", figures.CONSTANT, 0),
        ("theories", "value", figures.NOT_LOWERED, WHATS.index("restored")),
    ],
)
def test_undefined_values_are_not_reported_as_missing_prompts(
    name: str, column: str, why: str, row: int
):
    given = tables()
    given[name] = given[name].with_columns(pl.lit(None, pl.Float64).alias(column))
    assert why in texts(first_rows(name, given)[row])
