"""Scores of heuristics on neurons: the fast way against sorting and counting, planted neurons, and the table."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.core.layered import LayerStore, LayerWriter, writing
from stages.lib.heuristics.answer_sets import AnswerSets, find
from stages.lib.heuristics.members import members
from stages.lib.heuristics.names import parse
from stages.lib.heuristics.scores import descending, scores, sets, strengths
from stages.lib.heuristics.square import Square
from stages.lib.sql.database import Database, connect


def brute(values: np.ndarray, satisfied: np.ndarray) -> np.ndarray:
    """Scores (2, heuristics) of one map (cells,) by sorting: ties go to the earlier cell, the bottom is the order's end."""
    order, n = np.argsort(-values, kind="stable"), len(values)
    top = [cells[order[: cells.sum()]].mean() if cells.any() else np.nan for cells in satisfied]
    bottom = [cells[order[n - cells.sum() :]].mean() if cells.any() else np.nan for cells in satisfied]
    return np.array([top, bottom], np.float32)


def scored(values: np.ndarray, satisfied: np.ndarray, quantities: list[str], of: dict[str, np.ndarray]) -> np.ndarray:
    made, order = sets(satisfied, quantities, of)
    found = np.empty((2, len(satisfied)), np.float32)
    found[:, order] = scores(values, made)
    return found


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 900), st.integers(1, 30), st.sampled_from([1, 3, 1000]))
def test_scores_are_those_of_sorting(seed: int, cells: int, heuristics: int, distinct: int):
    """Random maps with many ties, signs and zeros; heuristics of two quantities and of none, some without a cell, some of all."""
    random = np.random.default_rng(seed)
    values = ((random.integers(-distinct, distinct + 1, cells) / 2).astype(np.float16) * random.choice([-1.0, 1.0])).astype(np.float32)
    of = {"op1": random.integers(0, 40, cells), "op2": random.integers(0, 9, cells)}
    quantities = [str(random.choice(["op1", "op2"])) for _ in range(heuristics)]
    satisfied = [(random.random(40) < random.choice([0, 0.05, 0.5, 1]))[of[quantity]] for quantity in quantities]
    satisfied += [random.random(cells) < 0.2 for _ in range(3)]
    whole = np.array(satisfied)
    np.testing.assert_array_equal(scored(values, whole, [*quantities, "both", "both", "custom"], of), brute(values, whole))
    made, order = sets(whole, [*quantities, "both", "both", "custom"], of)
    filled = np.flatnonzero(whole[order].any(1))
    inside = np.array([values[whole[order[i]]].mean(dtype=float) for i in filled]) / (
        np.sqrt(np.square(values).mean(dtype=float)) or np.inf
    )
    np.testing.assert_allclose(strengths(values, made)[filled], inside, atol=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=400))
def test_any_numbers_are_put_in_order(listed: list[float]):
    values = np.array(listed, np.float32)
    np.testing.assert_array_equal(descending(values), np.argsort(-values, kind="stable"))


@pytest.fixture(scope="module")
def square(tmp_path_factory: pytest.TempPathFactory) -> tuple[Database, np.ndarray]:
    """The table of cells of addition up to 59, and its columns."""
    cells = np.array([(a, b, a + b) for a in range(60) for b in range(60)])
    path = tmp_path_factory.mktemp("cells") / "cells.parquet"
    table = pl.DataFrame(
        cells[::-1].copy(),
        schema={"op1": pl.Int32, "op2": pl.Int32, "result": pl.Int32},
        orient="row",
    )
    table.with_columns(operator=pl.lit("add")).write_parquet(path)
    return Database({"cells": [path]}, threads=1), cells.T


NAMES = [
    "op1 mod 2 = 0", "op1 mod 7 = 3", "op2 in 10..19", "result in 30..59", "result mod 5 = 1", "op2 ~ .3.", "op1 = op2", "result = 999",
    "op1 mod 3 = 1 and op2 mod 3 = 2", "digits 10 of op1 and op2 sum to 7 with carry",
]  # fmt: skip


def test_a_neuron_that_is_a_heuristic_scores_one_and_noise_scores_its_share(square: tuple[Database, np.ndarray]):
    database, (op1, op2, result) = square
    heuristics = [parse(name) for name in NAMES]
    satisfied, quantities = members(database, "add", heuristics), [h.quantity for h in heuristics]
    np.testing.assert_array_equal(satisfied[0], op1 % 2 == 0)
    np.testing.assert_array_equal(satisfied[5], op2 // 10 % 10 == 3)
    np.testing.assert_array_equal(satisfied[6], op1 == op2)
    random, of = np.random.default_rng(0), {"op1": op1, "op2": op2, "result": result}
    noise = random.random((len(NAMES), len(op1)))
    share, wide = satisfied.mean(1), satisfied.mean(1) > 0.05
    for i, name in enumerate(NAMES):
        planted = (satisfied[i] * 2 + noise[i]).astype(np.float16)
        top, bottom = scored(planted, satisfied, quantities, of)
        assert np.isnan(top[i]) if name == "result = 999" else top[i] == 1
        np.testing.assert_array_equal(scored(-planted, satisfied, quantities, of)[1, i], top[i])
        if wide[i]:
            assert bottom[i] < share[i]
        for side in scored(noise[i].astype(np.float32), satisfied, quantities, of):
            assert np.abs(side[wide] - share[wide]).max() < 0.08


def test_a_set_of_results_is_found_where_few_results_come_first():
    settings = AnswerSets(operators=["divide"], results=3, first_cells=100, covers=0.9)
    random = np.random.default_rng(0)
    results = random.integers(0, 30, 3000)
    noise = random.random(3000)
    found = find((np.isin(results, [4, 11]) * 2 + noise).astype(np.float32), results, settings)
    assert found is not None
    assert (found.name, found.score) == ("result in {4, 11}", 1)
    assert found.share == pytest.approx(np.isin(results, [4, 11]).mean())
    assert parse(found.name).kind == "multi-result"
    assert find(((results == 4) * 2 + noise).astype(np.float32), results, settings) is None  # one result is no set
    assert find(noise.astype(np.float32), results, settings) is None  # these would be too many


def test_the_table_holds_the_scores_above_its_threshold(micro: Path):
    """A few neurons of the micro subject, whole catalogue, by brute force from what SQL says of activations and value logits."""
    database = connect(micro / "data", threads=1)
    catalogue = pl.read_parquet(micro / "data/heuristics/heuristics.parquet").filter(pl.col("usable"), pl.col("operator") == "add")
    table = pl.read_parquet(micro / "data/abacus/heuristics/scores.parquet").filter(operator="add")
    assert (table["corrected"] >= 0.2).all()
    heuristics = [parse(name) for name in catalogue["heuristic"]]
    satisfied = members(Database({"cells": [micro / "data/corpus/cells.parquet"]}, threads=1), "add", heuristics)
    share, of_result = satisfied.mean(1), np.array([h.quantity == "result" for h in heuristics])
    store, votes = LayerStore(micro / "data/abacus/store/activations/add.h5"), LayerStore(micro / "data/abacus/store/value_logits.h5")
    for layer, neuron in ((0, 3), (1, 40), (1, 63)):
        rows = database.sql(
            "select result, activation from activations where subject = 'abacus' and operator = 'add' and layer = $l and neuron = $n "
            "and result is not null order by op1, op2", l=layer, n=neuron,
        ).pl()  # fmt: skip
        assert store.axes["neuron"] == votes.axes["neuron"] == 64
        activation = rows["activation"].to_numpy()
        weighted = activation * votes.read(layer, slice(neuron, neuron + 1), slice(None))[0][rows["result"].to_numpy()]
        expected = set()
        for side, plain, of_answers in zip(("top", "bottom"), brute(activation, satisfied), brute(weighted, satisfied), strict=True):
            found = np.where(of_result, of_answers, plain)
            kept = np.flatnonzero((found - share) / (1 - share) >= 0.2)
            expected |= {(heuristics[i].name, side, round(float(found[i]), 5)) for i in kept}
        rows = table.filter(layer=layer, neuron=neuron).select("heuristic", "side", "score").rows()
        assert {(h, s, round(x, 5)) for h, s, x in rows} == expected


def test_a_neuron_of_a_subject_that_writes_digits_may_be_the_carry(tmp_path: Path):
    """Asked for tens, of which the catalogue knows nothing: heuristics of columns stand beside those of the digit."""
    size = 40
    op1, op2 = np.indices((size, size))
    results = op1 + op2
    with writing(tmp_path / "store.h5") as file:
        tens = ",".join(str(result // 10 % 10) for result in range(results.max() + 1))
        axes = {"neuron": 1, "op1": size, "op2": size}
        LayerWriter(file, [0], axes, "float16", (1, size, size), {"operator": "add", "asked": tens}, columns={"result": results})
    cells = {"operator": "add", "op1": op1.ravel(), "op2": op2.ravel(), "result": results.ravel()}
    pl.DataFrame(cells).write_parquet(tmp_path / "cells.parquet")
    empty = pl.DataFrame(schema=dict.fromkeys(("operator", "heuristic", "kind", "quantity", "predicate"), pl.String))
    square = Square(Database({"cells": [tmp_path / "cells.parquet"]}, threads=1), empty, LayerStore(tmp_path / "store.h5"))
    carry = (square.op1 % 10 + square.op2 % 10 >= 10).astype(np.float32)
    [top, _] = scores(carry, square.operands.sets)
    found = dict(zip(square.operands.names, top, strict=True))
    assert [name for name, score in found.items() if score == 1] == ["carry into 10"]
    assert "carry into 100" not in found  # no two of these operands do
    assert found["digits 10 of op1 and op2 sum to 3 without carry"] < found["digits 10 of op1 and op2 sum to 3 with carry"] < 1
    assert set(square.answers.names) == {f"asked = {digit}" for digit in range(8)}
