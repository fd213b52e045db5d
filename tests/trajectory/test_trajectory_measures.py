"""Measures of the bag over training, against brute force and on models whose bag is known."""

from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars import selectors
from polars.testing import assert_frame_equal

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
    """Return the table of each point."""
    return {POINT: both.filter(subject=POINT), LAST: both.filter(subject=LAST)}


@pytest.fixture(scope="module")
def table(standing: dict[str, pl.DataFrame]) -> pl.DataFrame:
    return interventions(standing[POINT], PAIRS)


@pytest.fixture(scope="module")
def anything(both: pl.DataFrame, table: pl.DataFrame) -> Tables:
    return trajectories.measured(both, PAIRS, table, knocked.at_random(1))


def faithfulness(answers: pl.DataFrame) -> dict[str, float]:
    """Return what is kept -> faithfulness of these answers."""
    nl = dict(answers.group_by("kept").agg(pl.mean("nl")).iter_rows())
    whole = nl["everything"] - nl["nothing"]
    return {kept: (nl[kept] - nl["nothing"]) / whole for kept in KEPT}


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
    assert anything["trajectory"]["operator"].to_list() == OPERATORS
    for row in anything["trajectory"].iter_rows(named=True):
        operator = row["operator"]
        own = answers.filter(operator=operator)
        whole = faithfulness(own)
        by_seed = pl.DataFrame([faithfulness(own.filter(seed=seed)) for seed in range(5)])
        for kept in KEPT:
            assert row[f"faithfulness_{kept}"] == pytest.approx(whole[kept])
            assert row[f"faithfulness_{kept}_std"] == pytest.approx(by_seed[kept].std())
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

    shown = trajectories.measured(both, PAIRS, table, answer)["trajectory"]
    for row in shown.iter_rows(named=True):
        for kept in ("all", "shared"):
            assert row[f"faithfulness_{kept}"] == pytest.approx(1)
            assert row[f"faithfulness_{kept}_std"] == pytest.approx(0)
            assert row[f"correct_{kept}"] == 1
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
    assert shown.select(keys).rows() == [*product(OPERATORS, ("control", "heuristic"), COUNTS)]
    once = table.drop_nulls("arm").unique("intervention").select(*keys, "neurons", "intervention")
    seeds = PAIRS.select("pair", "seed")
    answers = once.join(anything["runs"], on="intervention").join(seeds, on="pair")
    correct = pl.col("correct").mean()
    by_seed = answers.group_by(*keys, "seed").agg(correct)
    spread = by_seed.group_by(keys).agg(accuracy_std=pl.std("correct"), seeds=pl.len())
    means = answers.group_by(keys).agg(pl.mean("neurons"), accuracy=correct)
    expected = means.join(spread.filter(seeds=5).drop("seeds"), on=keys)
    assert_frame_equal(
        shown.select(expected.columns),
        expected,
        check_row_order=False,
        check_dtypes=False,
        rel_tol=1e-6,
    )
    assert set(shown["prompts"]) == {40}
    for operator, accuracy in shown.select("operator", "majority_accuracy").iter_rows():
        assert accuracy == majority(PAIRS, operator=operator, split="evaluation")


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
    unknown = table["trajectory"].select(selectors.starts_with("faithfulness", "correct"))
    assert unknown.width == 3 * len(KEPT) + 1  # two of faithfulness, and one of correct answers
    assert unknown.null_count().row(0) == (len(OPERATORS),) * unknown.width
    assert set(table["trajectory"]["prompts"]) == {0}
    assert (table["trajectory"]["shared_with_last"].fill_null(0) > 0).all()


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
    shown = written(micro, "trajectory/trajectory", "abacus")
    kinds = written(micro, "trajectory/trajectory_kinds", "abacus")
    assert set(shown.select("subject", "last", "step").rows()) == {("abacus", "abacus", 200)}
    assert shown["operator"].to_list() == ["add", "divide", "multiply", "subtract"]
    assert {*shown["shared_with_last"], *kinds["shared_with_last"]} <= {1, None}
    assert shown["faithfulness_shared"].to_list() == pytest.approx(
        shown["faithfulness_all"].to_list(), nan_ok=True
    )
