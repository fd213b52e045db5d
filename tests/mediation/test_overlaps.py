"""Overlap of questions, and of their mediators with the grid's heuristic neurons: each real .sql
against brute force and planted truths.
"""

from fractions import Fraction
from functools import cache
from itertools import product
from math import comb, sqrt

import numpy as np
import polars as pl
import pytest

from tests.made import Tables, ask, frame
from tests.mediation import overlapped
from tests.mediation.overlapped import QUESTIONS, RANKS

KS = [1, 3, 6, 12, 99]
WIDTHS = {"coordinate": 12, "neuron": 6}  # of tests.made
HALVES = ["both", "first", "second"]
SAMPLES = {"whole": ("both", "both"), "half": ("first", "second")}  # of a question and another
GRID = ["add", "multiply", "subtract"]


@pytest.fixture(scope="module")
def effects() -> pl.DataFrame:
    return ask("unit_effects", overlapped.subject()).sample(fraction=1, shuffle=True, seed=2)


def planted(tops: dict[str, list[int]], width: int) -> pl.DataFrame:
    """The table unit_effects of questions whose first neurons, of any half and by any ranking, are
    these; the others follow in order.
    """
    site = {"operator": "all", "component": "neuron", "layer": 1}
    places = np.arange(width)
    values = dict.fromkeys(("effect", "logit_effect"), -places)
    values |= dict.fromkeys(RANKS.values(), places + 1)
    parts = []
    for (question, first), half in product(tops.items(), HALVES):
        order = [*first, *np.setdiff1d(places, first)]
        parts.append(frame(subject="s", question=question, half=half, unit=order, **site, **values))
    return pl.concat(parts).sample(fraction=1, shuffle=True, seed=6)


@cache
def tail(width: int, size: int, k: int, shared: int) -> float:
    """Probability that k random ones of `width` have at least so many among `size`."""
    ways = sum(comb(size, x) * comb(width - size, k - x) for x in range(shared, min(size, k) + 1))
    return float(Fraction(ways, comb(width, k)))


@pytest.mark.parametrize(
    ("width", "k", "shared"),
    [(12, 5, 0), (12, 5, 3), (12, 5, 5), (8, 5, 2), (4096, 400, 39), (4096, 400, 90), (5, 5, 5)],
)
def test_questions_that_share_so_many_of_their_top(width: int, k: int, shared: int):
    tops = {"q": [*range(k)], "r": [*range(k - shared, 2 * k - shared)]}
    patched = planted(tops, width).with_columns(
        unit=3 * pl.col("unit"),
    )  # as if the units between were not patched
    table = ask("neuron_overlap", {"unit_effects": patched}, overlap_ks=[k, width + 1])
    assert table.filter(ranking="size").select("sample", "question", "other").rows() == [
        ("whole", "q", "r"),
        ("half", "q", "q"),
        ("half", "q", "r"),
        ("half", "r", "q"),
        ("half", "r", "r"),
    ]
    for row in table.iter_rows(named=True):
        same = k if row["question"] == row["other"] else shared
        assert (row["k"], row["width"], row["shared"], row["share"], row["ceiling"]) == (
            k,
            width,
            same,
            same / k,
            1,
        )
        assert (row["chance"], row["p_value"]) == pytest.approx(
            (k / width, tail(width, k, k, same)), rel=1e-9
        )
        assert row["p_value"] <= 1
        possible = range(max(0, 2 * k - width), k + 1)
        detected = [x / k for x in possible if tail(width, k, k, x) < 0.05]
        assert row["detectable"] == (min(detected) if detected else None)


def test_chance_is_what_random_sets_share(effects: pl.DataFrame):
    table = ask("neuron_overlap", {"unit_effects": effects}, overlap_ks=[4])
    random = np.random.default_rng(0)
    for component, width in WIDTHS.items():
        sets = random.permuted(np.tile(np.arange(width), (2, 20000, 1)), axis=2)[:, :, :4]
        shares = (sets[0, :, :, None] == sets[1, :, None, :]).sum((1, 2)) / 4
        rows = table.filter(component=component)
        assert rows["chance"].to_list() == pytest.approx([shares.mean()] * len(rows), abs=0.01)
        assert rows["chance_std"].to_list() == pytest.approx([shares.std()] * len(rows), abs=0.01)


def test_overlaps_are_counts_of_common_units(effects: pl.DataFrame):
    table = ask("neuron_overlap", {"unit_effects": effects}, overlap_ks=KS)
    keys = []
    for (component, width), ranking, k in product(WIDTHS.items(), RANKS, KS):
        top = {}
        peers = effects.filter(operator="all", component=component)
        for question, half in product(QUESTIONS, HALVES):
            top[question, half] = top_units(peers, ranking, k, question=question, half=half)
        for sample, q, r in product(SAMPLES, QUESTIONS, QUESTIONS):
            if sample == "whole" and q >= r:
                continue
            undefined = (component, ranking) == ("neuron", "effect") and "arithmetic_words" in (
                q,
                r,
            )
            if k > width - undefined:
                continue
            keys.append((component, 2, ranking, k, sample, q, r))
            row = table.row(len(keys) - 1, named=True)
            half, other_half = SAMPLES[sample]
            shared = len(top[q, half] & top[r, other_half])
            own = [len(top[question, "first"] & top[question, "second"]) / k for question in (q, r)]
            assert (row["width"], row["shared"]) == (width, shared)
            assert (row["share"], row["ceiling"], row["chance"]) == pytest.approx(
                (shared / k, np.mean(own), k / width)
            )
            assert row["p_value"] == pytest.approx(tail(width, k, k, shared), rel=1e-9)
            variance = (k / width) * (1 - k / width) * (width - k) / (width - 1) / k
            assert row["chance_std"] == pytest.approx(sqrt(variance))
    assert (
        table.select("component", "layer", "ranking", "k", "sample", "question", "other").rows()
        == keys
    )


def top_units(effects: pl.DataFrame, ranking: str, k: int, **keys: object) -> set[int]:
    return set(
        effects.filter(
            pl.col(RANKS[ranking]) <= k,
            pl.col(ranking.replace("size", "logit_effect")).is_not_null(),
            **keys,
        )["unit"]
    )


def grid(late: bool) -> Tables:
    """Labels of some neurons of the late layer and others, some of them twice, and random effects
    of neurons on the grid's prompts.
    """
    random = np.random.default_rng(5)
    labels = []
    for operator, layer in product(GRID[:2], (1, 2)):
        neurons, direct = random.integers(0, 6, 4), random.random(4) < 0.5
        labels.append(
            frame(subject="s", operator=operator, layer=layer, neuron=neurons, direct=direct)
        )
    positions = ["last", "op1"] if late else ["op1"]
    rows = list(product(GRID, ("exact", "attribution"), (1, 2), range(6), positions))
    names = ["operator", "method", "layer", "neuron", "position"]
    made = frame(subject="s", **dict(zip(names, zip(*rows, strict=True), strict=True)))
    made = made.with_columns(
        effect=pl.Series(random.normal(size=len(rows))),
        logit_effect=pl.Series(random.normal(size=len(rows))),
    )
    peers = ["operator", "method", "layer", "position"]
    made = made.with_columns(
        rank=pl.col("effect").rank("ordinal", descending=True).over(peers).cast(pl.Int64),
        rank_logit=pl.col("logit_effect")
        .rank("ordinal", descending=True)
        .over(peers)
        .cast(pl.Int64),
    )
    return {
        "labels": pl.concat(labels),
        "neuron_effects": made.sample(fraction=1, shuffle=True, seed=7),
    }


@pytest.mark.parametrize("late", [True, False])
def test_mediators_are_compared_with_what_the_grid_names(effects: pl.DataFrame, late: bool):
    given = grid(late)
    table = ask("mediating_heuristics", {"unit_effects": effects, **given}, overlap_ks=KS)
    last = given["neuron_effects"].filter(method="exact", position="last", layer=2)
    keys = []
    for ranking, k, question, operator, other in product(
        RANKS, KS[:3], QUESTIONS[:2], ["add", "subtract"], GRID
    ):
        if k == 6 and ranking == "effect" and question == "arithmetic_words":
            continue  # one of the neurons has none
        named = given["labels"].filter(operator=other, layer=2)
        order = (
            last.filter(operator=other)
            .with_columns(size=pl.col("logit_effect").abs())
            .sort(ranking, descending=True)
        )
        sets = {
            "direct": set(named.filter(pl.col("direct"))["neuron"]),
            "label": set(named["neuron"]),
            "top": set(order["neuron"][:k]),
        }
        mediators = top_units(
            effects,
            ranking,
            k,
            question=question,
            operator=operator,
            half="both",
            component="neuron",
        )
        for members, neurons in sets.items():
            if members == "top" and not late:
                continue  # the grid has no effects there
            keys.append((2, ranking, k, question, operator, other, members))
            row = table.row(len(keys) - 1, named=True)
            shared = len(neurons & mediators)
            assert (row["width"], row["size"], row["shared"]) == (6, len(neurons), shared)
            expected = (shared / k, len(neurons) / 6, tail(6, len(neurons), k, shared))
            assert (row["share"], row["chance"], row["p_value"]) == pytest.approx(
                expected, rel=1e-9
            )
    assert (
        table.select(
            "layer", "ranking", "k", "question", "operator", "grid_operator", "members"
        ).rows()
        == keys
    )
    not_patched = given["labels"].with_columns(neuron=pl.col("neuron") + 6)
    more = given | {"labels": pl.concat([given["labels"], not_patched])}
    assert ask("mediating_heuristics", {"unit_effects": effects, **more}, overlap_ks=KS).equals(
        table,
    )
