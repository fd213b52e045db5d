"""The prompt pairs on which single units are patched, the patches, and their effects: each real
.sql against brute force.
"""

from itertools import product

import numpy as np
import polars as pl
import pytest
from polars import selectors
from polars.testing import assert_frame_equal

from stages.lib.executor import interventions
from tests.lib.test_executor import subject
from tests.made import LOGITS, NEURONS, PROBABILITIES, Tables, architecture, ask
from tests.mediation import overlapped
from tests.mediation.overlapped import RANKS, prompt_pairs, unit_pairs


@pytest.mark.parametrize(("each", "count"), [(4, 5), (4, 6), (3, 1), (4, 100)])
def test_pairs_are_drawn_evenly_and_halved(each: int, count: int):
    table, source = unit_pairs(each, count), prompt_pairs(each)
    same = [name for name in source.columns if name in table.columns]
    drawn = source.join(table, on="pair", how="semi").sort("pair")
    assert table.sort("pair").select(same).equals(drawn.select(same))
    assert set(table["condition"]) <= {"result_varies", "query_varies", "entity_varies"}
    wordings = table.filter(task="arithmetic").select("question", "template").rows()
    assert set(wordings) <= {("arithmetic_words", 0), ("arithmetic_symbols", 1)}
    arithmetic = source.filter(condition="result_varies", task="arithmetic")
    assert arithmetic.select("template", "operator").n_unique() == 4
    sizes = {
        "arithmetic_words": (2, 2),
        "arithmetic_symbols": (2, 2),
        "three_operands": (2, 2),
        "retrieval": (1, 1),
        "own": (3, 1),
    }
    for question, (strata, operators) in sizes.items():
        part = table.filter(question=question)
        counts = part.group_by("template", "operator").len()["len"].to_list()
        assert len(part) == min(count, strata * each)
        assert max(counts) - min([*counts, 0] if len(counts) < strata else counts) <= 1
        assert set(part["half"]) <= {"first", "second"}
        for halved in [part, *part.partition_by("operator")]:
            assert abs((halved["half"] == "first").sum() - len(halved) / 2) <= 0.5
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
    units = []
    for intervention in read[1:]:
        [patch] = intervention.patches
        assert (patch.position, patch.replacement) == ("last", "counterfactual")
        units.append((patch.layer, patch.component, int(patch.unit_numbers()[0])))
    expected = []
    for layer, (component, size) in product(layers, sizes.items()):
        expected += product([layer], [component], range(size))
    assert units == expected


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


def patched_effects(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the effects of each intervention on each pair; null where an effect is undefined."""
    runs = runs.with_columns(pl.col(pl.Float32).cast(pl.Float64))
    clean = runs.filter(intervention=0).drop("intervention")
    patched = runs.filter(pl.col("intervention") > 0).join(clean, on="pair", suffix="_clean")
    r, s, p, q = (pl.col(f"{name}_clean") for name in (*LOGITS, *PROBABILITIES))
    r2, s2, p2, q2 = (pl.col(name) for name in (*LOGITS, *PROBABILITIES))
    effect = ((q2 - q) / q + (p - p2) / p2) / 2
    return patched.select(
        "intervention",
        "pair",
        effect=pl.when(effect.is_finite()).then(effect),
        logit_effect=((s2 - s) + (r - r2)) / 2,
    )


def groups(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs of each question, operator and half for which effects are measured."""
    whole = pairs.with_columns(operator=pl.lit("all"))
    arithmetic = pairs.filter(pl.col("question").str.starts_with("arithmetic"))
    parts = [
        whole,
        whole.with_columns(half=pl.lit("both")),
        arithmetic.with_columns(half=pl.lit("both")),
    ]
    return pl.concat(parts).select("question", "operator", "half", "pair")


def test_effects_are_means_over_pairs_and_ranked(given: Tables):
    table = ask("unit_effects", given)
    keys = ["question", "operator", "half", "component", "layer", "unit"]
    units = given["unit_mediation_interventions"].select(
        "intervention", "component", "layer", unit=pl.col("units").list.first()
    )
    members = groups(given["unit_mediation_pairs"])
    rows = members.join(patched_effects(given["runs"]), on="pair").join(units, on="intervention")
    effect, logit_effect = pl.col("effect"), pl.col("logit_effect")
    expected = rows.group_by(keys).agg(
        effect=effect.mean(),
        effect_std=effect.std(ddof=0),
        logit_effect=logit_effect.mean(),
        logit_effect_std=logit_effect.std(ddof=0),
        pairs=effect.count(),
        undefined=effect.null_count(),
    )
    assert_frame_equal(
        table.select(expected.columns),
        expected,
        check_row_order=False,
        check_dtypes=False,
        rel_tol=1e-6,
        abs_tol=1e-12,
    )
    for _, peers in table.group_by("question", "operator", "half", "component", "layer"):
        for column, rank in RANKS.items():
            ordered = peers.with_columns(size=pl.col("logit_effect").abs()).sort(rank)
            assert ordered[rank].to_list() == list(range(1, len(peers) + 1))
            assert ordered[column].fill_null(-np.inf).is_sorted(descending=True)


def test_units_without_effect_are_ranked_otherwise_in_every_question(given: Tables):
    same = given["runs"].with_columns(selectors.float() * 0 + 0.5)
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
