"""The queries of causal mediation on subjects whose truth is known: late MLPs that do it all, no
effect at all, noise of known size.
"""

import math

import numpy as np
import polars as pl
import pytest

from tests.made import LAYERS, Tables, ask, only
from tests.mediation import mediated
from tests.mediation.mediated import EFFECTS, TASKS, importance

LATE = list(range(LAYERS // 2, LAYERS))


def known(given: Tables, changed: pl.Expr, change: pl.Expr) -> Tables:
    """Clean prompts are answered rightly, with probability 0.8, the other answer has 0.1; where
    `changed`, 0.8 / change and 0.1 * change.
    """
    about = given["mediation_interventions"].select(
        "intervention", "component", "layer", place=pl.col("position").cast(pl.Int32)
    )
    pairs = given["mediation_pairs"].select(
        "pair",
        "condition",
        "template",
        "answer_token",
        "counterfactual_answer_token",
        length=pl.col("tokens").list.len(),
    )
    rows = (
        given["runs"]
        .select("intervention", "pair")
        .join(about, on="intervention")
        .join(pairs, on="pair")
    )
    factor = pl.when(pl.col("component") != "none", changed).then(change).otherwise(1.0)
    prediction = pl.when(factor > 2).then("counterfactual_answer_token").otherwise("answer_token")
    runs = rows.with_columns(
        answer_probability=(0.8 / factor).cast(pl.Float32),
        counterfactual_probability=(0.1 * factor).cast(pl.Float32),
        predicted=prediction,
    ).with_columns(
        answer_logit=pl.col("answer_probability").log(),
        counterfactual_logit=pl.col("counterfactual_probability").log(),
        correct=pl.col("predicted") == pl.col("answer_token"),
    )
    return mediated.by_pair(
        given | {"runs": runs.select(given["runs"].columns).sort("intervention", "pair")}
    )


def test_late_mlps_that_carry_a_varying_result_have_all_the_importance():
    late = (
        pl.col("component").eq("mlp")
        & pl.col("layer").is_in(LATE)
        & (pl.col("place") == pl.col("length") - 1)
    )
    given = known(mediated.subject(), late & (pl.col("condition") != "result_fixed"), pl.lit(8.0))
    table = importance(given)
    fixed = pl.col("condition") == "result_fixed"
    varies = table.filter(~fixed)
    for name in ("importance", "ci_low", "ci_high"):
        assert varies[name].to_list() == pytest.approx([1.0] * len(varies))
    assert varies["log_effects"].to_list() == pytest.approx([len(LATE) * math.log(8)] * len(varies))
    for floored, without in varies.select("floored", "without_effect").iter_rows():
        others = 0.1 * (len(LATE) / without - len(LATE))
        assert floored == pytest.approx(
            len(LATE) * math.log(8) / (len(LATE) * math.log(8) + others)
        )
    for row in table.filter(fixed).iter_rows(named=True):
        assert (row["importance"], row["ci_low"], row["ci_high"]) == (None, None, None)
        assert row["log_effects"] == pytest.approx(0, abs=1e-6)
        assert (
            row["floored"]
            == pytest.approx(row["without_effect"])
            == pytest.approx(len(LATE) / (LAYERS * 6))
        )
    effects = ask("mediation_effects", only(given, *EFFECTS)).filter(condition="result_varies")
    is_late = (
        pl.col("component").eq("mlp")
        & pl.col("layer").is_in(LATE)
        & (pl.col("position_class") == "last")
    )
    for part, effect, desired in (
        (effects.filter(is_late), 7, 1),
        (effects.filter(~is_late), 0, 0),
    ):
        for name, value in (
            ("effect", effect),
            ("ci_low", effect),
            ("ci_high", effect),
            ("desired", desired),
            ("undesired", 0),
        ):
            assert part[name].to_list() == pytest.approx([value] * len(part), abs=1e-5)


def noise(given: Tables, size: float) -> pl.Expr:
    """A random factor for each run, log-normal."""
    return pl.lit(pl.Series(np.exp(np.random.default_rng(6).normal(0, size, len(given["runs"])))))


def test_the_same_noise_everywhere_gives_the_importance_without_effect():
    given = mediated.subject(each=40, tasks={"arithmetic": TASKS["arithmetic"]}, replicates=100)
    table = importance(known(given, pl.lit(True), noise(given, 0.4)))
    whole = table.filter(operator="all", which="all")
    assert whole["importance"].to_list() == pytest.approx(
        whole["without_effect"].to_list(), abs=0.06
    )
    inside = (pl.col("ci_low") < pl.col("without_effect")) & (
        pl.col("without_effect") < pl.col("ci_high")
    )
    assert table.filter(which="all").select(inside.sum()).item() >= 5  # of 6


def test_a_total_that_may_be_nothing_gives_no_interval():
    """Effects of equal size and either sign: one sum in two is not even positive."""
    tasks = {f"task {n}": (["result_varies"], [None], [["op1", "last"]]) for n in range(30)}
    given = mediated.subject(each=10, tasks=tasks, replicates=100)
    table = importance(known(given, pl.lit(True), noise(given, 0.05))).filter(which="all")
    assert (
        table.filter(pl.col("log_effects") <= 0)["importance"].null_count()
        == (table["log_effects"] <= 0).sum()
        > 5
    )
    assert table.filter(pl.col("log_effects") > 0)["importance"].null_count() == 0
    assert 5 < table["ci_low"].null_count() < 30
    assert (table["negative"] < 0).any()


def test_intervals_cover_the_truth_as_often_as_they_say():
    """Templates differ in effect by much: the draws within them know, draws across all of them
    would be too wide.
    """
    tasks = {f"task {n}": (["result_varies"], [None], [["last"]] * 2) for n in range(30)}
    given, size, means = mediated.subject(each=25, tasks=tasks, replicates=200), 0.3, [1, 3]
    change = noise(given, size) * pl.col("template").replace_strict(dict(enumerate(means)))
    effects = ask("mediation_effects", only(known(given, pl.lit(True), change), *EFFECTS)).filter(
        which="all"
    )
    truth = float(np.mean(means)) * math.exp(size**2 / 2) - 1
    assert effects["effect"].mean() == pytest.approx(truth, rel=0.015)
    covered = effects.select(
        ((pl.col("ci_low") <= truth) & (truth <= pl.col("ci_high"))).mean()
    ).item()
    assert 0.84 < covered < 0.95  # of 360, whose confidence is 0.9
