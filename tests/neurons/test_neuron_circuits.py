"""The real queries about circuits of neurons and faithfulness against brute force, on made tables
with planted truths.
"""

from collections import Counter
from itertools import product

import polars as pl
import pytest

from tests import made
from tests.circuit.circuits import (
    ALL_HEADS,
    KEPT,
    MEASURES,
    by_brute_force,
    ends_are_ends,
    heads,
    left_out,
)
from tests.made import (
    HEADS,
    LAYERS,
    NEURONS,
    OPERATORS,
    SITES,
    Tables,
    ask,
    frame,
    late_layers,
    only,
    runs,
    top,
)

RANKS = ("rank", "rank_mean_plus_std", "rank_logit")
EFFECTS = ("effect", "effect_plus_std", "logit_effect")


@pytest.fixture(scope="module")
def measured() -> Tables:
    return made.measured()


@pytest.fixture(scope="module")
def effects(measured: Tables) -> pl.DataFrame:
    return made.effects(measured)


@pytest.fixture
def circuits(effects: pl.DataFrame, measured: Tables) -> pl.DataFrame:
    given = {
        "neuron_effects": effects,
        "circuit_heads": heads(KEPT),
        "architecture": measured["architecture"],
    }
    return ask(
        "neuron_circuit_interventions", given, neurons_per_layer=[0, 2, 6, 9], random_circuits=2
    )


def test_a_circuit_of_neurons_leaves_out_all_others(effects: pl.DataFrame, circuits: pl.DataFrame):
    rankings = dict(zip(EFFECTS, RANKS, strict=True)) | {"attribution": "rank"}
    every_layer = set(product(range(LAYERS), [None], ["all"]))
    ends = {  # heads, neurons per layer, and what is left out of heads and MLPs
        "everything": (LAYERS * HEADS, NEURONS, set()),
        "nothing": (0, 0, every_layer),
    }
    seen = []
    for (_, operator, circuit, kept, k, seed), patches in circuits.group_by(
        "intervention",
        "operator",
        "circuit",
        "heads",
        "neurons_per_layer",
        "seed",
        maintain_order=True,
    ):
        seen.append((operator, (circuit, k, seed)))
        if circuit in ends:
            assert (kept, k, left_out(patches, "head")) == ends[circuit]
            assert left_out(patches, "mlp") == left_out(patches, "head")
            continue
        assert kept == len(KEPT[operator])
        assert left_out(patches, "head") == {
            (layer, h, "all") for layer, h in ALL_HEADS if (layer, h) not in KEPT[operator]
        }
        neurons, ranking = left_out(patches, "neuron"), circuit.removeprefix("first_mlp_")
        sites = ranked_sites(circuit)
        for layer, position in sites:
            where = "all" if position == "last" else position
            at_site = {n for at, n, p in neurons if (at, p) == (layer, where)}
            assert len(at_site) == NEURONS - k
            if ranking != "random":
                method = "attribution" if ranking == "attribution" else "exact"
                wanted = top(
                    effects,
                    rankings[ranking],
                    k,
                    method=method,
                    operator=operator,
                    layer=layer,
                    position=position,
                )
                assert at_site == set(range(NEURONS)) - wanted
        assert len(neurons) == (NEURONS - k) * len(sites)
    expected = [("everything", NEURONS, None), ("nothing", 0, None), ("heads", NEURONS, None)]
    for prefix, k in product(("", "first_mlp_"), (0, 2)):
        expected += [(f"{prefix}{ranking}", k, None) for ranking in rankings]
        expected += [(f"{prefix}random", k, 0), (f"{prefix}random", k, 1)]
    assert Counter(seen) == Counter(product(OPERATORS, expected))


def ranked_sites(circuit: str) -> list[tuple[int, str]]:
    """Return the sites of which a circuit leaves out some neurons."""
    if circuit == "heads":
        return []
    in_first_layer, late = SITES[:3], SITES[3:]
    return in_first_layer if circuit.startswith("first_mlp_") else late


def test_circuits_of_neurons_of_which_some_were_patched_leave_out_the_others(
    effects: pl.DataFrame, measured: Tables
):
    patched = (pl.col("method") == "attribution") | pl.col("neuron").is_in([1, 3, 4])
    places = pl.col(RANKS).rank("ordinal").over("operator", "method", "layer", "position")
    some = effects.filter(patched).with_columns(places)
    given = {
        "neuron_effects": some,
        "circuit_heads": heads(KEPT),
        "architecture": measured["architecture"],
    }
    table = ask(
        "neuron_circuit_interventions",
        given,
        neurons_per_layer=[2, 3],
        random_circuits=9,
        patched_neurons=2,
    )
    table = table.filter(component="neuron", layer=1)
    assert set(table.filter(neurons_per_layer=2)["circuit"]) == {*EFFECTS, "attribution", "random"}
    of_all_neurons = {"attribution", "random"}
    assert set(table.filter(neurons_per_layer=3)["circuit"]) == of_all_neurons
    random = set()
    for circuit, k, units in table.select("circuit", "neurons_per_layer", "units").iter_rows():
        kept = {*range(NEURONS)} - {*units}
        assert len(kept) == k
        if circuit == "random":
            random |= kept
        elif circuit != "attribution":
            assert kept < {1, 3, 4}
    assert random > {1, 3, 4}


def test_every_intervention_has_a_number_and_says_when_it_patches_nothing(circuits: pl.DataFrame):
    assert circuits["intervention"].unique().sort().to_list() == list(
        range(circuits["intervention"].max() + 1)
    )
    idle = circuits.filter(component="none")
    assert idle.select("operator", "circuit", "position", "replacement").rows() == [
        ("add", "everything", None, None),
        ("subtract", "everything", None, None),
        ("subtract", "heads", None, None),
    ]
    assert set(circuits.filter(pl.col("component") != "none")["replacement"]) == {"mean"}
    assert set(circuits["split"]) == {"evaluation"}
    random = circuits.filter(circuit="random", neurons_per_layer=2, layer=1, component="neuron")
    assert random["units"].unique().len() > 1


def test_without_late_layers_there_are_circuits_of_the_first(
    effects: pl.DataFrame, measured: Tables
):
    first = {
        "neuron_effects": effects.filter(layer=0),
        "circuit_heads": heads({}),
        "architecture": measured["architecture"],
    }
    table = ask("neuron_circuit_interventions", first, neurons_per_layer=[2], random_circuits=1)
    others = table.filter(~pl.col("circuit").str.starts_with("first_mlp_"))
    assert set(others["circuit"]) == {"everything", "nothing", "heads"}
    assert set(table.filter(circuit="heads")["heads"]) == {0}


OF_HEADS = frame(
    operator=["add"],
    circuit=["effect"],
    heads=[3],
    seed=pl.Series([None], dtype=pl.Int32),
    faithfulness=[0.5],
    mean_of_ratios=[0.4],
    ci_low=[0.3],
    ci_high=[0.7],
    accuracy=[0.9],
    prompts=[8],
    majority_accuracy=[0.25],
)
OF_CUTS = OF_HEADS.drop("seed").with_columns(circuit=pl.lit("circuit_cut"), faithfulness=0.25)


def test_faithfulness_is_equation_2(measured: Tables, circuits: pl.DataFrame):
    own = runs(circuits, measured["pairs"], "neuron_circuit").sample(
        fraction=1, shuffle=True, seed=1
    )
    answers = pl.concat(
        [runs(circuits, measured["pairs"], "cut"), own]
    )  # another experiment's have the same numbers
    given = {
        "head_faithfulness": OF_HEADS,
        "cut_faithfulness": OF_CUTS,
        "neuron_circuit_interventions": circuits,
        "runs": answers,
    }
    table = ask("faithfulness", only(measured, "pairs", "bootstrap_weights") | given)
    assert table.filter(pl.col("experiment") != "neuron_circuit").rows() == [
        ("s", "add", "circuit_cut", 3, None, None, "cut", 0.25, 0.4, 0.3, 0.7, 0.9, 8, 0.25),
        ("s", "add", "effect", 3, None, None, "head_circuit", 0.5, 0.4, 0.3, 0.7, 0.9, 8, 0.25),
    ]
    table = table.filter(experiment="neuron_circuit")
    assert table.height == circuits["intervention"].n_unique()
    for row in table.iter_rows(named=True):
        expected = by_brute_force(row, own, circuits, measured["bootstrap_weights"])
        assert [row[measure] for measure in MEASURES] == pytest.approx(expected, rel=1e-6)
        evaluated = {"operator": row["operator"], "split": "evaluation"}
        assert row["majority_accuracy"] == made.majority(measured["pairs"], **evaluated)
    ends_are_ends(table)


def test_a_subject_that_knows_nothing_has_empty_tables(
    measured: Tables, effects: pl.DataFrame, circuits: pl.DataFrame
):
    none = {
        name: measured[name].clear()
        for name in ("runs", "pairs", "neuron_attributions", "bootstrap_weights")
    }
    unknown = (
        only(none, "pairs", "neuron_attributions")
        | only(measured, "architecture")
        | {"late_layers": late_layers(None)}
    )
    for few in (0, 2):
        patched = ask("neuron_interventions", unknown, patched_neurons=few)
        assert ask("neuron_effects", none | {"neuron_interventions": patched}).is_empty()
    empty = {
        "neuron_effects": effects.clear(),
        "circuit_heads": heads({}),
        **only(measured, "architecture"),
    }
    for stage in (
        "attribution_agreement",
        "attribution_recall",
        "ranking_agreement",
        "operator_overlaps",
    ):
        assert ask(
            stage,
            only(empty, "neuron_effects") | {"neuron_interventions": patched},
        ).is_empty()
    assert ask(
        "neuron_circuit_interventions", empty, neurons_per_layer=[2], random_circuits=1
    ).is_empty()
    given = {
        **only(none, "runs", "pairs", "bootstrap_weights"),
        "head_faithfulness": OF_HEADS.clear(),
        "cut_faithfulness": OF_CUTS.clear(),
        "neuron_circuit_interventions": circuits.clear(),
    }
    assert ask("faithfulness", given).is_empty()
