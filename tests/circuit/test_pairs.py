"""The queries that pair prompts and draw them again: each real .sql against brute force."""

import hashlib
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tests import made
from tests.made import SETTINGS, ask

CALCULATE = {"add": lambda a, b: a + b, "multiply": lambda a, b: a * b}
POSITIONS = pl.struct(
    op1="op1_position", operator="operator_position", op2="op2_position", last="last_position"
)


def grid(
    side: int = 5, limit: int = 99, operators: tuple[str, ...] = ("add", "multiply")
) -> pl.DataFrame:
    """The table `prompts` of a small square; tokens tell operator and operands."""
    rows = []
    for code, operator in enumerate(operators):
        for a, b in np.ndindex(side, side):
            result = CALCULATE[operator](a, b)
            rows.append(("s", operator, a, b, result, [900, a, 800 + code, b]))
    schema: dict[str, Any] = {
        "subject": pl.String,
        "operator": pl.String,
        "op1": pl.Int32,
        "op2": pl.Int32,
        "result": pl.Int32,
        "tokens": pl.List(pl.Int32),
    }
    prompts = pl.DataFrame(rows, schema=schema, orient="row").with_columns(
        result=pl.when(pl.col("result") <= limit).then("result")
    )
    return prompts.with_columns(
        answer_token=pl.col("result") + 1000,
        op1_position=pl.lit(1, pl.Int16),
        operator_position=pl.lit(2, pl.Int16),
        op2_position=pl.lit(3, pl.Int16),
        last_position=pl.lit(3, pl.Int16),
    )


def answered(
    prompts: pl.DataFrame, correct: Callable[[dict], bool] = lambda row: True
) -> pl.DataFrame:
    """The table `predictions`, as far as pairs are concerned."""
    cells = prompts.drop_nulls("result")
    return cells.select(
        "subject",
        "operator",
        "op1",
        "op2",
        correct=pl.struct(cells.columns).map_elements(correct, pl.Boolean),
    )


def split_of(operator: str, op1: int, op2: int) -> str:
    """The split of a prompt, computed from its digest without SQL."""
    digest = hashlib.md5(f"split:{operator}:{op1}:{op2}".encode()).digest()
    return "evaluation" if int.from_bytes(digest[8:], "little") % 2 else "discovery"


# pairs


@settings(max_examples=12, deadline=None)
@given(
    st.integers(2, 6),
    st.integers(0, 20),
    st.integers(1, 12),
    st.integers(2, 9),
    st.sampled_from(["any_operator", "same_operator"]),
)
def test_every_pair_is_what_it_says(
    side: int, limit: int, wanted: int, modulus: int, counterfactual: str
):
    prompts = grid(side, limit)
    predictions = answered(prompts, lambda row: (row["op1"] * 3 + row["op2"]) % modulus == 0)
    pairs = ask(
        "pairs",
        {"prompts": prompts, "predictions": predictions},
        pairs_per_split=wanted,
        counterfactual=counterfactual,
    )
    keys = ["operator", "op1", "op2"]
    cells = prompts.select(*keys, "result", "tokens", "answer_token", positions=POSITIONS)
    correct = predictions.filter("correct").select(keys)
    assert pairs.join(correct, on=keys, how="anti").is_empty()
    others = pairs.select(pl.col("^counterfactual_.*$").name.replace("counterfactual_", ""))
    for sides in (pairs, others):
        expected = sides.select(keys).join(cells, on=keys, how="left", maintain_order="left")
        assert_frame_equal(sides.select(cells.columns), expected)
    assert pairs["result"].ne_missing(others["result"]).all()
    if counterfactual == "same_operator":
        assert pairs["operator"].equals(others["operator"])
    assert pairs.select("seed", *keys).is_unique().all()
    assert pairs["pair"].to_list() == list(range(len(pairs)))
    assert pairs.equals(pairs.sort("operator", "split", "seed", maintain_order=True))
    for row in pairs.to_dicts():
        assert row["split"] == split_of(row["operator"], row["op1"], row["op2"])
    answerable = Counter()
    for key in correct.rows():
        answerable[key[0], split_of(*key)] += 1
    for operator, seed, split in product(CALCULATE, SETTINGS["seeds"], ("discovery", "evaluation")):
        partners = prompts.drop_nulls("result")
        if counterfactual == "same_operator":
            partners = partners.filter(operator=operator)
        is_possible = partners["result"].n_unique() > 1
        drawn = pairs.filter(operator=operator, seed=seed, split=split)
        assert len(drawn) == (min(wanted, answerable[operator, split]) if is_possible else 0)


def test_counterfactuals_are_uniform_among_other_answers():
    prompts = grid(3)
    predictions = answered(
        prompts, lambda row: (row["operator"], row["op1"], row["op2"]) == ("multiply", 0, 1)
    )
    pairs = ask("pairs", {"prompts": prompts, "predictions": predictions}, seeds=list(range(8000)))
    keys = ["operator", "op1", "op2"]
    others = pairs.select(pl.col("^counterfactual_.*$").name.replace("counterfactual_", ""))
    counts = others.group_by(keys).len()
    candidates = prompts.filter(pl.col("result") != 0)
    shares = candidates.select(*keys, share=1 / 2 / pl.len().over("operator"))
    both = shares.join(counts, on=keys, how="full", coalesce=True)
    assert both["len"].is_not_null().all()
    assert both["share"].is_not_null().all()
    expected = both["share"] * len(pairs)
    # chi-squared, 11 degrees of freedom: p = 0.001
    assert ((both["len"] - expected) ** 2 / expected).sum() < 32


def test_seeds_draw_other_prompts_and_a_seed_draws_the_same_again():
    prompts = grid(9)
    tables = {"prompts": prompts, "predictions": answered(prompts)}
    first, other = ask("pairs", tables, seeds=[0]), ask("pairs", tables, seeds=[1])
    assert first.equals(ask("pairs", tables, seeds=[0]))
    assert first.drop("pair").equals(
        ask("pairs", tables, seeds=[0, 1]).filter(pl.col("seed") == 0).drop("pair")
    )
    assert not first["op1"].equals(other["op1"])


def test_missing_pairs_are_explained():
    prompts = grid(5)
    predictions = answered(prompts, lambda row: row["operator"] == "add" and row["op1"] == 0)
    pairs = ask("pairs", {"prompts": prompts, "predictions": predictions})
    counts = ask("pairs_found", {"prompts": prompts, "predictions": predictions, "pairs": pairs})
    assert len(counts) == 2 * 2 * 3
    none = "the model answers no prompt of this split correctly"
    correct = Counter(split_of("add", 0, op2) for op2 in range(5))
    assert correct == {"discovery": 2, "evaluation": 3}
    assert set(
        counts.select("operator", "split", "wanted", "found", "missing", "problem").iter_rows()
    ) == {
        ("add", "discovery", 6, 2, 4, "the model answers only 2 prompts of this split correctly"),
        ("add", "evaluation", 6, 3, 3, "the model answers only 3 prompts of this split correctly"),
        ("multiply", "discovery", 6, 0, 6, none),
        ("multiply", "evaluation", 6, 0, 6, none),
    }
    fewer = ask("pairs", {"prompts": prompts, "predictions": predictions}, pairs_per_split=2)
    enough = ask(
        "pairs_found",
        {"prompts": prompts, "predictions": predictions, "pairs": fewer},
        pairs_per_split=2,
    )
    assert set(enough.filter(operator="add")["problem"]) == {None}
    alike = grid(4, limit=0, operators=("multiply",))  # every answer is 0
    tables = {"prompts": alike, "predictions": answered(alike)}
    pairs = ask("pairs", tables)
    assert len(pairs) == 0
    assert set(ask("pairs_found", {**tables, "pairs": pairs})["problem"]) == {
        "no counterfactual with another answer"
    }


# bootstrap


def test_the_bootstrap_draws_seeds_and_then_prompts():
    pairs = made.pairs(per_seed=10, seeds=4)
    table = ask("bootstrap_weights", {"pairs": pairs}, replicates=2000)
    assert len(table) == 2 * 2 * 2000
    assert table.equals(ask("bootstrap_weights", {"pairs": pairs}, replicates=2000))
    assert not table.equals(
        ask("bootstrap_weights", {"pairs": pairs}, replicates=2000, resampling_seed=1)
    )
    for _, part in table.group_by("operator", "split"):
        weights = part["weights"].list.to_array(40).to_numpy()
        assert (weights.sum(1) == 40).all()
        by_seed = weights.reshape(-1, 4, 10)
        drawn = by_seed.sum(2)
        assert (drawn % 10 == 0).all()  # a drawn seed is drawn whole
        assert weights.mean(0) == pytest.approx(1, abs=0.15)
        assert (drawn == 0).mean() == pytest.approx((3 / 4) ** 4, abs=0.02)
        once = by_seed[drawn == 10]
        assert once.var(0).mean() == pytest.approx(0.9, abs=0.05)  # binomial(10, 1/10)
        noise = np.random.default_rng(0).normal(size=40)
        assert (weights @ noise / 40).mean() == pytest.approx(noise.mean(), abs=0.02)


def test_intervals_of_the_bootstrap_are_conservative():
    """98 % of 95 % intervals hold the true mean if seeds draw from the same prompts (README)."""
    table = ask("bootstrap_weights", {"pairs": made.pairs(per_seed=50, seeds=5)}, replicates=1000)
    weights = (
        table.filter(operator="add", split="evaluation")["weights"].list.to_array(250).to_numpy()
        / 250
    )
    # (samples, replicates), of a true mean of 0
    means = np.random.default_rng(0).normal(size=(1000, 250)) @ weights.T
    low, high = np.quantile(means, [0.025, 0.975], axis=1)
    assert ((low <= 0) & (high >= 0)).mean() == pytest.approx(0.98, abs=0.013)


def test_the_bootstrap_of_no_pairs_is_empty():
    assert len(ask("bootstrap_weights", {"pairs": made.pairs().clear()})) == 0


# nothing to measure


def test_a_subject_that_answers_nothing_has_no_circuit():
    """Every query gives an empty table with its columns for a model without a correct answer."""
    prompts = grid()
    interventions = ask("component_interventions", {"architecture": made.architecture()})
    tables = {
        "prompts": prompts,
        "predictions": answered(prompts, lambda row: False),
        "architecture": made.architecture(),
        "component_interventions": interventions,
        "runs": made.runs(interventions, made.pairs().clear()),
    }
    for stage, needed in {
        "pairs": ["prompts", "predictions"],
        "bootstrap_weights": ["pairs"],
        "component_effects": ["component_interventions", "runs", "pairs", "bootstrap_weights"],
        "component_stability": ["component_interventions", "runs", "pairs"],
        "head_circuit_interventions": ["component_effects", "architecture"],
        "head_faithfulness": ["head_circuit_interventions", "pairs", "runs", "bootstrap_weights"],
        "smallest_circuits": ["head_faithfulness"],
        "circuit_heads": ["component_effects", "head_faithfulness"],
    }.items():
        tables[stage] = ask(stage, made.only(tables, *needed))
        assert len(tables[stage]) == 0
        assert tables[stage].columns
