"""The test over heuristics: random signs against all signs, what it says where there is nothing to find, and where there is."""

from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.bag.knocked import written
from tests.made import ask

GROUP = ["operator", "membership", "ablation", "measure"]
SETTINGS = {"flips": 1000, "knockout_seed": 0}


def knocked_out(differences: dict[str, np.ndarray], seed: int = 0) -> pl.DataFrame:
    """The table knockouts_by_heuristic of operators whose heuristics dissociate by so much more than their controls."""
    rng = np.random.default_rng(seed)
    rows = []
    for operator, several in differences.items():
        for i, difference in enumerate(several):
            control = rng.normal()
            for arm, own in (("control", control), ("heuristic", control + difference)):
                rest = rng.uniform(size=4).tolist()
                rows.append(("s", operator, "label", f"h{i:03}", "zero", arm, int(rng.integers(3, 30)), *rest, own, -2 * own))
    names = ["accuracy_associated", "accuracy_other", "logit_change_associated", "logit_change_other", "dissociation", "logit_dissociation"]
    keys = dict.fromkeys(["subject", "operator", "membership", "heuristic", "ablation", "arm"], pl.String)
    made = pl.DataFrame(rows, schema=keys | {"neurons": pl.Int32} | dict.fromkeys(names, pl.Float64), orient="row")
    return made.sample(fraction=1, shuffle=True, seed=1)


def judged(knockouts: pl.DataFrame, **settings: int) -> pl.DataFrame:
    return ask("knockout_tests", {"knockouts_by_heuristic": knockouts}, **SETTINGS | settings)


def test_random_signs_say_what_all_signs_say():
    rng = np.random.default_rng(1)
    differences = {f"o{i:02}": rng.normal(0.4, 1, 8) for i in range(12)} | {"same": np.array([0.5, 0.5, -0.5, 0.25])}
    table = judged(knocked_out(differences), flips=4000)
    assert table.select(GROUP).rows() == [(o, "label", "zero", measure) for o in sorted(differences) for measure in ("accuracy", "logit")]
    for row in table.iter_rows(named=True):
        here = differences[row["operator"]] * (1 if row["measure"] == "accuracy" else -2)
        signs = np.array(list(product([-1, 1], repeat=len(here))))
        share = (signs @ here >= here.sum() - 1e-9).mean()
        assert abs(row["p_value"] - share) < 4 * (share * (1 - share) / 4000) ** 0.5 + 1 / 4001


def test_means_are_those_of_brute_force():
    rng = np.random.default_rng(2)
    both = [knocked_out({o: rng.normal(size=n) for o, n in (("add", 7), ("subtract", 1))}, seed) for seed in (0, 1)]
    table = pl.concat([both[0], both[1].with_columns(membership=pl.lit("scored"), ablation=pl.lit("mean"))])
    for row in judged(table).iter_rows(named=True):
        prefix = {"accuracy": ("accuracy_", ""), "logit": ("logit_change_", "logit_")}[row["measure"]]
        here = table.filter(*(pl.col(c) == row[c] for c in GROUP[:3])).sort("heuristic")
        own, control = (here.filter(arm=arm) for arm in ("heuristic", "control"))
        for name in ("associated", "other"):
            means = own[prefix[0] + name].mean(), control[prefix[0] + name].mean()
            assert (row[name], row[f"control_{name}"]) == pytest.approx(means)
        differences = (own[prefix[1] + "dissociation"] - control[prefix[1] + "dissociation"]).to_numpy()
        assert (row["heuristics"], row["neurons"]) == (len(own), pytest.approx(own["neurons"].mean()))
        assert (row["difference"], row["positive"]) == pytest.approx((differences.mean(), (differences > 0).mean()))
        assert row["deviation"] == (pytest.approx(differences.std(ddof=1)) if len(own) > 1 else None)


def test_where_nothing_dissociates_p_values_are_uniform():
    """400 tests over 12 heuristics whose differences are as often above zero as below, of changing size."""
    rng = np.random.default_rng(3)
    differences = {f"o{i:03}": rng.normal(size=12) * rng.exponential(size=12) for i in range(400)}
    values = np.sort(judged(knocked_out(differences)).filter(measure="accuracy")["p_value"].to_numpy())
    steps = np.arange(401) / 400
    distance = max(np.abs(values - steps[1:]).max(), np.abs(values - steps[:-1]).max())
    assert distance < 1.63 / 400**0.5  # Kolmogorov and Smirnov, level .01
    assert (values <= 0.05).mean() == pytest.approx(0.05, abs=3 * (0.05 * 0.95 / 400) ** 0.5)


def test_a_true_effect_is_found_and_no_effect_at_all_is_none():
    rng = np.random.default_rng(4)
    differences = {"each": rng.uniform(0.1, 1, 20), "most": rng.normal(1, 1, 20), "none": np.zeros(20), "less": rng.normal(-1, 1, 20)}
    table = judged(knocked_out(differences)).filter(measure="accuracy")
    p_values = dict(table.select("operator", "p_value").rows())
    assert p_values["each"] == 1 / 1001
    assert p_values["most"] < 0.01
    assert p_values["none"] == 1
    assert p_values["less"] > 0.99
    assert table.filter(operator="none")["positive"].to_list() == [0]


def test_what_cannot_be_compared_has_no_say():
    whole = knocked_out({"add": np.array([1.0, 2.0, 3.0, 4.0])})
    without = whole.filter(~((pl.col("heuristic") == "h001") & (pl.col("arm") == "control")))
    gone = (pl.col("heuristic") == "h002") & (pl.col("arm") == "heuristic")
    table = judged(without.with_columns(pl.when(~gone).then(pl.col("dissociation"))))
    accuracy, logit = (table.filter(measure=measure).row(0, named=True) for measure in ("accuracy", "logit"))
    assert (accuracy["heuristics"], accuracy["difference"]) == (2, pytest.approx((1 + 4) / 2))
    assert (logit["heuristics"], logit["difference"]) == (3, pytest.approx(-2 * (1 + 3 + 4) / 3))


def test_the_seed_changes_the_signs():
    knockouts = knocked_out({"add": np.random.default_rng(5).normal(0.3, 1, 15)})
    assert len({judged(knockouts, knockout_seed=seed)["p_value"][0] for seed in range(4)}) > 1


def test_without_knock_outs_there_is_no_test():
    assert judged(knocked_out({})).is_empty()


def test_the_pipeline_finds_what_was_planted(micro: Path):
    table = written(micro, "planted", "knockout_tests")
    assert set(table["operator"]) == {"add", "subtract"}
    assert table.filter(ablation="mean", membership="label").height == table.filter(ablation="zero", membership="scored").height == 4
    assert (table["difference"] > 0).all()
    labels = table.filter(membership="label")  # of the others there are too few for a p-value to be small
    assert (labels["p_value"] < 0.02).all()
    accuracy = labels.filter(measure="accuracy")
    assert (accuracy["other"] == 1).all()
    assert (accuracy["associated"] < accuracy["control_associated"] - 0.3).all()


@pytest.mark.parametrize("name", ["abacus", "planted"])
def test_the_pipeline_tests_every_knock_out_that_has_a_control(micro: Path, name: str):
    knockouts, table = written(micro, name, "knockouts_by_heuristic"), written(micro, name, "knockout_tests")
    both = knockouts.drop_nulls("dissociation").group_by(*GROUP[:3], "heuristic").len().filter(len=2)
    expected = both.group_by(GROUP[:3]).len().rows()
    assert {(*row[:3], row[4]) for row in table.select(*GROUP, "heuristics").rows()} == set(expected)
    assert table.height == 2 * len(expected) > 0
