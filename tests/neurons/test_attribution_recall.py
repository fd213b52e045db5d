"""The recall of attribution on planted truths: exact, or estimated from a random sample."""

import numpy as np
import polars as pl
import pytest

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
    assert sorted(together.rows()) == [
        (o, k, pytest.approx(recall)) for o, k, recall in sorted(late.rows())
    ]


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
        samples += [(layer, [neuron]) for neuron in sample.tolist()]
        for method, neurons, values in (
            ("attribution", np.arange(NEURONS), attribution),
            ("exact", patched, effect),
        ):
            ranks = 1 + np.argsort(np.argsort(-values[neurons]))
            effects.append(
                frame(
                    method=method,
                    layer=layer,
                    neuron=neurons,
                    effect=values[neurons],
                    logit_effect=values[neurons],
                    rank=ranks,
                )
            )
    site = {"operator": pl.lit("add"), "position": pl.lit("op1"), "rank_logit": "rank"}
    interventions = pl.DataFrame(
        samples,
        schema={"layer": pl.Int16, "units": pl.List(pl.Int32)},
        orient="row",
    ).with_columns(
        operator=pl.lit(None, pl.String),
        component=pl.lit("neuron"),
        position=pl.lit("op1"),
    )
    return {
        "neuron_effects": pl.concat(effects).with_columns(**site),
        "neuron_interventions": interventions,
    }, truths


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0, 3.0])
def test_the_interval_of_a_sample_covers_the_truth(noise: float):
    given, truths = drawn(noise)
    table = ask("attribution_recall", given, ks=[K, TOP + 1], patched_neurons=TOP, normal=1.959964)
    assert table.select("k", "top", "neurons").unique().rows() == [(K, TOP, NEURONS)]
    low, recall, high = (
        table.sort("layer")[name].to_numpy() for name in ("ci_low", "recall", "ci_high")
    )
    covered = (low <= np.array(truths) + 1e-12) & (truths <= high + 1e-12)
    assert covered.mean() > 0.95 - 2.6 * (0.95 * 0.05 / DRAWS) ** 0.5
    assert ((low <= recall) & (recall <= high)).all()
    assert recall.mean() == pytest.approx(np.mean(truths), abs=0.06)


def test_estimates_are_those_of_the_formula():
    given, _ = drawn(1.0)
    table = ask("attribution_recall", given, ks=[K], patched_neurons=TOP, normal=2.0)
    for inside, sampled, above, recall, low, high in table.select(
        "inside",
        "sampled",
        "sampled_above",
        "recall",
        "ci_low",
        "ci_high",
    ).rows():
        share, outside = above / sampled, NEURONS - TOP
        assert recall == pytest.approx(inside / (inside + outside * share))
        edges = [(2 * above + 4 + sign) / (2 * (sampled + 4)) for sign in (-1, 1)]
        roots = [
            (4 + sign * 2 - 1 / sampled + 4 * above * (1 - share) - sign * 4 * share) ** 0.5
            for sign in (-1, 1)
        ]
        least, most = (
            edge + sign * root / (sampled + 4)
            for sign, edge, root in zip((-1, 1), edges, roots, strict=True)
        )
        least, most = max(0, least) if above else 0, min(1, most)
        assert (low, high) == pytest.approx(
            (inside / (inside + outside * most), inside / (inside + outside * least)),
        )


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
    exact, estimated = (
        given["neuron_effects"].filter(method=method).sort("neuron")
        for method in ("exact", "attribution")
    )
    for layer, correlation in (
        table.filter(pl.col("layer") < 5).select("layer", "rank_correlation").rows()
    ):
        sample = given["neuron_interventions"].filter(layer=layer)["units"].list.first().to_list()
        ranks = [
            part.filter(pl.col("neuron").is_in(sample), layer=layer)["effect"].rank()
            for part in (exact, estimated)
        ]
        assert correlation == pytest.approx(np.corrcoef(*ranks)[0, 1])
