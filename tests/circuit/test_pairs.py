"""The queries that pair prompts and draw them again: each real .sql against brute force."""

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import made
from tests.made import SETTINGS, ask

CALCULATE = {"add": lambda a, b: a + b, "multiply": lambda a, b: a * b}


def grid(
    side: int = 5, limit: int = 99, operators: tuple[str, ...] = ("add", "multiply")
) -> pl.DataFrame:
    """The table `prompts` of a small square; tokens tell operator and operands."""
    rows = []
    for code, operator in enumerate(operators):
        for a in range(side):
            for b in range(side):
                result = CALCULATE[operator](a, b) if CALCULATE[operator](a, b) <= limit else None
                rows.append(
                    (
                        "s",
                        operator,
                        a,
                        b,
                        result,
                        [900, a, 800 + code, b],
                        None if result is None else result + 1000,
                        1,
                        2,
                        3,
                        3,
                    )
                )
    roles = {f"{role}_position": pl.Int16 for role in ("op1", "operator", "op2", "last")}
    schema: dict[str, Any] = {
        "subject": pl.String,
        "operator": pl.String,
        "op1": pl.Int32,
        "op2": pl.Int32,
        "result": pl.Int32,
        "tokens": pl.List(pl.Int32),
        "answer_token": pl.Int32,
        **roles,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def answered(
    prompts: pl.DataFrame, correct: Callable[[dict], bool] = lambda row: True
) -> pl.DataFrame:
    """The table `predictions`, as far as pairs are concerned."""
    cells = prompts.filter(pl.col("result").is_not_null())
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
    cells = {(r["operator"], r["op1"], r["op2"]): r for r in prompts.to_dicts()}
    correct = {(r["operator"], r["op1"], r["op2"]) for r in predictions.to_dicts() if r["correct"]}
    answered_cells = prompts.drop_nulls("result")
    results = {o: set(answered_cells.filter(operator=o)["result"]) for o in CALCULATE}
    for row in pairs.to_dicts():
        clean = cells[row["operator"], row["op1"], row["op2"]]
        counterfactual_cell = "counterfactual_operator", "counterfactual_op1", "counterfactual_op2"
        other = cells[tuple(row[column] for column in counterfactual_cell)]
        assert (row["operator"], row["op1"], row["op2"]) in correct
        assert row["result"] == clean["result"] != other["result"] == row["counterfactual_result"]
        assert (row["tokens"], row["answer_token"]) == (clean["tokens"], clean["answer_token"])
        assert (row["counterfactual_tokens"], row["counterfactual_answer_token"]) == (
            other["tokens"],
            other["answer_token"],
        )
        assert (
            row["positions"]
            == row["counterfactual_positions"]
            == {"op1": 1, "operator": 2, "op2": 3, "last": 3}
        )
        assert counterfactual == "any_operator" or row["operator"] == row["counterfactual_operator"]
    keys = pairs.select("operator", "seed", "op1", "op2")
    assert keys.n_unique() == len(keys)
    assert pairs["pair"].to_list() == list(range(len(pairs)))
    assert pairs.equals(pairs.sort("operator", "split", "seed", maintain_order=True))
    counts = Counter(zip(pairs["operator"], pairs["split"], pairs["seed"], strict=True))
    for operator in CALCULATE:
        mine = Counter(split_of(*key) for key in correct if key[0] == operator)
        partners = (
            results[operator]
            if counterfactual == "same_operator"
            else set().union(*results.values())
        )
        for seed in SETTINGS["seeds"]:
            for split in ("discovery", "evaluation"):
                assert counts[operator, split, seed] == (
                    min(wanted, mine[split]) if len(partners) > 1 else 0
                )
    for row in pairs.to_dicts():
        assert row["split"] == split_of(row["operator"], row["op1"], row["op2"])


def test_counterfactuals_are_uniform_among_other_answers():
    prompts = grid(3)
    predictions = answered(
        prompts, lambda row: (row["operator"], row["op1"], row["op2"]) == ("multiply", 0, 1)
    )
    pairs = ask("pairs", {"prompts": prompts, "predictions": predictions}, seeds=list(range(8000)))
    counts = Counter(
        pairs.select(
            "counterfactual_operator", "counterfactual_op1", "counterfactual_op2"
        ).iter_rows()
    )
    expected: dict[tuple, float] = {}
    for operator, calculate in CALCULATE.items():
        others = [(operator, a, b) for a, b in np.ndindex(3, 3) if calculate(a, b) != 0]
        expected |= dict.fromkeys(others, len(pairs) / 2 / len(others))
    assert counts.keys() == expected.keys()
    assert (
        sum((counts[k] - n) ** 2 / n for k, n in expected.items()) < 32
    )  # chi-squared, 11 degrees of freedom: p = 0.001


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
        tables[stage] = ask(stage, {name: tables[name] for name in needed})
        assert len(tables[stage]) == 0
        assert tables[stage].columns
