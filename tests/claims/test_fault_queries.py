"""Faulty controls against plain Python, and the table of all faults against known numbers."""

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import polars as pl
import pytest

from tests.made import Tables, ask, frame

HEURISTICS: dict[
    str, tuple[str, str, Callable[[int, int, Fraction], bool]]
] = {  # what each means, of op1, op2 and the true quotient
    "op1 mod 2 = 0": ("modulo", "op1", lambda a, b, q: a % 2 == 0),
    "own": ("custom", "custom", lambda a, b, q: a + b > 20),
    "result in 1..2": ("range", "result", lambda a, b, q: 1 <= q < 3),
    "result mod 5 in 1..2": ("period", "result", lambda a, b, q: 1 <= q % 5 < 3),
    "result mod 2 = 1": ("modulo", "result", lambda a, b, q: q % 2 == 1),
    "result ~ ..1": ("pattern", "result", lambda a, b, q: q % 10 == 1),
    "result = 2": ("value", "result", lambda a, b, q: q == 2),
    "result in {0, 3}": ("multi-result", "result", lambda a, b, q: q in (0, 3)),
    "result in 90..99": ("range", "result", lambda a, b, q: 90 <= q < 100),  # no prompt's
}
MEASURES = [
    "accuracy_associated",
    "accuracy_other",
    "logit_change_associated",
    "logit_change_other",
    "dissociation",
    "logit_dissociation",
]


INTERVENTIONS = ["intervention", "operator", "arm", "criterion", "heuristic", "replacement"]
RUNS = ["subject", "experiment", "intervention", "pair", "answer_logit", "mean_logit", "correct"]


def tabled(columns: list[str], *rows: tuple) -> pl.DataFrame:
    """A table, its rows in no order."""
    return pl.DataFrame(rows, schema=columns, orient="row", infer_schema_length=None).sample(
        fraction=1, shuffle=True, seed=0
    )


@pytest.fixture(scope="module")
def prompts() -> pl.DataFrame:
    random = np.random.default_rng(0)
    drawn = [
        (*row, *random.integers(1, 20, 2).tolist())
        for row in product(("add", "divide"), ("discovery", "evaluation"), range(80))
    ]
    rows = [
        (pair, o, split, a, b, int(whole(o, a, b)))
        for pair, (o, split, _, a, b) in enumerate(drawn)
    ]
    return tabled(["pair", "operator", "split", "op1", "op2", "result"], *rows).with_columns(
        pl.col("op1", "op2").cast(pl.Int32)
    )


def whole(operator: str, a: int, b: int) -> Fraction:
    return Fraction(a + b if operator == "add" else a // b)


@pytest.fixture(scope="module")
def given(prompts: pl.DataFrame) -> Tables:
    """Return ablations of each heuristic alone (criterion: its name) and of all together.

    Interventions have two patches, there are controls, and the model is random.
    """
    random = np.random.default_rng(1)
    keys = product(
        ("add", "divide"), ("heuristic", "control"), ("all", "one"), HEURISTICS, ("zero", "mean")
    )
    clean = [(o, "none", None, None, None) for o in ("add", "divide")]
    numbered = list(
        enumerate(
            clean + [(o, arm, h if which == "one" else which, h, r) for o, arm, which, h, r in keys]
        )
    )
    answers = [
        (
            "s",
            experiment,
            number,
            pair,
            *random.normal(size=2).tolist(),
            bool(random.random() < 0.6),
        )
        for number, (operator, *_) in numbered
        for pair in prompts.filter(operator=operator, split="evaluation")["pair"]
        for experiment in ("knockout", "neuron")
    ]
    cells = prompts.select("operator", "pair", "op1", "op2").rows()
    associated, known = [], []
    for heuristic, (kind, quantity, holds) in HEURISTICS.items():
        for operator, pair, a, b in cells:
            if holds(a, b, whole(operator, a, b)):
                associated.append((operator, pair, heuristic))
        if kind != "multi-result":
            known += [(operator, heuristic, kind, quantity) for operator in ("add", "divide")]
    return {
        "knockout_interventions": tabled(
            INTERVENTIONS,
            *((n, *row) for n, row in numbered for _ in range(1 if row[1] == "none" else 2)),
        ),
        "runs": tabled(RUNS, *answers),
        "prompt_associations": tabled(["operator", "pair", "heuristic"], *associated),
        "pairs": prompts,
        "heuristics": tabled(["operator", "heuristic", "kind", "quantity"], *known),
    }


def brute_force(
    given: Tables, prompts: pl.DataFrame
) -> dict[tuple, list[tuple[int, int, int, bool, float]]]:
    """Return (operator, criterion, ablation, heuristic) -> what the model predicts.

    The values are (pair, op1, op2, correct, change of the answer's logit).
    """
    runs = (
        given["knockout_interventions"]
        .unique()
        .join(given["runs"].filter(experiment="knockout"), on="intervention")
    )
    runs = runs.with_columns(logit=pl.col("answer_logit").cast(float) - pl.col("mean_logit"))
    runs = runs.join(runs.filter(arm="none").select("pair", before="logit"), on="pair").join(
        prompts.select("pair", "op1", "op2"), on="pair"
    )
    values: dict[tuple, list] = {}
    columns = [
        "operator",
        "criterion",
        "replacement",
        "heuristic",
        "pair",
        "op1",
        "op2",
        "correct",
        "logit",
        "before",
    ]
    for *key, pair, a, b, correct, logit, before in (
        runs.filter(arm="heuristic").select(columns).iter_rows()
    ):
        values.setdefault(tuple(key), []).append((pair, a, b, correct, logit - before))
    return values


def test_true_division_is_that_of_fractions(given: Tables, prompts: pl.DataFrame):
    """If all prompts are drawn, all associated ones are, and the control is not contaminated."""
    table = ask("fault_knockouts", given, prompts=80, fault_seed=0)
    answers, expected = brute_force(given, prompts), {}
    for (operator, criterion, ablation, heuristic), rows in answers.items():
        holds = HEURISTICS[heuristic][2]
        for fault in ("none", "contaminated control", "true division")[
            : 3 if operator == "divide" else 2
        ]:
            truth = {pair: holds(a, b, whole(operator, a, b)) for pair, a, b, _, _ in rows}
            taken = {
                pair: holds(a, b, Fraction(a, b)) if fault == "true division" else truth[pair]
                for pair, a, b, _, _ in rows
            }
            is_taken = np.array([taken[pair] for pair, *_ in rows])
            measured = np.array([row[3:] for row in rows], float)  # correct, change of the logit
            if 0 < is_taken.sum() < len(rows):
                yes, yes_logit = measured[is_taken].mean(axis=0)
                no, no_logit = measured[~is_taken].mean(axis=0)
                among = np.mean([truth[pair] for pair in truth if not taken[pair]])
                row = [among, yes, no, yes_logit, no_logit, no - yes, no_logit - yes_logit]
                expected.setdefault((operator, criterion, fault, ablation), []).append(row)
    keys = ["operator", "criterion", "fault", "ablation"]
    assert table.select(keys).rows() == sorted(expected)
    for row in table.iter_rows(named=True):
        wanted = expected[tuple(row[key] for key in keys)]
        assert row["heuristics"] == len(wanted)
        assert [row[name] for name in ("associated_among_other", *MEASURES)] == pytest.approx(
            list(np.mean(wanted, axis=0))
        )
    moved = {
        m
        for (_, m, fault, _), rows in expected.items()
        if fault == "true division" and rows[0][0] > 0
    }
    assert moved >= {"result mod 2 = 1", "result ~ ..1", "result = 2", "result in {0, 3}"}
    assert not moved & {"op1 mod 2 = 0", "own", "result in 1..2", "result mod 5 in 1..2"}


def test_the_contaminated_control_is_drawn_evenly_from_all_that_is_not_drawn():
    """Use 20 prompts, 10 of them associated, of which 5 are drawn.

    The logit of prompt i changes by 2^i, so that a mean identifies its prompts.
    """
    names = [f"op1 in 0..{end}" for end in range(300)]
    knockouts = [
        (0, "add", "none", None, None, None),
        *((i + 1, "add", "heuristic", h, h, "zero") for i, h in enumerate(names)),
    ]
    given = {
        "knockout_interventions": tabled(INTERVENTIONS, *knockouts),
        "runs": tabled(
            RUNS,
            *(
                ("s", "knockout", i, pair, (i > 0) * 2.0**pair, 0.0, pair % 2 == 0)
                for i in range(301)
                for pair in range(20)
            ),
        ),
        "prompt_associations": tabled(
            ["operator", "pair", "heuristic"],
            *(("add", pair, h) for h in names for pair in range(10)),
        ),
        "pairs": frame(operator="add", split="evaluation", pair=range(20), op1=1, op2=1, result=2),
        "heuristics": tabled(
            ["operator", "heuristic", "kind", "quantity"],
            *(("add", h, "range", "op1") for h in names),
        ),
    }
    first, second = (
        ask("fault_knockouts", given, prompts=5, fault_seed=seed).filter(
            fault="contaminated control"
        )
        for seed in (0, 1)
    )
    assert first.height == len(names)
    assert (first["associated_among_other"] != second["associated_among_other"]).any()
    counts: Counter[int] = Counter()
    for row in first.iter_rows(named=True):
        drawn = [pair for pair in range(20) if int(row["logit_change_other"] * 5) >> pair & 1]
        assert len(drawn) == 5
        assert sum(pair < 10 for pair in drawn) == round(row["associated_among_other"] * 5)
        assert row["accuracy_other"] == pytest.approx(np.mean([pair % 2 == 0 for pair in drawn]))
        assert (
            row["logit_change_associated"] == 1023 / 10
        )  # of all associated prompts, drawn or not
        counts.update(drawn)
    for pair in range(20):  # half of the associated prompts can still be drawn, among 15
        share = (0.5 if pair < 10 else 1) * 5 / 15
        assert abs(counts[pair] - 300 * share) < 4 * (300 * share * (1 - share)) ** 0.5
    assert (
        abs(sum(counts[pair] for pair in range(10)) - 500) < 4 * (300 * 5 * 2 / 9 * 10 / 14) ** 0.5
    )


def test_a_subject_without_heuristics_has_no_rows(given: Tables):
    empty = given | {"knockout_interventions": given["knockout_interventions"].clear()}
    assert ask("fault_knockouts", empty, prompts=5, fault_seed=0).is_empty()


SCORES = [
    "operator",
    "layer",
    "fault",
    "quantities",
    "threshold",
    "neurons",
    "classified",
    "gained",
    "lost",
]
KNOCKOUTS = [
    "operator",
    "criterion",
    "fault",
    "ablation",
    "heuristics",
    "associated_among_other",
    *MEASURES,
]


def test_the_table_of_faults_puts_right_beside_wrong():
    range_fault, modulo = "op2 range with op1's size", "result modulo with (M // n)^2"
    counts = {range_fault: (7, 4, 1), modulo: (4, 1, 1), "both": (9, 5, 0), "none": (4, 0, 0)}
    ranked = (
        [("last", 1, k, 0.5) for k in (5, 20)]
        + [("last", 2, k, 1.0) for k in (5, 20)]
        + [("op1", 0, 5, 0.1)]
    )
    accuracies = {
        "heuristic": 0.1,
        "count": 0.3,
        "control": 0.7,
        "contaminated": 0.4,
        "matched": 0.9,
    }
    by_prompt = [
        ("divide", "fdr", arm, "zero", n, n / 100 + value)
        for n in (0, 5, 25)
        for arm, value in accuracies.items()
    ]
    scores = []
    for fault, layer in product(counts, (0, 1)):
        scores.append(("add", layer, fault, "any", 0.6, 10, *counts[fault]))
        scores.append(("add", layer, fault, "any", 0.7, 10, 0, 0, 0))
    given = {
        "fault_scores": tabled(SCORES, *scores),
        "fault_knockouts": tabled(
            KNOCKOUTS,
            ("divide", "fdr", "none", "zero", 8, 0.0, 0.2, 0.9, -3.0, -1.0, 0.7, 2.0),
            (
                "divide",
                "fdr",
                "contaminated control",
                "zero",
                8,
                0.5,
                0.2,
                0.6,
                -3.0,
                -2.0,
                0.4,
                1.0,
            ),
            ("add", "fdr", "none", "mean", 2, 0.0, 0.5, 1.0, -3.0, -1.0, 0.5, 2.0),
            (
                "add",
                "fdr",
                "contaminated control",
                "mean",
                2,
                0.25,
                0.5,
                0.75,
                -3.0,
                -1.5,
                0.25,
                1.5,
            ),
        ),
        "knockouts_by_prompt": tabled(
            ["operator", "criterion", "arm", "ablation", "neurons_per_layer", "accuracy"],
            *by_prompt,
        ),
        "ranking_agreement": tabled(
            ["operator", "position", "layer", "k", "shared", "ranking_a", "ranking_b"],
            *(("add", *row, "effect", "effect_plus_std") for row in ranked),
            ("add", "last", 1, 5, 0.0, "effect", "logit_effect"),
        ),
        "faithfulness": tabled(
            ["operator", "experiment", "circuit", "neurons_per_layer", "faithfulness", "accuracy"],
            ("add", "neuron_circuit", "effect", 5, 0.5, 0.25),
            ("add", "neuron_circuit", "effect_plus_std", 5, 0.75, 0.125),
            *[("add", "head_circuit", "effect", 5, 9.0, 9.0)] * 5,
            ("add", "neuron_circuit", "effect", 6, 8.0, 8.0),
        ),
    }
    table = ask("faults", given, published=0.6)
    values = {row[1:7]: row[7:] for row in table.rows()}
    assert len(values) == table.height
    any_of = "share of neurons classified, heuristics of any"
    assert values["add", range_fault, "2", None, None, any_of] == pytest.approx((0.4, 0.7, 0.3))
    assert values["add", modulo, "3", None, None, any_of] == pytest.approx((0.4, 0.4, 0))
    assert values["add", "both sizes", "2 and 3", None, None, any_of] == pytest.approx(
        (0.4, 0.9, 0.5)
    )
    zero, mean = ("fdr", "zero"), ("fdr", "mean")
    assert values[
        "divide", "contaminated control", "4", *zero, "accuracy, other - associated prompts"
    ] == pytest.approx((0.7, 0.4, -0.3))
    assert values[
        "divide", "contaminated control", "4", *zero, "share of other prompts that are associated"
    ] == (0, 0.5, 0.5)
    assert values[
        "add", "contaminated control", "4", *mean, "logit change, other - associated prompts"
    ] == (2, 1.5, -0.5)
    assert values["divide", "true division", "5", *zero, "accuracy of other prompts"] == (
        0.9,
        None,
        None,
    )  # nothing was left of it
    assert not any(fault == "true division" and operator == "add" for operator, fault, *_ in values)
    assert values[
        "divide",
        "ranking by count",
        "9",
        *zero,
        "accuracy of prompts without 25 neurons of theirs per layer",
    ] == pytest.approx((0.35, 0.55, 0.2))
    others = "accuracy of prompts without 25 other neurons per layer"
    assert values["divide", "control with associated neurons", "9", *zero, others] == pytest.approx(
        (0.95, 0.65, -0.3)
    )
    std = {key[-1]: values for key, values in values.items() if key[1] == "ranking by mean + std"}
    assert std == {
        "share of a layer's top 5 neurons": (1, 0.75, -0.25),
        "share of a layer's top 20 neurons": (1, 0.75, -0.25),
        "faithfulness of the top 5 neurons": (0.5, 0.75, 0.25),
        "accuracy of the top 5 neurons": (0.25, 0.125, -0.125),
    }
    assert table.height == 3 + 3 * 6 + 2 * 2 + 4
