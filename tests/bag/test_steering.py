"""Check steering: means by digit, targets, planned patches, written values and measured rates."""

import numpy as np
import polars as pl
import pytest

from stages.bag import digit_means, steering_given
from tests.made import ask, frame

DRAWS = {"steering_draws": 2, "steering_seed": 0}
SIZES = {"steered_neurons": [2, 4], "steering_seed": 0}


def means(operators: tuple[str, ...] = ("add",)) -> pl.DataFrame:
    """Return the table digit_means of layers 1 and 2 with three neurons each.

    The digit explains neuron 2 of layer 1 best, then neuron 0 of layer 2.
    """
    rows = []
    for operator in operators:
        for place in ("ones", "tens"):
            for layer, shares in ((1, [0.1, 0.2, 0.9]), (2, [0.8, 0.3, 0.0])):
                for digit in range(10):
                    values = [100.0 * layer + digit, -digit, 0.5]
                    rows.append(("s", operator, place, layer, digit, 5, values, shares))
    return pl.DataFrame(rows, schema=digit_means.SCHEMA, orient="row", strict=False)


def pairs() -> pl.DataFrame:
    """Return evaluation pairs with the results 7 (no tens), 42 and 99, and a discovery pair."""
    columns = {
        "operator": ["add"] * 4,
        "split": ["evaluation"] * 3 + ["discovery"],
        "result": [7, 42, 99, 42],
        "answer_token": [17, 52, 109, 52],
    }
    table = frame(subject="s", pair=range(4), seed=0, **columns)
    return table.cast({"result": pl.Int32})


def numbers() -> pl.DataFrame:
    return pl.DataFrame({"number": range(100), "token": range(10, 110)})


def targets() -> pl.DataFrame:
    given = {"digit_means": means(), "pairs": pairs(), "numbers": numbers()}
    return ask("steering_targets", given, **DRAWS)


def labels(*neurons: tuple[int, int]) -> pl.DataFrame:
    rows = [("add", *neuron, "result") for neuron in neurons]
    columns = ["operator", "layer", "neuron", "quantity"]
    return pl.DataFrame(rows, schema=columns, orient="row")


def planned(*labelled: tuple[int, int]) -> pl.DataFrame:
    given = {"digit_means": means(), "pairs": pairs(), "steering_targets": targets()}
    given["labels"] = labels(*labelled)
    return ask("steering_interventions", given, **SIZES)


def test_means_and_explained_shares_are_those_of_numpy():
    random = np.random.default_rng(0)
    results = random.integers(0, 40, 500)
    values = random.normal(size=(3, 500))
    values[0] += results % 10
    values[1] += results // 10 % 10
    for place, (averages, cells, shares) in digit_means.by_digit(values, results).items():
        size = digit_means.PLACES[place]
        own = results >= 10 if place == "tens" else results >= 0
        digits = results // size % 10
        within = np.zeros(3)
        for digit in range(10):
            part = values[:, own & (digits == digit)]
            assert cells[digit] == part.shape[1]
            if cells[digit]:
                np.testing.assert_allclose(averages[digit], part.mean(1))
                within += np.square(part - part.mean(1, keepdims=True)).sum(1)
        total = np.square(values[:, own] - values[:, own].mean(1, keepdims=True)).sum(1)
        np.testing.assert_allclose(shares, 1 - within / total)
        assert shares.argmax() == list(digit_means.PLACES).index(place)


def test_each_prompt_has_its_own_digit_and_other_digits_as_targets():
    table = targets()
    assert set(table["pair"]) == {0, 1, 2}
    assert table.filter(pair=0)["place"].unique().to_list() == ["ones"]
    own, others = table.filter(draw=0), table.filter(pl.col("draw") > 0)
    assert (own["source"] == own["target"]).all()
    assert (others["source"] != others["target"]).all()
    assert others.group_by("pair", "place").n_unique()["target"].to_list() == [2] * 5
    assert table.filter(pair=1, place="tens", draw=0)["source"].item() == 4
    # a model whose numbers end at 45 cannot answer 92
    few = {"digit_means": means(), "pairs": pairs(), "numbers": numbers().head(46)}
    table = ask("steering_targets", few, **DRAWS | {"steering_draws": 9})
    assert set(table["pair"]) == {0, 1}
    tens = table.filter(pl.col("draw") > 0, pair=1, place="tens")["target"]
    assert sorted(tens) == [1, 2, 3]  # 02 has no tens


def test_arms_have_the_neurons_that_the_digit_explains_best():
    table = planned((1, 1), (2, 0), (2, 2))
    every = {(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)}
    for arm, count, expected in [
        ("separating", 2, {(1, 2), (2, 0)}),
        ("separating", 4, {(1, 2), (2, 0), (2, 1), (1, 1)}),
        ("labelled", 2, {(2, 0), (1, 1)}),
        ("labelled", 3, {(2, 0), (1, 1), (2, 2)}),
        ("all", 6, every),
    ]:
        rows = table.filter(arm=arm, neurons=count)
        assert rows["intervention"].n_unique() == 2 * 3
        for _, patches in rows.group_by("intervention"):
            units = patches.explode("units").select("layer", "units").rows()
            assert sorted(units) == sorted(expected), arm
    random = table.filter(arm="random").explode("units")
    assert sorted(random.group_by("intervention").len()["len"]) == [2] * 6 + [4] * 6
    assert table["intervention"].n_unique() == 7 * 2 * 3
    row = table.filter(arm="all", place="tens", draw=2, layer=2).row(0, named=True)
    assert row["given"] == "tens 2 layer 2"


def test_a_pair_is_set_to_the_means_of_its_own_target():
    table = targets().with_columns(operator=pl.lit("add"), row="pair")
    arrays = dict(steering_given.values(table, means(), 4))
    assert len(arrays) == 2 * 3 * 2
    for row in table.iter_rows(named=True):
        array = arrays[f"{row['place']} {row['draw']} layer 2"]
        assert array.shape == (4, 3)
        np.testing.assert_array_equal(
            array[row["pair"]], [200 + row["target"], -row["target"], 0.5]
        )


@pytest.mark.parametrize("answers", ["target", "source", "digit"])
def test_rates_are_of_predictions_that_follow(answers: str):
    """Predictions are the wanted number, the result, or another number with the target digit."""
    interventions, wanted = planned((1, 1), (2, 0), (2, 2)), targets()
    steered = interventions.unique("intervention").select("intervention", "place", "draw")
    runs = steered.join(wanted, on=["place", "draw"]).join(pairs(), on="pair")
    size = pl.when(pl.col("place") == "ones").then(1).otherwise(10)
    number = pl.col("result") + (pl.col("target") - pl.col("source")) * size
    if answers == "source":
        number = pl.col("result")
    if answers == "digit":  # another digit at the other place
        other = pl.when(size == 1).then(10).otherwise(1)
        number = pl.when(number // other % 10 < 9).then(number + other).otherwise(number - other)
    runs = runs.select("intervention", "pair", predicted=number + 10)
    runs = runs.with_columns(experiment=pl.lit("steering"))
    given = {"runs": runs, "steering_interventions": interventions, "steering_targets": wanted}
    given |= {"pairs": pairs(), "numbers": numbers()}
    given["bootstrap_weights"] = ask("bootstrap_weights", {"pairs": pairs()}, replicates=20)
    table = ask("steering", given)
    assert len(table) == 7 * 2 * 2
    assert table["runs"].sum() == 7 * 3 * (3 + 2)
    other = table.filter(target="other")
    follows, digit, same = {
        "target": (1, 1, 0),
        "source": (0, 0, 1),
        "digit": (0, 1, 0),
    }[answers]
    assert set(other["follows"]) == {follows}
    assert set(other["ci_low"]) == set(other["ci_high"]) == {follows}
    assert set(other["digit_follows"]) == {digit}
    assert set(other["unchanged"]) == {same}
    assert set(other["other"]) == {answers == "digit"}
    own = table.filter(target="own")
    assert set(own["follows"]) == set(own["unchanged"]) == {answers != "digit"}
