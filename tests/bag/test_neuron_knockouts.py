"""Ablations of single neurons: which neurons, and what they do to their heuristics' prompts."""

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
    SET,
    Answer,
    Prompt,
    Units,
    listed,
    standing,
    written,
)
from tests.made import OPERATORS, ask, frame

KEYS = ["operator", "layer", "neuron", "heuristic", "ablation"]


@pytest.fixture(scope="module")
def pairs() -> pl.DataFrame:
    return knocked.prompts(per_seed=12)


@pytest.fixture(scope="module")
def members() -> pl.DataFrame:
    """Return neurons with one or two heuristics, more by looser criteria.

    All neurons of layer 2 have EVEN.
    """
    rng = np.random.default_rng(0)
    rows = [
        (o, 1, n, h)
        for o in OPERATORS
        for n in range(20)
        for h in rng.choice([EVEN, LOW, ENDS, SET], rng.integers(1, 3), replace=False)
    ]
    rows += [(o, 2, n, EVEN) for o in OPERATORS for n in range(3)]
    parts = [
        standing(rows[start:], criterion)
        for criterion, start in zip(CRITERIA, (20, 10, 0), strict=True)
    ]
    return pl.concat(parts).sample(fraction=1, shuffle=True, seed=1)


@pytest.fixture(scope="module")
def knockouts(members: pl.DataFrame) -> pl.DataFrame:
    return planned(members)


def planned(members: pl.DataFrame, **settings: int) -> pl.DataFrame:
    """Return the table neuron_knockout_interventions.

    Layer 1 is before the late layers and has no attributions.
    """
    rows = [
        (operator, method, layer, neuron, position, (7 * neuron + len(operator)) % 20)
        for operator in OPERATORS
        for method in ("exact", "attribution")
        for layer, positions in ((0, ["op1"]), (2, ["last"]))
        for position in positions
        for neuron in range(20)
    ]
    names = ("operator", "method", "layer", "neuron", "position", "effect")
    effects = frame(**dict(zip(names, zip(*rows, strict=True), strict=True)))
    return ask(
        "neuron_knockout_interventions",
        {"heuristic_neurons": members, "neuron_effects": effects},
        **settings,
    )


def test_of_large_models_neurons_of_large_attribution_and_random_ones_are_ablated():
    members = standing(
        [(o, layer, n, EVEN) for o in OPERATORS for layer in (1, 2) for n in range(15)]
    )

    def ablated(k: int, count: int) -> dict[tuple[str, int], set[int]]:
        table = planned(members, patched_neurons=k, sampled_neurons=count).filter(
            component="neuron",
            replacement="mean",
        )
        assert not table.select("operator", "layer", "units").is_duplicated().any()
        rows = table.with_columns(neuron=pl.col("units").list.first()).group_by("operator", "layer")
        return {tuple(key): set(part["neuron"]) for key, part in rows}

    largest, random = ablated(3, 0), ablated(1, 4)
    for operator in OPERATORS:
        by_attribution = sorted(range(15), key=lambda neuron: -((7 * neuron + len(operator)) % 20))
        assert largest[operator, 2] == set(by_attribution[:3])
        assert len(random[operator, 1]) == 4
        assert random[operator, 2] >= {by_attribution[0]}
        assert len(random[operator, 2] - {by_attribution[0]}) in (3, 4)
    assert largest.keys() == {(operator, 2) for operator in OPERATORS}
    assert random[OPERATORS[0], 1] == random[OPERATORS[1], 1]  # the lot knows no operator


def concluded(
    members: pl.DataFrame,
    knockouts: pl.DataFrame,
    pairs: pl.DataFrame,
    answer: Answer,
    about: pl.DataFrame,
) -> pl.DataFrame:
    given = {
        "heuristic_neurons": members,
        "neuron_knockout_interventions": knockouts,
        "prompt_associations": about,
    }
    return ask(
        "knockouts_by_neuron",
        given | {"runs": knocked.simulated(knockouts, "neuron_knockout", pairs, answer)},
    )


def test_each_neuron_that_stands_for_something_is_silenced_alone(
    members: pl.DataFrame, knockouts: pl.DataFrame
):
    read = knocked.taken(knockouts)
    silenced = [
        (intervention.operator, p.layer, *p.unit_numbers(), p.replacement)
        for intervention in read
        for p in intervention.patches
    ]
    neurons = set(members.select("operator", "layer", "neuron").rows())
    assert sorted(silenced) == sorted(
        (*neuron, replacement) for neuron in neurons for replacement in ("zero", "mean")
    )
    assert knocked.clean_runs(read) == OPERATORS
    assert len(read) == 2 * len(neurons) + 2


def test_selectivity_and_its_null_are_those_of_brute_force(
    members: pl.DataFrame, knockouts: pl.DataFrame, pairs: pl.DataFrame
):
    table = concluded(
        members, knockouts, pairs, knocked.at_random(1), knocked.associations(pairs, MEANS)
    )
    runs = (
        knocked.simulated(knockouts, "neuron_knockout", pairs, knocked.at_random(1))
        .filter(experiment="neuron_knockout")
        .sort("pair")
    )
    numbers = runs.with_columns(
        logit=pl.col("answer_logit").cast(float) - pl.col("mean_logit")
    ).group_by(
        "intervention",
        maintain_order=True,
    )
    says = {
        number: (rows["correct"].to_numpy(), rows["logit"].to_numpy())
        for (number,), rows in numbers
    }
    clean = {
        row["operator"]: says[row["intervention"]]
        for row in knockouts.filter(component="none").iter_rows(named=True)
    }
    changes = {}
    for row in knockouts.filter(component="neuron").iter_rows(named=True):
        (correct, logit), (correct_before, logit_before) = (
            says[row["intervention"]],
            clean[row["operator"]],
        )
        changes[row["operator"], row["layer"], *row["units"], row["replacement"]] = (
            logit - logit_before,
            correct_before & ~correct,
        )
    standing_for = members.group_by("operator", "layer", "neuron").agg("heuristic").rows()
    heuristics = {(o, layer, n): set(names) for o, layer, n, names in standing_for}
    strictest = {m: set(members.filter(criterion=m).select(KEYS[:4]).rows()) for m in CRITERIA}

    def selectivity(
        operator: str, layer: int, neuron: int, ablation: str, about: np.ndarray
    ) -> float:
        change = changes[operator, layer, neuron, ablation][0]
        return change[~about].mean() - change[about].mean()

    expected_keys = {
        (*neuron, h, ablation)
        for neuron, names in heuristics.items()
        for h in names
        for ablation in ("zero", "mean")
    }
    assert table.select(KEYS).rows() == sorted(expected_keys)
    for row in table.iter_rows(named=True):
        o, layer, neuron, h, ablation = (row[key] for key in KEYS)
        about = np.array(
            [MEANS[h](prompt) for prompt in listed(pairs, operator=o, split="evaluation")]
        )
        assert row["criterion"] == next(
            m for m in CRITERIA if (o, layer, neuron, h) in strictest[m]
        )
        assert (row["prompts_associated"], row["prompts_other"]) == (about.sum(), (~about).sum())
        for part, name in ((about, "associated"), (~about, "other")):
            means = [values[part].mean() for values in changes[o, layer, neuron, ablation]]
            assert [row[f"logit_change_{name}"], row[f"lost_{name}"]] == pytest.approx(means)
        own = selectivity(o, layer, neuron, ablation, about)
        peers = [
            n
            for (operator, at, n), names in sorted(heuristics.items())
            if (operator, at) == (o, layer) and h not in names
        ]
        null = np.array([selectivity(o, layer, n, ablation, about) for n in peers])
        assert (row["selectivity"], row["null_neurons"]) == (pytest.approx(own), len(null))
        if layer == 2:
            assert (row["null_mean"], row["null_std"], row["p_value"]) == (None, None, 1)
        else:
            assert (row["null_mean"], row["null_std"]) == pytest.approx(
                (null.mean(), null.std(ddof=1))
            )
            assert row["p_value"] == pytest.approx(
                (1 + (null >= own - 1e-12).sum()) / (1 + len(null))
            )


def test_a_neuron_that_writes_its_prompts_answers_is_selective(pairs: pl.DataFrame):
    """Each neuron adds one logit to its prompts; a prompt fails without its only neuron."""
    heuristics = dict(enumerate([EVEN, LOW, LOW, ENDS, ENDS, SET, SET]))
    members = standing([(o, 1, n, h) for o in OPERATORS for n, h in heuristics.items()])

    def answer(units: Units, prompt: Prompt) -> tuple[float, bool]:
        lost = [heuristics[n] for _, n in units if MEANS[heuristics[n]](prompt)]
        return 10.0 - len(lost), EVEN not in lost

    knockouts = planned(members)
    table = concluded(members, knockouts, pairs, answer, knocked.associations(pairs, MEANS))
    assert table.height == len(OPERATORS) * len(heuristics) * 2
    assert set(
        table.select("selectivity", "logit_change_associated", "logit_change_other").rows()
    ) == {(1, -1, 0)}
    assert set(table.select("heuristic", "lost_associated", "lost_other").rows()) == {
        (h, h == EVEN, 0) for h in heuristics.values()
    }
    assert (table["p_value"] == 1 / (1 + table["null_neurons"])).all()
    assert (table["null_mean"] < 1).all()


def test_where_no_neuron_does_anything_none_is_selective(
    pairs: pl.DataFrame, members: pl.DataFrame, knockouts: pl.DataFrame
):
    table = concluded(
        members, knockouts, pairs, lambda *_: (5.0, True), knocked.associations(pairs, MEANS)
    )
    assert set(table.select("selectivity", "lost_associated", "lost_other", "p_value").rows()) == {
        (0, 0, 0, 1)
    }


def test_p_values_of_neurons_that_do_nothing_particular_are_uniform(pairs: pl.DataFrame):
    members = standing(
        [
            (o, layer, n, [EVEN, LOW, ENDS][n % 3])
            for o in OPERATORS
            for layer in range(3)
            for n in range(48)
        ]
    )
    knockouts = planned(members)
    table = concluded(
        members, knockouts, pairs, knocked.at_random(2), knocked.associations(pairs, MEANS)
    )
    values = table["p_value"].to_numpy()
    assert len(values) == 2 * 3 * 48 * 2
    for level in (0.1, 0.25, 0.5, 0.75):
        assert (values <= level).mean() == pytest.approx(
            level, abs=4 * (level * (1 - level) / len(values)) ** 0.5 + 1 / 33
        )


def test_a_heuristic_of_no_prompt_or_of_all_has_no_selectivity(pairs: pl.DataFrame):
    members = standing([("add", 1, 0, EVEN), ("add", 1, 1, LOW), ("add", 1, 2, ENDS)])
    knockouts = planned(members)
    about = knocked.associations(pairs, {EVEN: MEANS[EVEN], LOW: lambda _: True})
    table = concluded(members, knockouts, pairs, knocked.at_random(3), about)
    assert set(table["heuristic"]) == {EVEN}


def test_without_heuristics_all_is_empty(pairs: pl.DataFrame):
    members = standing([])
    knockouts = planned(members)
    assert knockouts.is_empty()
    assert concluded(
        members, knockouts, pairs, knocked.at_random(0), knocked.associations(pairs, MEANS)
    ).is_empty()


def test_the_pipeline_finds_that_planted_votes_are_selective(micro: Path):
    """Each of three neurons adds a third of 10 logits to the prompts of its heuristic.

    The expected change is less what it adds to the mean logit.
    """
    votes = (
        pl.read_parquet(micro / "data/subjects/planted_truth.parquet")
        .filter("votes")
        .select(KEYS[:4])
    )
    table = (
        written(micro, "planted", "knockouts_by_neuron")
        .filter(criterion="label")
        .join(votes, on=KEYS[:4])
    )
    assert table.select("operator", "heuristic").n_unique() >= 5
    zeroed = table.filter(ablation="zero")
    assert zeroed["selectivity"].is_between(3, 10 / 3).all()
    assert zeroed["logit_change_other"].is_between(-0.05, 0.05).all()
    assert (table["selectivity"] > table["null_mean"] + table["null_std"]).mean() > 0.9


@pytest.mark.parametrize("name", ["abacus", "planted"])
def test_the_pipeline_silences_every_neuron_that_stands_for_something(micro: Path, name: str):
    members, table = (
        written(micro, name, "heuristic_neurons"),
        written(micro, name, "knockouts_by_neuron"),
    )
    neurons = members.select("operator", "layer", "neuron").unique()
    assert (
        knocked.ran(micro, name, "neuron_knockout")["intervention"].n_unique()
        == 2 * len(neurons) + members["operator"].n_unique()
    )
    sizes = {
        operator: len(rows)
        for (operator,), rows in written(micro, name, "pairs")
        .filter(split="evaluation")
        .group_by("operator")
    }
    evaluated = written(micro, name, "pairs").filter(split="evaluation").select("operator", "pair")
    about = (
        written(micro, name, "prompt_associations")
        .join(evaluated, on=["operator", "pair"])
        .group_by("operator", "heuristic")
        .len()
    )
    telling = {(o, h) for o, h, count in about.rows() if count < sizes[o]}
    keys = members.select(KEYS[:4]).unique().rows()
    expected = product((key for key in keys if (key[0], key[3]) in telling), ("zero", "mean"))
    assert table.select(KEYS).rows() == sorted((*key, ablation) for key, ablation in expected)
