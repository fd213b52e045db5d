"""Inputs that fail: features against plain arithmetic, gains against entropies."""

import math
from itertools import product

import numpy as np
import polars as pl
import pytest

from tests.made import ask


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
        steps = next(
            n for n in range(1, 999) if (a + n) // b != r or (a >= n and (a - n) // b != r)
        )
        low = 2 ** (steps.bit_length() - 1)
        features["slack"] = "1" if low == 1 else f"{low}..{2 * low - 1}"
    return features


ANSWERS = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a // b,
}


def grid(side: int, largest: int, seed: int = 0) -> list[tuple]:
    """Return rows (operator, op1, op2, result, split) of a grid with all small operands."""
    rng, operands = np.random.default_rng(seed), [*range(12), *range(95, 95 + side)]
    rows = []
    for operator, a, b in product(ANSWERS, operands, operands):
        has_answer = operator != "divide" or min(a, b) > 0
        if has_answer and 0 <= ANSWERS[operator](a, b) <= largest:
            split = str(rng.choice(["train", "held-out"], p=[0.8, 0.2]))
            rows.append((operator, a, b, ANSWERS[operator](a, b), split))
    return rows


def inputs(cells: list[tuple], fails: list[bool], trained_here: bool = True) -> pl.DataFrame:
    small = pl.col("op1", "op2").cast(pl.Int32)
    table = pl.DataFrame(
        cells, schema=["operator", "op1", "op2", "result", "split"], orient="row"
    ).with_columns(
        small,
        pl.col("result").cast(pl.Int32),
    )
    listed = table.select(
        pl.lit("s").alias("subject"),
        "operator",
        "op1",
        "op2",
        correct=~pl.Series(fails),
    )
    origins = pl.DataFrame({"subject": ["s"], "trained_here": [trained_here]})
    given = {
        "cells": table,
        "origins": origins,
        "predictions": listed.sample(fraction=1, shuffle=True, seed=0),
    }
    return ask("failure_inputs", given, span=30)


def entropy(share: float) -> float:
    return -sum(p * math.log2(p) for p in (share, 1 - share) if p > 0)


def test_features_and_gains_are_those_of_brute_force():
    cells = grid(25, 999)
    rng = np.random.default_rng(1)
    fails = [
        bool(rng.random() < (0.5 if a % 10 == 7 else 0.01)) and o != "subtract"
        for o, a, *_ in cells
    ]
    table = inputs(cells, fails)
    splits = {(o, a, b): split for o, a, b, _, split in cells}
    counts: dict[tuple[str, str], dict[str, list[bool]]] = {}
    for (o, a, b, r, _), failed in zip(cells, fails, strict=True):
        for feature, value in features(o, a, b, r, splits).items():
            counts.setdefault((o, feature), {}).setdefault(value, []).append(failed)
    assert set(table.select("operator", "feature", "value").rows()) == {
        (*key, value) for key, values in counts.items() for value in values
    }
    for row in table.iter_rows(named=True):
        values = counts[row["operator"], row["feature"]]
        own, whole = values[row["value"]], [failed for group in values.values() for failed in group]
        assert (row["cells"], row["failures"], row["share"]) == (
            len(own),
            sum(own),
            pytest.approx(np.mean(own)),
        )
        assert row["lift"] == (pytest.approx(np.mean(own) / np.mean(whole)) if any(whole) else None)
        within = sum(len(group) * entropy(np.mean(group)) for group in values.values()) / len(whole)
        assert row["gain"] == pytest.approx(entropy(np.mean(whole)) - within, abs=1e-12)
        assert row["gain_chance"] == pytest.approx(
            (len(values) - 1) / (2 * math.log(2) * len(whole))
        )
    for operator in ANSWERS:
        gains = table.filter(operator=operator)["gain"]
        assert (gains.is_sorted(descending=True), gains.max() > 0) == (True, operator != "subtract")
        assert (
            operator == "subtract"
            or table.filter(operator=operator)["feature"][0] == "units of op1"
        )


@pytest.mark.parametrize(("failed", "lift"), [(True, 1.0), (False, None)])
def test_where_all_or_none_fail_no_feature_tells(failed: bool, lift: float | None):
    cells = grid(5, 300)
    table = inputs(cells, [failed] * len(cells))
    assert set(table.select("share", "lift", "gain").rows()) == {(float(failed), lift, 0.0)}


def test_a_model_that_was_not_trained_here_has_no_split():
    cells = grid(5, 300)
    fails = [a % 3 == 0 for _, a, *_ in cells]
    trained, pretrained = (inputs(cells, fails, trained_here) for trained_here in (True, False))
    of_split = pl.col("feature").str.starts_with("split")
    assert trained.filter(of_split)["feature"].n_unique() == 2
    assert pretrained.equals(trained.filter(~of_split))


def test_a_feature_that_tells_nothing_gains_what_chance_gives():
    cells, rng = grid(12, 999), np.random.default_rng(2)
    drawn = pl.concat(inputs(cells, (rng.random(len(cells)) < 0.2).tolist()) for _ in range(12))
    means = (
        drawn.group_by("operator", "feature")
        .agg(pl.col("gain", "gain_chance").mean())
        .filter(pl.col("feature").str.contains("units"))
    )
    ratios = (means["gain"] / means["gain_chance"]).to_numpy()
    assert (len(ratios), ratios.mean()) == (12, pytest.approx(1, abs=0.15))
