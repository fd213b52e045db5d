"""Scores of heuristics on neurons: the fast way against sorting and counting, planted neurons, and the table."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib import matching
from stages.lib.covering import members
from stages.lib.heuristics import parse
from stages.lib.sql import Database, connect
from stages.lib.store import LayerStore


def brute(values: np.ndarray, satisfied: np.ndarray, bottom: bool) -> np.ndarray:
    """Scores of one map (cells,) by sorting: ties go to the earlier cell."""
    order = np.argsort(values if bottom else -values, kind="stable")
    return np.array([cells[order[: cells.sum()]].mean() if cells.any() else np.nan for cells in satisfied])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 19),
    st.integers(2, 900),
    st.integers(1, 30),
    st.sampled_from([1, 3, 1000]),
    st.sampled_from([1, 2]),
)
def test_scores_are_those_of_sorting(seed: int, neurons: int, cells: int, heuristics: int, distinct: int, threads: int):
    """Random maps with many ties, signs and zeros; heuristics of a quantity and of none, some without a cell."""
    random = np.random.default_rng(seed)
    maps = (random.integers(-distinct, distinct + 1, (neurons, cells)) / 2).astype(np.float16) * random.choice([-1.0, 1.0])
    value = random.integers(0, 40, cells)
    of_value = [random.random(40) < random.choice([0, 0.05, 0.5]) for _ in range(heuristics)]
    satisfied = np.array([of[value] for of in of_value] + [random.random(cells) < 0.2 for _ in range(3)])
    quantities = ["result"] * heuristics + ["both"] * 3
    grouped = matching.families(satisfied, quantities, {"result": value})
    seen = np.zeros(neurons, int)
    for part, top, bottom in matching.scores(maps, satisfied, grouped, threads):
        seen[part] += 1
        for neuron, found in enumerate(top, part.start):
            np.testing.assert_array_equal(found, brute(maps[neuron].astype(float), satisfied, False).astype(np.float32))
        for neuron, found in enumerate(bottom, part.start):
            np.testing.assert_array_equal(found, brute(maps[neuron].astype(float), satisfied, True).astype(np.float32))
    assert (seen == 1).all()


@pytest.fixture(scope="module")
def square(tmp_path_factory: pytest.TempPathFactory) -> tuple[Database, np.ndarray]:
    """The table of cells of addition up to 59, and its columns."""
    cells = np.array([(a, b, a + b) for a in range(60) for b in range(60)])
    path = tmp_path_factory.mktemp("cells") / "cells.parquet"
    table = pl.DataFrame(cells[::-1].copy(), schema={"op1": pl.Int16, "op2": pl.Int16, "result": pl.Int32}, orient="row")
    table.with_columns(operator=pl.lit("add")).write_parquet(path)
    return Database({"cells": [path]}, threads=1), cells.T


NAMES = [
    "op1 mod 2 = 0", "op1 mod 7 = 3", "op2 in 10..19", "result in 30..59", "result mod 5 = 1", "op2 ~ .3.", "op1 = op2", "result = 999",
    "op1 mod 3 = 1 and op2 mod 3 = 2", "digits 10 of op1 and op2 sum to 7 with carry",
]  # fmt: skip


def test_a_neuron_that_is_a_heuristic_scores_one_and_noise_scores_its_share(square: tuple[Database, np.ndarray]):
    database, (op1, op2, result) = square
    heuristics = [parse(name) for name in NAMES]
    satisfied = members(database, "add", heuristics)
    np.testing.assert_array_equal(satisfied[0], op1 % 2 == 0)
    np.testing.assert_array_equal(satisfied[5], op2 // 10 % 10 == 3)
    np.testing.assert_array_equal(satisfied[6], op1 == op2)
    random = np.random.default_rng(0)
    noise = random.random((len(NAMES), len(op1)))
    planted = (satisfied * 2 + noise).astype(np.float16)
    grouped = matching.families(satisfied, [h.quantity for h in heuristics], {"op1": op1, "op2": op2, "result": result})
    _, top, _ = (
        np.concatenate(parts) if i else parts for i, parts in enumerate(zip(*matching.scores(planted, satisfied, grouped, 1), strict=True))
    )
    for i, name in enumerate(NAMES):
        assert np.isnan(top[i, i]) if name == "result = 999" else top[i, i] == 1
    upside_down = matching.scores(-planted, satisfied, grouped, 1)
    bottom = np.concatenate([b for _, _, b in upside_down])
    np.testing.assert_array_equal(bottom.diagonal(), top.diagonal())
    shuffled = np.concatenate([t for _, t, _ in matching.scores(noise.astype(np.float32), satisfied, grouped, 1)])
    share = satisfied.mean(1)
    wide = np.flatnonzero(share > 0.05)
    assert np.abs(shuffled[:, wide] - share[wide]).max() < 0.08


def test_the_table_holds_the_scores_above_its_threshold(micro: Path):
    """A few neurons of the micro subject, whole catalogue, by brute force from what SQL says of activations and value logits."""
    database = connect(micro / "data", threads=1)
    catalogue = pl.read_parquet(micro / "data/heuristics.parquet").filter(pl.col("usable"), pl.col("operator") == "add")
    matches = pl.read_parquet(micro / "data/abacus/matches.parquet").filter(operator="add")
    assert (matches["corrected"] >= 0.2).all()
    heuristics = [parse(name) for name in catalogue["heuristic"]]
    satisfied = members(Database({"cells": [micro / "data/cells.parquet"]}, threads=1), "add", heuristics)
    share, of_result = satisfied.mean(1), np.array([h.quantity == "result" for h in heuristics])
    store, votes = LayerStore(micro / "data/abacus/activations/add.h5"), LayerStore(micro / "data/abacus/value_logits.h5")
    for layer, neuron in ((0, 3), (1, 40), (1, 63)):
        rows = database.sql(
            "select result, activation from activations where subject = 'abacus' and operator = 'add' and layer = $l and neuron = $n "
            "and result is not null order by op1, op2", l=layer, n=neuron,
        ).pl()  # fmt: skip
        assert store.axes["neuron"] == votes.axes["neuron"] == 64
        activation = rows["activation"].to_numpy()
        weighted = activation * votes.read(layer, slice(neuron, neuron + 1), slice(None))[0][rows["result"].to_numpy()]
        expected = set()
        for bottom in (False, True):
            scores = np.where(of_result, brute(weighted, satisfied, bottom), brute(activation, satisfied, bottom))
            kept = np.flatnonzero(((scores - share) / (1 - share)).astype(np.float32) >= 0.2)
            expected |= {(heuristics[i].name, "bottom" if bottom else "top", round(float(scores[i]), 5)) for i in kept}
        found = matches.filter(layer=layer, neuron=neuron).select("heuristic", "side", "score").rows()
        assert {(h, s, round(x, 5)) for h, s, x in found} == expected
