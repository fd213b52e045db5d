"""Inputs that fail: features against plain arithmetic, gains against entropies."""

import math
from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.bag.knocked import assert_rows
from tests.bag.test_failure_controls import CALCULATE
from tests.made import ask

KEY = ["operator", "op1", "op2"]


def features(operator: str, a: int, b: int, r: int, splits: dict) -> dict[str, str]:
    """Return a cell's features, computed digit by digit and step by step."""
    features = {
        "split": splits[operator, a, b],
        "order of operands": f"op1 {'<' if a < b else '>' if a > b else '='} op2",
    }
    for name, number in (("op1", a), ("op2", b), ("result", r)):
        low = number - number % 30
        features |= {
            f"units of {name}": str(number)[-1],
            f"digits of {name}": str(len(str(number))),
            f"span of {name}": f"{low}..{low + 29}",
        }
    digits, two = f"{a:04}"[::-1], f"{b:04}"[::-1]
    if operator in ("add", "multiply"):
        features["split and mirror"] = f"{splits[operator, a, b]}, mirror {splits[operator, b, a]}"
    if operator == "add":
        carry = count = 0
        for x, y in zip(digits, two, strict=True):
            carry = (int(x) + int(y) + carry) // 10
            count += carry
        features["carries"] = str(count)
    if operator == "subtract":
        borrow = count = 0
        for x, y in zip(digits, two, strict=True):
            borrow = int(int(x) - int(y) - borrow < 0)
            count += borrow
        features["borrows"] = str(count)
    if operator == "multiply":
        features["carried"] = f"{int(digits[0]) * int(two[0]):02}"[0]
    if operator == "divide":
        steps = 1
        while (a + steps) // b == r and (a < steps or (a - steps) // b == r):
            steps += 1
        low = 2 ** (steps.bit_length() - 1)
        features["slack"] = "1" if low == 1 else f"{low}..{2 * low - 1}"
    return features


def grid(side: int, largest: int, seed: int = 0) -> pl.DataFrame:
    """Return the table cells of a grid with all small operands."""
    rng, operands = np.random.default_rng(seed), [*range(12), *range(95, 95 + side)]
    rows = []
    for operator, a, b in product(CALCULATE, operands, operands):
        has_answer = operator != "divide" or min(a, b) > 0
        if has_answer and 0 <= CALCULATE[operator](a, b) <= largest:
            split = str(rng.choice(["train", "held-out"], p=[0.8, 0.2]))
            rows.append((operator, a, b, CALCULATE[operator](a, b), split))
    numbers = dict.fromkeys(["op1", "op2", "result"], pl.Int32)
    schema = {"operator": pl.String} | numbers | {"split": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def inputs(cells: pl.DataFrame, fails: np.ndarray, trained_here: bool = True) -> pl.DataFrame:
    predictions = cells.select(
        "operator", "op1", "op2", subject=pl.lit("s"), correct=~pl.Series(fails)
    )
    given = {
        "cells": cells,
        "origins": pl.DataFrame({"subject": ["s"], "trained_here": [trained_here]}),
        "predictions": predictions.sample(fraction=1, shuffle=True, seed=0),
    }
    return ask("failure_inputs", given, span=30)


def entropy(share: float) -> float:
    if share in (0, 1):
        return 0.0
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)


def brute_force(cells: pl.DataFrame, fails: np.ndarray) -> list[dict[str, Any]]:
    """Return the rows of failure_inputs, from the features of every cell."""
    splits = dict(zip(cells.select(KEY).rows(), cells["split"], strict=True))
    failed: dict[tuple, dict[str, list[bool]]] = {}  # (operator, feature) -> value -> its cells
    for (operator, a, b, result, _), fails_here in zip(cells.rows(), fails, strict=True):
        for feature, value in features(operator, a, b, result, splits).items():
            values = failed.setdefault((operator, feature), {})
            values.setdefault(value, []).append(fails_here)
    rows = []
    for (operator, feature), values in failed.items():
        whole = np.concatenate(list(values.values()))
        gain = entropy(whole.mean())
        for own in values.values():
            gain -= entropy(np.mean(own)) * len(own) / len(whole)
        for value, own in values.items():
            rows.append(
                {
                    "operator": operator,
                    "feature": feature,
                    "value": value,
                    "cells": len(own),
                    "failures": sum(own),
                    "share": np.mean(own),
                    "lift": np.mean(own) / whole.mean() if whole.any() else None,
                    "gain": gain,
                    "gain_chance": (len(values) - 1) / (2 * math.log(2) * len(whole)),
                }
            )
    return rows


def test_features_and_gains_are_those_of_brute_force():
    cells = grid(25, 999)
    likely = np.where(cells["op1"].to_numpy() % 10 == 7, 0.5, 0.01)
    likely[cells["operator"].to_numpy() == "subtract"] = 0
    fails = np.random.default_rng(1).random(len(cells)) < likely
    table = inputs(cells, fails)
    assert_rows(table, brute_force(cells, fails))
    for operator in CALCULATE:
        ranked = table.filter(operator=operator)
        assert ranked["gain"].is_sorted(descending=True)
        if operator == "subtract":
            assert ranked["gain"].max() <= 0
        else:
            assert ranked["gain"].max() > 0
            assert ranked["feature"][0] == "units of op1"


@pytest.mark.parametrize(("failed", "lift"), [(True, 1.0), (False, None)])
def test_where_all_or_none_fail_no_feature_tells(failed: bool, lift: float | None):
    cells = grid(5, 300)
    table = inputs(cells, np.full(len(cells), failed))
    assert set(table.select("share", "lift", "gain").rows()) == {(float(failed), lift, 0.0)}


def test_a_model_that_was_not_trained_here_has_no_split():
    cells = grid(5, 300)
    fails = cells["op1"].to_numpy() % 3 == 0
    trained = inputs(cells, fails)
    is_split = pl.col("feature").str.starts_with("split")
    assert trained.filter(is_split)["feature"].n_unique() == 2
    pretrained = inputs(cells, fails, trained_here=False)
    assert pretrained.equals(trained.filter(~is_split))


def test_a_feature_that_tells_nothing_gains_what_chance_gives():
    cells, rng = grid(12, 999), np.random.default_rng(2)
    drawn = pl.concat(inputs(cells, rng.random(len(cells)) < 0.2) for _ in range(12))
    means = (
        drawn.group_by("operator", "feature")
        .agg(pl.col("gain", "gain_chance").mean())
        .filter(pl.col("feature").str.contains("units"))
    )
    ratios = (means["gain"] / means["gain_chance"]).to_numpy()
    assert (len(ratios), ratios.mean()) == (12, pytest.approx(1, abs=0.15))
