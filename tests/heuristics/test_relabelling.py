"""Permutation tests: the null against brute force, valid p-values, and the tables."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages.heuristics.null_distribution.p_values import BestTally, judged, steps_to
from stages.heuristics.null_distribution.relabelled import RelabelledNeuron, permutations
from stages.heuristics.settings import PermutationTests
from stages.lib.core.hdf5_store import LayerStore, LayerWriter, writing
from stages.lib.heuristics.answer_sets import AnswerSets, find
from stages.lib.heuristics.grid import OperandGrid
from stages.lib.heuristics.names import parse
from stages.lib.sql.database import Database
from tests.lib.test_scores import brute

SIZE, LARGEST = 30, 45  # operands; largest result that the model answers
SETS = AnswerSets(operators=["divide"], results=3, first_cells=60, covers=0.9)
SETTINGS = PermutationTests(
    first_draws=20,
    least_draws=100,
    most_draws=10000,
    exceedances=5,
    smallest_chance_corrected=0.3,
    thresholds=[0.4, 0.6],
    neurons_per_unit=5,
    seed=0,
)
MEMBERS = {  # heuristic -> its cells
    "op1 mod 2 = 0": lambda a, b, r: a % 2 == 0,
    "op2 in 10..19": lambda a, b, r: (b >= 10) & (b < 20),
    "op1 in 0..9": lambda a, b, r: a < 10,
    "op1 = op2": lambda a, b, r: a == b,
    "result mod 3 = 1": lambda a, b, r: r % 3 == 1,
    "result in 10..19": lambda a, b, r: (r >= 10) & (r < 20),
    "result in 0..4": lambda a, b, r: r < 5,
}
ANSWERS = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: np.where(a >= b, a - b, -1),
    "divide": lambda a, b: np.where(b > 0, a // np.maximum(b, 1), -1),
}
OP1, OP2 = np.indices((SIZE, SIZE))


@pytest.fixture(scope="module", params=ANSWERS)
def grid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OperandGrid:
    """The grid of operands up to 29, whose store has a layer of zeros. Tests make the maps."""
    operator = request.param
    results = ANSWERS[operator](OP1, OP2)
    folder = tmp_path_factory.mktemp(operator)
    axes = {"neuron": 1, "op1": SIZE, "op2": SIZE}
    columns = {"result": np.where(results <= LARGEST, results, -1)}
    with writing(folder / "store.h5") as file:
        shape, attributes = (1, SIZE, SIZE), {"operator": operator}
        LayerWriter(file, [0], axes, "float16", shape, attributes, columns=columns)
    valid = results >= 0
    cells = {"operator": operator, "op1": OP1[valid], "op2": OP2[valid], "result": results[valid]}
    pl.DataFrame(cells).write_parquet(folder / "cells.parquet")
    return read(folder, operator, 1)


def read(folder: Path, operator: str, least_cells: int) -> OperandGrid:
    rows = []
    for heuristic in map(parse, MEMBERS):
        kind, quantity = heuristic.kind, heuristic.quantity
        rows.append((operator, heuristic.name, kind, quantity, heuristic.predicate))
    columns = ["operator", "heuristic", "kind", "quantity", "predicate"]
    catalogue = pl.DataFrame(rows, columns, orient="row")
    database = Database({"cells": [folder / "cells.parquet"]}, threads=1)
    return OperandGrid(database, catalogue, LayerStore(folder / "store.h5"), least_cells)


def names(grid: OperandGrid) -> list[str]:
    return [*grid.operands.names, *grid.answers.names]


def satisfied(grid: OperandGrid) -> np.ndarray:
    """Which cells satisfy each heuristic: (heuristics, cells) bool."""
    cells = grid.op1, grid.op2, grid.results
    return np.array([MEMBERS[name](*cells) for name in names(grid)])


def random_map(random: np.random.Generator) -> np.ndarray:
    """A sum of random functions of op1, of op2 and of both: (op1, op2) float32."""
    rows, columns = random.normal(size=(SIZE, 1)), random.normal(size=(1, SIZE))
    noise = random.normal(size=(SIZE, SIZE))
    return (rows + columns + noise / 2).astype(np.float32)


def random_logits(random: np.random.Generator) -> np.ndarray:
    return random.normal(size=2 * SIZE).astype(np.float32)


def sharing_ties(values: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Score a map whose values count by their first ten bits: (2, sets).

    values: (cells,); members: (sets, cells). Ties count as they would on average.
    """
    mantissa, exponent = np.frexp(values)
    rounded = np.ldexp(np.trunc(mantissa * 1024), exponent)
    scores = []
    for signed in (rounded, -rounded):
        for inside in members:
            k = inside.sum()
            last = -np.sort(-signed)[k - 1]
            before, ties = signed > last, signed == last
            share = (k - before.sum()) / ties.sum()
            scores.append(((inside & before).sum() + share * (inside & ties).sum()) / k)
    return np.reshape(scores, (2, -1))


def test_the_null_is_that_of_permuting_and_sorting(grid: OperandGrid):
    random = np.random.default_rng(3)
    activations = random.normal(size=(SIZE, SIZE)).astype(np.float32)
    logits = random_logits(random)
    rows, columns = permutations(grid, range(7), 1)
    null = RelabelledNeuron(grid, activations, logits, SETS).null((rows, columns))
    members = satisfied(grid)
    share, split = members.mean(1), len(grid.operands.names)
    weights = logits[grid.results]
    for draw, (row, column) in enumerate(zip(rows, columns, strict=True)):
        values = activations[row[grid.op1], column[grid.op2]]
        of_operands = brute(values, members[:split])
        of_answers = sharing_ties(values * weights, members[split:])
        scores = np.concatenate([of_operands, of_answers], axis=1)
        chance_corrected = null.chance_corrected[draw][:, : len(members)]
        np.testing.assert_allclose(chance_corrected, (scores - share) / (1 - share), atol=1e-6)
        correlation = np.corrcoef(values, weights)[0, 1]
        assert null.correlations[draw] == pytest.approx(correlation, abs=1e-6)
    assert (rows[0] == np.arange(SIZE)).all()
    assert (columns[0] == np.arange(SIZE)).all()


@pytest.mark.parametrize("grid", SETS.operators, indirect=True)
def test_sets_of_results_are_found_again_under_every_relabelling(grid: OperandGrid):
    """Three results have almost all of the first cells, with the true labels and with others."""
    random = np.random.default_rng(4)
    activations = random.random((SIZE, SIZE), np.float32).round(1)  # many ties
    logits = random.random(2 * SIZE, np.float32)
    logits[[0, 2, 5]] += 10
    rows, columns = permutations(grid, range(21), 2)
    null = RelabelledNeuron(grid, activations, logits, SETS).null((rows, columns))
    expected = []
    for row, column in zip(rows, columns, strict=True):
        values = activations[row[grid.op1], column[grid.op2]] * logits[grid.results]
        answer_set = find(values, grid.results, SETS)
        expected.append((answer_set.score - answer_set.share) / (1 - answer_set.share))
    # ties at the last place differ
    np.testing.assert_allclose(null.chance_corrected[:, 0, -1], expected, atol=0.02)
    assert min(expected) > 0.1


def test_relabelling_stays_on_operands_that_cells_have(grid: OperandGrid):
    rows, columns = permutations(grid, range(21), 0)
    for labels, used in ((rows, np.unique(grid.op1)), (columns, np.unique(grid.op2))):
        np.testing.assert_array_equal(np.sort(labels[:, used]), np.tile(used, (21, 1)))
    assert len(np.unique(rows, axis=0)) == 21


def candidates(
    grid: OperandGrid, activations: np.ndarray, logits: np.ndarray | None = None
) -> pl.DataFrame:
    """Judge a neuron, whose value logits are 0 unless given."""
    if logits is None:
        logits = np.zeros(2 * SIZE, np.float32)
    steps = (permutations(grid, step, 0) for step in steps_to(100, SETTINGS.first_draws))
    judgement = judged(grid, activations.astype(np.float32), logits, steps, SETTINGS, SETS)
    return pl.DataFrame(judgement.candidates)


def test_a_planted_heuristic_is_significant(grid: OperandGrid):
    noise = np.random.default_rng(0).random((SIZE, SIZE)) / 10
    for name in ("op1 mod 2 = 0", "op2 in 10..19"):
        table = candidates(grid, MEMBERS[name](OP1, OP2, None) + noise)
        [row] = table.filter(heuristic=name, side="top").rows(named=True)
        assert 1 / 101 <= row["p_value"] <= row["p_family"] <= 0.03
        assert row["draws"] == 100
        assert row["null_mean"] < 0.3


def test_maps_that_ignore_the_numbers_are_rarely_significant(grid: OperandGrid):
    """Random functions of op1, op2 and both: p-values at most u occur at a rate of at most u."""
    random = np.random.default_rng(5)
    best = []
    for _ in range(60):
        table = candidates(grid, random_map(random), random_logits(random))
        best.append(table["p_family"].to_numpy().min(initial=1))
    # 3 of 60 are expected; 10 or more have a probability below 0.001
    assert np.less_equal(best, 0.05).mean() <= 0.15
    assert len(set(best)) > 1


def test_p_values_of_maps_that_ignore_the_numbers_are_uniform(grid: OperandGrid):
    """The p-value of a neuron's best z, over all heuristics and both sides."""
    random, labels, p_values = np.random.default_rng(6), permutations(grid, range(40), 0), []
    for _ in range(150):
        neuron = RelabelledNeuron(grid, random_map(random), random_logits(random), SETS)
        tally = BestTally(grid, neuron.null(labels), -np.inf)
        p_values.append(tally.columns()["p_family"].min())
    levels = np.arange(1, 41) / 40
    difference = np.less_equal.outer(p_values, levels).mean(0) - levels
    # Kolmogorov and Smirnov: 1 in 100 is larger
    assert np.abs(difference).max() < 1.63 / np.sqrt(150)


@pytest.mark.parametrize("grid", ["subtract"], indirect=True)
def test_p_values_are_valid_far_into_the_tail(grid: OperandGrid):
    """Draws come in steps, most of which a neuron that ignores the numbers does not get.

    99.9 % of binomial counts are below the bounds.
    """
    random = np.random.default_rng(7)
    steps = [permutations(grid, step, 0) for step in steps_to(2000, 20)]
    settings = SETTINGS.model_copy(update={"smallest_chance_corrected": 0.01})
    p_values, draws = [], []
    for _ in range(1000):
        maps = random_map(random), random_logits(random)
        table = judged(grid, *maps, steps, settings, SETS).candidates
        p_values.append(table["p_family"].min(initial=1))
        draws.append(table["draws"].min(initial=20))
    for level, most in ((0.1, 130), (0.05, 72), (0.01, 21), (0.002, 8)):
        assert np.less_equal(p_values, level).sum() <= most, level
    assert np.mean(draws) < 100


def test_relabellings_beyond_those_in_memory_count_alike(grid: OperandGrid):
    """Their scores do not enter the means, which matters little.

    The true labels are never among them.
    """
    random = np.random.default_rng(8)
    activations = (random.random((SIZE, SIZE)) + (OP1 % 2 == 0)).astype(np.float32)
    neuron = RelabelledNeuron(grid, activations, random_logits(random), SETS)
    first = neuron.null(permutations(grid, range(301), 0))
    rest = neuron.null(permutations(grid, range(301, 401), 0))
    added = BestTally(grid, first, -1)  # every heuristic is a candidate
    added.add(rest)
    apart, together = added.columns(), BestTally(grid, first + rest, -1).columns()
    assert set(apart["draws"]) == {400}
    np.testing.assert_allclose(apart["p_value"], together["p_value"])
    np.testing.assert_allclose(apart["p_family"], together["p_family"], atol=0.05)


def test_heuristics_of_few_cells_are_left_out(grid: OperandGrid):
    sizes = dict(zip(names(grid), satisfied(grid).sum(1), strict=True))
    least = int(sorted(sizes.values())[1])
    some = read(grid.activations.path.parent, grid.operator, least)
    kept = {name for name, size in sizes.items() if least <= size <= len(grid.cells) - least}
    assert set() < {*names(some)} == kept < {*names(grid)}


def test_ties_tell_nothing_about_the_numbers(grid: OperandGrid):
    """Cells are in the order of op1, but ties must not look like heuristics of op1."""
    assert candidates(grid, np.zeros((SIZE, SIZE))).is_empty()
    table = candidates(grid, MEMBERS["op2 in 10..19"](OP1, OP2, None))
    significant = table.filter(pl.col("p_family") <= 0.05)["heuristic"].to_list()
    assert "op2 in 10..19" in significant
    assert "op1 in 0..9" not in significant


def test_the_tables_agree_with_the_scores(micro: Path):
    folder = micro / "data/abacus/heuristics"
    scores, permutation_tests = (
        pl.read_parquet(folder / "scores.parquet"),
        pl.read_parquet(folder / "permutation_tests.parquet"),
    )
    expected = scores.filter(
        pl.col("chance_corrected") >= 0.35
    )  # permutation_tests.smallest_chance_corrected
    keys = ["operator", "layer", "neuron", "heuristic", "side"]
    both = permutation_tests.join(expected, on=keys, suffix="_scored")
    assert len(both) >= 0.95 * max(
        len(permutation_tests), len(expected), 1
    )  # ties matter in the rest
    difference = (both["chance_corrected"] - both["chance_corrected_scored"]).abs()
    of_operands = difference.filter(~both["heuristic"].str.starts_with("result"))
    assert (of_operands < 1e-5).mean() > 0.9
    assert (difference < 0.01).mean() > 0.9
    assert (permutation_tests["p_value"] >= 0.999 / (permutation_tests["draws"] + 1)).all()
    assert (permutation_tests["p_value"] <= 1).all()
    assert (permutation_tests["p_family"] >= permutation_tests["p_value"] - 1e-9).mean() > 0.9
    shares = pl.read_parquet(folder / "null_shares.parquet")
    shares = shares.filter(operator="add", draw=0, quantities="any", measure="chance_corrected")
    for threshold, layer in ((0.4, 0), (0.7, 1)):
        rows = expected.filter(pl.col("chance_corrected") >= threshold, operator="add", layer=layer)
        [counted] = shares.filter(layer=layer, threshold=threshold)["neurons"]
        assert abs(counted - rows["neuron"].n_unique()) <= 1
    naming = pl.read_parquet(folder / "naming.parquet")
    assert naming.group_by("operator", "layer").len()["len"].unique().to_list() == [64]
