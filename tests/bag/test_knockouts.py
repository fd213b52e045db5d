"""Ablations of heuristics: which neurons, and that a known heuristic's own prompts fail alone."""

from collections import Counter
from itertools import product
from pathlib import Path

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
    listed,
    standing,
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
    rows = {(o, layer, 47, OWN) for o in OPERATORS for layer in (1, 2)}
    for o in OPERATORS:
        rows |= {(o, 0, n, SAME if n < 40 else LOW) for n in range(44)}
        for layer, n in product((1, 2), range(47)):
            heuristics = rng.choice([EVEN, LOW, ENDS, SET], rng.integers(1, 3))
            rows |= {(o, layer, n, heuristic) for heuristic in heuristics}
    more = set(product(OPERATORS, (1, 2), range(0, 47, 9), (EVEN, ENDS)))
    both = pl.concat(
        [standing(sorted(rows), "label"), standing(sorted(rows | more), "fdr", "threshold")]
    )
    return both.sample(fraction=1, shuffle=True, seed=1)


@pytest.fixture(scope="module")
def knockouts(members: pl.DataFrame) -> pl.DataFrame:
    return ask("knockout_interventions", {"heuristic_neurons": members}, **SETTINGS)


def test_all_neurons_of_a_heuristic_are_silenced_and_as_many_others_in_each_layer(
    members: pl.DataFrame, knockouts: pl.DataFrame
):
    zeroed, meant = {}, {}
    keys = [
        "replacement",
        "operator",
        "criterion",
        "heuristic",
        "arm",
        "draw",
        "neurons",
        "intervention",
    ]
    for (replacement, *key, neurons, _), patches in knockouts.filter(
        pl.col("arm") != "none"
    ).group_by(keys):
        units = knocked.units_of(patches)
        assert len(units) == neurons
        {"zero": zeroed, "mean": meant}[replacement][tuple(key)] = units
    assert zeroed == meant
    for (operator, criterion, heuristic, arm, draw), units in zeroed.items():
        counted = members.filter(operator=operator, criterion=criterion)
        mine, known = (
            set(table.select("layer", "neuron").rows())
            for table in (counted.filter(heuristic=heuristic), counted)
        )
        if arm == "heuristic":
            assert (units, draw) == (mine, None)
        else:
            assert Counter(layer for layer, _ in units) == Counter(layer for layer, _ in mine)
            however = (
                members.filter(operator=operator, heuristic=heuristic)
                .select("layer", "neuron")
                .rows()
            )
            assert units <= known - set(however)
    controls = [
        (m, frozenset(units)) for (_, m, _, arm, _), units in zeroed.items() if arm == "control"
    ]
    assert len(set(controls)) == len(controls)


def test_labels_are_knocked_out_and_of_what_is_called_or_scored_the_largest(
    members: pl.DataFrame, knockouts: pl.DataFrame
):
    expected = Counter({(o, None, None, None, "none"): 1 for o in OPERATORS})
    for o in OPERATORS:
        for criterion in CRITERIA:
            sizes = Counter(members.filter(operator=o, criterion=criterion)["heuristic"])
            enough = sorted((h for h in sizes if h != OWN), key=lambda h: (-sizes[h], h))
            assert sizes[OWN] == 2 < SETTINGS["fewest_neurons"] <= sizes[enough[-1]]
            for h in enough if criterion == "label" else enough[:3]:
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
    given = {
        "heuristic_neurons": standing(
            [("add", 1, n, EVEN if n < 3 else LOW) for n in range(12)], "label"
        )
    }
    draws = [
        ask(
            "knockout_interventions",
            given,
            **SETTINGS | {"control_draws": 600, "knockout_seed": seed},
        )
        for seed in (0, 1)
    ]
    several = [
        table.filter(arm="control", replacement="zero", heuristic=EVEN)
        .sort("draw")["units"]
        .to_list()
        for table in draws
    ]
    assert several[0] != several[1]
    counts = Counter(n for units in several[0] for n in units)
    assert sorted(counts) == list(range(3, 12))
    assert max(abs(count - 200) for count in counts.values()) < 4 * (600 * 1 / 3 * 2 / 3) ** 0.5


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
    planted_neurons: dict[str, Units] = {}
    rows = []
    for i, heuristic in enumerate([EVEN, LOW, ENDS, SET, OWN]):
        units = list(product((1, 2), range(4 * i, 4 * i + 4)))
        planted_neurons[heuristic] = set(units)
        rows += [(o, *unit, heuristic) for o, unit in product(OPERATORS, units)]
    planted = standing(rows, "label")

    def answer(units: Units, prompt: Prompt) -> tuple[float, bool]:
        hit = [
            len(units & mine)
            for heuristic, mine in planted_neurons.items()
            if MEANS[heuristic](prompt)
        ]
        return 30.0 - sum(hit), max(hit, default=0) < 8

    knockouts = ask("knockout_interventions", {"heuristic_neurons": planted}, **SETTINGS)
    table = concluded(knockouts, knocked.associations(pairs, MEANS), pairs, answer)
    assert table.height == len(OPERATORS) * len(planted_neurons) * 2 * 2
    for row in table.iter_rows(named=True):
        about = [
            MEANS[row["heuristic"]](prompt)
            for prompt in listed(pairs, split="evaluation", operator=row["operator"])
        ]
        assert (row["prompts_associated"], row["prompts_other"], row["neurons"]) == (
            sum(about),
            len(about) - sum(about),
            8,
        )
        assert row["accuracy_associated_before"] == row["accuracy_other_before"] == 1
        mine = row["arm"] == "heuristic"
        for name, value in {
            "accuracy_associated": 1 - mine,
            "accuracy_other": 1,
            "dissociation": mine,
        }.items():
            ends = [row[name.removeprefix("accuracy_") + end] for end in ("_low", "_high")]
            assert [row[name], *ends] == [value] * 3  # where all prompts agree nothing is uncertain
        associated, other, dissociation = (
            row[f"logit_{name}"] for name in ("change_associated", "change_other", "dissociation")
        )
        assert (
            (associated, other, dissociation) == (-8, 0, 8) if mine else -8 < associated < 0 > other
        )


def test_means_and_intervals_are_those_of_brute_force(knockouts: pl.DataFrame, pairs: pl.DataFrame):
    means = {
        heuristic: MEANS[heuristic] for heuristic in (EVEN, LOW, ENDS, SET)
    }  # no prompt is said to satisfy SAME
    table = concluded(knockouts, knocked.associations(pairs, means), pairs, knocked.at_random(5))
    runs = knocked.simulated(knockouts, "knockout", pairs, knocked.at_random(5)).filter(
        experiment="knockout"
    )
    numbers = runs.select(
        "intervention",
        "pair",
        "correct",
        logit=pl.col("answer_logit").cast(float) - pl.col("mean_logit"),
    )
    joined = numbers.join(
        knockouts.rename({"replacement": "ablation"}).unique("intervention"), on="intervention"
    )
    before = (
        joined.filter(arm="none")
        .group_by("operator")
        .agg(pl.col("correct", "logit").sort_by("pair"))
    )
    after = (
        joined.filter(pl.col("arm") != "none")
        .group_by(*KEYS, "pair")
        .agg(pl.col("correct", "logit").mean())
    )
    after = after.group_by(KEYS).agg(pl.col("correct", "logit").sort_by("pair"))
    assert sorted(table.select(KEYS).rows()) == sorted(after.select(KEYS).rows())
    drawn_of = {o: knocked.drawn(knocked.weights(pairs, 200), o)[:40] for o in OPERATORS}
    for row in (
        after.join(before, on="operator", suffix="_before")
        .join(table, on=KEYS)
        .iter_rows(named=True)
    ):
        correct, logit, correct_before, logit_before = (
            np.array(row[c], float) for c in ("correct", "logit", "correct_before", "logit_before")
        )
        drawn = drawn_of[row["operator"]]
        holds = means.get(row["heuristic"], lambda _: False)
        about = np.array(
            [
                holds(prompt)
                for prompt in listed(pairs, operator=row["operator"], split="evaluation")
            ]
        )
        for name, part in (("associated", about), ("other", ~about)):
            measured = [
                row[c]
                for c in (
                    f"accuracy_{name}",
                    f"{name}_low",
                    f"{name}_high",
                    f"accuracy_{name}_before",
                    f"logit_change_{name}",
                )
            ]
            assert row[f"prompts_{name}"] == part.sum()
            majority_of = row[f"majority_accuracy_{name}"]
            if part.any():
                evaluated = pairs.filter(operator=row["operator"], split="evaluation").sort("pair")
                assert majority_of == majority(evaluated.filter(part))
                rest = (correct_before[part].mean(), (logit - logit_before)[part].mean())
                assert measured == pytest.approx(
                    [correct[part].mean(), *knocked.interval(correct[part], drawn[:, part]), *rest]
                )
            else:
                assert (row["heuristic"], majority_of, measured) == (SAME, None, [None] * 5)
        dissociation = [
            row["dissociation"],
            row["dissociation_low"],
            row["dissociation_high"],
            row["logit_dissociation"],
        ]
        lost = correct_before - correct
        ratios = [
            lost @ (w * about) / w[about].sum() - lost @ (w * ~about) / w[~about].sum()
            for w in drawn
            if w[about].any()
        ]
        if ratios:
            logits = (logit - logit_before)[~about].mean() - (logit - logit_before)[about].mean()
            expected = [
                lost[about].mean() - lost[~about].mean(),
                *np.quantile(ratios, [0.05, 0.95]),
                logits,
            ]
            assert dissociation == pytest.approx(expected)
        else:
            assert (row["heuristic"], dissociation) == (SAME, [None] * 4)


def test_intervals_hold_the_truth(pairs: pl.DataFrame):
    """Half of associated prompts and a fifth of other prompts fail after each of 160 ablations."""
    rng = np.random.default_rng(0)
    satisfied = set()
    for n, prompt in product(range(40), listed(pairs)):
        if rng.random() < 0.4:
            satisfied.add((n, prompt.pair))
    about = knocked.associations(
        pairs, {f"h{n}": lambda prompt, n=n: (n, prompt.pair) in satisfied for n in range(40)}
    )
    members = standing([(o, 1, n, f"h{n}") for o in OPERATORS for n in range(40)], "label")
    knockouts = ask(
        "knockout_interventions", {"heuristic_neurons": members}, **SETTINGS | {"fewest_neurons": 1}
    )

    def answer(units: Units, prompt: Prompt) -> tuple[float, bool]:
        return 0.0, all(
            rng.random() >= (0.5 if (n, prompt.pair) in satisfied else 0.2) for _, n in units
        )

    table = concluded(
        knockouts.filter(pl.col("arm") != "control"), about, pairs, answer, replicates=200
    )
    assert table.height == 160
    for name, truth in {"associated": 0.5, "other": 0.8, "dissociation": 0.3}.items():
        low, high = table[f"{name}_low"].to_numpy(), table[f"{name}_high"].to_numpy()
        assert (
            0.85 < ((low <= truth) & (truth <= high)).mean() < 0.98
        )  # asked for: .9, somewhat more with few seeds
        assert (high - low).mean() < 0.35


def test_without_heuristics_all_is_empty(pairs: pl.DataFrame):
    knockouts = ask("knockout_interventions", {"heuristic_neurons": standing([])}, **SETTINGS)
    about = knocked.associations(pairs, {})
    assert [
        len(table)
        for table in (knockouts, concluded(knockouts, about, pairs, knocked.at_random(0)))
    ] == [0, 0]


@pytest.mark.parametrize("name", ["abacus", "planted"])
def test_the_pipeline_knocks_out_every_label_and_compares_it_with_its_control(
    micro: Path, name: str
):
    knockouts, table = (
        written(micro, name, stage)
        for stage in ("knockout_interventions", "knockouts_by_heuristic")
    )
    assert len(knocked.ran(micro, name, "knockout")) > 0
    meant = (
        knockouts.filter(pl.col("arm") != "none")
        .rename({"replacement": "ablation"})
        .select(KEYS)
        .unique()
    )
    assert table.select(KEYS).rows() == sorted(meant.rows())
    assert set(table.drop_nulls("dissociation")["arm"]) == {"heuristic", "control"}
    labels = (
        written(micro, name, "heuristic_neurons")
        .filter(criterion="label")
        .select("operator", "heuristic")
    )
    assert set(table.filter(criterion="label").select("operator", "heuristic").rows()) == set(
        labels.rows()
    )
