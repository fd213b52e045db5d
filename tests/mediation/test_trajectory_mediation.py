"""Test causal mediation over training: its table, and its figure."""

from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages.mediation import training_figure as figure
from tests.circuit.figure_tables import line, texts, written_by
from tests.made import ask
from tests.mediation import mediated

pytestmark = pytest.mark.usefixtures("close_figures")
STEPS = [0, 250, 6500]
KEYS = ["task", "condition", "operator"]
COPIED = ["importance", "ci_low", "ci_high", "without_effect", "log_effects", "pairs"]


@pytest.fixture(scope="module")
def importance() -> pl.DataFrame:
    """Return relative_importance of random runs."""
    return mediated.importance(mediated.by_pair(mediated.subject()))


def checkpoints(importance: pl.DataFrame) -> pl.DataFrame:
    tables = []
    for step in STEPS:
        given = {"relative_importance": importance}
        tables.append(ask("trajectory_mediation", given, last="s", step=step))
    return pl.concat(tables)


def test_a_checkpoint_has_the_importance_of_all_pairs_and_the_accuracy(importance: pl.DataFrame):
    table = checkpoints(importance).filter(step=250).sort(KEYS)
    every = importance.filter(which="all").sort(KEYS)
    answered = importance.filter(which="answered").sort(KEYS)
    assert len(every) > 0
    assert table.select(KEYS + COPIED).equals(every.select(KEYS + COPIED))
    assert table["correct"].to_list() == (answered["pairs"] / every["pairs"]).to_list()
    late = (every["importance"] * every["log_effects"]).to_list()
    assert table["late_effects"].to_list() == pytest.approx(late)


def test_the_figure_has_a_column_for_each_task_and_a_line_for_each_condition(
    importance: pl.DataFrame,
):
    table = checkpoints(importance).filter(operator="all").sort("step")
    tasks = ["arithmetic", "three_operands", "retrieval"]
    axes = figure.draw(table, "s").axes
    for axis, (measure, task) in zip(axes, product(figure.MEASURES, tasks), strict=True):
        for (condition,), rows in table.filter(task=task).group_by("condition"):
            drawn = line(axis, str(condition).replace("_", " "))
            expected = rows.sort("step").select("step", measure).cast(pl.Float64).to_numpy()
            np.testing.assert_array_equal(drawn.get_xydata(), expected)
    assert [axis.get_title() for axis in axes[:3]] == [task.replace("_", " ") for task in tasks]


def test_without_checkpoints_there_is_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, importance: pl.DataFrame
):
    monkeypatch.chdir(tmp_path)
    figure.main()
    assert list((tmp_path / figure.FOLDER).iterdir()) == []
    folder = tmp_path / "data/mediation" / figure.TABLE
    folder.mkdir(parents=True)
    checkpoints(importance).write_parquet(folder / "s.parquet")
    written = written_by(figure.main, lambda _: None, tmp_path, monkeypatch)
    assert written == {f"{figure.FOLDER}/s.png", f"{figure.FOLDER}/s.svg"}


def test_a_table_without_pairs_says_so(importance: pl.DataFrame):
    [axis, *_] = figure.draw(checkpoints(importance).clear(), "s").axes
    assert f"no data: {figure.NO_PAIRS}" in texts(axis)
