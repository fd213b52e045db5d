"""The real queries about single neurons against brute force, on made tables with planted truths."""

from itertools import product
from math import comb
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests import made
from tests.made import (
    CHOICE,
    FIRST,
    KS,
    LAYERS,
    NEURONS,
    OPERATORS,
    SITES,
    Tables,
    ask,
    by_prompt,
    late_layers,
    only,
    top,
)

FEW = {"patched_neurons": 2, "sampled_neurons": 2}


@pytest.fixture(scope="module")
def measured() -> Tables:
    return made.measured()


@pytest.fixture(scope="module")
def few() -> Tables:
    """Patch only two neurons of each site and operator, and two random ones."""
    return made.measured(**FEW)


@pytest.fixture(scope="module")
def effects_of_few(few: Tables) -> pl.DataFrame:
    return made.effects(few)


@pytest.fixture(scope="module")
def effects(measured: Tables) -> pl.DataFrame:
    return made.effects(measured)


def test_each_neuron_is_patched_once_where_it_counts(measured: Tables):
    table = measured["neuron_interventions"]
    assert table["intervention"].to_list() == list(range(len(SITES) * NEURONS + 1))
    assert table.row(0)[1:] == (0, None, "discovery", "none", None, None, None, None, None)
    patched = table[1:].select("layer", "position", pl.col("units").list.first()).rows()
    assert patched == [(*site, neuron) for site, neuron in product(SITES, range(NEURONS))]
    assert set(table[1:].select("operator", "component", "replacement").rows()) == {
        (None, "neuron", "counterfactual")
    }


def patched(table: pl.DataFrame) -> dict[tuple, set[int]]:
    """(layer, position, operator) of a table of interventions -> neurons."""
    rows = table.filter(component="neuron").with_columns(neuron=pl.col("units").list.first())
    assert not rows.select("layer", "position", "operator", "neuron").is_duplicated().any()
    groups = rows.group_by("layer", "position", "operator")
    return {tuple(site): set(group["neuron"]) for site, group in groups}


def test_of_a_large_model_random_neurons_are_patched_the_same_for_every_operator(measured: Tables):
    given, drawn = only(measured, *CHOICE), {}
    for count in (0, 2, 4):
        settings = {"patched_neurons": 1, "sampled_neurons": count}
        sites = patched(ask("neuron_interventions", given, **settings))
        for site in SITES:
            drawn[count, site] = sites.get((*site, None), set())
            assert len(drawn[count, site]) == count
    for site in SITES:
        assert drawn[2, site] < drawn[4, site]
    first, second, third, *late = SITES
    assert drawn[4, first] == drawn[4, second] == drawn[4, third]
    assert [drawn[4, site] for site in late] != [drawn[4, first]] * len(late)


@pytest.mark.parametrize(("k", "count"), [(1, 0), (2, 2), (3, 1), (NEURONS, 2), (99, 99)])
def test_of_a_large_model_the_neurons_of_largest_attribution_are_patched(
    measured: Tables,
    k: int,
    count: int,
):
    given, settings = only(measured, *CHOICE), {"patched_neurons": k, "sampled_neurons": count}
    sites = patched(ask("neuron_interventions", given, **settings))
    discovery = measured["pairs"].filter(split="discovery").select("pair", "operator")
    keys = ["layer", "position", "operator", "neuron"]
    means = measured["neuron_attributions"].join(discovery, on="pair").group_by(keys).mean()
    for (layer, position), operator in product(SITES, OPERATORS):
        peers = means.filter(layer=layer, position=position, operator=operator)
        peers = peers.sort("attribution", descending=True)
        random = sites.get((layer, position, None), set())
        assert sites.get((layer, position, operator), set()) == set(peers["neuron"][:k]) - random


def test_without_late_layers_only_the_first_is_patched(measured: Tables):
    given = only(measured, *CHOICE) | {"late_layers": late_layers(None)}
    table = ask("neuron_interventions", given)
    few = ask(
        "neuron_interventions",
        given | {"neuron_attributions": measured["neuron_attributions"].filter(layer=0)},
        **FEW,
    )
    assert set(few["layer"].drop_nulls()) == {0}
    assert table["layer"].to_list() == [None] + [0] * 3 * NEURONS


def each_effect(given: Tables, row: dict[str, Any]) -> dict[str, np.ndarray]:
    """The prompts' own effects, not finite where undefined, and logit effects, of one row of
    neuron_effects.
    """
    prompts = given["pairs"].filter(operator=row["operator"], split="discovery")["pair"].to_list()
    place = {name: row[name] for name in ("layer", "neuron", "position")}
    if row["method"] == "attribution":
        estimates = (
            given["neuron_attributions"].filter(pl.col("pair").is_in(prompts), **place).sort("pair")
        )
        return dict.fromkeys(
            ("effect", "logit_effect"), estimates["attribution"].to_numpy().astype(float)
        )
    named = given["neuron_interventions"].with_columns(neuron=pl.col("units").list.first())
    own = pl.col("operator").is_null() | (pl.col("operator") == row["operator"])
    [number] = named.filter(own, **place)["intervention"]
    return by_prompt(given, number, row["operator"])


def test_effects_are_equation_1(measured: Tables, effects: pl.DataFrame):
    assert effects.height == 2 * len(OPERATORS) * len(SITES) * NEURONS
    are_equation_1(measured, effects)
    assert effects["undefined"].sum() == 1


def test_effects_of_some_neurons_are_those_of_their_own_prompts(
    few: Tables, effects_of_few: pl.DataFrame, effects: pl.DataFrame
):
    keys = ["operator", "layer", "position", "neuron"]
    exact = effects_of_few.filter(method="exact")
    estimated = effects_of_few.filter(method="attribution")
    assert estimated.height == len(OPERATORS) * len(SITES) * NEURONS
    wanted = patched(few["neuron_interventions"])
    rows = set()
    for operator, site in product(OPERATORS, SITES):
        neurons = wanted.get((*site, operator), set()) | wanted.get((*site, None), set())
        rows |= {(operator, *site, neuron) for neuron in neurons}
    assert set(exact.select(keys).rows()) == rows
    assert exact.height == len(rows) < estimated.height
    alone = estimated.join(exact, on=keys, how="anti")
    assert alone.select("ci_low", "ci_high").null_count().row(0) == (alone.height, alone.height)
    both = pl.concat([exact, estimated.join(exact, on=keys, how="semi")])
    are_equation_1(few, both)
    columns = ["effect", "effect_std", "prompts", "rank"]
    of_all = effects.filter(method="attribution")
    assert estimated.select(columns).equals(of_all.select(columns))


def are_equation_1(measured: Tables, effects: pl.DataFrame) -> None:
    for row in effects.iter_rows(named=True):
        each, logits = each_effect(measured, row).values()
        defined = np.isfinite(each)
        drawn = measured["bootstrap_weights"].filter(
            pl.col("replicate") < 30, operator=row["operator"], split="discovery"
        )["weights"]
        means = [np.average(each[defined], weights=np.array(w)[defined]) for w in drawn]
        expected = {
            "effect": each[defined].mean(),
            "effect_std": each[defined].std(),
            "logit_effect": logits.mean(),
            "logit_effect_std": logits.std(),
            "ci_low": np.quantile(means, 0.05),
            "ci_high": np.quantile(means, 0.95),
        }
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-9)
        assert (row["prompts"], row["undefined"]) == (defined.sum(), (~defined).sum())


def test_a_neuron_without_any_defined_effect_ranks_last(measured: Tables):
    dead = measured["runs"].with_columns(
        answer_probability=pl.when(intervention=1)
        .then(0)
        .otherwise("answer_probability")
        .cast(pl.Float32),
    )
    table = made.effects(measured | {"runs": dead}).filter(
        method="exact", layer=0, neuron=0, position="op1"
    )
    assert set(table.select("effect", "ci_low", "prompts", "undefined", "rank").rows()) == {
        (None, None, 0, 8, NEURONS)
    }
    assert table["logit_effect"].null_count() == 0


def test_neurons_are_ranked_among_their_peers(effects: pl.DataFrame):
    keys = {
        "rank": pl.col("effect"),
        "rank_mean_plus_std": pl.col("effect") + pl.col("effect_std"),
        "rank_logit": pl.col("logit_effect"),
    }
    for _, peers in effects.group_by("operator", "method", "layer", "position"):
        for name, key in keys.items():
            assert peers.sort(-key, "neuron")[name].to_list() == list(range(1, NEURONS + 1))


def test_attribution_that_is_right_agrees(measured: Tables, effects: pl.DataFrame):
    exact = effects.filter(method="exact")
    planted = {
        1: exact.with_columns(method=pl.lit("attribution"), effect=pl.col("logit_effect")),
        -1: exact.with_columns(method=pl.lit("attribution"), effect=-pl.col("logit_effect")),
    }
    for sign, attribution in planted.items():
        given = only(measured, "neuron_interventions") | {
            "neuron_effects": pl.concat([exact, attribution])
        }
        table = ask("attribution_agreement", given, ks=[*KS, 99])
        table = table.filter(against="logit_effect")
        assert set(table["rank_correlation"].round(12)) == {sign}
        assert table.height == len(OPERATORS) * len(SITES) * len(KS)
        assert table.select("k", "recall", "chance").unique().sort("k").rows() == [
            (1, sign > 0, 1 / 6),
            (3, sign > 0, 0.5),
            (6, 1, 1),
        ]


def test_attributions_ranks_are_spearmans(measured: Tables, effects: pl.DataFrame):
    tied = effects.with_columns(effect=pl.col("effect").round(1))
    table = ask(
        "attribution_agreement",
        only(measured, "neuron_interventions") | {"neuron_effects": tied},
        ks=KS,
    )
    for row in table.iter_rows(named=True):
        site = {name: row[name] for name in ("operator", "layer", "position")}
        own = tied.filter(**site).sort("neuron")
        patched = own.filter(method="exact")[row["against"]]
        guessed = own.filter(method="attribution")["effect"]
        shared = largest(patched, row["k"]) & largest(guessed, row["k"])
        assert row["recall"] == len(shared) / row["k"]
        ranks = patched.rank("average"), guessed.rank("average")
        assert row["rank_correlation"] == pytest.approx(np.corrcoef(*ranks)[0, 1])


def largest(values: pl.Series, k: int) -> set[int]:
    """Return the places of the k largest values; of equal values, of the first ones."""
    return set(np.argsort(-values.to_numpy(), kind="stable")[:k].tolist())


def test_rankings_share_what_they_share(effects: pl.DataFrame):
    table = ask("ranking_agreement", {"neuron_effects": effects}, ks=[*KS, 99])
    columns = {
        "effect": "rank",
        "effect_plus_std": "rank_mean_plus_std",
        "logit_effect": "rank_logit",
    }
    assert table.height == len(OPERATORS) * len(SITES) * 3 * len(KS)
    for row in table.iter_rows(named=True):
        site = {name: row[name] for name in ("operator", "layer", "position")}
        a = top(effects, columns[row["ranking_a"]], row["k"], **site)
        b = top(effects, columns[row["ranking_b"]], row["k"], **site)
        assert (row["shared"], row["chance"]) == (len(a & b) / row["k"], row["k"] / NEURONS)


def test_overlaps_of_operators(effects: pl.DataFrame):
    table = ask("operator_overlaps", {"neuron_effects": effects}, operator_ks=[*KS, 99])
    assert table.height == 2 * (len(SITES) + 1) * len(KS)
    for row in table.iter_rows(named=True):
        rank = {"effect": "rank", "logit_effect": "rank_logit"}[row["ranking"]]
        best = effects.filter(pl.col(rank) <= row["k"], method="exact", position=row["position"])
        if row["layer"] is None:
            assert set(best["layer"]) == set(range(FIRST, LAYERS))
        else:
            best = best.filter(layer=row["layer"])
        a = set(best.filter(operator=row["operator_a"]).select("layer", "neuron").rows())
        b = set(best.filter(operator=row["operator_b"]).select("layer", "neuron").rows())
        assert row["iou"] == len(a & b) / len(a | b)
        assert row["chance"] == pytest.approx(row["k"] / (2 * NEURONS - row["k"]))


def test_rankings_end_with_the_neurons_that_attribution_chose(effects_of_few: pl.DataFrame):
    """Below these are random neurons.

    A neuron that one operator's patches leave out is not among its top.
    """
    given = {"neuron_effects": effects_of_few}
    exact = effects_of_few.filter(method="exact")
    agreement = ask("ranking_agreement", given, patched_neurons=2, ks=[1, 2, 3])
    assert set(agreement["k"]) == {1, 2}
    site = ["operator", "layer", "position"]
    counted = agreement.join(exact.group_by(site).len(), on=site, how="left")
    assert counted["chance"].to_list() == (counted["k"] / counted["len"]).to_list()
    overlaps = ask("operator_overlaps", given, patched_neurons=2, operator_ks=[1, 2, 3])
    assert overlaps.height == 2 * (len(SITES) + 1) * 2
    for row in overlaps.drop_nulls("layer").filter(ranking="effect").iter_rows(named=True):
        site = {"layer": row["layer"], "position": row["position"]}
        a, b = (top(exact, "rank", row["k"], operator=operator, **site) for operator in OPERATORS)
        assert (row["iou"], row["chance"]) == (
            len(a & b) / len(a | b),
            row["k"] / (2 * NEURONS - row["k"]),
        )


def test_the_chance_of_overlaps_is_nearly_that_of_random_sets():
    n, k = 512, 50
    shared = np.array([comb(k, x) * comb(n - k, k - x) / comb(n, k) for x in range(k + 1)])
    expected = shared @ (np.arange(k + 1) / (2 * k - np.arange(k + 1)))
    assert 1 < expected / (k / (2 * n - k)) < 1.01  # as the query's comment says
