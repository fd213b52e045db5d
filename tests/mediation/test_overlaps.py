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
GRID = ["add", "multiply", "subtract"]


@pytest.fixture(scope="module")
def effects() -> pl.DataFrame:
    return ask("unit_effects", overlapped.subject()).sample(fraction=1, shuffle=True, seed=2)


def planted(tops: dict[str, list[int]], width: int) -> pl.DataFrame:
    """The table unit_effects of questions whose first neurons, of any half and by any ranking, are
    these; the others follow in order.
    """
    rows = []
    for (question, first), half in product(tops.items(), HALVES):
        order = [*first, *(unit for unit in range(width) if unit not in first)]
        rows += [
            (question, "all", half, "neuron", 1, unit, -i, -i, i + 1, i + 1, i + 1)
            for i, unit in enumerate(order)
        ]
    names = [
        "question",
        "operator",
        "half",
        "component",
        "layer",
        "unit",
        "effect",
        "logit_effect",
        *RANKS.values(),
    ]
    return frame(subject="s", **dict(zip(names, zip(*rows, strict=True), strict=True))).sample(
        fraction=1, shuffle=True, seed=6
    )


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
        drawn = np.array(
            [
                np.isin(random.permutation(width)[:4], random.permutation(width)[:4]).mean()
                for _ in range(20000)
            ]
        )
        rows = table.filter(component=component)
        assert rows["chance"].to_list() == pytest.approx([drawn.mean()] * len(rows), abs=0.01)
        assert rows["chance_std"].to_list() == pytest.approx([drawn.std()] * len(rows), abs=0.01)


def test_overlaps_are_counts_of_common_units(effects: pl.DataFrame):
    table = ask("neuron_overlap", {"unit_effects": effects}, overlap_ks=KS)
    keys = []
    for (component, width), ranking, k in product(WIDTHS.items(), RANKS, KS):
        top = {
            (question, half): top_units(
                effects,
                ranking,
                k,
                question=question,
                half=half,
                operator="all",
                component=component,
            )
            for question, half in product(QUESTIONS, HALVES)
        }
        kinds = {
            "whole": [(q, r) for q, r in product(QUESTIONS, QUESTIONS) if q < r],
            "half": list(product(QUESTIONS, QUESTIONS)),
        }
        for sample, q, r in ((sample, *pair) for sample, pairs in kinds.items() for pair in pairs):
            undefined = (component, ranking) == ("neuron", "effect") and "arithmetic_words" in (
                q,
                r,
            )
            if k > width - undefined:
                continue
            keys.append((component, 2, ranking, k, sample, q, r))
            row = table.row(len(keys) - 1, named=True)
            half, other_half = ("both", "both") if sample == "whole" else ("first", "second")
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
    drawn = [
        (o, layer, n, bool(random.random() < 0.5))
        for o in GRID[:2]
        for layer in (1, 2)
        for n in random.integers(0, 6, 4).tolist()
    ]
    operators, layers, neurons, direct = zip(*drawn, strict=True)
    labels = frame(subject="s", operator=operators, layer=layers, neuron=neurons, direct=direct)
    rows = [
        (o, m, layer, n, p)
        for o in GRID
        for m in ("exact", "attribution")
        for layer in (1, 2)
        for n in range(6)
        for p in ("last", "op1")
    ]
    rows = [row for row in rows if late or row[-1] == "op1"]
    names = ["operator", "method", "layer", "neuron", "position"]
    made = frame(subject="s", **dict(zip(names, zip(*rows, strict=True), strict=True)))
    made = made.with_columns(
        pl.Series(name, random.normal(size=len(rows))) for name in ("effect", "logit_effect")
    )
    peers = ["operator", "method", "layer", "position"]
    ranks = [
        pl.col(name).rank("ordinal", descending=True).over(peers).cast(pl.Int64)
        for name in ("effect", "logit_effect")
    ]
    return {
        "labels": labels,
        "neuron_effects": made.with_columns(rank=ranks[0], rank_logit=ranks[1]).sample(
            fraction=1, shuffle=True, seed=7
        ),
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
