"""The permutation test over heuristics: against brute force, under the null, and with an effect."""

from hashlib import md5
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.bag.knocked import standing, written
from tests.made import ask

GROUP = ["operator", "criterion", "ablation", "measure"]
SETTINGS = {"test_draws": 200, "knockout_seed": 0}
MANY = [f"o{i:03}" for i in range(200)]  # operators
# of every operator, those of each of its heuristics; they are in layers of ten
Neurons = dict[str, list[np.ndarray]]


def knocked_out(differences: dict[str, np.ndarray], seed: int = 0) -> pl.DataFrame:
    """Return knockouts_by_heuristic with given differences of dissociation from the control."""
    rng = np.random.default_rng(seed)
    rows = []
    for operator, several in differences.items():
        for i, difference in enumerate(several):
            control = rng.normal()
            for arm, own in (("control", control), ("heuristic", control + difference)):
                key = ("s", operator, "label", f"h{i:03}", "zero", arm)
                neurons, means = int(rng.integers(3, 30)), rng.uniform(size=4).tolist()
                rows.append((*key, neurons, *means, own, -2 * own))
    names = [
        "accuracy_associated",
        "accuracy_other",
        "logit_change_associated",
        "logit_change_other",
        "dissociation",
        "logit_dissociation",
    ]
    keys = dict.fromkeys(
        ["subject", "operator", "criterion", "heuristic", "ablation", "arm"], pl.String
    )
    made = pl.DataFrame(
        rows, schema=keys | {"neurons": pl.Int32} | dict.fromkeys(names, pl.Float64), orient="row"
    )
    return made.sample(fraction=1, shuffle=True, seed=1)


def members(neurons: Neurons) -> pl.DataFrame:
    """Return the table heuristic_neurons of these."""
    rows = []
    for operator, several in neurons.items():
        for i, own in enumerate(several):
            for layer, neuron in zip(*divmod(own, 10), strict=True):
                rows.append((operator, int(layer), int(neuron), f"h{i:03}"))
    return standing(rows, "label").sample(fraction=1, shuffle=True, seed=2)


def apart(differences: dict[str, np.ndarray]) -> Neurons:
    """Return three neurons for each heuristic, which no other heuristic has."""
    neurons = {}
    for operator, several in differences.items():
        neurons[operator] = list(np.arange(3 * len(several)).reshape(-1, 3))
    return neurons


def judged(
    differences: dict[str, np.ndarray],
    neurons: Neurons | None = None,
    **settings: int,
) -> pl.DataFrame:
    given = {
        "knockouts_by_heuristic": knocked_out(differences),
        "heuristic_neurons": members(neurons or apart(differences)),
    }
    return ask("knockout_tests", given, **SETTINGS | settings)


def families(rng: np.random.Generator, count: int = 3) -> list[np.ndarray]:
    """Return families of four heuristics that share most of ten neurons."""
    starts = 10 * np.arange(count).repeat(4)
    return [start + rng.choice(10, 7, replace=False) for start in starts]


def unselective(rng: np.random.Generator, neurons: list[np.ndarray]) -> np.ndarray:
    """Return the dissociations of heuristics beyond three random controls, under the null.

    A neuron contributes the same to all heuristics of its family: a random number around 0.
    """
    every = np.arange(np.concatenate(neurons).max() + 1)
    differences = []
    for family in range(0, len(neurons), 4):
        contributions = rng.normal(size=len(every))
        for own in neurons[family : family + 4]:
            controls = np.tile(np.setdiff1d(every, own), (3, 1))
            drawn = rng.permuted(controls, axis=1)[:, : len(own)]
            differences.append(contributions[own].mean() - contributions[drawn].mean())
    return np.array(differences)


def number(draw: int, operator: str, neuron: int) -> float:
    """A neuron's random number in a draw: see the macro lot."""
    text = f"0:test:{draw}:{operator}:{neuron // 10}:{neuron % 10}"
    return int.from_bytes(md5(text.encode()).digest()[8:], "little") / 2**64 - 0.5


def test_p_values_and_errors_are_those_of_brute_force():
    rng = np.random.default_rng(1)
    neurons, differences = {}, {}
    for operator in ("add", "divide", "subtract"):
        neurons[operator], differences[operator] = families(rng, 2), rng.normal(0.3, 1, 8)
    table = judged(differences, neurons, test_draws=100).filter(measure="accuracy")
    for row in table.iter_rows(named=True):
        mine = differences[row["operator"]]
        has = np.zeros((8, 20))
        for heuristic, own in zip(has, neurons[row["operator"]], strict=True):
            heuristic[own] = 1
        sizes = has.sum(axis=1)
        shared = has @ has.T / np.sqrt(np.outer(sizes, sizes))
        numbers = np.zeros((100, 20))
        for draw, neuron in np.ndindex(numbers.shape):
            numbers[draw, neuron] = number(draw, row["operator"], neuron)
        drawn = numbers @ has.T / np.sqrt(sizes)
        several = np.vstack([mine, drawn])
        statistics = several.sum(axis=1) / np.sqrt(np.square(several).sum(axis=1))
        assert row["p_value"] == np.mean(statistics >= statistics[0])
        assert row["effective"] == pytest.approx(64 / shared.sum())
        # the variance of a heuristic, from its distance to those correlated with it
        variance = mine.var(ddof=1) / (1 - (shared.sum() - 8) / 56)
        assert row["standard_error"] == pytest.approx(np.sqrt(variance * shared.sum()) / 8)


def test_means_are_those_of_brute_force():
    rng = np.random.default_rng(2)
    differences = {"add": rng.normal(size=7), "subtract": rng.normal(size=1)}
    threshold = pl.lit("threshold").alias("criterion")
    first, second = knocked_out(differences, 0), knocked_out(differences, 1)
    knockouts = pl.concat([first, second.with_columns(threshold, ablation=pl.lit("mean"))])
    labels = members(apart(differences))
    given = {
        "knockouts_by_heuristic": knockouts,
        "heuristic_neurons": pl.concat([labels, labels.with_columns(threshold)]),
    }
    columns = {"accuracy": ("accuracy", ""), "logit": ("logit_change", "logit_")}
    for row in ask("knockout_tests", given, **SETTINGS).iter_rows(named=True):
        mean, prefix = columns[row["measure"]]
        which = {"operator": row["operator"], "criterion": row["criterion"]}
        arms = knockouts.filter(**which, ablation=row["ablation"]).sort("heuristic")
        own, control = arms.filter(arm="heuristic"), arms.filter(arm="control")
        for name in ("associated", "other"):
            means = own[f"{mean}_{name}"].mean(), control[f"{mean}_{name}"].mean()
            assert (row[name], row[f"control_{name}"]) == pytest.approx(means)
        own_dissociation = own[f"{prefix}dissociation"].to_numpy()
        beyond = own_dissociation - control[f"{prefix}dissociation"].to_numpy()
        assert row["heuristics"] == len(own)
        assert row["neurons"] == pytest.approx(own["neurons"].mean())
        assert row["difference"] == pytest.approx(beyond.mean())
        assert row["positive"] == pytest.approx((beyond > 0).mean())
        if len(own) == 1:
            assert (row["deviation"], row["standard_error"], row["p_value"]) == (None, None, None)
            continue
        assert row["effective"] == pytest.approx(len(own))  # no neuron is shared
        deviation = beyond.std(ddof=1)
        assert row["deviation"] == pytest.approx(deviation)
        assert row["standard_error"] == pytest.approx(deviation / np.sqrt(len(own)))


def test_without_shared_neurons_p_values_are_uniform_where_nothing_dissociates():
    rng = np.random.default_rng(3)
    differences = dict(zip(MANY, rng.normal(size=(200, 12)), strict=True))
    table = judged(differences, test_draws=100).filter(measure="accuracy")
    values = np.sort(table["p_value"].to_numpy())
    steps = np.arange(201) / 200
    distance = max(np.abs(values - steps[1:]).max(), np.abs(values - steps[:-1]).max())
    assert distance < 1.63 / 200**0.5  # Kolmogorov and Smirnov, level .01


def test_shared_neurons_do_not_make_p_values_small():
    """Families share neurons under the null, where a sign-flip test would reject too often."""
    rng = np.random.default_rng(6)
    neurons, differences = {}, {}
    for operator in MANY:
        neurons[operator] = families(rng)
        differences[operator] = unselective(rng, neurons[operator])
    table = judged(differences, neurons, test_draws=100).filter(measure="accuracy")
    values = table["p_value"].to_numpy()
    own = np.array(list(differences.values()))
    flipped = rng.choice([-1, 1], (500, 12)) @ own.T
    one_by_one = np.mean(flipped >= own.sum(axis=1), axis=0)
    assert np.mean(values <= 0.05) <= 0.06
    assert np.mean(one_by_one <= 0.05) >= 0.1


def test_a_true_effect_is_found_and_no_effect_at_all_is_none():
    rng = np.random.default_rng(4)
    differences = {
        "each": rng.uniform(0.1, 1, 20),
        "most": rng.normal(1, 1, 20),
        "none": np.zeros(20),
        "less": rng.normal(-1, 1, 20),
    }
    neurons = apart(differences)
    for i in range(10):
        neurons[f"shared{i}"] = families(rng, 5)
        differences[f"shared{i}"] = 1 + unselective(rng, neurons[f"shared{i}"])
    table = judged(differences, neurons).filter(measure="accuracy")
    p_values = dict(table.select("operator", "p_value").rows())
    assert p_values["each"] == 1 / 201
    assert p_values["most"] < 0.01
    assert p_values["none"] == 1
    assert p_values["less"] > 0.99
    shared = table.filter(pl.col("operator").str.starts_with("shared"))["p_value"]
    assert len(shared) == 10
    assert shared.max() <= 0.05
    assert table.filter(operator="none")["positive"].to_list() == [0]


def test_heuristics_of_the_same_neurons_are_one_and_cannot_be_tested():
    differences = {"same": np.linspace(0.5, 1, 6), "nearly": np.linspace(0.5, 1, 6)}
    neurons = {"same": [np.arange(5)] * 6, "nearly": [np.arange(20)] * 5 + [np.arange(1, 20)]}
    table = judged(differences, neurons)
    assert (table["effective"] < 1.1).all()
    assert table["effective"].to_list() == pytest.approx([table["effective"][0]] * 2 + [1, 1])
    assert set(table["p_value"]) == set(table["standard_error"]) == {None}
    assert (table.filter(measure="accuracy")["positive"] == 1).all()


def test_what_cannot_be_compared_is_left_out():
    whole = knocked_out({"add": np.array([1.0, 2.0, 3.0, 4.0])})
    without = whole.filter(~((pl.col("heuristic") == "h001") & (pl.col("arm") == "control")))
    gone = (pl.col("heuristic") == "h002") & (pl.col("arm") == "heuristic")
    knockouts = without.with_columns(pl.when(~gone).then(pl.col("dissociation")))
    neurons = [np.arange(5), np.arange(5), *np.arange(5, 15).reshape(2, 5)]
    given = {
        "knockouts_by_heuristic": knockouts,
        "heuristic_neurons": members({"add": neurons}),
    }
    table = ask("knockout_tests", given, **SETTINGS)
    assert table["measure"].to_list() == ["accuracy", "logit"]
    accuracy, logit = table.rows(named=True)
    assert (accuracy["heuristics"], accuracy["difference"]) == (2, pytest.approx((1 + 4) / 2))
    assert (logit["heuristics"], logit["difference"]) == (3, pytest.approx(-2 * (1 + 3 + 4) / 3))
    assert (accuracy["effective"], logit["effective"]) == pytest.approx((2, 3))


def test_the_seed_changes_the_draws():
    differences = {"add": np.random.default_rng(5).normal(0.3, 1, 15)}
    p_values = set()
    for seed in range(4):
        p_values.add(judged(differences, knockout_seed=seed)["p_value"][0])
    assert len(p_values) > 1


def test_without_knock_outs_there_is_no_test():
    assert judged({}).is_empty()


def test_the_pipeline_finds_what_was_planted(micro: Path):
    table = written(micro, "planted", "knockout_tests")
    assert set(table["operator"]) == {"add", "subtract"}
    assert (
        table.filter(ablation="mean", criterion="label").height
        == table.filter(ablation="zero", criterion="threshold").height
        == 4
    )
    assert (table["difference"] > 0).all()
    labels = table.filter(
        criterion="label"
    )  # of the others there are too few for a p-value to be small
    assert (labels["p_value"] < 0.02).all()
    accuracy = labels.filter(measure="accuracy")
    assert (accuracy["other"] == 1).all()
    assert (accuracy["associated"] < accuracy["control_associated"] - 0.3).all()


@pytest.mark.parametrize("name", ["abacus", "planted"])
def test_the_pipeline_tests_every_knock_out_that_has_a_control(micro: Path, name: str):
    knockouts, table = (
        written(micro, name, "knockouts_by_heuristic"),
        written(micro, name, "knockout_tests"),
    )
    both = (
        knockouts.drop_nulls("dissociation").group_by(*GROUP[:3], "heuristic").len().filter(len=2)
    )
    expected = both.group_by(GROUP[:3]).len().rows()
    assert set(table.select(*GROUP[:3], "heuristics").rows()) == set(expected)
    assert table.height == 2 * len(expected) > 0
