"""Queries that turn scores into labels: false discoveries, redundancy, calibration, shares."""

from typing import Any

import numpy as np
import polars as pl

from tests.made import Tables, ask

TYPES = dict.fromkeys(["neuron", "draws", "draw", "neurons", "rank"], pl.Int32) | {
    "layer": pl.Int16
}
TYPES |= dict.fromkeys(
    [
        "score",
        "chance_score",
        "chance_corrected",
        "strength",
        "null_mean",
        "null_std",
        "z",
        "overlap",
        "correlation",
    ],
    pl.Float32,
)
SETTINGS = {"largest_overlap": 0.3, "smallest_strength": 0.5}
Match = tuple[int, str, str, float, float, float]


def table(columns: str, rows: list[tuple]) -> pl.DataFrame:
    names = columns.split()
    types = {name: TYPES[name] for name in names if name in TYPES}
    return pl.DataFrame(rows, names, orient="row", strict=False).cast(types)


def inputs(matches: list[Match], neurons: int, overlaps: list[tuple] | None = None) -> Tables:
    """The inputs of the query matches, for layer 0 and addition.

    matches: neuron, heuristic, side, chance_corrected, strength, p_family.
    overlaps: heuristic, other, overlap, same.
    """
    scores, permutation_tests, both = [], [], []
    for neuron, name, side, chance_corrected, strength, p_family in matches:
        heuristic = name, "range", "op1", side
        scores.append(
            (
                "s",
                "add",
                0,
                neuron,
                *heuristic,
                (1 + chance_corrected) / 2,
                0.5,
                chance_corrected,
                strength,
            )
        )
        tests = 0.1, 0.1, 3.0, p_family / 2, p_family, 100
        permutation_tests.append(("s", "add", 0, neuron, name, side, chance_corrected, *tests))
    for first, second, *rest in overlaps or [("-", "-", 0.0, False)]:
        both += [("s", "add", first, second, *rest), ("s", "add", second, first, *rest)]
    naming = [("s", "add", 0, neuron, 0.3, 0.01) for neuron in range(neurons)]
    return {
        "scores": table(
            "subject operator layer neuron heuristic kind quantity side "
            "score chance_score chance_corrected strength",
            scores,
        ),
        "permutation_tests": table(
            "subject operator layer neuron heuristic side "
            "chance_corrected null_mean null_std z p_value p_family draws",
            permutation_tests,
        ),
        "naming": table("subject operator layer neuron correlation p_value", naming),
        "heuristic_overlaps": table("subject operator heuristic other overlap same", both),
    }


def test_false_discoveries_are_controlled_as_by_benjamini_and_hochberg():
    random = np.random.default_rng(0)
    neurons, matches, best = 60, [], {}
    for neuron in range(45):  # 15 of the 60 have no candidate
        base = random.choice([0.001, 0.02, 0.2, 0.6])
        for i in range(random.integers(1, 4)):
            p_family = float(min(1, round(base * (1 + i), 3)))
            matches.append((neuron, f"h{i}", "top", 0.5, 1.0, p_family))
            best[neuron] = min(best.get(neuron, 1), p_family)
    rows = ask("matches", inputs(matches, neurons), **SETTINGS)
    assert len(rows) == len(matches)
    levels = rows["p_family"].unique().sort().to_numpy()
    labelled = np.less_equal.outer([*best.values()], levels).sum(0)
    rates = np.minimum(levels * neurons / labelled, 1)
    q_values = np.minimum.accumulate(rates[::-1])[::-1]
    expected = q_values[np.searchsorted(levels, rows["p_family"])]
    np.testing.assert_allclose(rows["q_value"], expected)
    assert 0 < (rows["q_value"] <= 0.05).mean() < 1


REDUNDANCY = [  # a match, and whether it is nonredundant
    ((0, "best", "top", 0.9, 1.0, 0.01), True),
    ((0, "inside", "top", 0.7, 1.0, 0.01), False),
    ((0, "apart", "top", 0.5, 1.0, 0.01), True),
    ((0, "inside", "bottom", 0.6, -1.0, 0.01), True),  # the better match is on the other side
    ((1, "inside", "top", 0.7, 1.0, 0.01), True),  # the better match is of another neuron
    ((2, "best", "top", 0.9, 1.0, 0.5), True),
    ((2, "inside", "top", 0.7, 1.0, 0.01), True),  # the better match is more likely by chance
    ((3, "best", "top", 0.9, 0.2, 0.01), False),  # the map is near zero on its cells
    ((3, "inside", "top", 0.7, 1.0, 0.01), True),
    ((4, "best", "bottom", 0.9, 1.0, 0.01), False),  # at the bottom, but positive
    ((5, "best", "top", 0.9, 1.0, 0.01), True),  # of equals, the name decides
    ((5, "twin", "top", 0.9, 1.0, 0.01), False),
]


def test_a_match_that_shares_cells_with_a_better_one_is_not_foremost():
    overlaps = [
        ("best", "inside", 0.8, False),
        ("best", "apart", 0.2, False),
        ("best", "twin", 1.0, True),
    ]
    matches = [match for match, _ in REDUNDANCY]
    rows = ask("matches", inputs(matches, 6, overlaps), **SETTINGS)
    keys = rows.select("neuron", "heuristic", "side").rows()
    nonredundant = dict(zip(keys, rows["nonredundant"], strict=True))
    assert nonredundant == {match[:3]: is_foremost for match, is_foremost in REDUNDANCY}
    assert not rows.filter(neuron=4)["strong"].item()


def nonredundant(rows: list[tuple[int, str, float, float]]) -> pl.DataFrame:
    """Foremost matches of layer 1; rows: neuron, heuristic, chance_corrected, q_value."""
    about = {"op": ("range", "op1"), "re": ("modulo", "result")}
    matches = []
    for neuron, name, chance_corrected, q_value in rows:
        heuristic = name, *about[name[:2]], "top"
        matches.append(
            ("s", "add", 1, neuron, *heuristic, chance_corrected, chance_corrected, q_value, True)
        )
    columns = (
        "subject operator layer neuron heuristic kind quantity side score chance_corrected q_value"
    )
    return table(f"{columns} nonredundant", matches)


def calibrated(**parameters: Any) -> pl.DataFrame:
    """The calibration of neurons 0 and 1 (exact), 2 (a mixture), 3 and 4 (noise)."""
    matches = [
        (0, "op a", 0.9, 0.01),
        (0, "op wrong", 0.5, 0.01),
        (1, "op twin", 0.9, 0.01),
        (2, "op a", 0.7, 0.2),
        (2, "result b", 0.6, 0.01),
        (3, "op a", 0.5, 0.2),
    ]
    truth = [
        ("add", 1, 0, "exact", "op a"),
        ("add", 1, 1, "exact", "op b"),
        ("add", 1, 2, "mixture", "op a"),
        ("add", 1, 2, "mixture", "result b"),
        ("add", 1, 3, "noise", None),
        ("add", 1, 4, "noise", None),
    ]
    kinds = [("add", "op a", "range"), ("add", "op b", "range"), ("add", "result b", "modulo")]
    overlaps = [("add", "op twin", "op b", 1.0, True), ("add", "op wrong", "op a", 1.0, False)]
    tables = {
        "matches": nonredundant(matches),
        "planted_truth": table("operator layer neuron grade heuristic", truth),
        "heuristics": table("operator heuristic kind", kinds),
        "heuristic_overlaps": table("operator heuristic other overlap same", overlaps),
    }
    return ask("label_calibration", tables, **parameters)


COUNTS = [  # keys; then neurons, labelled_neurons, planted, labels, right_labels
    # "op wrong" is not what was planted, and noise has no heuristic
    ({"threshold": 0.4, "level": 1.0, "grade": "all", "kind": "all"}, (5, 4, 4, 6, 4)),
    ({"threshold": 0.4, "level": 0.05, "grade": "all", "kind": "all"}, (5, 3, 4, 4, 3)),
    # "op twin" has the same cells as "op b"
    ({"threshold": 0.4, "level": 1.0, "grade": "exact", "kind": "all"}, (2, 2, 2, 3, 2)),
    ({"threshold": 0.65, "level": 1.0, "grade": "exact", "kind": "all"}, (2, 2, 2, 2, 2)),
    ({"threshold": 0.65, "level": 0.05, "grade": "mixture", "kind": "all"}, (1, 0, 2, 0, 0)),
    ({"threshold": 0.4, "level": 1.0, "grade": "noise", "kind": "all"}, (2, 1, 0, 1, 0)),
    ({"threshold": 0.4, "level": 1.0, "grade": "all", "kind": "modulo"}, (5, 1, 1, 1, 1)),
]


def test_calibration_counts_right_labels():
    rows = calibrated(thresholds=[0.4, 0.65], levels=[0.05, 1.0])
    columns = ["neurons", "labelled_neurons", "planted", "labels", "right_labels"]
    for keys, counts in COUNTS:
        assert rows.filter(**keys).select(columns).rows() == [counts], keys
    rates = {key: rows.filter(grade=key, kind="all") for key in ("exact", "mixture")}
    exact = rates["exact"].filter(threshold=0.4, level=1.0)
    assert exact.select("precision", "recall").rows() == [(2 / 3, 1)]
    mixture = rates["mixture"].filter(threshold=0.65, level=0.05)
    assert mixture.select("precision", "recall").rows() == [(None, 0)]


def test_the_setting_is_the_threshold_of_largest_f1():
    calibration = calibrated(thresholds=[0.4, 0.55, 0.65, 0.95], levels=[0.05, 1.0])
    tables = {"label_calibration": calibration}
    columns = ["threshold", "level", "precision", "recall", "f1"]
    uncontrolled = ask("label_setting", tables, level=1.0)
    assert uncontrolled.select(columns).rows() == [(0.55, 1.0, 1, 1, 1)]
    columns = ["threshold", "exact_precision", "exact_recall", "noise_labelled"]
    controlled = ask("label_setting", tables, level=0.05)
    assert controlled.select(columns).rows() == [(0.55, 1, 1, 0)]


def test_labels_pass_the_setting_and_may_be_direct():
    matches = [
        (0, "op a", 0.9, 0.01),
        (0, "result b", 0.8, 0.05),
        (1, "result b", 0.9, 0.06),
        (2, "result b", 0.7, 0.01),
        (3, "op a", 0.59, 0.01),
    ]
    naming = [("add", 1, neuron, 0.5, 0.2 if neuron == 2 else 0.01) for neuron in range(4)]
    tables = {
        "matches": nonredundant(matches),
        "naming": table("operator layer neuron correlation p_value", naming),
        "label_setting": table("threshold level", [(0.6, 0.05)]),
    }
    labels = ask("labels", tables)
    assert labels.select("neuron", "heuristic", "direct", "rank").rows() == [
        (0, "op a", False, 1),
        (0, "result b", True, 2),
        (2, "result b", False, 1),
    ]


def test_classified_shares_are_those_of_the_draws():
    counts = {"raw": (3, 2, 0), "chance_corrected": (2, 0, 1)}  # neurons by draw
    shares = []
    for quantities in ("operands", "result", "any"):
        for measure, neurons in counts.items():
            for draw, number in enumerate(neurons):
                shares.append(("add", 1, draw, quantities, measure, 0.6, number))
    matches = [
        (0, "op a", 0.9, 0.01),
        (0, "op b", 0.8, 0.01),
        (1, "result b", 0.9, 0.01),
        (2, "op a", 0.9, 0.2),
        (3, "op a", 0.5, 0.01),
    ]
    columns = "operator layer draw quantities measure threshold neurons"
    tables = {
        "null_shares": table(columns, shares),
        "naming": table("operator layer neuron", [("add", 1, neuron) for neuron in range(4)]),
        "matches": nonredundant(matches),
    }
    rows = ask("classified_share", tables, level=0.05)
    columns = ["quantities", "criterion", "neurons", "share", "null_share", "null_std"]
    by_key = {
        (quantities, criterion): rest for quantities, criterion, *rest in rows[columns].rows()
    }
    assert by_key["any", "raw"] == [3, 0.75, 0.25, 0.25]
    assert by_key["operands", "chance_corrected"] == [2, 0.5, 0.125, 0.125]
    assert by_key["any", "fdr"] == [2, 0.5, None, None]
    assert by_key["operands", "fdr"] == [1, 0.25, None, None]
    assert by_key["result", "fdr"] == [1, 0.25, None, None]
