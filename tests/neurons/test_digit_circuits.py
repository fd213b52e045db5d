"""The queries about circuits of single digits against brute force, on made runs of neurons whose
effects are planted.
"""

from collections import defaultdict
from itertools import product
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from polars import selectors
from polars.testing import assert_frame_equal

from stages.neurons import digit_figure
from tests import made
from tests.circuit.figure_tables import image
from tests.made import FIRST, KS, LAYERS, NEURONS, OPERATORS, SITES, Tables, ask, frame, only

DIGITS = ("first-asked", "second-asked", "third-asked")
KEYS = ["subject", "operator", "half", "layer", "neuron"]
LATE = LAYERS - FIRST
SAMPLED = 3  # random neurons of a layer, if not all are patched


def of_digits(
    effects: np.ndarray,
    *,
    noise: float = 0.0,
    first_layers: tuple[int, ...] = (FIRST,) * 3,
    patched_neurons: int = 0,
    estimates: np.ndarray | None = None,
    ks: list[int] = KS,
    deviations: np.ndarray | None = None,
) -> Tables:
    """Return tables of models for two or three digits, with planted effects and noise by prompt.

    effects: of each neuron on each digit, (digits, layers, neurons); patched_neurons: 0 for all;
    estimates: mean attributions, by default the effects; ks: numbers of top neurons; deviations:
    standard deviations of neurons, shaped as effects.
    """
    if estimates is None:
        estimates = effects
    random = np.random.default_rng(5)
    if deviations is None:
        deviations = random.uniform(1, 2, effects.shape)
    tables: dict[str, list[pl.DataFrame]] = defaultdict(list)
    for number, first in zip(range(len(effects)), first_layers, strict=False):
        own = of_digit(effects, number, noise, patched_neurons, estimates[number], random)
        own["late_layers"] = frame(subject="s", first_layer=[first], layers=LAYERS)
        own["neuron_variances"] = variances(deviations[number])
        for name, table in own.items():
            tables[name].append(table.with_columns(subject=pl.lit(DIGITS[number])))
    given = {name: pl.concat(parts) for name, parts in tables.items()}
    given["architecture"] = given["architecture"].head(1)  # of the first digit
    return with_top_neurons(given, effects, noise, ks, random)


def variances(deviations: np.ndarray) -> pl.DataFrame:
    """Return the columns of `neuron_variances` that the queries read."""
    sites = list(product(OPERATORS, range(LAYERS), range(NEURONS)))
    operators, layers, neurons = zip(*sites, strict=True)
    values = deviations[np.array(layers), np.array(neurons)] ** 2
    keys = {"operator": operators, "layer": layers, "neuron": neurons}
    return frame(subject="s", **keys, variance=values)


def of_digit(
    effects: np.ndarray,
    number: int,
    noise: float,
    patched_neurons: int,
    estimates: np.ndarray,
    random: np.random.Generator,
) -> Tables:
    """Return the tables of the model for one digit. number: of the digit, from 0."""
    given = only(made.model(), "architecture", "late_layers", "pairs")
    # two pairs of each prompt
    prompts = given["pairs"].with_columns(op1=pl.col("pair") // 2, op2=pl.lit(1, pl.Int32))
    given["pairs"] = prompts.with_columns(**tokens(""), **tokens("counterfactual_"))
    given["neuron_attributions"] = attributions(estimates, given["pairs"], noise, random)
    few = {"patched_neurons": patched_neurons, "sampled_neurons": SAMPLED}
    interventions = ask("neuron_interventions", only(given, *made.CHOICE), **few)
    runs = made.runs(interventions, given["pairs"], "neuron")
    digit = pl.lit(number + 1, pl.Int32)
    runs = with_effects(runs.with_columns(digit=digit), interventions, effects, noise, random)
    return given | {"neuron_interventions": interventions, "runs": runs}


def tokens(which: str) -> dict[str, pl.Expr]:
    """Return the columns of a pair that the model reads."""
    roles = ("op1", "operator", "op2", "last")
    positions = [pl.lit(place, pl.Int16).alias(role) for place, role in enumerate(roles)]
    return {
        f"{which}tokens": pl.concat_list(pl.lit(token, pl.Int32) for token in range(1, 5)),
        f"{which}answer_token": pl.lit(5, pl.Int32),
        f"{which}positions": pl.struct(positions),
    }


def attributions(
    estimates: np.ndarray, pairs: pl.DataFrame, noise: float, random: np.random.Generator
) -> pl.DataFrame:
    """Return each neuron's attribution on each discovery pair. estimates: (layers, neurons)."""
    numbers = pairs.filter(split="discovery")["pair"].to_list()
    sites, neurons, prompts = zip(*product(SITES, range(NEURONS), numbers), strict=True)
    layers, positions = zip(*sites, strict=True)
    means = estimates[np.array(layers), np.array(neurons)]
    values = (means + noise * random.normal(size=len(means))).astype(np.float32)
    table = {"layer": layers, "neuron": neurons, "position": positions, "pair": prompts}
    return frame(subject="s", **table, attribution=values)


def with_effects(
    runs: pl.DataFrame,
    interventions: pl.DataFrame,
    effects: np.ndarray,
    noise: float,
    random: np.random.Generator,
) -> pl.DataFrame:
    """Return runs with the planted effect of each late neuron. runs: with the digit, from 1."""
    late = late_neurons(interventions).drop("subject")
    sites = runs.join(late, on="intervention", how="left")
    columns = [sites[name].fill_null(0).to_numpy() for name in ("digit", "layer", "neuron")]
    digit, layer, neuron = columns
    noisy = effects[digit - 1, layer, neuron] + noise * random.normal(size=len(sites))
    measured = np.where(sites["layer"].is_not_null().to_numpy(), noisy, 0)
    logits = pl.Series(2 * measured, dtype=pl.Float32)
    answers = {"counterfactual_logit": logits, "answer_logit": pl.lit(0.0, pl.Float32)}
    return sites.with_columns(**answers).drop("digit", "layer", "neuron")


def with_top_neurons(
    given: Tables,
    effects: np.ndarray,
    noise: float,
    ks: list[int],
    random: np.random.Generator,
) -> Tables:
    """Add what the stages digit_interventions and digit_runs write."""
    names = ("late_layers", "pairs", "neuron_attributions", "neuron_interventions", "architecture")
    digits, pairs = digits_of(given), only(given, "pairs")
    tops = ask("digit_neurons", only(given, *names, "runs"), **digits, operator_ks=ks)
    selected = {"digit_neurons": tops}
    given_matches = selected | only(given, "neuron_variances")
    selected["digit_matched"] = ask("digit_matched", given_matches, **digits, operator_ks=ks)
    pairs = ask("digit_pairs", pairs | {"digit_neurons": tops}, **digits)
    interventions = ask("digit_interventions", selected, first=DIGITS[0])
    runs = made.runs(interventions, pairs, "digit")
    runs = runs.join(pairs.select("pair", "digit"), on="pair")
    runs = with_effects(runs, interventions, effects, noise, random)
    runs = runs.with_columns(subject=pl.lit(DIGITS[0]))
    selected |= {"digit_pairs": pairs, "digit_interventions": interventions}
    runs = pl.concat([given["runs"], runs.select(given["runs"].columns)])
    return given | selected | {"runs": runs}


def digits_of(given: Tables) -> dict[str, str]:
    """Return the entry of each digit. Of two digits, the third is the second again."""
    count = given["late_layers"]["subject"].n_unique()
    return {"first": DIGITS[0], "second": DIGITS[1], "third": DIGITS[count - 1]}


def late_neurons(interventions: pl.DataFrame) -> pl.DataFrame:
    """Return which neuron each intervention in a late layer patches."""
    neuron = pl.col("units").list.first().alias("neuron")
    late = interventions.filter(position="last")
    return late.select("subject", "intervention", "layer", neuron)


def halves(given: Tables) -> pl.DataFrame:
    """Return the operator and the half of each digit's discovery pairs."""
    pairs = given["pairs"].filter(split="discovery")
    half = "md5_number_lower(concat_ws(':', 'half', operator, op1, op2)) % 2 as half"
    with duckdb.connect() as database:
        database.register("prompts", pairs)
        prompts = database.sql(f"select subject, operator, pair, {half} from prompts").pl()
    assert set(prompts.group_by("operator").agg(pl.col("half").n_unique())["half"]) == {2}
    return prompts


def mean_effects(given: Tables) -> pl.DataFrame:
    """Return each late neuron's mean effect on either half of the prompts, in order of KEYS."""
    late = late_neurons(given["neuron_interventions"])
    runs = given["runs"].filter(experiment="neuron").join(halves(given), on=["subject", "pair"])
    rows = runs.join(late, on=["subject", "intervention"]).group_by(KEYS)
    effect = pl.col("counterfactual_logit").cast(pl.Float64).mean() / 2
    return rows.agg(effect=effect).sort(KEYS)


def ask_digits(given: Tables, ks: list[int] = KS, replicates: int = 20) -> pl.DataFrame:
    names = ["pairs", "neuron_interventions", "runs", "digit_neurons", "digit_matched"]
    names += ["digit_pairs", "digit_interventions"]
    draws = {"replicates": replicates, "confidence": 0.9, "resampling_seed": 0}
    return ask("digit_circuits", only(given, *names), **digits_of(given), **draws, operator_ks=ks)


def deviations_of(given: Tables) -> np.ndarray:
    """Return standard deviations in late layers: (digits, operators, layers, neurons)."""
    rows = given["neuron_variances"].filter(pl.col("layer") >= FIRST)
    return np.sqrt(rows["variance"].to_numpy()).reshape(-1, len(OPERATORS), LATE, NEURONS)


def matched(
    tops: np.ndarray,
    digit: int,
    of_digit: int,
    deviations: np.ndarray,
    measured: np.ndarray,
) -> dict[str, float | None]:
    """Return the effect of neurons that vary as much as top neurons, and the deviations of both.

    tops: (digits, halves, layers, k); digit, of_digit: from 0; deviations: of the measured digit,
    (layers, neurons); measured: effects on it, on the half that did not select, (halves, layers,
    neurons).
    """
    k = tops.shape[-1]
    effect, own, others = 0.0, [], []
    for half, layer in product(range(2), range(LATE)):
        std = deviations[layer, tops[of_digit, half, layer]].mean()
        left = np.setdiff1d(range(NEURONS), tops[:, :, layer])
        if len(left) < k:
            return {"effect": None, "std": None, "matched_std": None}
        distances = abs(deviations[layer, left] - std)
        nearest = left[np.argsort(distances, kind="stable")[:k]]
        effect += measured[half, layer, nearest].sum() / 2
        own.append(std)
        others.append(deviations[layer, nearest].mean())
    return {"effect": effect, "std": np.mean(own), "matched_std": np.mean(others)}


def expected_row(
    tops: np.ndarray,
    digit: int,
    of_digit: int,
    deviations: np.ndarray,
    measured: np.ndarray,
    by_chance: float,
) -> dict[str, float | None]:
    """Return the numbers of a row of digit_circuits. by_chance: effect of random neurons."""
    k = tops.shape[-1]
    own, others = tops[digit], tops[of_digit]
    effect = np.take_along_axis(measured, others, 2).sum() / 2
    own_effect = np.take_along_axis(measured, own, 2).sum() / 2
    shared = (own[..., :, None] == others[::-1, ..., None, :]).sum()
    control = matched(tops, digit, of_digit, deviations, measured)
    return {
        "effect": effect,
        "share": effect / own_effect,
        "share_by_chance": by_chance / own_effect,
        "matched_share": None if control["effect"] is None else control["effect"] / own_effect,
        "std": control["std"],
        "matched_std": control["matched_std"],
        "iou": shared / (2 * own.size - shared),
        "iou_by_chance": k / (2 * NEURONS - k),
    }


def check(row: dict[str, Any], expected: dict[str, float | None]) -> None:
    values = np.array([row[name] for name in expected], float)  # None becomes NaN
    np.testing.assert_allclose(values, np.array([*expected.values()], float), 1e-6, 1e-9)


def test_shares_and_overlaps_are_those_of_brute_force():
    given = of_digits(np.random.default_rng(3).normal(size=(3, LAYERS, NEURONS)), noise=0.5)
    table = ask_digits(given)
    by_digit = mean_effects(given)["effect"].to_numpy()
    by_digit = by_digit.reshape(3, len(OPERATORS), 2, LAYERS - FIRST, NEURONS)
    deviations = deviations_of(given)
    assert table.height == len(OPERATORS) * 9 * len(KS)
    assert set(table.drop_nulls("matched_share")["k"]) == {KS[0]}  # too few others for more
    for row in table.rows(named=True):
        k, operator = row["k"], OPERATORS.index(row["operator"])
        digit, of_digit = row["digit"] - 1, row["of_digit"] - 1
        tops = np.argsort(-by_digit[:, operator], kind="stable")[..., :k]
        effects = by_digit[digit, operator]  # (halves, layers, neurons)
        by_chance = effects.sum() / 2 * k / NEURONS
        own = deviations[digit, operator]
        expected = expected_row(tops, digit, of_digit, own, effects[::-1], by_chance)
        check(row, expected)
        assert row["layers"] == LAYERS - FIRST


def test_intervals_are_those_of_another_bootstrap():
    effects = np.random.default_rng(3).uniform(1, 2, (2, LAYERS, NEURONS))
    given = of_digits(effects, noise=1.0)
    table = ask_digits(given, [1], replicates=4000).filter(operator=OPERATORS[0])
    late = late_neurons(given["neuron_interventions"])
    runs = given["runs"].filter(experiment="neuron").join(halves(given), on=["subject", "pair"])
    runs = runs.join(late, on=["subject", "intervention"]).filter(operator=OPERATORS[0])
    runs = runs.with_columns(value=pl.col("counterfactual_logit").cast(pl.Float64) / 2)
    means = runs.group_by(KEYS).agg(pl.col("value").mean())
    tops = means.sort("value", descending=True).group_by("subject", "half", "layer").head(1)
    for row in table.rows(named=True):
        measured = runs.filter(subject=DIGITS[row["digit"] - 1])
        shares = [
            resampled(measured, tops.filter(subject=DIGITS[digit - 1]))
            for digit in (row["of_digit"], row["digit"])
        ]
        low, high = np.quantile(shares[0] / shares[1], [0.05, 0.95])
        width = high - low
        assert row["ci_low"] == pytest.approx(low, abs=0.1 * width)
        assert row["ci_high"] == pytest.approx(high, abs=0.1 * width)
        assert width > 0 or row["digit"] == row["of_digit"]


def resampled(runs: pl.DataFrame, tops: pl.DataFrame) -> np.ndarray:
    """Return bootstrap effects of top neurons on the half that did not select them.

    The draws depend on the half alone, so that effects of different neurons have the same draws.
    """
    other = pl.col("half").replace_strict([0, 1], [1, 0], return_dtype=pl.Int64)
    sites = ["half", "layer", "neuron"]
    own = runs.join(tops.with_columns(other).select(sites), on=sites)
    effects = np.zeros(4000)
    for (half,), rows in own.group_by("half"):
        sums = rows.group_by("pair").agg(pl.col("value").sum()).sort("pair")["value"].to_numpy()
        random = np.random.default_rng(half)
        draws = random.integers(len(sums), size=(4000, len(sums) - 1))
        effects += sums[draws].mean(1) / 2
    return effects


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
    drawn = selectors.contains("ci_")  # by the numbers of pairs
    measures = [ask_digits(tables).drop(drawn) for tables in (given, renumbered)]
    assert_frame_equal(*measures, rel_tol=1e-6)
    assert measures[0].height


def test_layers_count_that_are_late_for_every_digit():
    effects = np.ones((3, LAYERS, NEURONS))
    table = ask_digits(of_digits(effects, first_layers=(FIRST, FIRST + 1, FIRST)))
    assert set(table["layers"]) == {LATE - 1}


def planted(*circuits: int) -> np.ndarray:
    """Return effects of digits: of the two neurons of each layer that are the digit's circuit.

    circuits: of each digit, from 0. Digits with the same circuit differ in the effects' size.
    """
    effects = np.zeros((len(circuits), LAYERS, NEURONS))
    for number, circuit in enumerate(circuits):
        effects[number, :, 2 * circuit : 2 * circuit + 2] = number + 1.0
    return effects


@pytest.mark.parametrize("patched_neurons", [0, 1])
@pytest.mark.parametrize("circuits", [(0, 1), (1, 1), (0, 1, 1), (0, 1, 2)])
def test_shared_and_separate_circuits_are_told_apart(
    circuits: tuple[int, ...], patched_neurons: int
):
    """Two and three digits, once with every neuron patched, once with few of a larger model."""
    given = of_digits(planted(*circuits), patched_neurons=patched_neurons, ks=[2])
    table = ask_digits(given, [2])
    assert len(table) == len(OPERATORS) * len(circuits) ** 2
    for row in table.rows(named=True):
        is_shared = circuits[row["digit"] - 1] == circuits[row["of_digit"] - 1]
        assert (row["share"], row["iou"], row["layers"]) == (is_shared, is_shared, LATE)
        assert row["effect"] == is_shared * row["digit"] * 2 * LATE
        assert row["iou_by_chance"] == pytest.approx(2 / (2 * NEURONS - 2))
        if not patched_neurons:
            assert row["share_by_chance"] == pytest.approx(2 / NEURONS)
        # neurons that write no digit change nothing, however much they vary
        assert row["matched_share"] == (None if len(set(circuits)) == 3 else 0)


@pytest.mark.parametrize("patched_neurons", [0, 1])
def test_effects_that_follow_the_standard_deviation_are_those_of_matched_neurons(
    patched_neurons: int,
):
    """The share of another digit's neurons then says nothing about circuits."""
    deviations = np.tile([5.0, 5, 5, 5, 1, 1], (2, LAYERS, 1))
    favoured = deviations + np.array([0.01, 0.01, 0, 0, 0, 0])
    options = {"patched_neurons": patched_neurons, "estimates": favoured, "ks": [2]}
    table = ask_digits(of_digits(deviations, **options, deviations=deviations), [2])
    measures = table["share", "matched_share"].to_numpy()
    np.testing.assert_array_equal(measures, np.ones((len(OPERATORS) * 4, 2)))
    assert table["std"].to_list() == table["matched_std"].to_list() == [5.0] * len(table)


def test_few_patched_neurons_are_measured_on_the_half_that_did_not_select_them():
    """Attribution differs from the effects, which count."""
    random = np.random.default_rng(3)
    effects, estimates = random.normal(size=(2, 3, LAYERS, NEURONS))
    noisy: dict[str, Any] = {"noise": 0.5, "estimates": estimates}
    given = of_digits(effects, **noisy, patched_neurons=1, ks=[1, 2])
    table = ask_digits(given, [1, 2])
    assert table["k"].unique().to_list() == [1]  # the second neuron of a list was not patched
    assert len(table) == len(OPERATORS) * 9
    assert table["matched_share"].count()
    estimated = estimated_by_half(given)  # (digits, operators, halves, layers, neurons)
    exact, sampled = planned_effects(given), sampled_effects(given)
    tops = np.argsort(-estimated, kind="stable")[..., :1]
    deviations = deviations_of(given)
    for row in table.rows(named=True):
        operator = OPERATORS.index(row["operator"])
        digit, of_digit = row["digit"] - 1, row["of_digit"] - 1
        measured = exact[digit, operator][::-1]  # on the half that did not select
        by_chance = np.nanmean(sampled[digit, operator], -1).sum() / 2
        own = deviations[digit, operator]
        expected = expected_row(tops[:, operator], digit, of_digit, own, measured, by_chance)
        check(row, expected)


def arranged(means: pl.DataFrame) -> np.ndarray:
    """Return means as an array in order of KEYS, NaN for a neuron without one."""
    values = np.full((len(DIGITS), len(OPERATORS), 2, LATE, NEURONS), np.nan)
    for subject, operator, half, layer, neuron, value in means.select(*KEYS, "value").rows():
        digit = DIGITS.index(subject)
        values[digit, OPERATORS.index(operator), half, layer - FIRST, neuron] = value
    return values


def estimated_by_half(given: Tables) -> np.ndarray:
    late = given["neuron_attributions"].filter(position="last")
    rows = late.join(halves(given), on=["subject", "pair"]).group_by(KEYS)
    return arranged(rows.agg(value=pl.col("attribution").cast(pl.Float64).mean()))


def planned_effects(given: Tables) -> np.ndarray:
    """Return the effects that digit_runs measures."""
    pairs = given["digit_pairs"].select("pair", "digit", "operator", "half")
    runs = given["runs"].filter(experiment="digit").drop("subject").join(pairs, on="pair")
    late = late_neurons(given["digit_interventions"]).drop("subject")
    named = dict(enumerate(DIGITS, 1))
    runs = runs.join(late, on="intervention")
    runs = runs.with_columns(subject=pl.col("digit").replace_strict(named))
    effect = pl.col("counterfactual_logit").cast(pl.Float64).mean() / 2
    return arranged(runs.group_by(KEYS).agg(value=effect))


def sampled_effects(given: Tables) -> np.ndarray:
    """Return the effects of the random neurons, which are patched for all operators."""
    sample = given["neuron_interventions"].filter(pl.col("operator").is_null())
    effects = arranged(
        mean_effects(given | {"neuron_interventions": sample}).rename({"effect": "value"})
    )
    assert set(np.isfinite(effects).sum(-1).ravel()) == {SAMPLED}
    return effects


@pytest.mark.parametrize("patched_neurons", [0, 1])
@pytest.mark.parametrize("kept_halves", [[], [0]])
def test_an_operator_without_prompts_of_one_digit_in_one_half_is_left_out(
    patched_neurons: int, kept_halves: list[int]
):
    effects = np.random.default_rng(3).normal(size=(2, LAYERS, NEURONS))
    given = of_digits(effects, patched_neurons=patched_neurons, ks=[2])
    assert set(ask_digits(given, [2])["operator"]) == {*OPERATORS}
    left_out = halves(given).filter(~pl.col("half").is_in(kept_halves))
    left_out = left_out.filter(subject=DIGITS[1], operator="subtract")
    fewer = given["pairs"].join(left_out, on=["subject", "pair"], how="anti")
    assert len(fewer) < len(given["pairs"])
    runs = given["runs"].filter(experiment="neuron")
    fewer = given | {"pairs": fewer, "runs": runs}
    fewer = with_top_neurons(fewer, effects, 0.0, [2], np.random.default_rng(0))
    assert ask_digits(fewer, [2])["operator"].unique().to_list() == ["add"]


@pytest.mark.usefixtures("close_figures")
def test_the_figure_shows_the_shares_and_overlaps_of_the_fewest_neurons():
    table = ask_digits(of_digits(np.random.default_rng(3).uniform(0.1, 1, (3, LAYERS, NEURONS))))
    figure = digit_figure.draw(table, "model")
    assert len(figure.axes) == 3 * len(OPERATORS)
    panels = product(("share", "matched_share", "iou"), OPERATORS)
    for axis, (measure, operator) in zip(figure.axes, panels, strict=True):
        rows = table.filter(operator=operator, k=KS[0]).sort("of_digit", "digit")
        np.testing.assert_allclose(image(axis).ravel(), rows[measure], rtol=1e-6)
    assert "no data" in digit_figure.draw(table.clear(), "model").axes[0].texts[0].get_text()


@pytest.mark.usefixtures("close_figures")
def test_the_figure_of_two_digits_has_no_third():
    table = ask_digits(of_digits(np.random.default_rng(3).uniform(0.1, 1, (2, LAYERS, NEURONS))))
    for axis in digit_figure.draw(table, "model").axes:
        assert image(axis).shape == (2, 2)
