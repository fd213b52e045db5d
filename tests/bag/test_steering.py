"""Check steering: means by digit, targets, planned patches, written values and measured rates."""

from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest

from stages.bag import digit_means, steering_given
from tests.bag.knocked import standing
from tests.made import Tables, ask, frame

DRAWS = {"steering_draws": 2, "steering_seed": 0}
SIZES = {"steered_neurons": [2, 4], "steering_seed": 0}
PLACES = {"ones": 10, "tens": 10, "carry": 2}  # place -> its digits


def means(operators: tuple[str, ...] = ("add",)) -> pl.DataFrame:
    """Return the table digit_means of layers 1 and 2 with three neurons each.

    The digit explains neuron 2 of layer 1 best, then neuron 0 of layer 2.
    """
    rows = []
    for operator in operators:
        for place, digits in PLACES.items():
            for layer, shares in ((1, [0.1, 0.2, 0.9]), (2, [0.8, 0.3, 0.0])):
                for digit in range(digits):
                    values = [100.0 * layer + digit, -digit, 0.5]
                    rows.append(("s", operator, place, layer, digit, 5, values, shares))
    return pl.DataFrame(rows, schema=digit_means.SCHEMA, orient="row", strict=False)


def pairs() -> pl.DataFrame:
    """Return evaluation pairs with the results 7 (no tens), 42 and 99, and a discovery pair.

    Only 15 + 27 carries.
    """
    columns = {
        "operator": ["add"] * 4,
        "op1": [3, 15, 50, 15],
        "op2": [4, 27, 49, 27],
        "split": ["evaluation"] * 3 + ["discovery"],
        "result": [7, 42, 99, 42],
        "answer_token": [17, 52, 109, 52],
    }
    table = frame(subject="s", pair=range(4), seed=0, **columns)
    tokens = pl.concat_list(pl.lit(token) for token in range(4))
    table = table.with_columns(tokens=tokens, positions=pl.struct(op2=pl.lit(2)))
    return table.cast(dict.fromkeys(("op1", "op2", "result"), pl.Int32))


def numbers() -> pl.DataFrame:
    return pl.DataFrame({"number": range(100), "token": range(10, 110)})


def given() -> dict[str, pl.DataFrame]:
    prompts = pairs().select("operator", "result", "answer_token", "tokens", op2_position=pl.lit(2))
    return {"digit_means": means(), "pairs": pairs(), "numbers": numbers(), "prompts": prompts}


def targets(draws: int = 2) -> pl.DataFrame:
    return ask("steering_targets", given(), **DRAWS | {"steering_draws": draws})


def matched() -> pl.DataFrame:
    """Return the table matched_neurons of the made means; the digit explains (1, 2) best."""
    stds = {(1, 0): 1.0, (1, 1): 5.0, (1, 2): 4.0, (2, 0): 1.0, (2, 1): 9.0, (2, 2): 2.0}
    layers, neurons = zip(*stds, strict=True)
    variances = np.square(list(stds.values()))
    tables = {
        "neuron_sums": frame(
            operator="add", layer=layers, neuron=neurons, cells=9, variance=variances
        ),
        "heuristic_neurons": standing([], "fdr"),
        "digit_means": means(),
    }
    return ask("matched_neurons", tables, steered_neurons=SIZES["steered_neurons"])


def labels(*neurons: tuple[int, int]) -> pl.DataFrame:
    """Return labels of neurons about the result, and of neuron 1 of layer 1 about a carry."""
    rows = [("add", *neuron, "result", "result mod 10 = 3") for neuron in neurons]
    rows += [("add", 1, 1, "both", "carry into 10"), ("add", 2, 2, "both", "carry into 100")]
    columns = ["operator", "layer", "neuron", "quantity", "heuristic"]
    return pl.DataFrame(rows, schema=columns, orient="row")


def planned(*labelled: tuple[int, int], draws: int = 2) -> pl.DataFrame:
    tables = given() | {"steering_targets": targets(draws), "labels": labels(*labelled)}
    tables["matched_neurons"] = matched()
    return ask("steering_interventions", tables, **SIZES)


def test_means_and_explained_shares_are_those_of_numpy():
    random = np.random.default_rng(0)
    digits = random.integers(-1, 9, 500)  # the digit 9 has no cells
    values = random.normal(size=(3, 500))
    values[1] += digits
    averages, cells, shares = digit_means.by_digit(values, digits)
    within = np.zeros(3)
    for digit in range(10):
        part = values[:, digits == digit]
        assert cells[digit] == part.shape[1]
        if cells[digit]:
            np.testing.assert_allclose(averages[digit], part.mean(1))
            within += np.square(part - part.mean(1, keepdims=True)).sum(1)
    known = values[:, digits >= 0]
    total = np.square(known - known.mean(1, keepdims=True)).sum(1)
    np.testing.assert_allclose(shares, 1 - within / total)
    assert shares.argmax() == 1
    assert cells[9] == 0
    assert not averages[9].any()


@dataclass(frozen=True)
class Grid:
    """A store's attributes and columns."""

    attributes: dict[str, str]
    columns: dict[str, np.ndarray]


@pytest.mark.parametrize("operator", ["add", "subtract", "multiply"])
@pytest.mark.parametrize("predicts", ["results", "first", "second", "chunks"])
def test_digits_of_cells_are_those_of_their_text(operator: str, predicts: str):
    op1, op2 = np.indices((30, 30))
    results = {"add": op1 + op2, "subtract": op1 - op2, "multiply": op1 * op2}[operator]
    results = np.where(results < 100, results, -1)
    attributes = {"operator": operator}
    digit = {"first": 0, "second": 1}.get(predicts)
    if predicts != "results":
        tokens = [str(n) for n in range(99)]
        if digit is not None:
            tokens = [text[digit : digit + 1] or "-1" for text in tokens]
        attributes["asked"] = ",".join([*tokens, "-1"])  # no answer to 99
    digits = digit_means.digits_of(Grid(attributes, {"result": results}))
    places = {"results": ["ones", "tens"], "chunks": []}.get(predicts, ["asked"])
    if operator != "multiply" and places:
        places.append("carry")
    assert list(digits) == places
    for every in digits.values():
        assert set(every[results < 0]) <= {-1}
    for a, b in np.argwhere(results >= 0):
        result, text = results[a, b], str(results[a, b])
        columns = a % 10, b % 10
        expected = {
            "ones": int(text[-1]),
            "tens": int(text[-2]) if len(text) > 1 else -1,
            "asked": -1 if result == 99 else int(text[digit or 0 :][:1] or -1),
            "carry": int(sum(columns) > 9 if operator == "add" else columns[0] < columns[1]),
        }
        for place, every in digits.items():
            assert every[a, b] == expected[place]


def test_each_prompt_has_its_own_digit_and_other_digits_as_targets():
    table = targets()
    assert set(table["pair"]) == {0, 1, 2}
    assert set(table.filter(pair=0)["place"]) == {"ones", "carry"}
    own, others = table.filter(draw=0), table.filter(pl.col("draw") > 0)
    assert (own["source"] == own["target"]).all()
    assert (others["source"] != others["target"]).all()
    digits = others.filter(pl.col("place") != "carry").group_by("pair", "place")
    assert digits.n_unique()["target"].to_list() == [2] * 5
    assert table.filter(pair=1, place="tens", draw=0)["source"].item() == 4
    # 7 with a carry is 17, 42 without one is 32, and 109 is not among the model's numbers
    carry = table.filter(place="carry").select("pair", "draw", "source", "target", "wanted")
    assert carry.rows() == [
        (0, 0, 0, 0, 17), (0, 1, 0, 1, 27), (1, 0, 1, 1, 52), (1, 1, 1, 0, 42), (2, 0, 0, 0, 109)
    ]  # fmt: skip
    # a model whose numbers end at 45 cannot answer 92
    few = given() | {"numbers": numbers().head(46)}
    table = ask("steering_targets", few, **DRAWS | {"steering_draws": 9})
    assert set(table["pair"]) == {0, 1}
    tens = table.filter(pl.col("draw") > 0, pair=1, place="tens")["target"]
    assert sorted(tens) == [1, 2, 3]  # 02 has no tens


def one_digit(operator: str, results: dict[tuple[int, int], int], number: int) -> Tables:
    """Return tables of a model that predicts one digit of its answers. number: from 0.

    results: op1, op2 -> result of each pair.
    """
    own = [(op1, op2, *read(result, number)) for (op1, op2), result in results.items()]
    columns = ["op1", "op2", "result", "tokens", "answer_token"]
    pairs = pl.DataFrame(own, schema=columns, orient="row")
    keys = {"subject": "s", "operator": operator, "split": "evaluation"}
    literals = {name: pl.lit(value) for name, value in keys.items()}
    every = [read(result, number) for result in range(400)]
    prompts = pl.DataFrame(every, schema=columns[2:], orient="row")
    digits = means((operator,)).filter(pl.col("place") != "tens")
    return {
        "digit_means": digits.with_columns(place=pl.col("place").replace("ones", "asked")),
        "pairs": pairs.with_row_index("pair").with_columns(
            pl.col("pair").cast(pl.Int32), positions=pl.struct(op2=pl.lit(2)), **literals
        ),
        "numbers": numbers().head(10),
        "prompts": prompts.with_columns(operator=pl.lit(operator), op2_position=pl.lit(2)),
    }


def read(result: int, number: int) -> tuple[int, list[int], int | None]:
    """Return a result, a prompt with the digits before this one, and the digit's token."""
    tokens = [10 + int(digit) for digit in str(result)]
    return result, [0, 1, 2, 3, *tokens[:number]], next(iter(tokens[number:]), None)


def test_a_model_that_predicts_the_first_digit_is_steered_to_digits_and_carries():
    results = {(82, 15): 67, (85, 12): 73, (12, 9): 3}
    tables = one_digit("subtract", results, 0)
    table = ask("steering_targets", tables, **DRAWS | {"steering_draws": 9})
    digits = table.filter(place="asked")
    assert digits.group_by("pair").len()["len"].to_list() == [10] * 3
    assert (digits["wanted"] == digits["target"] + 10).all()
    # 67 without its borrow is 77, 73 with one is 63, 3 without one is 13
    carry = table.filter(place="carry", draw=1).select("pair", "source", "target", "wanted")
    assert carry.rows() == [(0, 1, 0, 17), (1, 0, 1, 16), (2, 1, 0, 11)]


def test_a_model_that_predicts_the_second_digit_is_steered_to_carries_into_it():
    """Of two digits, the second is the ones, which have no carry."""
    results = {(75, 48): 123, (91, 98): 189, (151, 40): 191, (27, 48): 75, (51, 42): 93}
    table = ask("steering_targets", one_digit("add", results, 1), **DRAWS)
    carry = table.filter(place="carry")
    assert carry.filter(draw=0).select("pair", "source", "wanted").rows() == [
        (0, 1, 12), (1, 0, 18), (2, 0, 19), (3, 1, 15), (4, 0, 13)
    ]  # fmt: skip
    # 123 without its carry is 113, 189 with one is 199, and 191 is 201, with the tens digit 0; 75
    # and 65 have the same second digit; that of 103 is a tens digit, and after 9 the ones come
    others = carry.filter(draw=1).select("pair", "target", "wanted")
    assert others.rows() == [(0, 0, 11), (1, 1, 19), (2, 1, 10)]


def test_arms_have_the_neurons_that_the_digit_explains_best():
    table = planned((1, 1), (2, 0), (2, 2))
    every = {(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)}
    digits, carry = pl.col("place") != "carry", pl.col("place") == "carry"
    for arm, count, places, expected in [
        ("separating", 2, digits, {(1, 2), (2, 0)}),
        ("separating", 4, digits, {(1, 2), (2, 0), (2, 1), (1, 1)}),
        ("separating", 2, carry, {(1, 2), (2, 0)}),
        ("labelled", 2, digits, {(2, 0), (1, 1)}),
        ("labelled", 3, digits, {(2, 0), (1, 1), (2, 2)}),
        ("labelled", 1, carry, {(1, 1)}),
        ("matched", 2, digits, {(1, 1), (2, 2)}),
        ("matched", 2, carry, {(1, 1), (2, 2)}),
        ("all", 6, digits, every),
    ]:
        rows = table.filter(places, arm=arm, neurons=count)
        assert rows["intervention"].n_unique() == rows.select("place", "draw").n_unique()
        assert rows.select("place", "draw").n_unique() == (2 if places is carry else 6)
        for _, patches in rows.group_by("intervention"):
            units = patches.explode("units").select("layer", "units").rows()
            assert sorted(units) == sorted(expected), arm
    random = table.filter(arm="random").explode("units")
    assert sorted(random.group_by("intervention").len()["len"]) == [2] * 8 + [4] * 8
    assert table.filter(digits)["intervention"].n_unique() == 8 * 2 * 3
    assert table.filter(carry)["intervention"].n_unique() == 7 * 2
    # with four neurons, two of the three neurons of a layer separate
    assert set(table.filter(arm="matched")["neurons"]) == {2}
    row = table.filter(arm="all", place="tens", draw=2, layer=2).row(0, named=True)
    assert row["given"] == "tens 2 layer 2"


def test_a_pair_is_set_to_the_means_of_its_own_target():
    table = targets().with_columns(operator=pl.lit("add"), row="pair")
    arrays = dict(steering_given.values(table, means(), 4))
    assert len(arrays) == (3 + 3 + 2) * 2
    for row in table.iter_rows(named=True):
        array = arrays[f"{row['place']} {row['draw']} layer 2"]
        assert array.shape == (4, 3)
        np.testing.assert_array_equal(
            array[row["pair"]], [200 + row["target"], -row["target"], 0.5]
        )


def swapped(size: int) -> pl.Expr:
    """Return the wanted number with another digit at a place."""
    number = pl.col("wanted") - 10
    return pl.when(number // size % 10 < 9).then(number + size).otherwise(number - size)


@pytest.mark.parametrize("answers", ["target", "source", "digit"])
def test_rates_are_of_predictions_that_follow(answers: str):
    """Predictions are the wanted number, the result, or another number with the target digit."""
    interventions, wanted = planned((1, 1), (2, 0), (2, 2)), targets()
    steered = interventions.unique("intervention").select("intervention", "place", "draw")
    runs = steered.join(wanted, on=["place", "draw"]).join(pairs(), on="pair")
    number = {
        "target": pl.col("wanted") - 10,
        "source": pl.col("result"),
        # the target digit, but another digit at the other place
        "digit": pl.when(pl.col("place") == "ones").then(swapped(10)).otherwise(swapped(1)),
    }[answers]
    runs = runs.select("intervention", "pair", predicted=number + 10)
    runs = runs.with_columns(experiment=pl.lit("steering"))
    tables = given() | {"runs": runs, "steering_targets": wanted}
    tables["steering_interventions"] = interventions
    tables["bootstrap_weights"] = ask("bootstrap_weights", {"pairs": pairs()}, replicates=20)
    whole = ask("steering", tables)
    assert len(whole) == (8 * 2 + 7) * 2
    assert set(whole.filter(place="carry")["digit_follows"]) == {None}
    carry = whole.filter(place="carry", target="other")
    assert set(carry["follows"]) == {int(answers == "target")}
    assert set(carry["runs"]) == {2}
    table = whole.filter(pl.col("place") != "carry")
    assert len(table) == 8 * 2 * 2
    assert table["runs"].sum() == 8 * 3 * (3 + 2)
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


def test_neighbouring_digits_and_prompts_that_carry_have_rows_of_their_own():
    """Predictions follow only to neighbouring digits, and only where the prompt carries."""
    interventions, wanted = planned((1, 1), (2, 0), draws=9), targets(9)
    is_neighbour = (pl.col("target") - pl.col("source")).abs() == 1
    holds = pl.when(place="carry").then(pl.col("source") == 1).otherwise(is_neighbour)
    keys = ["place", "arm", "neurons"]
    steered = interventions.unique("intervention").select("intervention", "draw", *keys)
    joined = steered.join(wanted, on=["place", "draw"]).join(pairs(), on="pair")
    joined = joined.with_columns(holds=holds)
    predicted = pl.when("holds").then("wanted").otherwise("answer_token")
    runs = joined.select("intervention", "pair", predicted=predicted, experiment=pl.lit("steering"))
    tables = {"runs": runs, "steering_targets": wanted, "pairs": pairs()}
    tables["steering_interventions"] = interventions
    tables["bootstrap_weights"] = ask("bootstrap_weights", {"pairs": pairs()}, replicates=20)
    table = ask("steering_by_source", tables)
    counts = {"prompts": pl.n_unique("pair"), "runs": pl.len()}
    other = joined.filter(pl.col("draw") > 0)
    expected = other.group_by(*keys, "holds").agg(**counts).sort(*keys, "holds")
    table = table.with_columns(holds=pl.coalesce("neighbour", "carries")).sort(*keys, "holds")
    assert table.select(expected.columns).rows() == expected.rows()
    follows = table["holds"].cast(pl.Float64).to_list()
    for column in ("follows", "ci_low", "ci_high"):
        assert table[column].to_list() == follows
    assert (table["unchanged"] == 1 - table["follows"]).all()
    carry, digits = table.filter(place="carry"), table.filter(pl.col("place") != "carry")
    assert set(carry["neighbour"]) == set(digits["carries"]) == {None}
    assert set(carry["carries"]) == set(digits["neighbour"]) == {True, False}
