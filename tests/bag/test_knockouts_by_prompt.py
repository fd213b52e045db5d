"""What knock-outs by prompt do to made subjects, against brute force."""

from pathlib import Path

import polars as pl
import pytest

from stages.bag.arms import ARMS
from tests.bag import knocked
from tests.bag.knocked import (
    ENDS,
    EVEN,
    LOW,
    MEANS,
    SET,
    Answer,
    Prompt,
    Units,
    listed,
    standing,
    written,
)
from tests.made import OPERATORS, ask, majority

KEYS = ["operator", "criterion", "arm", "ablation", "neurons_per_layer"]
OF = {(layer, n): [EVEN, LOW, ENDS, SET][n % 4] for layer in (1, 2) for n in range(32)}


@pytest.fixture(scope="module")
def pairs() -> pl.DataFrame:
    return knocked.prompts(per_seed=8)


@pytest.fixture(scope="module")
def knockouts(pairs: pl.DataFrame) -> pl.DataFrame:
    members = standing([(o, *unit, heuristic) for o in OPERATORS for unit, heuristic in OF.items()])
    return knocked.prompt_knockouts(pairs, members, [2, 5, 30])


def concluded(knockouts: pl.DataFrame, pairs: pl.DataFrame, answer: Answer) -> pl.DataFrame:
    given = {
        "prompt_knockout_interventions": knockouts,
        "pairs": pairs,
        "bootstrap_weights": knocked.weights(pairs),
    }
    return ask(
        "knockouts_by_prompt",
        given | {"runs": knocked.simulated(knockouts, "prompt_knockout", pairs, answer)},
    )


def test_means_and_intervals_are_those_of_brute_force(knockouts: pl.DataFrame, pairs: pl.DataFrame):
    table = concluded(knockouts, pairs, knocked.at_random(1))
    runs = knocked.simulated(knockouts, "prompt_knockout", pairs, knocked.at_random(1)).filter(
        experiment="prompt_knockout"
    )
    numbers = runs.select(
        "intervention",
        "pair",
        "correct",
        logit=pl.col("answer_logit").cast(float) - pl.col("mean_logit"),
    )
    once = knockouts.rename({"replacement": "ablation"}).unique("intervention").drop("pair")
    answers = once.join(numbers, on="intervention").sort("pair")
    drawn = {o: knocked.drawn(knocked.weights(pairs), o) for o in OPERATORS}
    expected = [
        (o, m, arm, a, k)
        for o in OPERATORS
        for m in ("fdr", "threshold")
        for arm in sorted(ARMS)
        for a in ("mean", "zero")
        for k in (0, 2, 5, 30)
    ]
    assert table.select(KEYS).rows() == expected
    for row in table.iter_rows(named=True):
        before = answers.filter(arm="none", operator=row["operator"])
        after = (
            answers.filter(*(pl.col(key) == row[key] for key in KEYS))
            if row["neurons_per_layer"]
            else before
        )
        ends = knocked.interval(after["correct"].to_numpy().astype(float), drawn[row["operator"]])
        means = [
            after["neurons"].mean(),
            after["correct"].mean(),
            *ends,
            (after["logit"] - before["logit"]).mean(),
            40,
        ]
        assert [
            row[c] for c in ("neurons", "accuracy", "ci_low", "ci_high", "logit_change", "prompts")
        ] == pytest.approx(means, abs=1e-9)
        evaluated = {"operator": row["operator"], "split": "evaluation"}
        assert row["majority_accuracy"] == majority(pairs, **evaluated)


def test_planted_prompts_fail_without_their_own_neurons_alone(
    knockouts: pl.DataFrame, pairs: pl.DataFrame
):
    """A prompt loses a logit with each neuron of its heuristics, and its answer with the sixth."""

    def answer(units: Units, prompt: Prompt) -> tuple[float, bool]:
        lost = sum(MEANS[OF[unit]](prompt) for unit in units if unit in OF)
        return 50.0 - lost, lost < 6

    def satisfies_any(prompt: Prompt) -> bool:
        return any(MEANS[heuristic](prompt) for heuristic in OF.values())

    table = concluded(knockouts, pairs, answer)
    for operator in OPERATORS:
        about = [
            satisfies_any(prompt) for prompt in listed(pairs, operator=operator, split="evaluation")
        ]
        broken = about.count(False) / len(about)
        assert 0 < broken < 0.5
        own = table.filter(operator=operator)
        for arm in ("heuristic", "count"):
            mine = own.filter(arm=arm)
            assert mine["accuracy"].to_list() == pytest.approx([1, 1, broken, broken] * 4)
            assert mine["logit_change"].to_list() == (-mine["neurons"]).to_list()
            assert ((mine["ci_low"] <= broken) & (broken <= mine["ci_high"])).to_list() == [
                False,
                False,
                True,
                True,
            ] * 4
            whole = mine.filter(pl.col("neurons_per_layer") < 5)
            assert set(whole.select("ci_low", "ci_high").rows()) == {
                (1, 1)
            }  # where all agree nothing is uncertain
        for arm in (
            "control",
            "contaminated",
            "matched",
        ):  # each neuron has one heuristic: nothing to contaminate
            others = own.filter(arm=arm)
            assert set(others.select("accuracy", "ci_low", "ci_high", "logit_change").rows()) == {
                (1, 1, 1, 0)
            }
            assert (
                others["neurons"].to_list()[:3]
                == own.filter(arm="heuristic")["neurons"].to_list()[:3]
            )


def test_without_knock_outs_there_is_nothing(knockouts: pl.DataFrame, pairs: pl.DataFrame):
    assert concluded(knockouts.clear(), pairs, knocked.at_random(0)).is_empty()


def test_in_the_pipeline_planted_prompts_fail_without_their_own_neurons_alone(micro: Path):
    table = written(micro, "planted", "knockouts_by_prompt")
    most = table.filter(neurons_per_layer=table["neurons_per_layer"].max())
    by = {arm: most.filter(arm=arm) for arm in ARMS}
    assert set(most["operator"]) == {"add", "subtract"}
    assert (by["heuristic"]["accuracy"] == 0).all()
    assert (by["control"]["accuracy"] == 1).all()
    assert (by["matched"]["accuracy"] > 0.9).all()
    assert (by["heuristic"]["logit_change"] < by["contaminated"]["logit_change"]).all()
    assert (by["contaminated"]["logit_change"] < by["control"]["logit_change"]).all()


@pytest.mark.parametrize("name", ["abacus", "planted"])
def test_the_pipeline_measures_every_choice_on_every_prompt(micro: Path, name: str):
    interventions, table = (
        written(micro, name, stage)
        for stage in ("prompt_knockout_interventions", "knockouts_by_prompt")
    )
    named = (
        interventions.filter(pl.col("arm") != "none")
        .rename({"replacement": "ablation"})
        .select(KEYS)
        .unique()
    )
    clean = named.with_columns(neurons_per_layer=pl.lit(0, pl.Int32)).unique()
    assert table.select(KEYS).rows() == sorted(pl.concat([named, clean]).rows())
    sizes = dict(
        written(micro, name, "pairs").filter(split="evaluation").group_by("operator").len().rows()
    )
    assert table["prompts"].to_list() == [sizes[operator] for operator in table["operator"]]
    assert set(
        table.filter(neurons_per_layer=0).select("accuracy", "logit_change", "neurons").rows()
    ) == {(1, 0, 0)}
