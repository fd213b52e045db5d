"""The neurons that implement a heuristic, by each criterion."""

from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.bag.knocked import CRITERIA, written
from tests.made import ask, late_layers

KEYS = ["operator", "layer", "neuron", "heuristic"]
SETTING = pl.DataFrame({"threshold": [0.5], "level": [0.05]})


@pytest.fixture(scope="module")
def matches() -> pl.DataFrame:
    """Four heuristics on some of 40 neurons, many on both sides.

    Scores and q_values are at, above and below those of the setting.
    """
    random = np.random.default_rng(0)
    every = product(("add", "divide"), range(3), range(40), "abcd", ("top", "bottom"))
    rows = pl.DataFrame(list(every), [*KEYS, "side"], orient="row").sample(900, seed=0)
    return rows.with_columns(
        pl.col("layer").cast(pl.Int16),
        pl.col("neuron").cast(pl.Int32),
        subject=pl.lit("s"),
        kind=pl.lit("range"),
        quantity=pl.lit("op1"),
        chance_corrected=pl.Series(random.integers(5, 13, 900) / 16, dtype=pl.Float32),
        score=pl.lit(0.7, pl.Float32),
        q_value=pl.Series(random.choice([0.01, 0.05, 0.06, 0.5], 900)),
        nonredundant=pl.Series(random.random(900) < 0.5),
    )


def counted(
    matches: pl.DataFrame, first: int | None = 1, setting: pl.DataFrame = SETTING
) -> pl.DataFrame:
    """The table heuristic_neurons; first: the first late layer."""
    tables = {"matches": matches, "label_setting": setting, "late_layers": late_layers(first)}
    return ask("heuristic_neurons", tables)


def test_each_criterion_includes_the_one_before(matches: pl.DataFrame):
    expected = {}
    for (operator, *rest), sides in matches.filter(pl.col("chance_corrected") >= 0.5).group_by(
        KEYS
    ):
        called = sides.filter(pl.col("q_value") <= 0.05)
        groups = called.filter("nonredundant"), called, sides
        for criterion, group in zip(CRITERIA, groups, strict=True):
            if len(group):
                expected[operator, criterion, *rest] = sides["chance_corrected"].max()
    table = counted(matches)
    rows = table.select(pl.exclude("subject", "late")).rows()
    assert rows == [(*key, score) for key, score in sorted(expected.items())]
    label, called, scored = (table.filter(criterion=name).height for name in CRITERIA)
    assert 0 < label < called < scored


def test_labels_are_those_of_the_table_labels(matches: pl.DataFrame):
    neurons = matches.select("operator", "layer", "neuron").unique()
    naming = neurons.with_columns(correlation=pl.lit(0.5), p_value=pl.lit(0.01))
    tables = {"matches": matches, "naming": naming, "label_setting": SETTING}
    labels = ask("labels", tables).select(KEYS).unique()
    assert len(labels) > 0
    own = counted(matches).filter(criterion="label").select(KEYS)
    assert own.rows() == sorted(labels.rows())


@pytest.mark.parametrize(("first", "late"), [(0, {0, 1, 2}), (2, {2}), (None, set())])
def test_late_layers_are_those_of_the_table(matches: pl.DataFrame, first: int | None, late: set):
    assert set(counted(matches, first).filter("late")["layer"]) == late


def test_without_matches_or_a_setting_there_are_none(matches: pl.DataFrame):
    assert counted(matches.clear()).is_empty()
    assert counted(matches, setting=SETTING.clear()).is_empty()


@pytest.mark.parametrize("name", ["abacus", "planted"])
def test_the_pipeline_counts_its_labels_and_more(micro: Path, name: str):
    table = written(micro, name, "heuristic_neurons")
    label, called, scored = (
        {*table.filter(criterion=criterion).select(KEYS).rows()} for criterion in CRITERIA
    )
    assert label == {*written(micro, name, "labels").select(KEYS).rows()}
    assert set() < label < called <= scored
    [first] = written(micro, name, "late_layers")["first_layer"]
    is_late = (
        table["layer"] >= first if first is not None else pl.repeat(False, len(table), eager=True)
    )
    assert table["late"].to_list() == is_late.to_list()
