"""The query about circuits of single digits against brute force, on made runs of neurons whose
effects are planted.
"""

import numpy as np
import polars as pl
import pytest

from stages.neurons import digit_figure
from tests import made
from tests.made import FIRST, KS, LAYERS, NEURONS, OPERATORS, Tables, ask, frame, only

DIGITS = ("first-asked", "second-asked", "third-asked")


def of_digits(
    effects: np.ndarray, noise: float = 0.0, first_layers: tuple[int, ...] = (FIRST,) * 3
) -> Tables:
    """Tables of three subjects in which each late neuron has this effect on the digit, (3, layers,
    neurons), and noise by prompt.
    """
    given = only(made.measured(), "neuron_interventions", "pairs", "runs")
    rng = np.random.default_rng(5)
    late = {
        number: (layer, units[0])
        for number, layer, units in given["neuron_interventions"]
        .filter(position="last")
        .select("intervention", "layer", "units")
        .rows()
    }
    numbers = given["runs"]["intervention"].to_list()
    tables: dict[str, list[pl.DataFrame]] = {name: [] for name in (*given, "late_layers")}
    for subject, planted, first in zip(DIGITS, effects, first_layers, strict=True):
        moved = [
            (planted[late[n]] if n in late else 0) + noise * rng.normal() * (n > 0) for n in numbers
        ]
        logits = pl.Series("counterfactual_logit", moved, pl.Float32, strict=False) * 2
        own = {"runs": given["runs"].with_columns(logits, answer_logit=pl.lit(0.0, pl.Float32))}
        own["late_layers"] = frame(subject="s", first_layer=[first], layers=LAYERS)
        for name, table in (given | own).items():
            tables[name].append(table.with_columns(subject=pl.lit(subject)))
    return {name: pl.concat(parts) for name, parts in tables.items()}


def ask_digits(given: Tables, ks: list[int] = KS) -> pl.DataFrame:
    return ask(
        "digit_circuits", given, first=DIGITS[0], second=DIGITS[1], third=DIGITS[2], operator_ks=ks
    )


def test_shares_and_overlaps_are_those_of_brute_force():
    given = of_digits(np.random.default_rng(3).normal(size=(3, LAYERS, NEURONS)), noise=1.0)
    table = ask_digits(given)
    effects = {}  # (digit, operator, half) -> (late layers, neurons)
    for digit, subject in enumerate(DIGITS, 1):
        runs = {
            row["intervention"]: row
            for row in given["neuron_interventions"]
            .filter(subject=subject, position="last")
            .rows(named=True)
        }
        for operator in OPERATORS:
            pairs = (
                given["pairs"]
                .filter(subject=subject, operator=operator, split="discovery")["pair"]
                .to_list()
            )
            for half in (0, 1):
                selected = [p for p in pairs if p % 2 == half]
                effect = np.zeros((LAYERS, NEURONS))
                for number, row in runs.items():
                    answers = given["runs"].filter(
                        pl.col("pair").is_in(selected), subject=subject, intervention=number
                    )
                    effect[row["layer"], row["units"][0]] = (
                        answers["counterfactual_logit"].cast(pl.Float64).mean() / 2
                    )
                effects[digit, operator, half] = effect[FIRST:]
    assert table.height == len(OPERATORS) * 9 * len(KS)
    for row in table.rows(named=True):
        k, operator = row["k"], row["operator"]

        def top(digit: int, half: int, k: int = k, operator: str = operator) -> np.ndarray:
            return np.argsort(-effects[digit, operator, half], axis=1, kind="stable")[:, :k]

        def summed(
            of_digit: int, digit: int = row["digit"], operator: str = operator, top=top
        ) -> float:
            return (
                sum(
                    np.take_along_axis(
                        effects[digit, operator, 1 - half], top(of_digit, half), 1
                    ).sum()
                    for half in (0, 1)
                )
                / 2
            )

        everything = sum(effects[row["digit"], operator, half].sum() for half in (0, 1)) / 2
        sets = [
            (set(a), set(b))
            for half in (0, 1)
            for a, b in zip(top(row["digit"], half), top(row["of_digit"], 1 - half), strict=True)
        ]
        expected = {
            "effect": summed(row["of_digit"]),
            "share": summed(row["of_digit"]) / summed(row["digit"]),
            "share_by_chance": everything * k / NEURONS / summed(row["digit"]),
            "iou": sum(len(a & b) for a, b in sets) / sum(len(a | b) for a, b in sets),
            "iou_by_chance": k / (2 * NEURONS - k),
        }
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-9)
        assert row["layers"] == LAYERS - FIRST


def test_circuits_that_are_apart_are_told_from_one_circuit():
    apart = np.zeros((3, LAYERS, NEURONS))
    for digit in range(3):
        apart[digit, :, 2 * digit : 2 * digit + 2] = 1.0
    for planted, others in (
        (apart, 0.0),
        (apart.sum(0, keepdims=True).repeat(3, 0) * np.arange(1, 4)[:, None, None], 1.0),
    ):
        table = ask_digits(of_digits(planted), [2])
        assert set(table.filter(pl.col("digit") == pl.col("of_digit"))["share"]) == {1.0}
        assert set(table.filter(pl.col("digit") != pl.col("of_digit"))["share"]) == {others}
    own = ask_digits(of_digits(apart), [2])
    assert set(own.filter(pl.col("digit") == pl.col("of_digit"))["iou"]) == {1.0}
    assert set(own.filter(pl.col("digit") != pl.col("of_digit"))["iou"]) == {0.0}
    assert own["share_by_chance"].unique().to_list() == pytest.approx([2 / NEURONS])


def test_noise_has_no_circuits_and_a_choice_by_luck_gains_nothing():
    given = of_digits(np.zeros((3, LAYERS, NEURONS)), noise=1.0)
    table = ask_digits(given, [1])
    own, others = (
        table.filter((pl.col("digit") == pl.col("of_digit")) == same)["effect"]
        for same in (True, False)
    )
    patched = (
        given["runs"]
        .join(given["pairs"].filter(split="discovery"), on=["subject", "pair"])
        .with_columns(half=pl.col("pair") % 2)
    )
    late = (
        given["neuron_interventions"]
        .filter(position="last")
        .select("subject", "intervention", "layer")
    )
    effects = patched.join(late, on=["subject", "intervention"]).group_by(
        "subject", "operator", "half", "layer", "intervention"
    )
    best = (
        effects.agg(pl.col("counterfactual_logit").mean() / 2)
        .group_by("subject", "operator", "half", "layer")
        .max()
    )
    by_luck = best["counterfactual_logit"].mean() * (
        LAYERS - FIRST
    )  # chosen and measured on the same prompts
    assert abs(own.mean()) < by_luck / 2
    assert abs(others.mean()) < by_luck / 2


def test_layers_count_that_are_late_for_every_digit():
    table = ask_digits(
        of_digits(np.ones((3, LAYERS, NEURONS)), first_layers=(FIRST, FIRST + 1, FIRST))
    )
    assert set(table["layers"]) == {LAYERS - FIRST - 1}


def test_of_a_large_model_only_random_neurons_count():
    """Neurons that attribution chose were patched for one digit and not for the others."""
    given = of_digits(np.random.default_rng(3).normal(size=(3, LAYERS, NEURONS)))
    late = given["neuron_interventions"].with_columns(neuron=pl.col("units").list.first())
    selected = (pl.col("neuron") < 2) & (pl.col("subject") == DIGITS[0])
    operator = pl.when(selected).then(pl.lit("add")).otherwise("operator")
    sampled = late.filter(~selected).drop("neuron")
    for number in range(2):  # neither digit has them in the sample
        sampled = sampled.filter(pl.col("units").list.first() != number)
    named = pl.concat(
        [sampled, late.filter(selected).with_columns(operator=operator).drop("neuron")]
    )
    tables = [
        ask_digits(given | {"neuron_interventions": interventions}, [2])
        for interventions in (named, sampled)
    ]
    assert tables[0].equals(tables[1])
    assert tables[0]["iou_by_chance"].unique().to_list() == pytest.approx(
        [2 / (2 * (NEURONS - 2) - 2)],
    )


@pytest.mark.usefixtures("close_figures")
def test_the_figure_shows_the_shares_and_overlaps_of_the_fewest_neurons():
    table = ask_digits(of_digits(np.random.default_rng(3).uniform(0.1, 1, (3, LAYERS, NEURONS))))
    figure = digit_figure.draw(table, "model")
    assert len(figure.axes) == 2 * len(OPERATORS)
    for axis, (measure, operator) in zip(
        figure.axes, [(m, o) for m in ("share", "iou") for o in OPERATORS], strict=True
    ):
        rows = table.filter(operator=operator, k=KS[0]).sort("of_digit", "digit")
        assert np.asarray(axis.images[0].get_array()).flatten().tolist() == pytest.approx(
            rows[measure].to_list()
        )
    assert "no data" in digit_figure.draw(table.clear(), "model").axes[0].texts[0].get_text()
