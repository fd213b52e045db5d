"""Made pairs of prompts for causal mediation, random runs of them, and their effects by brute force."""

from itertools import product
from typing import Any

import numpy as np
import polars as pl

from tests.made import HEADS, LAYERS, Tables, architecture, ask, only

Forms = list[list[str]]  # classes of the tokens of each template
TASKS: dict[str, tuple[list[str], list[Any], Forms]] = {  # task -> conditions, operators, templates
    "arithmetic": (["result_varies", "result_fixed"], ["add", "subtract"], [
        ["early", "operator", "early", "op1", "middle", "op2", "op2", "last"], ["early", "op1", "op1", "operator", "op2", "last"],
    ]),
    "three_operands": (["result_varies"], ["add add", "add divide"], [["early", "op1", "operator", "op2", "late", "operator", "op3", "last"]]),
    "retrieval": (["query_varies"], [None], [["early", "op1", "middle", "op2", "late", "query", "last"]]),
}  # fmt: skip
SITES = [
    (c, layer, h)
    for layer in range(LAYERS)
    for c, h in [("mlp", None), ("attention", None), *(("head", h) for h in range(HEADS))]
]
EFFECTS = (
    "mediation_pairs",
    "mediation_by_pair",
    "mediation_weights",
)  # what mediation_effects reads
KINDS = {
    "pair": pl.Int32,
    "template": pl.Int32,
    "answer_token": pl.Int32,
    "counterfactual_answer_token": pl.Int32,
}


def pairs(each: int = 4, tasks: dict[str, Any] = TASKS) -> pl.DataFrame:
    """`each` pairs per template and operator, their numbers mixed; the columns of mediation_pairs that queries read."""
    rows = [
        {"subject": "s", "task": task, "condition": condition, "template": template, "operator": operator, "tokens": list(range(len(classes))),
         "classes": classes, "answer": "five", "answer_token": 5,
         "counterfactual_answer": "other", "counterfactual_answer_token": 5 if condition == "result_fixed" else 6}
        for task, (conditions, operators, forms) in tasks.items()
        for condition, operator, (template, classes), _ in product(conditions, operators, enumerate(forms), range(each))
    ]  # fmt: skip
    table = pl.DataFrame(rows, schema_overrides={"operator": pl.String})
    numbers = np.random.default_rng(len(rows)).permutation(len(rows))
    return table.with_columns(pair=pl.Series(numbers)).with_columns(
        pl.col(name).cast(kind) for name, kind in KINDS.items()
    )


def subject(each: int = 4, tasks: dict[str, Any] = TASKS, replicates: int = 40) -> Tables:
    """Random runs of every intervention on every pair that has its token, and all that the queries read but mediation_by_pair."""
    given = {
        "architecture": architecture(),
        "mediation_pairs": pairs(each, tasks).sample(fraction=1, shuffle=True, seed=0),
    }
    interventions = ask("mediation_interventions", given, single_heads=True)
    weights = ask(
        "mediation_weights",
        {"mediation_pairs": given["mediation_pairs"]},
        mediation_replicates=replicates,
    )
    weights = weights.sample(fraction=1, shuffle=True, seed=0)
    return given | {
        "mediation_interventions": interventions,
        "mediation_weights": weights,
        "runs": runs(given, interventions),
    }


def runs(given: Tables, interventions: pl.DataFrame) -> pl.DataFrame:
    """Random answers: the clean prompt's, the other's, or a third; in no order."""
    rng = np.random.default_rng(1)
    lengths = given["mediation_pairs"].select(
        "pair", "answer_token", "counterfactual_answer_token", length=pl.col("tokens").list.len()
    )
    rows = interventions.select("intervention", place=pl.col("position").cast(pl.Int32)).join(
        lengths, how="cross"
    )
    rows = rows.filter(pl.col("place").is_null() | (pl.col("place") < pl.col("length")))
    names = [
        "answer_logit",
        "counterfactual_logit",
        "answer_probability",
        "counterfactual_probability",
    ]
    third = pl.Series("which", rng.integers(3, size=len(rows)))
    made = rows.with_columns(
        *(pl.Series(name, rng.uniform(0.05, 1, len(rows)), pl.Float32) for name in names), third
    )
    answers = (
        pl.when(which=0)
        .then("answer_token")
        .when(which=1)
        .then("counterfactual_answer_token")
        .otherwise(7)
    )
    made = made.with_columns(predicted=answers.cast(pl.Int32)).with_columns(
        correct=pl.col("predicted") == pl.col("answer_token")
    )
    same = pl.col("answer_token") == pl.col("counterfactual_answer_token")
    for kind in ("logit", "probability"):  # of one token there is one of each
        made = made.with_columns(
            pl.when(same)
            .then(f"answer_{kind}")
            .otherwise(f"counterfactual_{kind}")
            .alias(f"counterfactual_{kind}")
        )
    return made.select("intervention", "pair", *names, "predicted", "correct").sample(
        fraction=1, shuffle=True, seed=2
    )


def by_pair(given: Tables) -> Tables:
    """The same with mediation_by_pair, as the query makes it."""
    table = ask(
        "mediation_by_pair", only(given, "mediation_pairs", "mediation_interventions", "runs")
    )
    return given | {"mediation_by_pair": table.sample(fraction=1, shuffle=True, seed=0)}


def importance(given: Tables) -> pl.DataFrame:
    return ask("relative_importance", only(given, "architecture", *EFFECTS), published_floor=0.1)


def groups(given: Tables) -> dict[tuple[str, str, str], list[int]]:
    """Task, condition and operator, or all -> their pairs, in order."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for pair, task, condition, operator in (
        given["mediation_pairs"]
        .sort("pair")
        .select("pair", "task", "condition", "operator")
        .iter_rows()
    ):
        for one in {operator or "all", "all"}:
            found.setdefault((task, condition, one), []).append(pair)
    return found


def expected(given: Tables) -> dict[tuple, dict[str, float]]:
    """Pair, component, layer, head, class -> what mediation_by_pair must say, NaN where it says nothing."""
    said = {(row["intervention"], row["pair"]): row for row in given["runs"].iter_rows(named=True)}
    numbers = {}
    for row in (
        given["mediation_interventions"].filter(pl.col("component") != "none").iter_rows(named=True)
    ):
        component = row["component"] if row["component"] == "mlp" or row["units"] else "attention"
        numbers[component, row["layer"], (row["units"] or [None])[0], int(row["position"])] = row[
            "intervention"
        ]
    found: dict[tuple, dict[str, float]] = {}
    for pair in given["mediation_pairs"].iter_rows(named=True):
        for site, place_class in product(SITES, sorted(set(pair["classes"]))):
            places = [place for place, name in enumerate(pair["classes"]) if name == place_class]
            clean, answers = (
                said[0, pair["pair"]],
                (pair["answer_token"], pair["counterfactual_answer_token"]),
            )
            tokens = [
                _token(clean, said[numbers[*site, place], pair["pair"]], *answers)
                for place in places
            ]
            means = {name: float(np.mean([token[name] for token in tokens])) for name in tokens[0]}
            found[pair["pair"], *site, place_class] = means | {
                "tokens": len(places),
                "correct": clean["correct"],
            }
    return found


def _token(
    clean: dict[str, Any], patched: dict[str, Any], answer: int, other: int
) -> dict[str, float]:
    p, q, p2, q2 = (
        np.float64(run[f"{name}_probability"])
        for run in (clean, patched)
        for name in ("answer", "counterfactual")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        effect = ((q2 - q) / q + (p - p2) / p2) / 2
    rise, fall = (
        patched["counterfactual_logit"] - clean["counterfactual_logit"],
        clean["answer_logit"] - patched["answer_logit"],
    )
    differ = 1 if answer != other else np.nan
    return {
        "effect": effect if np.isfinite(effect) else np.nan, "logit_effect": differ * (rise + fall) / 2,
        "desired": differ * (patched["predicted"] == other != clean["predicted"]),
        "undesired": float(clean["predicted"] == answer and patched["predicted"] not in (answer, other)),
    }  # fmt: skip
