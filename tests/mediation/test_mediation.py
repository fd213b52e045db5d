"""Test the queries of causal mediation against brute force."""

import math
from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars import selectors

from tests.made import HEADS, LAYERS, Tables, architecture, ask, only
from tests.mediation import mediated
from tests.mediation.mediated import EFFECTS, GROUP, SITES, importance

EDGES = [0.05, 0.95]  # of tests.made's confidence
MEASURES = ("effect", "logit_effect", "desired", "undesired", "correct")
UNDEFINED = ("importance", "last_layer", "ci_low", "ci_high", "floored", "log_effects")


@pytest.fixture(scope="module")
def given() -> Tables:
    """Return random runs with three undefined effects.

    One component has no effect on any pair of retrieval.
    """
    made = mediated.subject()
    pairs = made["mediation_pairs"].sort("pair")
    own = pairs.filter(task="arithmetic", condition="result_varies", operator="add")
    first, retrieval = own["pair"].to_list(), pairs.filter(task="retrieval")["pair"].to_list()
    pair, intervention = pl.col("pair"), pl.col("intervention")
    lost = (intervention == 4) & pair.is_in(first[:2])
    lost |= (intervention == 1) & pair.is_in(retrieval)
    never = (intervention == 0) & (pair == first[5])
    answer = pl.when(lost).then(0).otherwise("answer_probability")
    other = pl.when(never).then(0).otherwise("counterfactual_probability")
    runs = made["runs"].with_columns(
        answer_probability=answer.cast(pl.Float32),
        counterfactual_probability=other.cast(pl.Float32),
    )
    return mediated.by_pair(made | {"runs": runs})


@pytest.fixture(scope="module")
def effects(given: Tables) -> pl.DataFrame:
    return ask("mediation_effects", only(given, *EFFECTS))


def test_every_component_is_patched_once_at_every_place(given: Tables):
    table = given["mediation_interventions"]
    longest = given["mediation_pairs"]["classes"].list.len().max()
    assert table["intervention"].to_list() == list(range(1 + len(SITES) * longest))
    assert table.row(0)[2:] == (None, None, "none", None, None, None, None, None)
    assert set(table["units"].list.len()) == {1, None}
    unit = pl.col("units").list.first()
    components = [("mlp", None), ("head", None), *product(["head"], range(HEADS))]
    assert table[1:].select("layer", "component", unit, "position").rows() == [
        (layer, *component, str(place))
        for layer, component, place in product(range(LAYERS), components, range(longest))
    ]
    assert set(table["replacement"][1:]) == {"counterfactual"}


def test_without_pairs_only_the_clean_run_is_left_and_tables_are_empty(given: Tables):
    none = given["mediation_pairs"].clear()
    table = ask(
        "mediation_interventions",
        {"architecture": architecture(), "mediation_pairs": none},
        single_heads=True,
    )
    assert table["component"].to_list() == ["none"]
    empty = {
        "architecture": architecture(),
        "mediation_pairs": none,
        "mediation_interventions": table,
        "runs": given["runs"].clear(),
    }
    empty["mediation_weights"] = ask(
        "mediation_weights", only(empty, "mediation_pairs"), mediation_replicates=3
    )
    empty["mediation_by_pair"] = ask(
        "mediation_by_pair", only(empty, "mediation_pairs", "mediation_interventions", "runs")
    )
    assert empty["mediation_weights"].is_empty()
    assert ask("mediation_effects", only(empty, *EFFECTS)).is_empty()
    assert importance(empty).is_empty()


def test_replicates_draw_from_each_template_and_operator(given: Tables):
    groups = mediated.groups(given)
    table = ask("mediation_weights", only(given, "mediation_pairs"), mediation_replicates=400)
    assert set(table.select(GROUP).iter_rows()) == groups.keys()
    assert len(table) == 400 * len(groups)
    by_pair = np.full((len(given["mediation_pairs"]), 400), np.nan)
    operators_first = table.sort(pl.col("operator") == "all")
    for *group, replicate, weights in operators_first.select(
        *GROUP, "replicate", "weights"
    ).iter_rows():
        pairs = groups[*group]
        known = by_pair[pairs, replicate]
        by_pair[pairs, replicate] = np.where(np.isnan(known), weights, known)
        assert weights == by_pair[pairs, replicate].tolist()
    for _, stratum in given["mediation_pairs"].group_by(
        "task", "condition", "template", "operator"
    ):
        assert by_pair[stratum["pair"].to_list()].sum(0) == pytest.approx(4)
    assert by_pair.mean() == pytest.approx(1)
    # of a binomial number of 3 draws from 4 pairs, each of which counts 4 / 3
    assert by_pair.var() == pytest.approx(1, abs=0.03)
    correlations = np.corrcoef(by_pair) - np.eye(len(by_pair))
    assert (
        np.sort(np.abs(correlations), None)[-len(by_pair) * 4] < 0.35
    )  # -1 / 3 within a stratum, and none between


@pytest.mark.parametrize("each", [2, 3, 8])
def test_the_variance_of_a_mean_has_no_bias_however_few_pairs(each: int):
    prompts = mediated.pairs(each).filter(task="arithmetic")
    table = ask("mediation_weights", {"mediation_pairs": prompts}, mediation_replicates=4000)
    values = np.random.default_rng(0).normal(size=1 + prompts["pair"].max())
    own = prompts.with_columns(value=pl.Series(values).gather(prompts["pair"]))
    for (condition,), group in own.group_by("condition"):
        weights = np.array(table.filter(condition=condition, operator="all")["weights"].to_list())
        means = weights @ group.sort("pair")["value"].to_numpy() / len(group)
        strata = group.group_by("template", "operator").agg(pl.col("value").var())
        unbiased = strata["value"].sum() * each / len(group) ** 2
        assert means.var() == pytest.approx(unbiased, rel=0.1)


def test_templates_with_a_single_pair_share_their_draws():
    prompts = mediated.pairs(3).filter(task="arithmetic", condition="result_fixed")
    lost = prompts.filter(operator="add", template=1)["pair"][:2].implode()
    prompts = prompts.filter(~pl.col("pair").is_in(lost))
    table = ask("mediation_weights", {"mediation_pairs": prompts}, mediation_replicates=4000)
    ordered = prompts.filter(operator="add").sort("pair")
    assert ordered["template"].value_counts(sort=True)["count"].to_list() == [3, 1]
    weights = np.array(table.filter(operator="add")["weights"].to_list())
    assert weights.sum(1) == pytest.approx(4)
    values = np.random.default_rng(0).normal(size=4)  # of four pairs in one stratum
    assert (weights @ values / 4).var() == pytest.approx(values.var(ddof=1) / 4, rel=0.1)
    assert table.filter(operator="all")["weights"].null_count() == 0


def test_a_single_pair_of_an_operator_has_no_interval():
    one_template = (["result_varies", "result_fixed"], ["add", "subtract"], [mediated.IN_WORDS])
    given = mediated.by_pair(mediated.subject(each=1, tasks={"arithmetic": one_template}))
    assert given["mediation_weights"]["weights"].is_null().all()
    ends = pl.col("ci_low", "ci_high").is_null().all()
    effects = ask("mediation_effects", only(given, *EFFECTS))
    assert effects["effect"].count() > 0
    assert effects.select(ends, pl.col("logit_ci_low").is_null().all()).row(0) == (True,) * 3
    shares = importance(given)
    assert shares["importance"].count() > 0
    assert shares.select(ends).row(0) == (True, True)


def test_a_tasks_draws_do_not_hang_on_other_tasks(given: Tables):
    alone = ask(
        "mediation_weights",
        {"mediation_pairs": given["mediation_pairs"].filter(task="arithmetic")},
        mediation_replicates=40,
    )
    whole = (
        given["mediation_weights"]
        .filter(task="arithmetic")
        .sort("condition", "operator", "replicate")
    )
    assert alone.equals(whole)


def test_effects_of_pairs_are_means_over_the_tokens_of_a_class(given: Tables):
    expected = mediated.expected(given)
    table = given["mediation_by_pair"].with_columns(selectors.float().fill_null(math.nan))
    for row in table.iter_rows(named=True):
        wanted = expected.pop(
            (row["pair"], row["component"], row["layer"], row["head"], row["position_class"])
        )
        assert {name: row[name] for name in wanted} == pytest.approx(wanted, nan_ok=True)
    assert not expected


def group_weights(given: Tables, row: dict[str, Any]) -> np.ndarray:
    """Return the bootstrap weights (replicates, pairs) of a row's group."""
    keys = {name: row[name] for name in GROUP}
    return np.array(
        given["mediation_weights"].filter(**keys).sort("replicate")["weights"].to_list()
    )


def group_effects(
    expected: dict[tuple, dict[str, float]], pairs: list[int], site: tuple, which: str
) -> pl.DataFrame:
    """Return the effects of a site on a group's pairs; null where a pair does not count."""
    rows: list[list[float | None]] = []
    for pair in pairs:
        effect = expected.get((pair, *site))
        if effect and (effect["correct"] or which == "all"):
            rows.append([float(effect[measure]) for measure in MEASURES])
        else:
            rows.append([None] * len(MEASURES))
    return pl.DataFrame(rows, schema=dict.fromkeys(MEASURES, pl.Float64), orient="row")


def mean_and_interval(values: np.ndarray, weights: np.ndarray) -> tuple:
    """Return the mean of finite values and its bootstrap interval; null without values."""
    known = np.isfinite(values)
    if not known.any():
        return None, None, None
    sums, counts = weights[:, known] @ values[known], weights[:, known].sum(1)
    some = counts > 0
    return (values[known].mean(), *np.quantile(sums[some] / counts[some], EDGES))


def test_effects_are_means_over_pairs(given: Tables, effects: pl.DataFrame):
    expected, groups = mediated.expected(given), mediated.groups(given)
    sites = set()
    for key, pairs in groups.items():
        sites |= {(key, *site) for pair, *site in expected if pair in pairs}
    assert len(effects) == 2 * len(sites)
    for row in effects.iter_rows(named=True):
        pairs = groups[row["task"], row["condition"], row["operator"]]
        site = row["component"], row["layer"], row["head"], row["position_class"]
        each, weights = (
            group_effects(expected, pairs, site, row["which"]),
            group_weights(given, row),
        )
        for measure, prefix in (("effect", ""), ("logit_effect", "logit_")):
            wanted = mean_and_interval(each[measure].to_numpy(), weights)
            names = (measure, f"{prefix}ci_low", f"{prefix}ci_high")
            assert [row[name] for name in names] == list(map(pytest.approx, wanted))
        defined = each["effect"].drop_nulls().drop_nans()
        counted = each["effect"].count()
        assert (row["pairs"], row["undefined"]) == (len(defined), counted - len(defined))
        spread = defined.std(ddof=0), defined.median()
        assert (row["effect_std"], row["median_effect"]) == tuple(map(pytest.approx, spread))
        if len(defined):
            assert row["log_effect"] == pytest.approx(np.log1p(defined.mean()))
        for share in ("desired", "undesired", "correct"):
            mean = each[share].drop_nulls().drop_nans().mean()
            assert row[share] == pytest.approx(mean)
    assert set(effects["undefined"]) >= {0, 1, 2, 4}
    fixed = effects.filter(condition="result_fixed").select("desired", "logit_effect")
    assert fixed.null_count().row(0) == (len(fixed),) * 2


def test_importance_is_the_late_mlps_share_of_log_effects(given: Tables, effects: pl.DataFrame):
    table, expected, groups = importance(given), mediated.expected(given), mediated.groups(given)
    assert len(table) == 2 * len(groups)
    is_late = (pl.col("layer") >= LAYERS // 2) & (pl.col("position_class") == "last")
    for row in table.iter_rows(named=True):
        keys = {name: row[name] for name in (*GROUP, "which")}
        mlps = effects.filter(component="mlp", **keys)
        late = mlps.select(is_late).to_series().to_numpy()
        assert row["without_effect"] == late.mean()
        most = (mlps["pairs"] + mlps["undefined"]).max(), mlps["undefined"].max()
        assert (row["pairs"], row["undefined"]) == most
        if mlps["effect"].null_count():
            assert row["task"] == "retrieval"
            assert [row[name] for name in UNDEFINED] == [None] * len(UNDEFINED)
            continue
        logs = np.log1p(mlps["effect"].to_numpy())
        last_layer = late & (mlps["layer"] == LAYERS - 1).to_numpy()
        floored = np.maximum(logs, 0.1)
        wanted = {
            "importance": logs[late].sum() / logs.sum(),
            "last_layer": logs[last_layer].sum() / logs.sum(),
            "log_effects": logs.sum(),
            "negative": logs[logs < 0].sum(),
            "floored": floored[late].sum() / floored.sum(),
        }
        assert {name: row[name] for name in wanted} == pytest.approx(wanted)
        pairs, weights = groups[tuple(keys[name] for name in GROUP)], group_weights(given, row)
        replicates = []
        for layer, name in mlps.select("layer", "position_class").iter_rows():
            site = "mlp", layer, None, name
            values = group_effects(expected, pairs, site, row["which"])["effect"].to_numpy()
            known = np.isfinite(values)
            with np.errstate(invalid="ignore"):
                means = weights[:, known] @ values[known] / weights[:, known].sum(1)
            replicates.append(np.log1p(means))
        totals = np.sum(replicates, 0)
        ends: Any = (None, None)
        if np.quantile(np.nan_to_num(totals), EDGES[0]) > 0:
            ratios = np.array(replicates)[late].sum(0) / totals
            ends = np.quantile(ratios[totals > 0], EDGES)
        assert (row["ci_low"], row["ci_high"]) == tuple(map(pytest.approx, ends))
