"""Which neurons stand for a heuristic, by each way of counting."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.bag.knocked import MEMBERSHIPS, written
from tests.made import ask, late_layers

KEYS = ["operator", "layer", "neuron", "heuristic"]
SETTING = pl.DataFrame({"threshold": [0.5], "level": [0.05]})


@pytest.fixture(scope="module")
def matches() -> pl.DataFrame:
    """Four heuristics on some of 40 neurons, many by either side, with scores and levels at, above and below those of the setting."""
    rng = np.random.default_rng(0)
    places = [
        (o, layer, n, h, side)
        for o in ("add", "divide")
        for layer in range(3)
        for n in range(40)
        for h in "abcd"
        for side in ("top", "bottom")
    ]
    kept = [places[i] for i in sorted(rng.choice(len(places), 900, replace=False))]
    made = pl.DataFrame(kept, schema=[*KEYS, "side"], orient="row").with_columns(
        pl.col("layer").cast(pl.Int16), pl.col("neuron").cast(pl.Int32), subject=pl.lit("s"), kind=pl.lit("range"), quantity=pl.lit("op1"),
        corrected=pl.Series(rng.integers(5, 13, len(kept)) / 16, dtype=pl.Float32), score=pl.lit(0.7, pl.Float32),
        q_value=pl.Series(rng.choice([0.01, 0.05, 0.06, 0.5], len(kept))), foremost=pl.Series(rng.random(len(kept)) < 0.5),
    )  # fmt: skip
    return made.sample(fraction=1, shuffle=True, seed=0)


def counted(matches: pl.DataFrame, first: int | None = 1, setting: pl.DataFrame = SETTING) -> pl.DataFrame:
    return ask("heuristic_neurons", {"matches": matches, "label_setting": setting, "late_layers": late_layers(first)})


def test_each_way_of_counting_asks_for_more(matches: pl.DataFrame):
    expected = {}
    for (operator, *rest), sides in matches.filter(pl.col("corrected") >= 0.5).group_by(KEYS):
        called = sides.filter(pl.col("q_value") <= 0.05)
        for membership, those in zip(MEMBERSHIPS, (called.filter("foremost"), called, sides), strict=True):
            if len(those):
                expected[operator, membership, *rest] = sides["corrected"].max()
    table = counted(matches)
    assert table.select(pl.exclude("subject", "late")).rows() == [(*key, score) for key, score in sorted(expected.items())]
    counts = [table.filter(membership=membership).height for membership in MEMBERSHIPS]
    assert 0 < counts[0] < counts[1] < counts[2]


def test_labels_are_those_of_the_table_of_labels(matches: pl.DataFrame):
    naming = matches.select("operator", "layer", "neuron").unique().with_columns(correlation=pl.lit(0.5), p_value=pl.lit(0.01))
    labels = ask("labels", {"matches": matches, "naming": naming, "label_setting": SETTING})
    assert counted(matches).filter(membership="label").select(KEYS).rows() == sorted(labels.select(KEYS).unique().rows())


def test_late_layers_are_those_that_promote_the_answer(matches: pl.DataFrame):
    for first, late in ((0, {0, 1, 2}), (2, {2}), (None, set())):
        assert set(counted(matches, first).filter("late")["layer"]) == late


def test_without_matches_or_setting_there_are_none(matches: pl.DataFrame):
    assert counted(matches.clear()).is_empty()
    assert counted(matches, setting=SETTING.clear()).is_empty()


@pytest.mark.parametrize("name", ["abacus", "planted"])
def test_the_pipeline_counts_its_labels_and_more(micro: Path, name: str):
    table = written(micro, name, "heuristic_neurons")
    by = {membership: set(table.filter(membership=membership).select(KEYS).rows()) for membership in MEMBERSHIPS}
    assert by["label"] == set(written(micro, name, "labels").select(KEYS).rows())
    assert set() < by["label"] < by["called"] <= by["scored"]
    first = written(micro, name, "late_layers")["first_layer"][0]
    assert table["late"].to_list() == [first is not None and layer >= first for layer in table["layer"]]
