"""The recall of attribution on planted truths: exact, or estimated from a random sample."""

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests import made
from tests.made import OPERATORS, SITES, Tables, ask, frame, only

KEYS = ["operator", "layer", "position", "k"]
NEURONS, TOP, SAMPLE, K, DRAWS = 300, 15, 40, 10, 400


@pytest.fixture(scope="module")
def given() -> Tables:
    measured = made.measured()
    return only(measured, "neuron_interventions") | {"neuron_effects": made.effects(measured)}


def test_where_all_neurons_are_patched_recall_is_exact(given: Tables):
    table = ask("attribution_recall", given, ks=[1, 3, 6, 99])
    agreement = ask("attribution_agreement", given, ks=[1, 3, 6]).filter(against="logit_effect")
    by_layer = table.drop_nulls("layer").join(agreement, on=KEYS, how="full", suffix="_compared")
    assert by_layer.height == len(OPERATORS) * len(SITES) * 3
    for name in ("recall", "chance"):
        assert by_layer[name].to_list() == pytest.approx(by_layer[f"{name}_compared"].to_list())
    assert table["ci_low"].to_list() == table["ci_high"].to_list() == table["recall"].to_list()
    assert (table["top"] + table["sampled"] == table["neurons"]).all()
    late = by_layer.filter(position="last").group_by("operator", "k").agg(pl.mean("recall"))
    together = table.filter(pl.col("layer").is_null()).select("operator", "k", "recall")
    assert_frame_equal(together, late, check_row_order=False, rel_tol=1e-6)


def drawn(noise: float, seed: int = 0) -> tuple[Tables, list[float]]:
    """Return tables in which each layer is a draw of neurons and of a sample, and the true recalls.

    noise: standard deviation of what attribution adds to an effect.
    """
    rng = np.random.default_rng(seed)
    effects, truths, samples = [], [], []
    for layer in range(DRAWS):
        effect = rng.standard_t(3, NEURONS)
        attribution = effect + noise * rng.normal(size=NEURONS)
        top, sample = np.argsort(-attribution)[:TOP], rng.permutation(NEURONS)[:SAMPLE]
        patched = np.union1d(top, sample)
        threshold = np.sort(effect[patched])[-K]
        truths.append((effect[top] >= threshold).sum() / (effect >= threshold).sum())
        samples.append(frame(layer=layer, neuron=sample))
        for method, neurons, values in (
            ("attribution", np.arange(NEURONS), attribution),
            ("exact", patched, effect),
        ):
            ranks = 1 + np.argsort(np.argsort(-values[neurons]))
            site = {"method": method, "layer": layer, "neuron": neurons}
            effects.append(frame(**site, effect=values[neurons], rank=ranks))
    interventions = pl.concat(samples).select(
        "layer",
        units=pl.concat_list("neuron"),
        operator=pl.lit(None, pl.String),
        component=pl.lit("neuron"),
        position=pl.lit("op1"),
    )
    neuron_effects = pl.concat(effects).with_columns(
        operator=pl.lit("add"), position=pl.lit("op1"), logit_effect="effect", rank_logit="rank"
    )
    return {"neuron_effects": neuron_effects, "neuron_interventions": interventions}, truths


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0, 3.0])
def test_the_interval_of_a_sample_covers_the_truth(noise: float):
    given, truths = drawn(noise)
    table = ask("attribution_recall", given, ks=[K, TOP + 1], patched_neurons=TOP, normal=1.959964)
    assert table.select("k", "top", "neurons").unique().rows() == [(K, TOP, NEURONS)]
    low, recall, high = table.sort("layer").select("ci_low", "recall", "ci_high").to_numpy().T
    covered = (low <= np.array(truths) + 1e-12) & (truths <= high + 1e-12)
    assert covered.mean() > 0.95 - 2.6 * (0.95 * 0.05 / DRAWS) ** 0.5
    assert ((low <= recall) & (recall <= high)).all()
    assert recall.mean() == pytest.approx(np.mean(truths), abs=0.06)


def test_estimates_are_those_of_the_formula():
    given, _ = drawn(1.0)
    table = ask("attribution_recall", given, ks=[K], patched_neurons=TOP, normal=2.0)
    names = ["inside", "sampled", "sampled_above", "recall", "ci_low", "ci_high"]
    inside, sampled, above, recall, low, high = table.select(names).to_numpy().astype(float).T
    share, outside = above / sampled, NEURONS - TOP
    np.testing.assert_allclose(recall, inside / (inside + outside * share), rtol=1e-6)

    def limit(sign: int) -> np.ndarray:
        """Return the least (-1) or largest (1) share, which may be below 0 or above 1."""
        root = 4 + sign * 2 - 1 / sampled + 4 * above * (1 - share) - sign * 4 * share
        return (above + 2 + sign / 2 + sign * np.sqrt(root)) / (sampled + 4)

    least = np.where(above > 0, np.maximum(0, limit(-1)), 0)
    most = np.minimum(1, limit(1))
    np.testing.assert_allclose(low, inside / (inside + outside * most), rtol=1e-6)
    np.testing.assert_allclose(high, inside / (inside + outside * least), rtol=1e-6)


def test_without_a_sample_recall_is_unknown():
    given, _ = drawn(1.0)
    alone = given | {"neuron_interventions": given["neuron_interventions"].clear()}
    table = ask("attribution_recall", alone, ks=[K], patched_neurons=TOP)
    assert set(table.select("sampled", "recall", "ci_high").rows()) == {(0, None, 1)}
    assert (table["ci_low"] == table["inside"] / (table["inside"] + NEURONS - TOP)).all()


def test_rank_correlation_is_that_of_the_random_sample_alone():
    """Neurons that attribution chose would raise it."""
    given, _ = drawn(1.0)
    table = ask("attribution_agreement", given, ks=[K], patched_neurons=TOP).filter(
        against="logit_effect",
    )
    assert set(table.select("neurons", "recall", "chance").rows()) == {(SAMPLE, None, None)}
    sample = given["neuron_interventions"].select("layer", neuron=pl.col("units").list.first())
    effects = given["neuron_effects"].pivot("method", index=["layer", "neuron"], values="effect")
    ranks = effects.join(sample, on=["layer", "neuron"]).with_columns(
        pl.col("exact", "attribution").rank().over("layer")
    )
    expected = ranks.group_by("layer").agg(rank_correlation=pl.corr("exact", "attribution"))
    drawn_layers = table.drop_nulls("layer").select("layer", "rank_correlation")
    assert_frame_equal(drawn_layers, expected, check_row_order=False, rel_tol=1e-6)
