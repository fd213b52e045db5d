"""The prompt pairs on which single units are patched, the patches, and their effects: each real
.sql against brute force.
"""

from itertools import product

import numpy as np
import polars as pl
import pytest

from stages.lib.executor import interventions
from tests.lib.test_executor import subject
from tests.made import NEURONS, Tables, architecture, ask
from tests.mediation import overlapped
from tests.mediation.overlapped import RANKS, prompt_pairs, unit_pairs


@pytest.mark.parametrize(("each", "count"), [(4, 5), (4, 6), (3, 1), (4, 100)])
def test_pairs_are_drawn_evenly_and_halved(each: int, count: int):
    table, source = unit_pairs(each, count), prompt_pairs(each)
    same = [name for name in source.columns if name in table.columns]
    assert (
        table.sort("pair")
        .select(same)
        .equals(
            source.filter(pl.col("pair").is_in(table["pair"].to_list())).sort("pair").select(same)
        )
    )
    assert set(table["condition"]) <= {"result_varies", "query_varies", "entity_varies"}
    cells = (
        source.filter(condition="result_varies", task="arithmetic")
        .select("template", "operator")
        .unique()
    )
    assert {
        (r["question"], r["template"])
        for r in table.filter(task="arithmetic").iter_rows(named=True)
    } <= {
        ("arithmetic_words", 0),
        ("arithmetic_symbols", 1),
    }
    sizes = {
        "arithmetic_words": (2, 2),
        "arithmetic_symbols": (2, 2),
        "three_operands": (2, 2),
        "retrieval": (1, 1),
        "own": (3, 1),
    }
    assert len(cells) == 4
    for question, (strata, operators) in sizes.items():
        part = table.filter(question=question)
        counts = part.group_by("template", "operator").len()["len"].to_list()
        assert len(part) == min(count, strata * each)
        assert max(counts) - min([*counts, 0] if len(counts) < strata else counts) <= 1
        for operator in [*part["operator"].unique(), "all"]:
            halved = (
                part if operator == "all" else part.filter(pl.col("operator").eq_missing(operator))
            )
            halves = [halved.filter(half=half).height for half in ("first", "second")]
            assert sum(halves) == len(halved)
            assert abs(halves[0] - halves[1]) <= 1
        assert part["operator"].n_unique() == min(operators, len(part))


def test_other_seeds_draw_other_pairs():
    first, again, other = (set(unit_pairs(40, 20, seed)["pair"]) for seed in (0, 0, 1))
    assert first == again
    assert 0 < len(first & other) < len(first)


@pytest.mark.parametrize(("first_layer", "layers"), [(0, [0, 1, 2]), (2, [2]), (None, [1, 2])])
def test_every_unit_of_the_late_layers_is_patched_once(first_layer: int | None, layers: list[int]):
    loaded = subject("llama").architecture
    sizes = {"neuron": loaded.neurons, "coordinate": loaded.width}
    shape = architecture().with_columns(
        neurons=pl.lit(loaded.neurons, pl.Int32), width=pl.lit(loaded.width, pl.Int32)
    )
    table = overlapped.patched(shape, first_layer)
    read = interventions.read(table.sample(fraction=1, shuffle=True, seed=0), loaded, ["last"])
    assert [intervention.number for intervention in read] == list(range(len(table)))
    assert read[0].patches == ()
    units = [
        (p.layer, p.component, int(p.unit_numbers()[0]))
        for intervention in read[1:]
        for p in intervention.patches
    ]
    assert units == [
        (layer, name, unit)
        for layer in layers
        for name in ("neuron", "coordinate")
        for unit in range(sizes[name])
    ]
    assert {
        (p.position, p.replacement) for intervention in read[1:] for p in intervention.patches
    } == {("last", "counterfactual")}


@pytest.mark.parametrize(("k", "count"), [(1, 0), (2, 2), (3, 1), (99, 99)])
def test_of_large_models_neurons_of_large_attribution_and_random_units_are_patched(
    k: int,
    count: int,
):
    table = overlapped.patched(architecture(), 1, patched_neurons=k, sampled_neurons=count).filter(
        pl.col("component") != "none",
    )
    assert not table.select("layer", "component", "units").is_duplicated().any()
    units = table.with_columns(unit=pl.col("units").list.first()).group_by("layer", "component")
    patched = {tuple(key): set(part["unit"]) for key, part in units}
    assert len(patched.get((1, "neuron"), set())) == min(
        count,
        NEURONS,
    )  # this layer has no attributions
    largest = {0, *range(NEURONS - 1, NEURONS - k, -1)} & {*range(NEURONS)}
    assert patched[2, "neuron"] >= largest
    assert len(patched[2, "neuron"] - largest) <= count
    for layer in (1, 2):
        assert len(patched[layer, "coordinate"]) == min(k + count, 12)


@pytest.fixture(scope="module")
def given() -> Tables:
    return overlapped.subject()


def test_effects_are_means_over_pairs_and_ranked(given: Tables):
    table = ask("unit_effects", given)
    pairs = given["unit_mediation_pairs"]
    answers = {(i, p): np.array(rest, float) for i, p, *rest in given["runs"].iter_rows()}
    expected = {}
    for (question,), part in pairs.group_by("question"):
        groups = {
            ("all", half): part if half == "both" else part.filter(half=half)
            for half in ("both", "first", "second")
        }
        if question.startswith("arithmetic"):
            groups |= {
                (operator, "both"): part.filter(operator=operator)
                for operator in part["operator"].unique()
            }
        for (key, group), row in product(
            groups.items(), given["unit_mediation_interventions"].rows(named=True)[1:]
        ):
            clean, patched = (
                np.array([answers[n, pair] for pair in group["pair"]])
                for n in (0, row["intervention"])
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                change = (patched - clean) / np.stack([patched[:, 2], clean[:, 3]], 1).take(
                    [0, 1, 0, 1], 1
                )
            effects, logits = (
                (change[:, 3] - change[:, 2]) / 2,
                (patched[:, 1] - clean[:, 1] + clean[:, 0] - patched[:, 0]) / 2,
            )
            known = effects[np.isfinite(effects)]
            expected[question, *key, row["component"], row["layer"], row["units"][0]] = (
                *((known.mean(), known.std()) if len(known) else (None, None)),
                logits.mean(),
                logits.std(),
                len(known),
                len(effects) - len(known),
            )
    for row in table.iter_rows():
        assert row[7:13] == tuple(
            value if value is None else pytest.approx(value) for value in expected.pop(row[1:7])
        )
    assert not expected
    for _, peers in table.group_by("question", "operator", "half", "component", "layer"):
        for column, rank in RANKS.items():
            ordered = peers.with_columns(size=pl.col("logit_effect").abs()).sort(rank)
            assert ordered[rank].to_list() == list(range(1, len(peers) + 1))
            assert ordered[column].fill_null(-np.inf).is_sorted(descending=True)


def test_units_without_effect_are_ranked_otherwise_in_every_question(given: Tables):
    same = given["runs"].with_columns(
        pl.lit(0.5, pl.Float32).alias(name) for name in given["runs"].columns[2:]
    )
    table = ask("unit_effects", given | {"runs": same}).filter(
        component="coordinate", operator="all", half="both"
    )
    orders = {tuple(part.sort("rank")["unit"]) for _, part in table.group_by("question")}
    assert len(orders) == table["question"].n_unique()


def test_without_single_units_only_the_clean_run_is_left_and_tables_are_empty(given: Tables):
    table = overlapped.patched(architecture(), 1, single_units=False)
    assert table["component"].to_list() == ["none"]
    clean = given | {
        "unit_mediation_interventions": table,
        "runs": given["runs"].filter(intervention=0),
    }
    effects = ask("unit_effects", clean)
    assert effects.is_empty()
    assert ask("neuron_overlap", {"unit_effects": effects}, overlap_ks=[1]).is_empty()
