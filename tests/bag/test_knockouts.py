"""Ablations of heuristics: which neurons, and that a known heuristic's own prompts fail alone."""

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.bag import knocked
from tests.bag.knocked import (
    CRITERIA,
    ENDS,
    EVEN,
    LOW,
    MEANS,
    OWN,
    SAME,
    SET,
    Answer,
    Prompt,
    Units,
    standing,
    standing_alike,
    written,
)
from tests.made import OPERATORS, ask, majority

SETTINGS = {"fewest_neurons": 3, "most_heuristics": 3, "control_draws": 4, "knockout_seed": 0}
KEYS = ["operator", "criterion", "heuristic", "ablation", "arm"]


@pytest.fixture(scope="module")
def members() -> pl.DataFrame:
    """Return neurons of which nearly all in layer 0 have SAME, and only two have OWN.

    EVEN and ENDS have fewer neurons by label than by other criteria.
    """
    rng = np.random.default_rng(0)
    rows = set(product(OPERATORS, (1, 2), [47], [OWN]))
    rows |= set(product(OPERATORS, [0], range(40), [SAME]))
    rows |= set(product(OPERATORS, [0], range(40, 44), [LOW]))
    for unit in product(OPERATORS, (1, 2), range(47)):
        for heuristic in rng.choice([EVEN, LOW, ENDS, SET], rng.integers(1, 3)).tolist():
            rows.add((*unit, heuristic))
    more = set(product(OPERATORS, (1, 2), range(0, 47, 9), (EVEN, ENDS)))
    labels, called = standing(sorted(rows), "label"), standing(sorted(rows | more), *CRITERIA[1:])
    return pl.concat([labels, called]).sample(fraction=1, shuffle=True, seed=1)


@pytest.fixture(scope="module")
def knockouts(members: pl.DataFrame) -> pl.DataFrame:
    return ask("knockout_interventions", {"heuristic_neurons": members}, **SETTINGS)


def test_all_neurons_of_a_heuristic_are_silenced_and_as_many_others_in_each_layer(
    members: pl.DataFrame, knockouts: pl.DataFrame
):
    ablated = knocked.ablated(knockouts, "operator", "criterion", "heuristic", "arm", "draw")
    controls = []
    for (operator, criterion, heuristic, arm, draw), units in ablated.items():
        counted = members.filter(operator=operator, criterion=criterion)
        mine = set(counted.filter(heuristic=heuristic).select("layer", "neuron").rows())
        if arm == "heuristic":
            assert (units, draw) == (mine, None)
            continue
        for layer in range(3):
            assert len(knocked.in_layer(units, layer)) == len(knocked.in_layer(mine, layer))
        known = set(counted.select("layer", "neuron").rows())
        anyhow = members.filter(operator=operator, heuristic=heuristic).select("layer", "neuron")
        assert units <= known - set(anyhow.rows())
        controls.append((criterion, frozenset(units)))
    assert len(set(controls)) == len(controls) > 0


def test_labels_are_knocked_out_and_of_what_is_called_or_scored_the_largest(
    members: pl.DataFrame, knockouts: pl.DataFrame
):
    expected = Counter(product(OPERATORS, [None], [None], [None], ["none"]))
    for o, criterion in product(OPERATORS, CRITERIA):
        sizes = Counter(members.filter(operator=o, criterion=criterion)["heuristic"])
        assert sizes.pop(OWN) == 2 < SETTINGS["fewest_neurons"] <= min(sizes.values())
        largest = sorted(sizes, key=lambda h: (-sizes[h], h))
        for h in largest if criterion == "label" else largest[:3]:
            for replacement in ("zero", "mean"):
                expected[o, criterion, h, replacement, "heuristic"] = 1
                if h != SAME:  # beside its neurons layer 0 has too few for a control
                    expected[o, criterion, h, replacement, "control"] = 4
    once = knockouts.unique("intervention").select(
        "operator", "criterion", "heuristic", "replacement", "arm"
    )
    assert Counter(once.rows()) == expected


def test_the_executor_takes_them(knockouts: pl.DataFrame):
    read = knocked.taken(knockouts)
    assert knocked.clean_runs(read) == OPERATORS
    assert knocked.replacements(read) == {"zero", "mean"}


def test_controls_are_drawn_evenly_and_by_seed():
    rows = [*product(["add"], [1], range(3), [EVEN]), *product(["add"], [1], range(3, 12), [LOW])]
    given = {"heuristic_neurons": standing(rows, "label")}
    several = []
    for seed in (0, 1):
        settings = SETTINGS | {"control_draws": 600, "knockout_seed": seed}
        table = ask("knockout_interventions", given, **settings)
        draws = table.filter(arm="control", replacement="zero", heuristic=EVEN).sort("draw")
        several.append(draws["units"].to_list())
    assert several[0] != several[1]
    counts = np.bincount(np.concatenate(several[0]), minlength=12)
    assert (counts[:3] == 0).all()
    assert np.abs(counts[3:] - 200).max() < 4 * (600 * 1 / 3 * 2 / 3) ** 0.5


def concluded(
    knockouts: pl.DataFrame,
    about: pl.DataFrame,
    pairs: pl.DataFrame,
    answer: Answer,
    replicates: int = 40,
) -> pl.DataFrame:
    given = {
        "knockout_interventions": knockouts,
        "runs": knocked.simulated(knockouts, "knockout", pairs, answer),
        "prompt_associations": about,
    }
    given |= {"pairs": pairs, "bootstrap_weights": knocked.weights(pairs, 200)}
    return ask("knockouts_by_heuristic", given, knockout_replicates=replicates)


@pytest.fixture(scope="module")
def pairs() -> pl.DataFrame:
    return knocked.prompts()


def test_a_planted_heuristic_breaks_its_own_prompts_alone(pairs: pl.DataFrame):
    """A prompt fails if all neurons of a heuristic that it satisfies are ablated.

    Each neuron adds one logit.
    """
    heuristics: dict[tuple[int, int], str] = {}
    for i, heuristic in enumerate([EVEN, LOW, ENDS, SET, OWN]):
        heuristics |= dict.fromkeys(product((1, 2), range(4 * i, 4 * i + 4)), heuristic)
    planted = standing_alike(heuristics, "label")

    def answer(units: Units, prompt: Prompt) -> tuple[float, bool]:
        hit: Counter[str] = Counter()
        for unit in units:
            hit[heuristics[unit]] += MEANS[heuristics[unit]](prompt)
        return 30.0 - hit.total(), max(hit.values(), default=0) < 8

    knockouts = ask("knockout_interventions", {"heuristic_neurons": planted}, **SETTINGS)
    table = concluded(knockouts, knocked.associations(pairs, MEANS), pairs, answer)
    assert table.height == len(OPERATORS) * 5 * 2 * 2
    for row in table.iter_rows(named=True):
        about = knocked.is_associated(pairs, row["operator"], MEANS[row["heuristic"]])
        assert (row["prompts_associated"], row["prompts_other"]) == (about.sum(), (~about).sum())
        assert row["neurons"] == 8
        assert row["accuracy_associated_before"] == row["accuracy_other_before"] == 1
        mine = row["arm"] == "heuristic"
        # where all prompts agree nothing is uncertain
        kept = 1 - mine
        assert row["accuracy_associated"] == row["associated_low"] == row["associated_high"] == kept
        assert row["accuracy_other"] == row["other_low"] == row["other_high"] == 1
        assert row["dissociation"] == row["dissociation_low"] == row["dissociation_high"] == mine
        associated, other = row["logit_change_associated"], row["logit_change_other"]
        if mine:
            assert (associated, other, row["logit_dissociation"]) == (-8, 0, 8)
        else:
            assert -8 < associated < 0 > other


def measured(
    answers: pl.DataFrame, about: np.ndarray, evaluated: pl.DataFrame, drawn: np.ndarray
) -> dict[str, Any]:
    """Return the measures of one ablation by brute force, but for those that are null.

    answers: of the evaluated prompts, in order. about: whether they are associated.
    """
    correct, before = answers["correct"].to_numpy(), answers["correct_before"].to_numpy()
    change, lost = answers["change"].to_numpy(), before - correct
    row = {}
    for name, part in (("associated", about), ("other", ~about)):
        row[f"prompts_{name}"] = part.sum()
        if part.any():
            low, high = knocked.interval(correct[part], drawn[:, part])
            row |= {
                f"accuracy_{name}": correct[part].mean(),
                f"{name}_low": low,
                f"{name}_high": high,
                f"accuracy_{name}_before": before[part].mean(),
                f"logit_change_{name}": change[part].mean(),
                f"majority_accuracy_{name}": majority(evaluated.filter(part)),
            }
    if about.any():
        usable = drawn[drawn[:, about].any(axis=1)]
        own = usable[:, about] @ lost[about] / usable[:, about].sum(axis=1)
        rest = usable[:, ~about] @ lost[~about] / usable[:, ~about].sum(axis=1)
        low, high = np.quantile(own - rest, [0.05, 0.95])
        row |= {
            "dissociation": lost[about].mean() - lost[~about].mean(),
            "dissociation_low": low,
            "dissociation_high": high,
            "logit_dissociation": change[~about].mean() - change[about].mean(),
        }
    return row


def test_means_and_intervals_are_those_of_brute_force(knockouts: pl.DataFrame, pairs: pl.DataFrame):
    means = MEANS | {SAME: lambda _: False}  # no prompt is said to satisfy SAME
    table = concluded(knockouts, knocked.associations(pairs, means), pairs, knocked.at_random(5))
    answers = knocked.answers(knockouts, "knockout", pairs, knocked.at_random(5))
    numbers = pl.col("correct", "logit").cast(float)
    before = answers.filter(arm="none").select("operator", "pair", numbers.name.suffix("_before"))
    after = answers.filter(pl.col("arm") != "none").group_by(*KEYS, "pair").agg(numbers.mean())
    joined = after.join(before, on=["operator", "pair"]).sort("pair")
    joined = joined.with_columns(change=pl.col("logit") - pl.col("logit_before"))
    weights = knocked.weights(pairs, 200)
    expected = []
    for key, answers_after in joined.partition_by(KEYS, as_dict=True).items():
        operator, _, heuristic, *_ = key
        about = knocked.is_associated(pairs, operator, means[heuristic])
        assert about.any() == (heuristic != SAME)
        evaluated = pairs.filter(operator=operator, split="evaluation").sort("pair")
        drawn = knocked.drawn(weights, operator)[:40]
        row = measured(answers_after, about, evaluated, drawn)
        expected.append(dict(zip(KEYS, key, strict=True)) | row)
    knocked.assert_rows(table, expected)


def test_intervals_hold_the_truth(pairs: pl.DataFrame):
    """Half of associated prompts and a fifth of other prompts fail after each of 160 ablations."""
    rng = np.random.default_rng(0)
    heuristics = {(1, n): f"h{n}" for n in range(40)}
    prompts = pairs.select("subject", "operator", "pair").sort("pair")
    every = pl.DataFrame({"heuristic": heuristics.values()}).join(prompts, how="cross")
    about = every.filter(rng.random(len(every)) < 0.4)
    satisfied = set(about.select("heuristic", "pair").rows())
    members = standing_alike(heuristics, "label")
    knockouts = ask(
        "knockout_interventions", {"heuristic_neurons": members}, **SETTINGS | {"fewest_neurons": 1}
    )

    def answer(units: Units, prompt: Prompt) -> tuple[float, bool]:
        correct = True
        for unit in units:
            risk = 0.5 if (heuristics[unit], prompt.pair) in satisfied else 0.2
            correct &= rng.random() >= risk
        return 0.0, correct

    table = concluded(
        knockouts.filter(pl.col("arm") != "control"), about, pairs, answer, replicates=200
    )
    assert table.height == 160
    for name, truth in {"associated": 0.5, "other": 0.8, "dissociation": 0.3}.items():
        low, high = table[f"{name}_low"].to_numpy(), table[f"{name}_high"].to_numpy()
        covered = ((low <= truth) & (truth <= high)).mean()
        assert 0.85 < covered < 0.98  # asked for: 0.9, somewhat more with few seeds
        assert (high - low).mean() < 0.35


def test_without_heuristics_all_is_empty(pairs: pl.DataFrame):
    knockouts = ask("knockout_interventions", {"heuristic_neurons": standing([])}, **SETTINGS)
    assert knockouts.is_empty()
    about = knocked.associations(pairs, {})
    assert concluded(knockouts, about, pairs, knocked.at_random(0)).is_empty()


@pytest.mark.parametrize("name", ["abacus", "planted"])
def test_the_pipeline_knocks_out_every_label_and_compares_it_with_its_control(
    micro: Path, name: str
):
    knockouts = written(micro, name, "knockout_interventions")
    table = written(micro, name, "knockouts_by_heuristic")
    assert len(knocked.ran(micro, name, "knockout")) > 0
    meant = knockouts.filter(pl.col("arm") != "none").rename({"replacement": "ablation"})
    assert table.select(KEYS).rows() == sorted(meant.select(KEYS).unique().rows())
    assert set(table.drop_nulls("dissociation")["arm"]) == {"heuristic", "control"}
    labels = written(micro, name, "heuristic_neurons").filter(criterion="label")
    known = set(labels.select("operator", "heuristic").rows())
    assert set(table.filter(criterion="label").select("operator", "heuristic").rows()) == known
