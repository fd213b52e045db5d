"""Faulty controls against plain Python, and the table of all faults against known numbers."""

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

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
MAJORITIES = ["majority_accuracy_associated", "majority_accuracy_other"]
INTERVENTIONS = ["intervention", "operator", "arm", "criterion", "heuristic", "replacement"]
RUNS = ["subject", "experiment", "intervention", "pair", "answer_logit", "mean_logit", "correct"]


def shuffled(table: pl.DataFrame) -> pl.DataFrame:
    return table.sample(fraction=1, shuffle=True, seed=0)


def tabled(columns: list[str], *rows: tuple) -> pl.DataFrame:
    """A table, its rows in no order."""
    return shuffled(pl.DataFrame(rows, schema=columns, orient="row", infer_schema_length=None))


@pytest.fixture(scope="module")
def prompts() -> pl.DataFrame:
    keys = list(product(("add", "divide"), ("discovery", "evaluation"), range(80)))
    operators, splits, _ = zip(*keys, strict=True)
    op1, op2 = np.random.default_rng(0).integers(1, 20, (2, len(keys)), dtype=np.int32)
    results = np.where(np.array(operators) == "add", op1 + op2, op1 // op2)
    columns = {"operator": operators, "split": splits, "op1": op1, "op2": op2, "result": results}
    return shuffled(frame(pair=range(len(keys)), answer_token=results % 7, **columns))


def meanings(prompts: pl.DataFrame) -> pl.DataFrame:
    """Return whether each prompt satisfies each heuristic, by its result and by true division."""
    rows = []
    cells = prompts.select("operator", "pair", "op1", "op2", "result").rows()
    for (operator, pair, a, b, result), heuristic in product(cells, HEURISTICS):
        _, _, holds = HEURISTICS[heuristic]
        quotient = Fraction(a, b) if operator == "divide" else Fraction(result)
        meant = (holds(a, b, Fraction(result)), holds(a, b, quotient))
        rows.append((operator, pair, heuristic, *meant))
    columns = ["operator", "pair", "heuristic", "holds", "holds_undivided"]
    return pl.DataFrame(rows, schema=columns, orient="row").cast({"pair": pl.Int32})


@pytest.fixture(scope="module")
def given(prompts: pl.DataFrame) -> Tables:
    """Return ablations of each heuristic alone (criterion: its name) and of all together.

    Interventions have two patches, there are controls, and the model is random.
    """
    random = np.random.default_rng(1)
    rows: list[tuple] = [("add", "none", None, None, None), ("divide", "none", None, None, None)]
    keys = product(("add", "divide"), ("heuristic", "control"), HEURISTICS, ("zero", "mean"))
    for operator, arm, heuristic, replacement in keys:
        rows.append((operator, arm, "all", heuristic, replacement))
        rows.append((operator, arm, heuristic, heuristic, replacement))
    interventions = pl.DataFrame(rows, schema=INTERVENTIONS[1:], orient="row").select(
        pl.int_range(pl.len(), dtype=pl.Int32).alias("intervention"), pl.all()
    )
    second_patches = interventions.filter(pl.col("arm") != "none")
    evaluated = prompts.filter(split="evaluation").select("operator", "pair")
    answers = interventions.join(evaluated, on="operator", maintain_order="left_right")
    answers = answers.join(frame(experiment=["knockout", "neuron"]), how="cross").with_columns(
        subject=pl.lit("s"),
        answer_logit=random.normal(size=2 * len(answers)),
        mean_logit=random.normal(size=2 * len(answers)),
        correct=random.random(2 * len(answers)) < 0.6,
    )
    known = []
    for heuristic, (kind, quantity, _) in HEURISTICS.items():
        if kind != "multi-result":
            known.append(("add", heuristic, kind, quantity))
            known.append(("divide", heuristic, kind, quantity))
    associated = meanings(prompts).filter("holds").select("operator", "pair", "heuristic")
    return {
        "knockout_interventions": shuffled(pl.concat([interventions, second_patches])),
        "runs": shuffled(answers.select(RUNS)),
        "prompt_associations": shuffled(associated),
        "pairs": prompts,
        "heuristics": tabled(["operator", "heuristic", "kind", "quantity"], *known),
    }


def answers_by_heuristic(given: Tables) -> pl.DataFrame:
    """Return what the model answers to each prompt when a heuristic is ablated.

    `change` is that of the answer's logit above the mean logit, from the clean run's.
    """
    interventions = given["knockout_interventions"].unique()
    runs = given["runs"].filter(experiment="knockout").join(interventions, on="intervention")
    runs = runs.with_columns(logit=pl.col("answer_logit") - pl.col("mean_logit"))
    clean = runs.filter(arm="none").select("pair", before="logit")
    ablated = runs.filter(arm="heuristic").rename({"replacement": "ablation"})
    return ablated.join(clean, on="pair").with_columns(change=pl.col("logit") - pl.col("before"))


def most_frequent(counted: pl.Expr) -> pl.Expr:
    """Return the share of the most frequent answer among the counted prompts."""
    return pl.col("answer_token").filter(counted).unique_counts().max() / counted.sum()


def test_true_division_is_that_of_fractions(given: Tables, prompts: pl.DataFrame):
    """If all prompts are drawn, all associated ones are, and the control is not contaminated."""
    table = ask("fault_knockouts", given, prompts=80, fault_seed=0)
    meant = meanings(prompts).drop("operator")
    answers = answers_by_heuristic(given).join(meant, on=["pair", "heuristic"])
    answers = answers.join(prompts.select("pair", "answer_token"), on="pair")
    right = answers.with_columns(fault=pl.lit("none"), taken="holds")
    contaminated = right.with_columns(fault=pl.lit("contaminated control"))
    divisions = answers.filter(operator="divide")
    undivided = divisions.with_columns(fault=pl.lit("true division"), taken="holds_undivided")
    keys = ["operator", "criterion", "fault", "ablation"]
    taken, other = pl.col("taken"), ~pl.col("taken")
    tested = (
        pl.concat([right, contaminated, undivided])
        .group_by(*keys, "heuristic")
        .agg(
            associated_among_other=pl.col("holds").filter(other).mean(),
            accuracy_associated=pl.col("correct").filter(taken).mean(),
            accuracy_other=pl.col("correct").filter(other).mean(),
            logit_change_associated=pl.col("change").filter(taken).mean(),
            logit_change_other=pl.col("change").filter(other).mean(),
            majority_accuracy_associated=most_frequent(taken),
            majority_accuracy_other=most_frequent(other),
        )
        .drop_nulls()  # heuristics without associated or without other prompts
        .with_columns(
            dissociation=pl.col("accuracy_other") - pl.col("accuracy_associated"),
            logit_dissociation=pl.col("logit_change_other") - pl.col("logit_change_associated"),
        )
    )
    means = pl.col("associated_among_other", *MEASURES, *MAJORITIES).mean()
    expected = tested.group_by(keys).agg(pl.len().cast(pl.Int32).alias("heuristics"), means)
    assert_frame_equal(table.drop("subject"), expected.sort(keys), rel_tol=1e-6, abs_tol=1e-12)
    changed = tested.filter(pl.col("associated_among_other") > 0, fault="true division")
    moved = set(changed["criterion"])
    assert moved >= {"result mod 2 = 1", "result ~ ..1", "result = 2", "result in {0, 3}"}
    assert not moved & {"op1 mod 2 = 0", "own", "result in 1..2", "result mod 5 in 1..2"}


def test_the_contaminated_control_is_drawn_evenly_from_all_that_is_not_drawn():
    """Use 20 prompts, 10 of them associated, of which 5 are drawn.

    The logit of prompt i changes by 2^i, so that a mean identifies its prompts.
    """
    names = [f"op1 in 0..{end}" for end in range(300)]
    ablations = frame(
        intervention=range(1, 301),
        operator="add",
        arm="heuristic",
        criterion=names,
        heuristic=names,
        replacement="zero",
    )
    clean = frame(intervention=[0], operator="add", arm="none")
    interventions = pl.concat([clean, ablations], how="diagonal")
    pairs = frame(operator="add", split="evaluation", pair=range(20), op1=1, op2=1, result=2)
    pairs = pairs.with_columns(answer_token=pl.lit(2, pl.Int32))
    change = pl.when(pl.col("arm") == "none").then(0.0).otherwise(2.0 ** pl.col("pair"))
    runs = interventions.join(pairs.select("pair"), how="cross").with_columns(
        subject=pl.lit("s"),
        experiment=pl.lit("knockout"),
        answer_logit=change,
        mean_logit=0.0,
        correct=pl.col("pair") % 2 == 0,
    )
    heuristics = ablations.select("operator", "heuristic")
    associated = pairs.filter(pl.col("pair") < 10).select("operator", "pair")
    given = {
        "knockout_interventions": shuffled(interventions),
        "runs": shuffled(runs.select(RUNS)),
        "prompt_associations": shuffled(heuristics.join(associated, on="operator")),
        "pairs": pairs,
        "heuristics": shuffled(
            heuristics.with_columns(kind=pl.lit("range"), quantity=pl.lit("op1"))
        ),
    }

    def contaminated(seed: int) -> pl.DataFrame:
        table = ask("fault_knockouts", given, prompts=5, fault_seed=seed)
        return table.filter(fault="contaminated control")

    first, second = contaminated(0), contaminated(1)
    assert first.height == len(names)
    assert (first["associated_among_other"] != second["associated_among_other"]).any()
    # of all associated prompts, drawn or not
    assert set(first["logit_change_associated"]) == {1023 / 10}
    pair = np.arange(20)
    sums = np.rint(first["logit_change_other"].to_numpy() * 5).astype(int)
    drawn = sums[:, np.newaxis] >> pair & 1  # (heuristics, prompts)
    assert (drawn.sum(axis=1) == 5).all()
    np.testing.assert_allclose(drawn[:, :10].sum(axis=1) / 5, first["associated_among_other"])
    np.testing.assert_allclose(drawn[:, ::2].sum(axis=1) / 5, first["accuracy_other"])
    counts = drawn.sum(axis=0)
    # half of the associated prompts can still be drawn, among 15
    shares = np.where(pair < 10, 0.5, 1) * 5 / 15
    assert (abs(counts - 300 * shares) < 4 * np.sqrt(300 * shares * (1 - shares))).all()
    assert abs(counts[:10].sum() - 500) < 4 * (300 * 5 * 2 / 9 * 10 / 14) ** 0.5


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
    std = ("effect", "effect_plus_std")
    accuracies = {
        "heuristic": 0.1,
        "count": 0.3,
        "control": 0.7,
        "contaminated": 0.4,
        "matched": 0.9,
    }
    by_prompt = []
    for n, (arm, accuracy) in product((0, 5, 25), accuracies.items()):
        by_prompt.append(("divide", "fdr", arm, "zero", n, n / 100 + accuracy))
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
            ("add", "last", 1, 5, 0.5, *std),
            ("add", "last", 1, 20, 0.5, *std),
            ("add", "last", 2, 5, 1.0, *std),
            ("add", "last", 2, 20, 1.0, *std),
            ("add", "op1", 0, 5, 0.1, *std),
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
    keys = ["operator", "fault", "number", "criterion", "ablation", "measure"]
    assert table.select(keys).is_unique().all()
    values = table.drop("subject").rows_by_key(keys, unique=True)
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
    assert table.filter(fault="true division", operator="add").is_empty()
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
    by_std = table.filter(fault="ranking by mean + std")
    measured = by_std.select("measure", "right_value", "faulty_value", "difference")
    assert measured.rows_by_key("measure", unique=True) == {
        "share of a layer's top 5 neurons": (1, 0.75, -0.25),
        "share of a layer's top 20 neurons": (1, 0.75, -0.25),
        "faithfulness of the top 5 neurons": (0.5, 0.75, 0.25),
        "accuracy of the top 5 neurons": (0.25, 0.125, -0.125),
    }
    assert table.height == 3 + 3 * 6 + 2 * 2 + 4
