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
    standing,
    standing_alike,
    written,
)
from tests.made import OPERATORS, ask, frame

KEYS = ["operator", "layer", "neuron", "heuristic", "ablation"]
ABLATIONS = pl.DataFrame({"ablation": ["zero", "mean"]})


@pytest.fixture(scope="module")
def pairs() -> pl.DataFrame:
    return knocked.prompts(per_seed=12)


@pytest.fixture(scope="module")
def members() -> pl.DataFrame:
    """Return neurons with one or two heuristics, more by looser criteria.

    All neurons of layer 2 have EVEN.
    """
    rng = np.random.default_rng(0)
    rows: list[tuple[str, int, int, str]] = []
    for operator, neuron in product(OPERATORS, range(20)):
        heuristics = rng.choice([EVEN, LOW, ENDS, SET], rng.integers(1, 3), replace=False)
        rows += product([operator], [1], [neuron], heuristics.tolist())
    rows += product(OPERATORS, [2], range(3), [EVEN])
    parts = [standing(rows[20:], "label"), standing(rows[10:], "fdr"), standing(rows, "threshold")]
    return pl.concat(parts).sample(fraction=1, shuffle=True, seed=1)


@pytest.fixture(scope="module")
def knockouts(members: pl.DataFrame) -> pl.DataFrame:
    return planned(members)


def planned(members: pl.DataFrame, **settings: int) -> pl.DataFrame:
    """Return the table neuron_knockout_interventions.

    Layer 1 is before the late layers and has no attributions.
    """
    sites = [("exact", 0, "op1"), ("exact", 2, "last")]
    sites += [("attribution", 0, "op1"), ("attribution", 2, "last")]
    rows = []
    for operator, site, neuron in product(OPERATORS, sites, range(20)):
        rows.append((operator, *site, neuron, (7 * neuron + len(operator)) % 20))
    names = ("operator", "method", "layer", "position", "neuron", "effect")
    effects = frame(**dict(zip(names, zip(*rows, strict=True), strict=True)))
    return ask(
        "neuron_knockout_interventions",
        {"heuristic_neurons": members, "neuron_effects": effects},
        **settings,
    )


def test_of_large_models_neurons_of_large_attribution_and_random_ones_are_ablated():
    members = standing_alike(dict.fromkeys(product((1, 2), range(15)), EVEN))

    def ablated(k: int, count: int) -> dict[tuple[str, int], set[int]]:
        table = planned(members, patched_neurons=k, sampled_neurons=count).filter(
            component="neuron",
            replacement="mean",
        )
        assert not table.select("operator", "layer", "units").is_duplicated().any()
        rows = table.with_columns(neuron=pl.col("units").list.first()).group_by("operator", "layer")
        return {tuple(key): set(part["neuron"]) for key, part in rows}

    largest, random = ablated(3, 0), ablated(1, 4)
    drawn = set()
    for operator in OPERATORS:
        by_attribution = sorted(range(15), key=lambda neuron: -((7 * neuron + len(operator)) % 20))
        assert largest[operator, 2] == set(by_attribution[:3])
        assert random[operator, 2] >= {by_attribution[0]}
        others = random[operator, 2] - {by_attribution[0]}
        assert len(others) in (3, 4)
        drawn |= others
    assert len(drawn) <= 4  # the lot knows no operator
    assert largest.keys() == random.keys() == set(product(OPERATORS, [2]))


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
        "runs": knocked.simulated(knockouts, "neuron_knockout", pairs, answer),
    }
    return ask("knockouts_by_neuron", given)


def test_each_neuron_that_stands_for_something_is_silenced_alone(
    members: pl.DataFrame, knockouts: pl.DataFrame
):
    read = knocked.taken(knockouts)
    silenced = []
    for intervention in read:
        for patch in intervention.patches:
            numbers = patch.unit_numbers()
            silenced.append((intervention.operator, patch.layer, *numbers, patch.replacement))
    neurons = members.select("operator", "layer", "neuron").unique()
    assert sorted(silenced) == sorted(neurons.join(ABLATIONS, how="cross").rows())
    assert knocked.clean_runs(read) == OPERATORS
    assert len(read) == 2 * len(neurons) + 2


def measured(
    knockouts: pl.DataFrame, pairs: pl.DataFrame, answer: Answer, about: pl.DataFrame
) -> pl.DataFrame:
    """Return what each ablation changes, for each heuristic, whether or not the neuron has it."""
    answers = knocked.answers(knockouts, "neuron_knockout", pairs, answer)
    keys, numbers = ["operator", "pair"], pl.col("correct", "logit")
    before = answers.filter(component="none").select(*keys, numbers.name.suffix("_before"))
    after = answers.filter(component="neuron").join(before, on=keys)
    heuristics = pl.DataFrame({"heuristic": [EVEN, LOW, ENDS, SET]})
    marked = about.select(*keys, "heuristic", associated=pl.lit(True))
    changes = (
        after.join(heuristics, how="cross")
        .join(marked, on=[*keys, "heuristic"], how="left")
        .with_columns(
            pl.col("associated").fill_null(value=False),
            neuron=pl.col("units").list.first(),
            change=pl.col("logit") - pl.col("logit_before"),
            lost=pl.col("correct_before") & ~pl.col("correct"),
        )
    )
    associated, change, lost = pl.col("associated"), pl.col("change"), pl.col("lost")
    means = changes.group_by(KEYS).agg(
        prompts_associated=associated.sum(),
        prompts_other=(~associated).sum(),
        logit_change_associated=change.filter(associated).mean(),
        logit_change_other=change.filter(~associated).mean(),
        lost_associated=lost.filter(associated).mean(),
        lost_other=lost.filter(~associated).mean(),
    )
    selectivity = pl.col("logit_change_other") - pl.col("logit_change_associated")
    return means.with_columns(selectivity=selectivity)


def test_selectivity_and_its_null_are_those_of_brute_force(
    members: pl.DataFrame, knockouts: pl.DataFrame, pairs: pl.DataFrame
):
    about = knocked.associations(pairs, MEANS)
    table = concluded(members, knockouts, pairs, knocked.at_random(1), about)
    changes = measured(knockouts, pairs, knocked.at_random(1), about)
    by_strictness = members.sort(pl.col("criterion").cast(pl.Enum(CRITERIA)))
    own = by_strictness.unique(KEYS[:4], keep="first").select(*KEYS[:4], "criterion")
    keys = own.select(KEYS[:4]).join(ABLATIONS, how="cross")
    assert table.select(KEYS).rows() == sorted(keys.rows())
    others = changes.join(own, on=KEYS[:4], how="anti")
    expected = []
    for row in changes.join(own, on=KEYS[:4]).iter_rows(named=True):
        peers = others.filter(
            operator=row["operator"],
            layer=row["layer"],
            heuristic=row["heuristic"],
            ablation=row["ablation"],
        )
        null = peers["selectivity"]
        assert (len(null) == 0) == (row["layer"] == 2)
        larger = (null >= row["selectivity"] - 1e-12).sum()
        row |= {"null_neurons": len(null), "null_mean": null.mean(), "null_std": null.std()}
        expected.append(row | {"p_value": (1 + larger) / (1 + len(null))})
    knocked.assert_rows(table, expected)


def test_a_neuron_that_writes_its_prompts_answers_is_selective(pairs: pl.DataFrame):
    """Each neuron adds one logit to its prompts; a prompt fails without its only neuron."""
    several = [EVEN, LOW, LOW, ENDS, ENDS, SET, SET]
    heuristics = dict(zip(product([1], range(7)), several, strict=True))
    members = standing_alike(heuristics)

    def answer(units: Units, prompt: Prompt) -> tuple[float, bool]:
        lost = [heuristics[unit] for unit in units if MEANS[heuristics[unit]](prompt)]
        return 10.0 - len(lost), EVEN not in lost

    knockouts = planned(members)
    table = concluded(members, knockouts, pairs, answer, knocked.associations(pairs, MEANS))
    assert table.height == len(OPERATORS) * len(heuristics) * 2
    changes = table.select("selectivity", "logit_change_associated", "logit_change_other")
    assert set(changes.rows()) == {(1, -1, 0)}
    lost = set(table.select("heuristic", "lost_associated", "lost_other").rows())
    assert lost == {(EVEN, 1, 0), (LOW, 0, 0), (ENDS, 0, 0), (SET, 0, 0)}
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
    heuristics = zip(product(range(3), range(48)), [EVEN, LOW, ENDS] * 48, strict=True)
    members = standing_alike(dict(heuristics))
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
    members = written(micro, name, "heuristic_neurons")
    table = written(micro, name, "knockouts_by_neuron")
    neurons = members.select("operator", "layer", "neuron").unique()
    assert (
        knocked.ran(micro, name, "neuron_knockout")["intervention"].n_unique()
        == 2 * len(neurons) + members["operator"].n_unique()
    )
    evaluated = written(micro, name, "pairs").filter(split="evaluation").select("operator", "pair")
    sizes = evaluated.group_by("operator").agg(prompts=pl.len())
    about = (
        written(micro, name, "prompt_associations")
        .join(evaluated, on=["operator", "pair"])
        .group_by("operator", "heuristic")
        .len()
    )
    telling = about.join(sizes, on="operator").filter(pl.col("len") < pl.col("prompts"))
    keys = members.select(KEYS[:4]).unique().join(telling, on=["operator", "heuristic"], how="semi")
    assert table.select(KEYS).rows() == sorted(keys.join(ABLATIONS, how="cross").rows())
