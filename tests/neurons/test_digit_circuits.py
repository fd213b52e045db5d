"""The query about circuits of single digits against brute force, on made runs of neurons whose
effects are planted.
"""

from collections import defaultdict
from itertools import product

import duckdb
import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from stages.neurons import digit_figure
from tests import made
from tests.circuit.figure_tables import image
from tests.made import FIRST, KS, LAYERS, NEURONS, OPERATORS, Tables, ask, frame, only

DIGITS = ("first-asked", "second-asked", "third-asked")
KEYS = ["subject", "operator", "half", "layer", "neuron"]


def of_digits(
    effects: np.ndarray, noise: float = 0.0, first_layers: tuple[int, ...] = (FIRST,) * 3
) -> Tables:
    """Tables of three subjects in which each late neuron has this effect on the digit, (3, layers,
    neurons), and noise by prompt.
    """
    given = only(made.measured(), "neuron_interventions", "pairs", "runs")
    # two pairs of each prompt
    prompts = given["pairs"].with_columns(op1=pl.col("pair") // 2, op2=pl.lit(1, pl.Int32))
    given["pairs"] = prompts
    rng = np.random.default_rng(5)
    late = late_neurons(given["neuron_interventions"])
    numbers = given["runs"]["intervention"].to_numpy()
    tables: dict[str, list[pl.DataFrame]] = defaultdict(list)
    for subject, planted, first in zip(DIGITS, effects, first_layers, strict=True):
        by_intervention = np.zeros(numbers.max() + 1)
        by_intervention[late["intervention"]] = planted[late["layer"], late["neuron"]]
        noises = noise * rng.normal(size=len(numbers)) * (numbers > 0)
        logits = pl.Series(2 * (by_intervention[numbers] + noises), dtype=pl.Float32)
        answers = {"counterfactual_logit": logits, "answer_logit": pl.lit(0.0, pl.Float32)}
        own = {
            "runs": given["runs"].with_columns(**answers),
            "late_layers": frame(subject="s", first_layer=[first], layers=LAYERS),
        }
        for name, table in (given | own).items():
            tables[name].append(table.with_columns(subject=pl.lit(subject)))
    return {name: pl.concat(parts) for name, parts in tables.items()}


def late_neurons(interventions: pl.DataFrame) -> pl.DataFrame:
    """Return which neuron each intervention in a late layer patches."""
    neuron = pl.col("units").list.first().alias("neuron")
    late = interventions.filter(position="last")
    return late.select("subject", "intervention", "layer", neuron)


def mean_effects(given: Tables) -> pl.DataFrame:
    """Return each late neuron's mean effect on either half of the prompts, in order of KEYS."""
    pairs = given["pairs"].filter(split="discovery")
    half = "md5_number_lower(concat_ws(':', 'half', operator, op1, op2)) % 2 as half"
    with duckdb.connect() as database:
        database.register("prompts", pairs)
        prompts = database.sql(f"select subject, operator, pair, {half} from prompts").pl()
    assert set(prompts.group_by("operator").agg(pl.col("half").n_unique())["half"]) == {2}
    late = late_neurons(given["neuron_interventions"])
    runs = given["runs"].join(prompts, on=["subject", "pair"])
    rows = runs.join(late, on=["subject", "intervention"]).group_by(KEYS)
    effect = pl.col("counterfactual_logit").cast(pl.Float64).mean() / 2
    return rows.agg(effect=effect).sort(KEYS)


def ask_digits(given: Tables, ks: list[int] = KS) -> pl.DataFrame:
    return ask(
        "digit_circuits", given, first=DIGITS[0], second=DIGITS[1], third=DIGITS[2], operator_ks=ks
    )


def test_shares_and_overlaps_are_those_of_brute_force():
    given = of_digits(np.random.default_rng(3).normal(size=(3, LAYERS, NEURONS)), noise=1.0)
    table = ask_digits(given)
    by_digit = mean_effects(given)["effect"].to_numpy()
    by_digit = by_digit.reshape(3, len(OPERATORS), 2, LAYERS - FIRST, NEURONS)
    assert table.height == len(OPERATORS) * 9 * len(KS)
    for row in table.rows(named=True):
        k, operator = row["k"], OPERATORS.index(row["operator"])
        effects = by_digit[row["digit"] - 1, operator]  # (halves, layers, neurons)
        own = np.argsort(-effects, kind="stable")[..., :k]
        others = by_digit[row["of_digit"] - 1, operator]
        others = np.argsort(-others, kind="stable")[..., :k]
        measured = effects[::-1]  # on the half on which a circuit was not chosen
        effect = np.take_along_axis(measured, others, 2).sum() / 2
        own_effect = np.take_along_axis(measured, own, 2).sum() / 2
        shared = (own[..., :, None] == others[::-1, ..., None, :]).sum()
        expected = {
            "effect": effect,
            "share": effect / own_effect,
            "share_by_chance": effects.sum() / 2 * k / NEURONS / own_effect,
            "iou": shared / (2 * own.size - shared),
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
    is_own = pl.col("digit") == pl.col("of_digit")
    own, others = table.filter(is_own)["effect"], table.filter(~is_own)["effect"]
    best = mean_effects(given).group_by("subject", "operator", "half", "layer").max()
    by_luck = best["effect"].mean() * (LAYERS - FIRST)  # chosen and measured on the same prompts
    assert abs(own.mean()) < by_luck / 2
    assert abs(others.mean()) < by_luck / 2


def test_a_prompt_is_in_one_half_whatever_the_numbers_of_its_pairs():
    given = of_digits(np.random.default_rng(3).normal(size=(3, LAYERS, NEURONS)), noise=1.0)
    numbers = given["pairs"]["pair"].unique().sort()
    others = numbers.shuffle(seed=0)
    renumbered = dict(given)
    for name in ("pairs", "runs"):
        pair = pl.col("pair").replace_strict(numbers, others, return_dtype=pl.Int32)
        renumbered[name] = given[name].with_columns(pair)
    measures = ask_digits(given), ask_digits(renumbered)
    assert_frame_equal(*measures, rel_tol=1e-6)
    assert measures[0].height


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
    table = ask_digits(given | {"neuron_interventions": named}, [2])
    assert table.equals(ask_digits(given | {"neuron_interventions": sampled}, [2]))
    by_chance = 2 / (2 * (NEURONS - 2) - 2)
    assert table["iou_by_chance"].unique().to_list() == pytest.approx([by_chance])


@pytest.mark.usefixtures("close_figures")
def test_the_figure_shows_the_shares_and_overlaps_of_the_fewest_neurons():
    table = ask_digits(of_digits(np.random.default_rng(3).uniform(0.1, 1, (3, LAYERS, NEURONS))))
    figure = digit_figure.draw(table, "model")
    assert len(figure.axes) == 2 * len(OPERATORS)
    panels = product(("share", "iou"), OPERATORS)
    for axis, (measure, operator) in zip(figure.axes, panels, strict=True):
        rows = table.filter(operator=operator, k=KS[0]).sort("of_digit", "digit")
        np.testing.assert_allclose(image(axis).ravel(), rows[measure], rtol=1e-6)
    assert "no data" in digit_figure.draw(table.clear(), "model").axes[0].texts[0].get_text()
