"""Relabelled operands: the null against brute force, what it calls and what it does not, and the table."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages.heuristics.null.p_values import BestTally, judged, steps_to
from stages.heuristics.null.relabelled import RelabelledNeuron, permutations
from stages.heuristics.settings import Nulls
from stages.lib.core.layered import LayerStore, LayerWriter, writing
from stages.lib.heuristics.answer_sets import AnswerSets, find
from stages.lib.heuristics.square import Square
from stages.lib.sql.database import Database
from tests.lib.test_scores import brute

SIZE = 30
SETS = AnswerSets(operators=["divide"], results=3, first_cells=60, covers=0.9)
SETTINGS = Nulls(
    first_draws=20,
    least_draws=100,
    most_draws=10000,
    exceedances=5,
    smallest_corrected=0.3,
    thresholds=[0.4, 0.6],
    neurons_per_unit=5,
    seed=0,
)
NAMES = {
    "op1 mod 2 = 0": ("modulo", "op1"), "op2 in 10..19": ("range", "op2"), "op1 in 0..9": ("range", "op1"), "op1 = op2": ("identical", "both"),
    "result mod 3 = 1": ("modulo", "result"), "result in 10..19": ("range", "result"), "result in 0..4": ("range", "result"),
}  # fmt: skip
ANSWERS = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: np.where(a >= b, a - b, -1),
    "divide": lambda a, b: np.where(b > 0, a // np.maximum(b, 1), -1),
}


@pytest.fixture(scope="module", params=ANSWERS)
def square(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Square:
    """Operands up to 29; the store behind it holds one layer of zeros, as the maps come from the tests."""
    op1, op2 = np.indices((SIZE, SIZE))
    results = ANSWERS[request.param](op1, op2)
    limited = np.where(results <= 45, results, -1)  # this subject has fewer answers than the table of cells
    folder = tmp_path_factory.mktemp(request.param)
    with writing(folder / "store.h5") as file:
        axes = {"neuron": 1, "op1": SIZE, "op2": SIZE}
        LayerWriter(file, [0], axes, "float16", (1, SIZE, SIZE), {"operator": request.param}, columns={"result": limited})
    cells = pl.DataFrame({"operator": request.param, "op1": op1[results >= 0], "op2": op2[results >= 0], "result": results[results >= 0]})
    cells.write_parquet(folder / "cells.parquet")
    rows = [(request.param, name, kind, quantity, name.replace("mod", "%")) for name, (kind, quantity) in NAMES.items()]
    catalogue = pl.DataFrame(rows, orient="row", schema=["operator", "heuristic", "kind", "quantity", "predicate"])
    ranges = pl.col("predicate").str.replace(r"in (\d+)\.\.(\d+)", "between $1 and $2")
    return Square(
        Database({"cells": [folder / "cells.parquet"]}, threads=1), catalogue.with_columns(ranges), LayerStore(folder / "store.h5")
    )


def names(square: Square) -> list[str]:
    return [*square.operands.names, *square.answers.names]


def satisfied(square: Square, name: str) -> np.ndarray:
    a, b, r = square.op1, square.op2, square.results
    return {
        "op1 mod 2 = 0": a % 2 == 0, "op2 in 10..19": (b >= 10) & (b < 20), "op1 in 0..9": a < 10, "op1 = op2": a == b,
        "result mod 3 = 1": r % 3 == 1, "result in 10..19": (r >= 10) & (r < 20), "result in 0..4": r < 5,
    }[name]  # fmt: skip


def sharing_ties(values: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Scores (2, sets) of a map (cells,) whose values count by their first ten bits; ties count as they would on average."""
    mantissa, exponent = np.frexp(values)
    rounded = np.ldexp(np.trunc(mantissa * 1024), exponent)
    found = []
    for sign in (1, -1):
        ordered = np.sort(-sign * rounded)
        for inside in of:
            k = inside.sum()
            before, ties = -sign * rounded < ordered[k - 1], rounded == -sign * ordered[k - 1]
            found.append((inside & before).sum() / k + (k - before.sum()) / ties.sum() * (inside & ties).sum() / k)
    return np.reshape(found, (2, -1))


def test_the_null_is_that_of_permuting_and_sorting(square: Square):
    random = np.random.default_rng(3)
    activations = random.normal(size=(SIZE, SIZE)).astype(np.float32)
    logits = random.normal(size=2 * SIZE).astype(np.float32)
    rows, columns = permutations(square, range(7), 1)
    found = RelabelledNeuron(square, activations, logits, SETS).null((rows, columns))
    of = np.array([satisfied(square, name) for name in names(square)])
    share = of.mean(1)
    split = len(square.operands.names)
    for draw, (row, column) in enumerate(zip(rows, columns, strict=True)):
        values = activations[row[square.op1], column[square.op2]]
        votes = logits[square.results]
        scores = np.concatenate([brute(values, of[:split]), sharing_ties(values * votes, of[split:])], axis=1)
        np.testing.assert_allclose(found.corrected[draw][:, : len(of)], (scores - share) / (1 - share), atol=1e-6)
        assert found.correlations[draw] == pytest.approx(np.corrcoef(values, votes)[0, 1], abs=1e-6)
    assert (rows[0] == np.arange(SIZE)).all()
    assert (columns[0] == np.arange(SIZE)).all()


@pytest.mark.parametrize("square", SETS.operators, indirect=True)
def test_sets_of_results_are_found_again_under_every_relabelling(square: Square):
    """Where three results have almost all of the first cells, with the true labels and with others."""
    random = np.random.default_rng(4)
    activations = random.random((SIZE, SIZE), np.float32).round(1)  # many ties
    logits = random.random(2 * SIZE, np.float32) + 10 * np.isin(np.arange(2 * SIZE), [0, 2, 5])
    rows, columns = permutations(square, range(21), 2)
    found = RelabelledNeuron(square, activations, logits.astype(np.float32), SETS).null((rows, columns)).corrected[:, 0, -1]
    wanted = []
    for row, column in zip(rows, columns, strict=True):
        of = find(activations[row[square.op1], column[square.op2]] * logits[square.results].astype(np.float32), square.results, SETS)
        wanted.append((of.score - of.share) / (1 - of.share) if of else 0)
    np.testing.assert_allclose(found, wanted, atol=0.02)  # but for ties at the last place
    assert min(wanted) > 0.1


def test_relabelling_stays_on_operands_that_cells_have(square: Square):
    rows, columns = permutations(square, range(21), 0)
    for labels, used in ((rows, np.unique(square.op1)), (columns, np.unique(square.op2))):
        for draw in labels:
            assert sorted(draw[used]) == list(used)
    assert len({tuple(draw) for draw in rows}) == 21


def called(square: Square, activations: np.ndarray, logits: np.ndarray | None = None) -> pl.DataFrame:
    votes = np.zeros(2 * SIZE, np.float32) if logits is None else logits
    steps = (permutations(square, step, 0) for step in steps_to(100, SETTINGS.first_draws))
    found = judged(square, activations.astype(np.float32), votes, steps, SETTINGS, SETS)
    return pl.DataFrame(found.candidates)


def test_a_planted_heuristic_is_called(square: Square):
    op1, op2 = np.indices((SIZE, SIZE))
    noise = np.random.default_rng(0).random((SIZE, SIZE)) / 10
    for name, holds in (("op1 mod 2 = 0", op1 % 2 == 0), ("op2 in 10..19", (op2 >= 10) & (op2 < 20))):
        [row] = called(square, holds + noise).filter(heuristic=name, side="top").rows(named=True)
        assert 1 / 101 <= row["p_value"] <= row["p_family"] <= 0.03
        assert row["draws"] == 100
        assert row["null_corrected"] < 0.3


def test_what_depends_on_operands_but_not_on_their_numbers_is_not_called(square: Square):
    """Functions of op1, op2 and both with random values: over many neurons, p-values at most u come at a rate of at most u."""
    random = np.random.default_rng(5)
    best = []
    for _ in range(60):
        rows, columns = random.normal(size=(SIZE, 1)), random.normal(size=(1, SIZE))
        activations = rows + columns + random.normal(size=(SIZE, SIZE)) / 2
        found = called(square, activations, random.normal(size=2 * SIZE).astype(np.float32))
        best.append(found["p_family"].min() if len(found) else 1)
    assert (np.array(best) <= 0.05).mean() <= 0.15  # 3 expected of 60; 10 or more have a chance below one in a thousand
    assert len(set(best)) > 1


def test_p_values_of_neurons_that_know_nothing_are_uniform(square: Square):
    """That of a neuron's best z, over all heuristics and both sides; functions of op1, op2 and both with random values."""
    random, labels, p_values = np.random.default_rng(6), permutations(square, range(40), 0), []
    for _ in range(150):
        rows, columns = random.normal(size=(SIZE, 1)), random.normal(size=(1, SIZE))
        activations = rows + columns + random.normal(size=(SIZE, SIZE)) / 2
        neuron = RelabelledNeuron(square, activations.astype(np.float32), random.normal(size=2 * SIZE).astype(np.float32), SETS)
        p_values.append(BestTally(square, neuron.null(labels), -np.inf).columns()["p_family"].min())
    reached = [(np.array(p_values) <= u).mean() - u for u in np.arange(1, 41) / 40]
    assert np.abs(reached).max() < 1.63 / np.sqrt(150)  # Kolmogorov and Smirnov: one in a hundred is larger


def test_p_values_are_valid_far_into_the_tail(square: Square):
    """With draws in steps, most of which a neuron that knows nothing does not get.

    99.9 % of binomial counts are below the bounds.
    """
    if square.operator != "subtract":
        return
    random, steps = (
        np.random.default_rng(7),
        [permutations(square, step, 0) for step in steps_to(2000, 20)],
    )
    settings, p_values, draws = SETTINGS.model_copy(update={"smallest_corrected": 0.01}), [], []
    for _ in range(1000):
        rows, columns = random.normal(size=(SIZE, 1)), random.normal(size=(1, SIZE))
        activations = rows + columns + random.normal(size=(SIZE, SIZE)) / 2
        logits = random.normal(size=2 * SIZE).astype(np.float32)
        stored = activations.astype(np.float32)
        candidates = judged(square, stored, logits, steps, settings, SETS).candidates
        p_values.append(candidates["p_family"].min(initial=1))
        draws.append(candidates["draws"].min(initial=20))
    for level, most in ((0.1, 130), (0.05, 72), (0.01, 21), (0.002, 8)):
        assert np.less_equal(p_values, level).sum() <= most, level
    assert np.mean(draws) < 100


def test_relabellings_beyond_those_in_memory_count_alike(square: Square):
    """Their scores take no part in the means, which matters little.

    The true labels are never among them.
    """
    random = np.random.default_rng(8)
    activations = (random.random((SIZE, SIZE)) + (np.arange(SIZE) % 2 == 0)).astype(np.float32)
    logits = random.normal(size=2 * SIZE).astype(np.float32)
    neuron = RelabelledNeuron(square, activations, logits, SETS)
    first, rest = (
        neuron.null(permutations(square, range(301), 0)),
        neuron.null(permutations(square, range(301, 401), 0)),
    )
    added = BestTally(square, first, 0.2)
    added.add(rest)
    together = BestTally(square, first + rest, 0.2)
    assert (added.columns()["draws"] == 400).all()
    np.testing.assert_allclose(added.columns()["p_value"], together.columns()["p_value"])
    p_families = [tally.columns()["p_family"] for tally in (added, together)]
    np.testing.assert_allclose(*p_families, atol=0.05)


def test_heuristics_of_few_cells_are_left_out(square: Square):
    """Of the observed scores and of the null alike, as both are of the same square."""
    sizes = {name: satisfied(square, name).sum() for name in names(square)}
    least = sorted(sizes.values())[1]
    catalogue = pl.DataFrame(
        [(square.operator, name, *NAMES[name], name.replace("mod", "%")) for name in NAMES],
        orient="row", schema=["operator", "heuristic", "kind", "quantity", "predicate"],
    ).with_columns(pl.col("predicate").str.replace(r"in (\d+)\.\.(\d+)", "between $1 and $2"))  # fmt: skip
    database = Database({"cells": [square.activations.path.with_name("cells.parquet")]}, threads=1)
    some = Square(database, catalogue, square.activations, int(least))
    kept = {name for name, size in sizes.items() if least <= size <= len(square.cells) - least}
    assert {*names(some)} == kept < {*names(square)}


def test_ties_say_nothing_about_the_numbers(square: Square):
    """A dead neuron is nobody's, and one that only knows op2 is not said to know op1, though ties come in the order of op1."""
    assert len(called(square, np.zeros((SIZE, SIZE)))) == 0
    _, op2 = np.indices((SIZE, SIZE))
    found = called(square, (op2 >= 10) & (op2 < 20)).filter(pl.col("p_family") <= 0.05)
    assert "op2 in 10..19" in found["heuristic"].to_list()
    assert "op1 in 0..9" not in found["heuristic"].to_list()


def test_the_tables_agree_with_the_scores(micro: Path):
    scores = pl.read_parquet(micro / "data/abacus/heuristics/scores.parquet")
    nulls = pl.read_parquet(micro / "data/abacus/heuristics/nulls.parquet")
    keys = ["operator", "layer", "neuron", "heuristic", "side"]
    wanted = scores.filter(pl.col("corrected") >= 0.35)  # nulls.smallest_corrected
    both = nulls.join(wanted, on=keys, suffix="_scored")
    assert len(both) >= 0.95 * max(len(nulls), len(wanted))  # all but where ties matter
    difference = (both["corrected"] - both["corrected_scored"]).abs()
    of_operands = ~both["heuristic"].str.starts_with("result")
    assert (difference.filter(of_operands) < 1e-5).mean() > 0.9
    assert (difference < 0.01).mean() > 0.9
    assert nulls.select(pl.col("p_value").is_between(0.999 / (pl.col("draws") + 1), 1).all()).item()
    assert (nulls["p_family"] >= nulls["p_value"] - 1e-9).mean() > 0.9
    shares = pl.read_parquet(micro / "data/abacus/heuristics/null_shares.parquet").filter(draw=0, quantities="any", measure="corrected")
    for threshold, layer in ((0.4, 0), (0.7, 1)):
        reached = wanted.filter(pl.col("corrected") >= threshold, pl.col("layer") == layer, pl.col("operator") == "add")[
            "neuron"
        ].n_unique()
        assert abs(shares.filter(operator="add", layer=layer, threshold=threshold)["neurons"].item() - reached) <= 1
    naming = pl.read_parquet(micro / "data/abacus/heuristics/naming.parquet")
    assert naming.group_by("operator", "layer").len()["len"].unique().to_list() == [64]
