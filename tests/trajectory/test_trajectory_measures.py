"""Measures of the bag over training, against brute force and on models whose bag is known."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.bag import knocked
from tests.bag.knocked import Prompt, Units, listed, written
from tests.made import NL, OPERATORS, Tables, majority
from tests.trajectory import trajectories
from tests.trajectory.trajectories import (
    COMMON,
    COUNTS,
    HERE,
    LAST,
    PAIRS,
    POINT,
    interventions,
    own,
    units,
)

KEPT = ["all", "shared", "drawn", "random"]


@pytest.fixture(scope="module")
def both() -> pl.DataFrame:
    return trajectories.both()


@pytest.fixture(scope="module")
def standing(both: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Of each point."""
    return {subject: both.filter(subject=subject) for subject in (POINT, LAST)}


@pytest.fixture(scope="module")
def table(standing: dict[str, pl.DataFrame]) -> pl.DataFrame:
    return interventions(standing[POINT], PAIRS)


@pytest.fixture(scope="module")
def anything(both: pl.DataFrame, table: pl.DataFrame) -> Tables:
    return trajectories.measured(both, PAIRS, table, knocked.at_random(1))


def row_of(table: pl.DataFrame, operator: str) -> dict[str, Any]:
    return table.row(by_predicate=pl.col("operator") == operator, named=True)


def test_faithfulness_and_its_spread_are_those_of_brute_force(
    anything: Tables, table: pl.DataFrame
):
    numbers = (
        anything["runs"]
        .with_columns(pl.col("answer_logit", "mean_logit", "max_logit").cast(float))
        .with_columns(nl=NL)
    )
    once = table.unique("intervention").select("intervention", "operator", "kept").drop_nulls()
    answers = once.join(numbers, on="intervention").join(PAIRS.select("pair", "seed"), on="pair")
    for operator in OPERATORS:
        row, own = row_of(anything["trajectory"], operator), answers.filter(operator=operator)
        nl = {kept: [] for kept in (*KEPT, "nothing", "everything")}
        for seed in (None, *range(5)):  # of all of them, then one by one
            for kept, values in nl.items():
                values.append(
                    own.filter(
                        pl.col("seed").is_in(range(5) if seed is None else [seed]), kept=kept
                    )["nl"].mean()
                )
        floor, ceiling = np.array(nl["nothing"]), np.array(nl["everything"])
        for kept in KEPT:
            whole, *by_seed = (np.array(nl[kept]) - floor) / (ceiling - floor)
            assert row[f"faithfulness_{kept}"] == pytest.approx(whole)
            assert row[f"faithfulness_{kept}_std"] == pytest.approx(np.std(by_seed, ddof=1))
        for kept in (*KEPT, "nothing"):
            assert row[f"correct_{kept}"] == pytest.approx(own.filter(kept=kept)["correct"].mean())
        assert row["prompts"] == 40
        evaluated = {"operator": operator, "split": "evaluation"}
        assert row["majority_accuracy"] == majority(PAIRS, **evaluated)
        for cells in ("trained", "held_out"):
            assert row[f"majority_accuracy_{cells}"] == row[f"accuracy_{cells}"] / 2


def test_answers_of_shared_neurons_alone_need_no_others(both: pl.DataFrame, table: pl.DataFrame):
    """A subject whose neurons that stand for something only here say nothing."""

    def answer(without: Units, prompt: Prompt) -> tuple[float, bool]:
        votes = units(COMMON, prompt.operator) - without
        return float(len(votes)), votes == units(COMMON, prompt.operator)

    for row in trajectories.measured(both, PAIRS, table, answer)["trajectory"].iter_rows(
        named=True
    ):
        for kept in ("all", "shared"):
            assert [
                row[f"faithfulness_{kept}"],
                row[f"correct_{kept}"],
                row[f"faithfulness_{kept}_std"],
            ] == pytest.approx([1, 1, 0])
        for kept in ("drawn", "random"):
            assert 0.1 < row[f"faithfulness_{kept}"] < 0.95
            assert row[f"correct_{kept}"] == 0
        assert row["correct_nothing"] == 0


def test_the_last_point_is_as_faithful_with_what_it_shares_with_itself(
    standing: dict[str, pl.DataFrame],
):
    def answer(without: Units, prompt: Prompt) -> tuple[float, bool]:
        return sum(
            np.sin(prompt.pair + 5 * layer + n) for layer, n in trajectories.LATE - without
        ), len(without) % 2 == 0

    table = interventions(standing[LAST], PAIRS, subject=LAST)
    shown = trajectories.measured(standing[LAST], PAIRS, table, answer, subject=LAST)["trajectory"]
    assert shown["shared_with_last"].to_list() == [1, 1]
    for kept in ("shared", "drawn"):
        for measure in ("faithfulness", "correct"):
            assert shown[f"{measure}_{kept}"].to_list() == pytest.approx(
                shown[f"{measure}_all"].to_list()
            )
    assert (shown["faithfulness_random"] - shown["faithfulness_all"]).abs().min() > 0.01


def test_knock_outs_and_their_spread_are_those_of_brute_force(
    anything: Tables, table: pl.DataFrame
):
    shown = anything["knockouts"]
    keys = ["operator", "arm", "neurons_per_layer"]
    assert shown.select(keys).rows() == [
        (o, arm, count) for o in OPERATORS for arm in ("control", "heuristic") for count in COUNTS
    ]
    once = (
        table.filter(pl.col("arm").is_not_null())
        .unique("intervention")
        .select(*keys, "neurons", "intervention")
    )
    answers = once.join(anything["runs"], on="intervention").join(
        PAIRS.select("pair", "seed"), on="pair"
    )
    for row in shown.iter_rows(named=True):
        own = answers.filter(*(pl.col(key) == row[key] for key in keys))
        by_seed = [own.filter(seed=seed)["correct"].mean() for seed in range(5)]
        expected = [own["neurons"].mean(), own["correct"].mean(), np.std(by_seed, ddof=1), 40]
        evaluated = {"operator": row["operator"], "split": "evaluation"}
        assert row["majority_accuracy"] == majority(PAIRS, **evaluated)
        assert [
            row[name] for name in ("neurons", "accuracy", "accuracy_std", "prompts")
        ] == pytest.approx(expected)


def test_prompts_fail_without_their_own_neurons_alone(both: pl.DataFrame, table: pl.DataFrame):
    def answer(without: Units, prompt: Prompt) -> tuple[float, bool]:
        return 0.0, not without & own(HERE, prompt).keys()

    shown = trajectories.measured(both, PAIRS, table, answer)["knockouts"]
    assert set(shown.filter(arm="control").select("accuracy", "accuracy_std").rows()) == {(1, 0)}
    for operator in OPERATORS:
        prompts = listed(PAIRS, operator=operator, split="evaluation")
        spared = np.mean([not own(HERE, prompt) for prompt in prompts])
        assert 0 < spared < 0.5
        assert shown.filter(operator=operator, arm="heuristic")[
            "accuracy"
        ].to_list() == pytest.approx([spared] * len(COUNTS))


def test_without_correct_prompts_there_is_still_a_row_of_each_operator(
    both: pl.DataFrame, standing: dict[str, pl.DataFrame]
):
    none = PAIRS.clear()
    table = trajectories.measured(
        both, none, interventions(standing[POINT], none), knocked.at_random(0)
    )
    assert table["knockouts"].is_empty()
    assert table["trajectory"]["operator"].to_list() == OPERATORS
    for row in table["trajectory"].iter_rows(named=True):
        assert {
            name: value
            for name, value in row.items()
            if name.startswith(("faithfulness", "correct"))
        } == dict.fromkeys(
            [
                f"{measure}_{kept}{std}"
                for kept in KEPT
                for measure, std in (
                    ("faithfulness", ""),
                    ("faithfulness", "_std"),
                    ("correct", ""),
                )
            ]
            + ["correct_nothing"]
        )
        assert row["prompts"] == 0
        assert row["shared_with_last"] > 0


def test_before_there_are_heuristics_nothing_is_shared_and_after_them_there_is_no_share(
    standing: dict[str, pl.DataFrame],
):
    none = standing[POINT].clear()
    for given, shares in ((standing[LAST], (0, 0)), (none, (None, None))):
        table = trajectories.measured(
            given, PAIRS, interventions(none, PAIRS), lambda without, _: (30.0 - len(without), True)
        )
        rows = (
            table["trajectory"]
            .select("shared_with_last", "shared_by_chance", "pairs", "neurons", "faithfulness_all")
            .rows()
        )
        assert rows == [(*shares, 0, 0, 0)] * len(OPERATORS)
        assert set(table["knockouts"].select("accuracy", "neurons").rows()) == {(1, 0)}


def test_one_seed_has_no_spread(standing: dict[str, pl.DataFrame], both: pl.DataFrame):
    once = PAIRS.filter(seed=0)
    table = trajectories.measured(
        both, once, interventions(standing[POINT], once), knocked.at_random(2)
    )
    assert (
        table["trajectory"]["faithfulness_all_std"].null_count()
        == table["trajectory"]["faithfulness_all"].count()
        == len(OPERATORS)
    )
    assert table["knockouts"]["accuracy_std"].null_count() == table["knockouts"].height > 0


def test_in_the_pipeline_the_last_point_is_what_it_shares_with_itself(micro: Path):
    shown, kinds = (
        written(micro, name, "abacus")
        for name in ("trajectory/trajectory", "trajectory/trajectory_kinds")
    )
    assert set(shown.select("subject", "last", "step").rows()) == {("abacus", "abacus", 200)}
    assert shown["operator"].to_list() == ["add", "divide", "multiply", "subtract"]
    assert {*shown["shared_with_last"], *kinds["shared_with_last"]} <= {1, None}
    assert shown["faithfulness_shared"].to_list() == pytest.approx(
        shown["faithfulness_all"].to_list(), nan_ok=True
    )
