"""The queries of causal mediation: each real .sql against brute force, and subjects whose truth is known."""

import math

import numpy as np
import polars as pl
import pytest

from tests.made import HEADS, LAYERS, Tables, architecture, ask, only
from tests.mediation import mediated
from tests.mediation.mediated import EFFECTS, SITES, TASKS, importance

EDGES = [0.05, 0.95]  # of tests.made's confidence


@pytest.fixture(scope="module")
def given() -> Tables:
    """Random runs; in them, three undefined effects, and one component whose effect no pair of retrieval has."""
    made = mediated.subject()
    asked = made["mediation_pairs"].sort("pair")
    first = asked.filter(task="arithmetic", condition="result_varies", operator="add")[
        "pair"
    ].to_list()
    retrieval = asked.filter(task="retrieval")["pair"].to_list()
    lost = (pl.col("intervention") == 4) & pl.col("pair").is_in(first[:2]) | (
        pl.col("intervention") == 1
    ) & pl.col("pair").is_in(retrieval)
    never = (pl.col("intervention") == 0) & (pl.col("pair") == first[5])
    runs = made["runs"].with_columns(
        answer_probability=pl.when(lost).then(0).otherwise("answer_probability").cast(pl.Float32),
        counterfactual_probability=pl.when(never)
        .then(0)
        .otherwise("counterfactual_probability")
        .cast(pl.Float32),
    )
    return mediated.by_pair(made | {"runs": runs})


@pytest.fixture(scope="module")
def effects(given: Tables) -> pl.DataFrame:
    return ask("mediation_effects", only(given, *EFFECTS))


def test_every_component_is_patched_once_at_every_place(given: Tables):
    table, longest = (
        given["mediation_interventions"],
        max(len(form) for *_, forms in TASKS.values() for form in forms),
    )
    assert table["intervention"].to_list() == list(range(1 + len(SITES) * longest))
    assert table.row(0)[2:] == (None, None, "none", None, None, None, None, None)
    keys = [
        (r["component"], r["layer"], tuple(r["units"] or ()), r["position"])
        for r in table.to_dicts()[1:]
    ]
    components = [("mlp", ()), ("head", ()), *(("head", (h,)) for h in range(HEADS))]
    assert keys == [
        (c, layer, u, str(place))
        for layer in range(LAYERS)
        for c, u in components
        for place in range(longest)
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


def test_replicates_draw_from_each_template_and_operator_as_many_pairs_as_it_has(given: Tables):
    keys, groups = ["task", "condition", "operator"], mediated.groups(given)
    table = ask("mediation_weights", only(given, "mediation_pairs"), mediation_replicates=400)
    assert set(table.select(keys).iter_rows()) == groups.keys()
    assert len(table) == 400 * len(groups)
    of_pair: dict[tuple[int, int], float] = {}
    for row in table.filter(pl.col("operator") != "all").iter_rows(named=True):
        of_pair |= {
            (pair, row["replicate"]): w
            for pair, w in zip(groups[*(row[k] for k in keys)], row["weights"], strict=True)
        }
    for row in table.filter(operator="all").iter_rows(named=True):
        pairs = groups[*(row[k] for k in keys)]
        assert row["weights"] == [
            of_pair.setdefault((pair, row["replicate"]), w)
            for pair, w in zip(pairs, row["weights"], strict=True)
        ]
    by_pair = np.array(
        [
            [of_pair[pair, n] for n in range(400)]
            for pair in sorted(given["mediation_pairs"]["pair"])
        ]
    )
    for _, stratum in given["mediation_pairs"].group_by(
        "task", "condition", "template", "operator"
    ):
        assert (by_pair[stratum["pair"].to_list()].sum(0) == 4).all()
    assert by_pair.mean() == 1
    assert by_pair.var() == pytest.approx(
        3 / 4, abs=0.03
    )  # of a binomial number of 4 draws from 4 pairs
    correlations = np.corrcoef(by_pair) - np.eye(len(by_pair))
    assert (
        np.sort(np.abs(correlations), None)[-len(by_pair) * 4] < 0.35
    )  # -1 / 3 within a stratum, and none between


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
    rows = given["mediation_by_pair"].drop("subject").iter_rows(named=True)
    for row in rows:
        wanted = expected.pop(
            (row["pair"], row["component"], row["layer"], row["head"], row["position_class"])
        )
        assert {
            name: math.nan if row[name] is None else row[name] for name in wanted
        } == pytest.approx(wanted, nan_ok=True)
    assert not expected


def test_effects_are_means_over_pairs(given: Tables, effects: pl.DataFrame):
    expected, groups = mediated.expected(given), mediated.groups(given)
    classes = {
        key: {name for pair, *_, name in expected if pair in pairs} for key, pairs in groups.items()
    }
    assert len(effects) == 2 * len(SITES) * sum(map(len, classes.values()))
    weights = {
        key: np.array(part["weights"].to_list())
        for key, part in given["mediation_weights"]
        .sort("replicate")
        .group_by("task", "condition", "operator")
    }
    for row in effects.iter_rows(named=True):
        key = (row["task"], row["condition"], row["operator"])
        site = (row["component"], row["layer"], row["head"], row["position_class"])
        said = [expected.get((pair, *site)) for pair in groups[key]]
        said = [one if one and (one["correct"] or row["which"] == "all") else None for one in said]
        for measure, prefix in (("effect", ""), ("logit_effect", "logit_")):
            values = np.array([one[measure] if one else np.nan for one in said])
            known = np.isfinite(values)
            sums = (weights[key][:, known] @ values[known], weights[key][:, known].sum(1))
            replicates = sums[0][sums[1] > 0] / sums[1][sums[1] > 0]
            wanted = (
                (values[known].mean(), *np.quantile(replicates, EDGES))
                if known.any()
                else (None, None, None)
            )
            assert (row[measure], row[f"{prefix}ci_low"], row[f"{prefix}ci_high"]) == tuple(
                map(pytest.approx, wanted)
            )
            if measure == "effect":
                assert (row["pairs"], row["undefined"]) == (
                    known.sum(),
                    len([one for one in said if one]) - known.sum(),
                )
                spread = (
                    (values[known].std(), np.median(values[known]), np.log1p(values[known].mean()))
                    if known.any()
                    else wanted
                )
                assert (row["effect_std"], row["median_effect"], row["log_effect"]) == tuple(
                    map(pytest.approx, spread)
                )
        for share in ("desired", "undesired", "correct"):
            values = np.array([one[share] for one in said if one and np.isfinite(one[share])])
            assert row[share] == (pytest.approx(values.mean()) if values.size else None)
    assert set(effects["undefined"]) >= {0, 1, 2, 4}
    assert (
        effects.filter(condition="result_fixed")
        .select("desired", "logit_effect", "logit_ci_low")
        .null_count()
        .row(0)
        == ((effects["condition"] == "result_fixed").sum(),) * 3
    )


def test_importance_is_the_late_mlps_share_of_log_effects(given: Tables, effects: pl.DataFrame):
    table, expected, groups = importance(given), mediated.expected(given), mediated.groups(given)
    assert len(table) == 2 * len(groups)
    late = (pl.col("layer") >= LAYERS // 2) & (pl.col("position_class") == "last")
    for row in table.iter_rows(named=True):
        same = {name: row[name] for name in ("task", "condition", "operator", "which")}
        mlps = effects.filter(component="mlp", **same).with_columns(late=late)
        assert row["without_effect"] == mlps["late"].mean()
        assert (row["pairs"], row["undefined"]) == (
            (mlps["pairs"] + mlps["undefined"]).max(),
            mlps["undefined"].max(),
        )
        if mlps["effect"].null_count():
            assert row["task"] == "retrieval"
            assert [
                row[name]
                for name in (
                    "importance",
                    "last_layer",
                    "ci_low",
                    "ci_high",
                    "floored",
                    "log_effects",
                )
            ] == [None] * 6
            continue
        logs = np.log1p(mlps["effect"].to_numpy())
        chosen = mlps["late"].to_numpy()
        assert row["importance"] == pytest.approx(logs[chosen].sum() / logs.sum())
        assert row["last_layer"] == pytest.approx(
            logs[chosen & (mlps["layer"] == LAYERS - 1).to_numpy()].sum() / logs.sum()
        )
        assert row["log_effects"] == pytest.approx(logs.sum())
        assert row["negative"] == pytest.approx(logs[logs < 0].sum())
        assert row["floored"] == pytest.approx(
            np.maximum(logs, 0.1)[chosen].sum() / np.maximum(logs, 0.1).sum()
        )
        key = (row["task"], row["condition"], row["operator"])
        weights = (
            given["mediation_weights"]
            .sort("replicate")
            .filter(**{k: same[k] for k in ("task", "condition", "operator")})["weights"]
        )
        drawn = np.array(weights.to_list())
        sums = []
        for layer, name in mlps.select("layer", "position_class").iter_rows():
            said = [expected.get((pair, "mlp", layer, None, name)) for pair in groups[key]]
            values = np.array(
                [
                    one["effect"] if one and (one["correct"] or row["which"] == "all") else np.nan
                    for one in said
                ]
            )
            known = np.isfinite(values)
            with np.errstate(invalid="ignore"):
                sums.append(np.log1p(drawn[:, known] @ values[known] / drawn[:, known].sum(1)))
        ratios, totals = np.array(sums)[chosen].sum(0) / np.sum(sums, 0), np.sum(sums, 0)
        stands = np.quantile(np.nan_to_num(totals), 0.05) > 0
        wanted = np.quantile(ratios[totals > 0], EDGES) if stands else (None, None)
        assert (row["ci_low"], row["ci_high"]) == tuple(map(pytest.approx, wanted))
