"""Figures of theories show what is in the tables and say why where nothing is."""

from pathlib import Path

import polars as pl
import pytest

from stages.lib.drawing.drawing import Tables
from stages.theories import figures
from stages.theories.figures import FIGURES
from tests.circuit.figure_tables import OPERATORS, WHY, found, made, pictures, write, written_by

pytestmark = pytest.mark.usefixtures("close_figures")
SITES = [("op1", "op1"), ("last", "result")]


def tables(operators: list[str] = OPERATORS) -> Tables:
    sites = [
        {"operator": o, "position": p, "quantity": q, "layer": n}
        for o in operators
        for p, q in SITES
        for n in range(3)
    ]
    fits = [
        site | {"theory": t, "numbers_below": below}
        for site in sites
        for t in ("helix", "pca", "line")
        for below in (None, 100)
    ]
    effects = [{k: v for k, v in row.items() if k != "quantity"} for row in fits]
    said = [
        {"operator": o, "theory": t, "parameters": p, "what": w, "value": 0.9 if t == "bag" else 0.2}
        for o in operators for t in ("bag", "helix", "waves") for p in (2, 4) for w in ("activation", "written", "restored", "accuracy")
    ]  # fmt: skip
    said += [
        {"operator": o, "theory": "mean", "parameters": 0, "what": "accuracy", "value": 0.1}
        for o in operators
    ]
    rows = {"helix_fits": fits, "helix_effects": effects, "theories": said}
    return {name: made(name, of) for name, of in rows.items()} | {"pairs_found": found(operators)}


def test_every_figure_is_written_even_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written = written_by(
        lambda: figures.main("s"), lambda folder: write(folder, tables([])), tmp_path, monkeypatch
    )
    assert written == pictures("s/theories/figures", FIGURES, "theories")


def test_curves_are_those_of_the_table_and_an_operator_without_pairs_says_why():
    figure = figures.theories(tables(), "s")
    columns = len(figure.axes) // len(figures.MEASURES)
    first = figure.axes[0]
    drawn = {line.get_label(): list(line.get_ydata()) for line in first.get_lines()}
    assert (drawn["heuristics"], drawn["helix"]) == ([0.9, 0.9], [0.2, 0.2])
    accuracy = figure.axes[3 * columns]
    assert "means alone" in {line.get_label() for line in accuracy.get_lines()}
    assert any(WHY.split()[0] in text.get_text() for text in figure.axes[columns - 1].texts)


def test_numbers_as_small_as_the_studys_have_rows_of_their_own():
    given = tables()
    small = pl.col("numbers_below").is_not_null()
    given["helix_fits"] = given["helix_fits"].with_columns(
        explained=pl.when(small).then(0.75).otherwise(0.25)
    )
    figure = figures.helix_fits(given, "s")
    columns = len(figure.axes) // len(figures.SITES)
    for row, (_, is_small) in enumerate(figures.SITES):
        lines = {line.get_label(): line for line in figure.axes[row * columns].get_lines()}
        assert set(lines["helix"].get_ydata()) == {0.75 if is_small else 0.25}


def test_values_that_are_undefined_are_not_taken_for_missing_prompts():
    given = tables()
    given["helix_effects"] = given["helix_effects"].with_columns(restored=pl.lit(None, pl.Float64))
    assert figures.NOT_LOST in figures.helix_effects(
        given,
        "s",
    ).axes[0].texts[0].get_text().replace("\n", " ")
    given["theories"] = given["theories"].with_columns(value=pl.lit(None, pl.Float64))
    assert figures.CONSTANT in figures.theories(given, "s").axes[0].texts[0].get_text().replace(
        "\n",
        " ",
    )
