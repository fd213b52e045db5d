"""Scores of heuristics on neurons, against sorting and counting."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.core.hdf5_store import LayerStore, LayerWriter, writing
from stages.lib.heuristics.answer_sets import AnswerSets, find
from stages.lib.heuristics.grid import OperandGrid
from stages.lib.heuristics.members import members
from stages.lib.heuristics.names import parse
from stages.lib.heuristics.scores import descending, scores, sets, strengths
from stages.lib.sql.database import Database, connect


def brute(values: np.ndarray, satisfied: np.ndarray) -> np.ndarray:
    """Score one map by sorting: (2, heuristics) float32, top before bottom.

    values: (cells,); satisfied: (heuristics, cells) bool. Ties go to the earlier cell.
    """
    order, rates = np.argsort(-values, kind="stable"), []
    for cells in satisfied:
        k = cells.sum()
        if k:
            rates.append((cells[order[:k]].mean(), cells[order[-k:]].mean()))
        else:
            rates.append((np.nan, np.nan))
    return np.array(rates, np.float32).reshape(-1, 2).T


def scored(
    values: np.ndarray,
    satisfied: np.ndarray,
    quantities: list[str],
    operands: dict[str, np.ndarray],
) -> np.ndarray:
    """Score one map with the code under test, in the order of the heuristics."""
    made, order = sets(satisfied, quantities, operands)
    both = np.empty((2, len(satisfied)), np.float32)
    both[:, order] = scores(values, made)
    return both


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(2, 900), st.integers(1, 30), st.sampled_from([1, 3, 1000])
)
def test_scores_are_those_of_sorting(seed: int, cells: int, heuristics: int, distinct: int):
    """Maps have many ties, both signs and zeros. Some heuristics have no cell, some have all."""
    random = np.random.default_rng(seed)
    sign = random.choice([-1.0, 1.0])
    halves = (random.integers(-distinct, distinct + 1, cells) / 2).astype(np.float16)
    values = (halves * sign).astype(np.float32)
    operands = {"op1": random.integers(0, 40, cells), "op2": random.integers(0, 9, cells)}
    quantities = random.choice(["op1", "op2"], heuristics).tolist()
    satisfied = []
    for quantity in quantities:
        inside = random.random(40) < random.choice([0, 0.05, 0.5, 1])
        satisfied.append(inside[operands[quantity]])
    satisfied = np.concatenate([satisfied, random.random((3, cells)) < 0.2])
    quantities += ["both", "both", "custom"]
    expected = brute(values, satisfied)
    np.testing.assert_array_equal(scored(values, satisfied, quantities, operands), expected)
    made, order = sets(satisfied, quantities, operands)
    scale = np.sqrt(np.square(values).mean(dtype=float)) or np.inf
    own = strengths(values, made)
    for strength, cells_of_set in zip(own, satisfied[order], strict=True):
        if cells_of_set.any():
            mean = values[cells_of_set].mean(dtype=float)
            assert strength == pytest.approx(mean / scale, abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=400))
def test_any_numbers_are_sorted(numbers: list[float]):
    values = np.array(numbers, np.float32)
    np.testing.assert_array_equal(descending(values), np.argsort(-values, kind="stable"))


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> tuple[Database, dict[str, np.ndarray]]:
    """The table of cells of addition up to 59, and its columns."""
    op1, op2 = np.indices((60, 60), np.int32).reshape(2, -1)
    columns = {"op1": op1, "op2": op2, "result": op1 + op2}
    path = tmp_path_factory.mktemp("cells") / "cells.parquet"
    pl.DataFrame(columns).reverse().with_columns(operator=pl.lit("add")).write_parquet(path)
    return Database({"cells": [path]}, threads=1), columns


NAMES = [
    "op1 mod 2 = 0",
    "op1 mod 7 = 3",
    "op2 in 10..19",
    "result in 30..59",
    "result mod 5 = 1",
    "op2 ~ .3.",
    "op1 = op2",
    "op1 mod 3 = 1 and op2 mod 3 = 2",
    "digits 10 of op1 and op2 sum to 7 with carry",
    "result = 999",  # no cell
]


def test_exact_neurons_score_one_and_noise_scores_its_share(
    cells: tuple[Database, dict[str, np.ndarray]],
):
    database, columns = cells
    heuristics = list(map(parse, NAMES))
    quantities = [heuristic.quantity for heuristic in heuristics]
    satisfied = members(database, "add", heuristics)
    np.testing.assert_array_equal(satisfied[0], columns["op1"] % 2 == 0)
    np.testing.assert_array_equal(satisfied[5], columns["op2"] // 10 % 10 == 3)
    np.testing.assert_array_equal(satisfied[6], columns["op1"] == columns["op2"])
    assert not satisfied[-1].any()
    noise = np.random.default_rng(0).random((len(NAMES), len(columns["op1"])))
    share = satisfied.mean(1)
    wide = share > 0.05
    for i in range(len(NAMES)):
        planted = (satisfied[i] * 2 + noise[i]).astype(np.float16)
        top, bottom = scored(planted, satisfied, quantities, columns)
        best = np.nan if NAMES[i] == "result = 999" else 1
        np.testing.assert_array_equal(top[i], best)
        np.testing.assert_array_equal(scored(-planted, satisfied, quantities, columns)[1, i], best)
        assert bottom[i] < share[i] or not wide[i]
        of_noise = scored(noise[i].astype(np.float32), satisfied, quantities, columns)
        assert np.abs(of_noise[:, wide] - share[wide]).max() < 0.08


def test_a_set_of_results_is_found_if_few_results_come_first():
    settings = AnswerSets(operators=["divide"], results=3, first_cells=100, covers=0.9)
    random = np.random.default_rng(0)
    results, noise = random.integers(0, 30, 3000), random.random(3000)
    is_member = np.isin(results, [4, 11])
    answer_set = find((is_member * 2 + noise).astype(np.float32), results, settings)
    assert (answer_set.name, answer_set.score) == ("result in {4, 11}", 1)
    assert answer_set.share == pytest.approx(is_member.mean())
    assert parse(answer_set.name).kind == "multi-result"
    single = ((results == 4) * 2 + noise).astype(np.float32)
    assert find(single, results, settings) is None
    assert find(noise.astype(np.float32), results, settings) is None  # needs too many results


def test_the_table_has_the_scores_above_its_threshold(micro: Path):
    """A few neurons and the whole catalogue, by brute force from activations and value logits."""
    database = connect(micro / "data", threads=1)
    catalogue = pl.read_parquet(micro / "data/heuristics/heuristics.parquet")
    names = catalogue.filter("usable", operator="add")["heuristic"]
    table = pl.read_parquet(micro / "data/abacus/heuristics/scores.parquet").filter(operator="add")
    assert (table["chance_corrected"] >= 0.2).all()
    heuristics = list(map(parse, names))
    cells = Database({"cells": [micro / "data/corpus/cells.parquet"]}, threads=1)
    satisfied = members(cells, "add", heuristics)
    of_result = np.array([heuristic.quantity == "result" for heuristic in heuristics])
    share = satisfied.mean(1)
    value_logits = LayerStore(micro / "data/abacus/store/value_logits.h5")
    query = (
        "select result, activation from activations where subject = 'abacus' and operator = 'add' "
        "and layer = $layer and neuron = $neuron and result is not null order by op1, op2"
    )
    for layer, neuron in ((0, 3), (1, 40), (1, 63)):
        rows = database.sql(query, layer=layer, neuron=neuron).pl()
        logits = value_logits.read(layer, slice(neuron, neuron + 1), slice(None))[0]
        values = rows["activation"].to_numpy()
        contributions = values * logits[rows["result"].to_numpy()]
        both = np.where(of_result, brute(contributions, satisfied), brute(values, satisfied))
        side, number = np.nonzero((both - share) / (1 - share) >= 0.2)
        sides = np.array(["top", "bottom"])[side].tolist()
        expected = zip(names.gather(number), sides, both[side, number].round(5), strict=True)
        own = table.filter(layer=layer, neuron=neuron)
        stored = zip(own["heuristic"], own["side"], own["score"].to_numpy().round(5), strict=True)
        assert sorted(stored) == sorted(expected)
        assert len(own) > 0


def test_a_neuron_of_a_model_that_predicts_digits_may_be_the_carry(tmp_path: Path):
    """The model predicts the tens digit, and the catalogue is empty."""
    size = 40
    op1, op2 = np.indices((size, size))
    results = op1 + op2
    tens = np.arange(results.max() + 1) // 10 % 10
    attributes = {"operator": "add", "asked": ",".join(map(str, tens))}
    axes = {"neuron": 1, "op1": size, "op2": size}
    with writing(tmp_path / "store.h5") as file:
        shape = (1, size, size)
        LayerWriter(file, [0], axes, "float16", shape, attributes, columns={"result": results})
    cells = {"op1": op1.ravel(), "op2": op2.ravel(), "result": results.ravel()}
    pl.DataFrame({"operator": "add", **cells}).write_parquet(tmp_path / "cells.parquet")
    columns = ("operator", "heuristic", "kind", "quantity", "predicate")
    empty = pl.DataFrame(schema=dict.fromkeys(columns, pl.String))
    database = Database({"cells": [tmp_path / "cells.parquet"]}, threads=1)
    grid = OperandGrid(database, empty, LayerStore(tmp_path / "store.h5"))
    carry = (grid.op1 % 10 + grid.op2 % 10 >= 10).astype(np.float32)
    [top, _] = scores(carry, grid.operands.sets)
    by_name = dict(zip(grid.operands.names, top, strict=True))
    assert grid.operands.names[top == 1].tolist() == ["carry into 10"]
    assert "carry into 100" not in by_name  # no cell has this carry
    with_carry = by_name["digits 10 of op1 and op2 sum to 3 with carry"]
    assert by_name["digits 10 of op1 and op2 sum to 3 without carry"] < with_carry < 1
    assert set(grid.answers.names) == {f"asked = {digit}" for digit in range(8)}
