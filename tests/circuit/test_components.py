"""The queries about single components, one at a time: each real .sql against brute force."""

from itertools import combinations, product

import numpy as np
import polars as pl
import pytest

from tests import made
from tests.made import HEADS, LAYERS, Tables, architecture, ask, by_prompt


@pytest.fixture
def planted() -> Tables:
    """Random runs of every component, and all that the queries about them read."""
    pairs, table = (
        made.pairs(per_seed=6, seeds=3),
        ask("component_interventions", {"architecture": architecture()}),
    )
    weights = ask("bootstrap_weights", {"pairs": pairs})
    return {
        "component_interventions": table,
        "pairs": pairs,
        "bootstrap_weights": weights,
        "runs": made.runs(table, pairs),
    }


def test_every_component_is_patched_once_at_every_position():
    table = ask("component_interventions", {"architecture": architecture()})
    assert table["intervention"].to_list() == list(range(1 + LAYERS * (1 + HEADS) * 4))
    assert table.row(0)[2:] == (None, "discovery", "none", None, None, None, None, None)
    patches = table[1:].explode("units")
    assert len(patches) == len(table) - 1
    expected: set[tuple] = set()
    for layer, position in product(range(LAYERS), ("op1", "operator", "op2", "last")):
        expected.add(("mlp", layer, None, position))
        for head in range(HEADS):
            expected.add(("head", layer, head, position))
    assert set(patches.select("component", "layer", "units", "position").rows()) == expected
    assert set(table["replacement"][1:]) == {"counterfactual"}


def test_effects_are_eq_1(planted: Tables):
    effects = ask("component_effects", planted)
    numbers = planted["component_interventions"]
    assert len(effects) == 2 * (len(numbers) - 1)
    for row in effects.to_dicts():
        same = (
            (pl.col("component") == row["component"])
            & (pl.col("layer") == row["layer"])
            & (pl.col("position") == row["position"])
        )
        [number] = numbers.filter(same & (pl.col("units").list.first().eq_missing(row["head"])))[
            "intervention"
        ]
        expected = by_prompt(planted, number, row["operator"])
        weights = (
            planted["bootstrap_weights"]
            .filter(operator=row["operator"], split="discovery")["weights"]
            .to_list()
        )
        for measure, prefix in (("effect", ""), ("logit_effect", "logit_")):
            values = expected[measure]
            assert row[measure] == pytest.approx(values.mean())
            assert row[f"{measure}_std"] == pytest.approx(values.std())
            ends = np.quantile(np.array(weights) @ values / len(values), [0.05, 0.95])
            assert (row[f"{prefix}ci_low"], row[f"{prefix}ci_high"]) == (
                pytest.approx(ends[0]),
                pytest.approx(ends[1]),
            )
        assert row["median_effect"] == pytest.approx(np.median(expected["effect"]))
        assert (row["prompts"], row["undefined"]) == (18, 0)


def test_a_prompt_without_an_effect_is_left_out_and_counted(planted: Tables):
    """Intervention 3 has probability 0 on two prompts; one prompt has none in the clean run."""
    first = planted["pairs"].filter(operator="add", split="discovery")["pair"].sort()
    lost = (pl.col("intervention") == 3) & pl.col("pair").is_in(first[:2].to_list())
    never = (pl.col("intervention") == 0) & (pl.col("pair") == first[5])
    all_lost = pl.col("intervention") == 4
    tables = planted | {
        "runs": planted["runs"].with_columns(
            answer_probability=pl.when(lost | all_lost)
            .then(0)
            .otherwise("answer_probability")
            .cast(pl.Float32),
            counterfactual_probability=pl.when(never)
            .then(0)
            .otherwise("counterfactual_probability")
            .cast(pl.Float32),
        )
    }
    effects = ask("component_effects", tables).filter(operator="add")
    assert effects["undefined"].to_list() == [1, 1, 3, 18, *([1] * (len(effects) - 4))]
    values = by_prompt(tables, 3, "add")["effect"]
    known = np.isfinite(values)
    row = effects.row(2, named=True)
    assert row["prompts"] == known.sum() == 15
    assert (row["effect"], row["median_effect"]) == (
        pytest.approx(values[known].mean()),
        pytest.approx(np.median(values[known])),
    )
    weights = np.array(
        tables["bootstrap_weights"].filter(operator="add", split="discovery")["weights"].to_list()
    )
    replicates = (weights[:, known] @ values[known]) / weights[:, known].sum(1)
    assert row["ci_low"] == pytest.approx(np.quantile(replicates, 0.05))
    none = effects.row(3, named=True)
    assert (
        none["prompts"],
        none["effect"],
        none["median_effect"],
        none["ci_low"],
        none["ci_high"],
    ) == (0, None, None, None, None)
    assert none["logit_effect"] == pytest.approx(by_prompt(tables, 4, "add")["logit_effect"].mean())


def seed_means(
    planted: Tables, interventions: pl.DataFrame, operator: str, measure: str
) -> np.ndarray:
    """Return what `measure` is of each intervention in each of three seeds: (seeds, rows)."""
    effect = "logit_effect" if measure == "logit_effect" else "effect"
    middle = np.median if measure == "median_effect" else np.mean
    means = []
    for number in interventions["intervention"]:
        by_seed = by_prompt(planted, number, operator)[effect].reshape(3, 6)
        means.append(middle(by_seed, axis=1))
    return np.transpose(means)


def test_stability_is_spearmans_correlation_between_seeds(planted: Tables):
    table, numbers = ask("component_stability", planted), planted["component_interventions"]
    assert len(table) == 2 * 3 * 3
    components = {"both": ["mlp", "head"], "mlp": ["mlp"], "head": ["head"]}
    for row in table.to_dicts():
        own = numbers.filter(pl.col("component").is_in(components[row["component"]]))
        means = seed_means(planted, own, row["operator"], row["measure"])
        ranks = np.argsort(np.argsort(means))
        correlations = np.corrcoef(ranks)[np.triu_indices(3, 1)]
        assert row["pairs_of_seeds"] == 3
        assert row["rank_correlation"] == pytest.approx(np.mean(correlations))
        assert row["rank_correlation_min"] == pytest.approx(min(correlations))
        if row["component"] == "mlp":
            assert row["shared_top"] is None
            continue
        tops = []
        for values in means:
            heads = own.with_columns(value=values).filter(component="head")
            best = heads.group_by("layer", pl.col("units").list.first()).agg(pl.max("value"))
            tops.append(set(best.top_k(2, by="value").select("layer", "units").rows()))
        shares = [len(a & b) / 2 for a, b in combinations(tops, 2)]
        assert row["shared_top"] == pytest.approx(np.mean(shares))


def test_equal_effects_have_no_order_and_equal_draws_agree(planted: Tables):
    """Heads are all alike; MLPs are alike in every seed."""
    value = pl.when(component="mlp").then(0.1 * pl.col("intervention")).otherwise(0.0)
    values = planted["component_interventions"].select("intervention", value=value.cast(pl.Float32))
    same = (
        planted["runs"]
        .join(values, on="intervention")
        .with_columns(
            answer_probability=pl.lit(0.5, pl.Float32),
            counterfactual_probability=pl.col("value") + 0.1,
            answer_logit=pl.lit(0.0, pl.Float32),
            counterfactual_logit="value",
        )
    )
    table = ask("component_stability", planted | {"runs": same})
    assert set(table.filter(component="head")["rank_correlation"]) == {None}
    assert table.filter(component="mlp")["rank_correlation"].to_list() == pytest.approx([1.0] * 6)
