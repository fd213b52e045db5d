"""Causal mediation over training: its table against the tables it is made of, and its figure."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages.mediation import training_figure as figure
from tests.circuit.figure_tables import written_by
from tests.made import ask
from tests.mediation import mediated

pytestmark = pytest.mark.usefixtures("close_figures")
STEPS = [0, 250, 6500]


@pytest.fixture(scope="module")
def importance() -> pl.DataFrame:
    """Random effects of every task and condition; of some, no prompt is answered correctly."""
    return mediated.importance(mediated.by_pair(mediated.subject()))


def points(importance: pl.DataFrame) -> pl.DataFrame:
    return pl.concat(
        ask("trajectory_mediation", {"relative_importance": importance}, last="s", step=step)
        for step in STEPS
    )


def test_a_point_is_the_importance_of_all_pairs_and_the_accuracy(importance: pl.DataFrame):
    table = points(importance).filter(step=250)
    every, answered = (importance.filter(which=which) for which in ("all", "answered"))
    assert len(table) == len(every) > 0
    for row in table.iter_rows(named=True):
        kind = {name: row[name] for name in ("task", "condition", "operator")}
        [one], [right] = every.filter(**kind).to_dicts(), answered.filter(**kind).to_dicts()
        assert [
            row[name]
            for name in (
                "importance",
                "ci_low",
                "ci_high",
                "without_effect",
                "log_effects",
                "pairs",
            )
        ] == [
            one[name]
            for name in (
                "importance",
                "ci_low",
                "ci_high",
                "without_effect",
                "log_effects",
                "pairs",
            )
        ]
        assert row["correct"] == right["pairs"] / one["pairs"]
        assert row["late_effects"] == (
            None
            if one["importance"] is None
            else pytest.approx(one["importance"] * one["log_effects"])
        )


def test_the_figure_has_a_column_for_each_task_and_a_line_for_each_condition(
    importance: pl.DataFrame,
):
    table = points(importance).filter(operator="all").sort("step")
    axes = np.array(figure.draw(table, "s").axes).reshape(len(figure.MEASURES), -1)
    assert [axis.get_title() for axis in axes[0]] == ["arithmetic", "three operands", "retrieval"]
    for measure, row in zip(figure.MEASURES, axes, strict=True):
        for task, axis in zip(["arithmetic", "three_operands", "retrieval"], row, strict=True):
            drawn = {line.get_label(): line.get_xydata() for line in axis.get_lines()}
            for (condition,), rows in table.filter(task=task).group_by("condition"):
                wanted = rows.sort("step").select("step", measure).cast(pl.Float64).to_numpy()
                np.testing.assert_array_equal(drawn[str(condition).replace("_", " ")], wanted)


def test_without_points_there_is_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, importance: pl.DataFrame
):
    monkeypatch.chdir(tmp_path)
    figure.main()
    assert list((tmp_path / figure.FOLDER).iterdir()) == []
    (tmp_path / "data/mediation" / figure.TABLE).mkdir(parents=True)
    points(importance).write_parquet(tmp_path / "data/mediation" / figure.TABLE / "s.parquet")
    assert written_by(figure.main, lambda _: None, tmp_path, monkeypatch) == {
        f"{figure.FOLDER}/s.{kind}" for kind in ("png", "svg")
    }


def test_a_table_of_no_pairs_says_so(importance: pl.DataFrame):
    [axis, *_] = figure.draw(points(importance).clear(), "s").axes
    assert [text.get_text() for text in axis.texts] == ["no data: no pairs of\nsuch prompts"]
