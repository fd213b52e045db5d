"""What knock-outs by prompt do to made subjects, against brute force."""

from itertools import product
from pathlib import Path

import polars as pl
import pytest

from stages.bag.arms import ARMS
from tests.bag import knocked
from tests.bag.knocked import CRITERIA, ENDS, EVEN, LOW, MEANS, SET, Answer, Prompt, Units, written
from tests.made import OPERATORS, ask, majority

KEYS = ["operator", "criterion", "arm", "ablation", "neurons_per_layer"]
HEURISTICS = dict(zip(product((1, 2), range(32)), [EVEN, LOW, ENDS, SET] * 16, strict=True))


@pytest.fixture(scope="module")
def pairs() -> pl.DataFrame:
    return knocked.prompts(per_seed=8)


@pytest.fixture(scope="module")
def knockouts(pairs: pl.DataFrame) -> pl.DataFrame:
    return knocked.prompt_knockouts(pairs, knocked.standing_alike(HEURISTICS), [2, 5, 30])


def concluded(knockouts: pl.DataFrame, pairs: pl.DataFrame, answer: Answer) -> pl.DataFrame:
    given = {
        "prompt_knockout_interventions": knockouts,
        "pairs": pairs,
        "bootstrap_weights": knocked.weights(pairs),
        "runs": knocked.simulated(knockouts, "prompt_knockout", pairs, answer),
    }
    return ask("knockouts_by_prompt", given)


def test_means_and_intervals_are_those_of_brute_force(knockouts: pl.DataFrame, pairs: pl.DataFrame):
    table = concluded(knockouts, pairs, knocked.at_random(1))
    answers = knocked.answers(knockouts, "prompt_knockout", pairs, knocked.at_random(1))
    weights = knocked.weights(pairs)
    keys = list(product(OPERATORS, CRITERIA[1:], sorted(ARMS), ("mean", "zero"), (0, 2, 5, 30)))
    assert table.select(KEYS).rows() == keys
    expected = []
    for key in keys:
        which = dict(zip(KEYS, key, strict=True))
        operator = which["operator"]
        before = answers.filter(arm="none", operator=operator)
        after = answers.filter(**which) if which["neurons_per_layer"] else before
        correct = after["correct"].to_numpy().astype(float)
        low, high = knocked.interval(correct, knocked.drawn(weights, operator))
        measured = {
            "neurons": after["neurons"].mean(),
            "accuracy": correct.mean(),
            "ci_low": low,
            "ci_high": high,
            "logit_change": (after["logit"] - before["logit"]).mean(),
            "prompts": 40,
            "majority_accuracy": majority(pairs, operator=operator, split="evaluation"),
        }
        expected.append(which | measured)
    knocked.assert_rows(table, expected)


def test_planted_prompts_fail_without_their_own_neurons_alone(
    knockouts: pl.DataFrame, pairs: pl.DataFrame
):
    """A prompt loses a logit with each neuron of its heuristics, and its answer with the sixth."""

    def answer(units: Units, prompt: Prompt) -> tuple[float, bool]:
        lost = sum(MEANS[HEURISTICS[unit]](prompt) for unit in units & HEURISTICS.keys())
        return 50.0 - lost, lost < 6

    def satisfies_any(prompt: Prompt) -> bool:
        return any(MEANS[heuristic](prompt) for heuristic in (EVEN, LOW, ENDS, SET))

    table = concluded(knockouts, pairs, answer)
    for operator in OPERATORS:
        about = knocked.is_associated(pairs, operator, satisfies_any)
        broken = float((~about).mean())
        assert 0 < broken < 0.5
        own = table.filter(operator=operator)
        for arm in ("heuristic", "count"):
            mine = own.filter(arm=arm)
            assert mine["accuracy"].to_list() == pytest.approx([1, 1, broken, broken] * 4)
            assert mine["logit_change"].to_list() == (-mine["neurons"]).to_list()
            covered = (mine["ci_low"] <= broken) & (broken <= mine["ci_high"])
            assert covered.to_list() == [False, False, True, True] * 4
            # where all agree nothing is uncertain
            whole = mine.filter(pl.col("neurons_per_layer") < 5)
            assert set(whole.select("ci_low", "ci_high").rows()) == {(1, 1)}
        # each neuron has one heuristic: nothing to contaminate
        heuristic = own.filter(arm="heuristic")
        for arm in ("control", "contaminated", "matched"):
            others = own.filter(arm=arm)
            answers = others.select("accuracy", "ci_low", "ci_high", "logit_change")
            assert set(answers.rows()) == {(1, 1, 1, 0)}
            assert others["neurons"][:3].equals(heuristic["neurons"][:3])


def test_without_knock_outs_there_is_nothing(knockouts: pl.DataFrame, pairs: pl.DataFrame):
    assert concluded(knockouts.clear(), pairs, knocked.at_random(0)).is_empty()


def test_in_the_pipeline_planted_prompts_fail_without_their_own_neurons_alone(micro: Path):
    table = written(micro, "planted", "knockouts_by_prompt")
    most = table.filter(neurons_per_layer=table["neurons_per_layer"].max())
    assert set(most["operator"]) == {"add", "subtract"}
    own, contaminated = most.filter(arm="heuristic"), most.filter(arm="contaminated")
    control, matched = most.filter(arm="control"), most.filter(arm="matched")
    assert (own["accuracy"] == 0).all()
    assert (control["accuracy"] == 1).all()
    assert (matched["accuracy"] > 0.9).all()
    assert (own["logit_change"] < contaminated["logit_change"]).all()
    assert (contaminated["logit_change"] < control["logit_change"]).all()


@pytest.mark.parametrize("name", ["abacus", "planted"])
def test_the_pipeline_measures_every_choice_on_every_prompt(micro: Path, name: str):
    interventions = written(micro, name, "prompt_knockout_interventions")
    table = written(micro, name, "knockouts_by_prompt")
    named = (
        interventions.filter(pl.col("arm") != "none")
        .rename({"replacement": "ablation"})
        .select(KEYS)
        .unique()
    )
    clean = named.with_columns(neurons_per_layer=pl.lit(0, pl.Int32)).unique()
    assert table.select(KEYS).rows() == sorted(pl.concat([named, clean]).rows())
    evaluated = written(micro, name, "pairs").filter(split="evaluation")
    sizes = table.join(evaluated.group_by("operator").len(), on="operator")
    assert len(sizes) == len(table)
    assert (sizes["prompts"] == sizes["len"]).all()
    unchanged = table.filter(neurons_per_layer=0).select("accuracy", "logit_change", "neurons")
    assert set(unchanged.rows()) == {(1, 0, 0)}
