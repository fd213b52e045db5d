"""Queries that turn scores into labels: false discoveries against brute force, redundancy, calibration on a planted truth."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.made import Tables, ask

KEYS = ["operator", "layer", "neuron", "heuristic", "side"]
TYPES = {
    "layer": pl.Int16,
    "neuron": pl.Int32,
    "draws": pl.Int32,
    "draw": pl.Int32,
    "neurons": pl.Int32,
    "place": pl.Int32,
} | dict.fromkeys(
    [
        "score",
        "share",
        "corrected",
        "strength",
        "null_corrected",
        "null_deviation",
        "z",
        "overlap",
        "correlation",
    ],
    pl.Float32,
)
LIMITS = {"largest_overlap": 0.3, "smallest_strength": 0.5}


def table(columns: str, rows: list[tuple]) -> pl.DataFrame:
    names = columns.split()
    return pl.DataFrame(rows, schema=names, orient="row", strict=False).with_columns(
        pl.col(n).cast(TYPES[n]) for n in names if n in TYPES
    )


def given(
    pairs: list[tuple[int, str, str, float, float, float]],
    neurons: int,
    overlaps: list[tuple[str, str, float]] = [],
) -> Tables:  # noqa: B006
    """The inputs of matches. pairs: neuron, heuristic, side, corrected, strength, p_family, all of addition's layer 0."""
    scores = [
        ("s", "add", 0, n, h, "range", "op1", side, (1 + c) / 2, 0.5, c, strength)
        for n, h, side, c, strength, _ in pairs
    ]
    nulls = [
        ("s", "add", 0, n, h, side, c, 0.1, 0.1, 3.0, p / 2, p, 100)
        for n, h, side, c, _, p in pairs
    ]
    both = [(a, b, x) for a, b, x in overlaps] + [(b, a, x) for a, b, x in overlaps]
    return {
        "scores": table("subject operator layer neuron heuristic kind quantity side score share corrected strength", scores),
        "nulls": table("subject operator layer neuron heuristic side corrected null_corrected null_deviation z p_value p_family draws", nulls),
        "naming": table("subject operator layer neuron correlation p_value", [("s", "add", 0, n, 0.3, 0.01) for n in range(neurons)]),
        "heuristic_overlaps": table(
            "subject operator heuristic other overlap same", [("s", "add", *three, three[2] > 1) for three in both] or [("s", "add", "-", "-", 0.0, False)]
        ),
    }  # fmt: skip


def test_false_discoveries_are_controlled_as_by_benjamini_and_hochberg():
    random = np.random.default_rng(0)
    neurons, pairs = 60, []
    for neuron in range(45):  # 15 of the 60 have no candidate
        base = random.choice([0.001, 0.02, 0.2, 0.6])
        pairs += [
            (neuron, f"h{i}", "top", 0.5, 1.0, float(min(1, round(base * (1 + i), 3))))
            for i in range(random.integers(1, 4))
        ]
    found = ask("matches", given(pairs, neurons), **LIMITS)
    best = {neuron: min(p for n, *_, p in pairs if n == neuron) for neuron, *_ in pairs}
    for row in found.iter_rows(named=True):
        p = row["p_family"]
        larger = [q for *_, q in pairs if q >= p]
        expected = min(1.0, *(q * neurons / sum(b <= q for b in best.values()) for q in larger))
        assert row["q_value"] == pytest.approx(expected)
    assert 0 < (found["q_value"] <= 0.05).mean() < 1


def test_a_match_that_shares_cells_with_a_better_one_is_not_foremost():
    pairs = [
        (0, "best", "top", 0.9, 1.0, 0.01), (0, "inside", "top", 0.7, 1.0, 0.01), (0, "apart", "top", 0.5, 1.0, 0.01),
        (0, "inside", "bottom", 0.6, -1.0, 0.01),  # the other side is another matter
        (1, "inside", "top", 0.7, 1.0, 0.01),  # as is another neuron
        (2, "best", "top", 0.9, 1.0, 0.5), (2, "inside", "top", 0.7, 1.0, 0.01),  # better, but more likely to be chance
        (3, "best", "top", 0.9, 0.2, 0.01), (3, "inside", "top", 0.7, 1.0, 0.01),  # better, but the map is near zero there
        (4, "best", "bottom", 0.9, 1.0, 0.01),  # at the bottom, yet positive
        (5, "best", "top", 0.9, 1.0, 0.01), (5, "twin", "top", 0.9, 1.0, 0.01),  # equals: the name decides
    ]  # fmt: skip
    found = ask(
        "matches",
        given(pairs, 6, [("best", "inside", 0.8), ("best", "apart", 0.2), ("best", "twin", 2.0)]),
        **LIMITS,
    )
    foremost = {
        (n, h, side)
        for n, h, side in found.filter("foremost").select("neuron", "heuristic", "side").rows()
    }
    assert foremost == {
        (0, "best", "top"), (0, "apart", "top"), (0, "inside", "bottom"), (1, "inside", "top"), (2, "best", "top"), (2, "inside", "top"),
        (3, "inside", "top"), (5, "best", "top"),
    }  # fmt: skip
    assert not found.filter(neuron=4)["strong"].any()


def matches(rows: list[tuple[int, str, float, float]]) -> pl.DataFrame:
    """Foremost matches: neuron, heuristic, corrected, q_value."""
    kind = {"op": "range", "re": "modulo"}
    return table(
        "subject operator layer neuron heuristic kind quantity side score corrected q_value foremost",
        [
            (
                "s",
                "add",
                1,
                n,
                h,
                kind[h[:2]],
                "result" if h[:2] == "re" else "op1",
                "top",
                c,
                c,
                q,
                True,
            )
            for n, h, c, q in rows
        ],
    )


def calibrated(**parameters: Any) -> pl.DataFrame:
    """Neurons 0 and 1 exact, 2 a mixture, 3 and 4 noise."""
    found = [
        (0, "op a", 0.9, 0.01),
        (0, "op wrong", 0.5, 0.01),
        (1, "op twin", 0.9, 0.01),
        (2, "op a", 0.7, 0.2),
        (2, "result b", 0.6, 0.01),
        (3, "op a", 0.5, 0.2),
    ]
    truth = [
        (0, "exact", "op a"),
        (1, "exact", "op b"),
        (2, "mixture", "op a"),
        (2, "mixture", "result b"),
        (3, "noise", None),
        (4, "noise", None),
    ]
    kinds = {"op a": "range", "op b": "range", "result b": "modulo"}
    tables = {
        "matches": matches(found),
        "planted_truth": table("layer neuron operator grade heuristic", [(1, n, "add", grade, h) for n, grade, h in truth]),
        "heuristics": table("operator heuristic kind", [("add", name, kind) for name, kind in kinds.items()]),
        "heuristic_overlaps": table("operator heuristic other overlap same", [("add", "op twin", "op b", 1.0, True), ("add", "op wrong", "op a", 1.0, False)]),
    }  # fmt: skip
    return ask("label_calibration", tables, **parameters)


def test_calibration_counts_what_is_right():
    found = calibrated(thresholds=[0.4, 0.65], levels=[0.05, 1.0])

    def at(threshold: float, level: float, grade: str, kind: str = "all") -> tuple:
        rows = found.filter(threshold=threshold, level=level, grade=grade, kind=kind)
        return rows.select("neurons", "labelled_neurons", "planted", "labels", "right_labels").row(
            0
        )

    assert at(0.4, 1.0, "all") == (
        5,
        4,
        4,
        6,
        4,
    )  # "op wrong" is not what was planted, and noise has none
    assert at(0.4, 0.05, "all") == (5, 3, 4, 4, 3)
    assert at(0.4, 1.0, "exact") == (2, 2, 2, 3, 2)  # "op twin" names the same cells as "op b"
    assert at(0.65, 1.0, "exact") == (2, 2, 2, 2, 2)
    assert at(0.65, 0.05, "mixture") == (1, 0, 2, 0, 0)
    assert at(0.4, 1.0, "noise") == (2, 1, 0, 1, 0)
    assert at(0.4, 1.0, "all", "modulo") == (5, 1, 1, 1, 1)
    row = found.filter(threshold=0.4, level=1.0, grade="exact", kind="all").row(0, named=True)
    assert (row["precision"], row["recall"]) == (2 / 3, 1)
    assert found.filter(threshold=0.65, level=0.05, grade="mixture", kind="all").select(
        "precision", "recall"
    ).row(0) == (None, 0)


def test_the_setting_is_the_threshold_of_largest_f1():
    tables = {
        "label_calibration": calibrated(thresholds=[0.4, 0.55, 0.65, 0.95], levels=[0.05, 1.0])
    }
    [row] = ask("label_setting", tables, level=1.0).rows(named=True)
    assert (row["threshold"], row["level"], row["precision"], row["recall"], row["f1"]) == (
        0.55,
        1.0,
        1,
        1,
        1,
    )
    [row] = ask("label_setting", tables, level=0.05).rows(named=True)
    assert (
        row["threshold"],
        row["exact_precision"],
        row["exact_recall"],
        row["noise_labelled"],
    ) == (0.55, 1, 1, 0)


def test_labels_pass_the_setting_and_say_whether_they_are_direct():
    tables = {
        "matches": matches([(0, "op a", 0.9, 0.01), (0, "result b", 0.8, 0.05), (1, "result b", 0.9, 0.06), (2, "result b", 0.7, 0.01), (3, "op a", 0.59, 0.01)]),
        "naming": table("operator layer neuron correlation p_value", [("add", 1, 0, 0.5, 0.01), ("add", 1, 1, 0.5, 0.01), ("add", 1, 2, 0.5, 0.2), ("add", 1, 3, 0.5, 0.01)]),
        "label_setting": table("threshold level", [(0.6, 0.05)]),
    }  # fmt: skip
    found = ask("labels", tables)
    assert found.select("neuron", "heuristic", "direct", "place").rows() == [
        (0, "op a", False, 1),
        (0, "result b", True, 2),
        (2, "result b", False, 1),
    ]


def test_classified_shares_are_those_of_the_draws():
    counts = {
        (0, "raw"): 3,
        (1, "raw"): 2,
        (2, "raw"): 0,
        (0, "corrected"): 2,
        (1, "corrected"): 0,
        (2, "corrected"): 1,
    }
    rows = [
        ("add", 1, draw, q, measure, 0.6, n)
        for (draw, measure), n in counts.items()
        for q in ("operands", "result", "any")
    ]
    tables = {
        "null_shares": table("operator layer draw quantities measure threshold neurons", rows),
        "naming": table("operator layer neuron", [("add", 1, n) for n in range(4)]),
        "matches": matches([(0, "op a", 0.9, 0.01), (0, "op b", 0.8, 0.01), (1, "result b", 0.9, 0.01), (2, "op a", 0.9, 0.2), (3, "op a", 0.5, 0.01)]),
    }  # fmt: skip
    found = {(q, criterion): rest for q, criterion, *rest in ask("classified_share", tables, level=0.05).select(
        "quantities", "criterion", "neurons", "share", "null_share", "null_deviation").rows()}  # fmt: skip
    assert found["any", "raw"] == [3, 0.75, 0.25, 0.25]
    assert found["operands", "corrected"] == [2, 0.5, 0.125, 0.125]
    assert found["any", "fdr"] == [2, 0.5, None, None]
    assert found["operands", "fdr"] == [1, 0.25, None, None]
    assert found["result", "fdr"] == [1, 0.25, None, None]
