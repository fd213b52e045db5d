"""Make pairs of prompts for causal mediation, random runs of them, and their effects."""

from itertools import product
from typing import Any

import numpy as np
import polars as pl

from tests.made import HEADS, LAYERS, LOGITS, PROBABILITIES, Tables, architecture, ask, only

Forms = list[list[str]]  # classes of the tokens of each template
Task = tuple[list[str], list[Any], Forms]  # conditions, operators, templates
IN_WORDS = ["early", "operator", "early", "op1", "middle", "op2", "op2", "last"]
IN_SYMBOLS = ["early", "op1", "op1", "operator", "op2", "last"]
IN_BRACKETS = ["early", "op1", "operator", "op2", "late", "operator", "op3", "last"]
RETRIEVAL = ["early", "op1", "middle", "op2", "late", "query", "last"]
TASKS: dict[str, Task] = {
    "arithmetic": (
        ["result_varies", "result_fixed"],
        ["add", "subtract"],
        [IN_WORDS, IN_SYMBOLS],
    ),
    "three_operands": (["result_varies"], ["add add", "add divide"], [IN_BRACKETS]),
    "retrieval": (["query_varies"], [None], [RETRIEVAL]),
}
COMPONENTS = [("mlp", None), ("attention", None), *product(["head"], range(HEADS))]
SITES = [(name, layer, head) for layer, (name, head) in product(range(LAYERS), COMPONENTS)]
EFFECTS = ("mediation_pairs", "mediation_by_pair", "mediation_weights")  # for mediation_effects
KINDS = dict.fromkeys(("pair", "template", "answer_token", "counterfactual_answer_token"), pl.Int32)
GROUP = ("task", "condition", "operator")


def pairs(each: int = 4, tasks: dict[str, Task] = TASKS) -> pl.DataFrame:
    """Return the columns of mediation_pairs that queries read.

    each: pairs of each template and operator. Their numbers are in random order.
    """
    rows = []
    for task, (conditions, operators, forms) in tasks.items():
        groups = product(conditions, operators, enumerate(forms), range(each))
        for condition, operator, (template, classes), _ in groups:
            kind = {"subject": "s", "task": task, "condition": condition, "template": template}
            clean = {"operator": operator, "classes": classes, "answer": "five", "answer_token": 5}
            other = {
                "tokens": list(range(len(classes))),
                "counterfactual_answer": "other",
                "counterfactual_answer_token": 5 if condition == "result_fixed" else 6,
            }
            rows.append(kind | clean | other)
    table = pl.DataFrame(rows, schema_overrides={"operator": pl.String})
    numbers = np.random.default_rng(len(rows)).permutation(len(rows))
    return table.with_columns(pair=pl.Series(numbers)).cast(KINDS)  # type: ignore[arg-type]


def subject(each: int = 4, tasks: dict[str, Task] = TASKS, replicates: int = 40) -> Tables:
    """Return random runs of every intervention on every pair that has its token.

    The result has all tables that the queries read, except for mediation_by_pair.
    """
    shuffled = pairs(each, tasks).sample(fraction=1, shuffle=True, seed=0)
    given = {"architecture": architecture(), "mediation_pairs": shuffled}
    interventions = ask("mediation_interventions", given, single_heads=True)
    own = only(given, "mediation_pairs")
    weights = ask("mediation_weights", own, mediation_replicates=replicates)
    return given | {
        "mediation_interventions": interventions,
        "mediation_weights": weights.sample(fraction=1, shuffle=True, seed=0),
        "runs": runs(given, interventions),
    }


def runs(given: Tables, interventions: pl.DataFrame) -> pl.DataFrame:
    """Return random runs, in random order.

    They predict the clean prompt's answer, the counterfactual one's, or a third token.
    """
    rng = np.random.default_rng(1)
    tokens = ("answer_token", "counterfactual_answer_token")
    length = pl.col("tokens").list.len()
    lengths = given["mediation_pairs"].select("pair", *tokens, length=length)
    places = interventions.select("intervention", place=pl.col("position").cast(pl.Int32))
    rows = places.join(lengths, how="cross")
    rows = rows.filter(pl.col("place").is_null() | (pl.col("place") < pl.col("length")))
    which = pl.Series("which", rng.integers(3, size=len(rows)))
    names = [*LOGITS, *PROBABILITIES]
    for name in names:
        values = pl.Series(name, rng.uniform(0.05, 1, len(rows)), pl.Float32)
        rows = rows.with_columns(values)
    answers = pl.when(which == 0).then("answer_token")
    answers = answers.when(which == 1).then("counterfactual_answer_token").otherwise(7)
    rows = rows.with_columns(predicted=answers.cast(pl.Int32))
    rows = rows.with_columns(correct=pl.col("predicted") == pl.col("answer_token"))
    same = pl.col("answer_token") == pl.col("counterfactual_answer_token")
    for answer, other in (LOGITS, PROBABILITIES):  # equal for equal tokens
        rows = rows.with_columns(pl.when(same).then(answer).otherwise(other).alias(other))
    columns = rows.select("intervention", "pair", *names, "predicted", "correct")
    return columns.sample(fraction=1, shuffle=True, seed=2)


def by_pair(given: Tables) -> Tables:
    """Add mediation_by_pair, as its query makes it."""
    names = ("mediation_pairs", "mediation_interventions", "runs")
    table = ask("mediation_by_pair", only(given, *names))
    return given | {"mediation_by_pair": table.sample(fraction=1, shuffle=True, seed=0)}


def importance(given: Tables) -> pl.DataFrame:
    """Return relative_importance, as its query makes it."""
    return ask("relative_importance", only(given, "architecture", *EFFECTS), published_floor=0.1)


def groups(given: Tables) -> dict[tuple[str, str, str], list[int]]:
    """Return (task, condition, operator or all) -> the group's pairs, in order."""
    members: dict[tuple[str, str, str], list[int]] = {}
    rows = given["mediation_pairs"].sort("pair").select("pair", *GROUP)
    for pair, task, condition, operator in rows.iter_rows():
        for name in {operator or "all", "all"}:
            members.setdefault((task, condition, name), []).append(pair)
    return members


def expected(given: Tables) -> dict[tuple, dict[str, float]]:
    """Return (pair, component, layer, head, class) -> values of mediation_by_pair.

    Undefined values are NaN.
    """
    answers = {}
    for row in given["runs"].iter_rows(named=True):
        answers[row["intervention"], row["pair"]] = row
    numbers = {}
    patches = given["mediation_interventions"].filter(pl.col("component") != "none")
    for row in patches.iter_rows(named=True):
        [head] = row["units"] or [None]
        component = row["component"] if row["component"] == "mlp" or row["units"] else "attention"
        place = component, row["layer"], head, int(row["position"])
        numbers[place] = row["intervention"]
    effects: dict[tuple, dict[str, float]] = {}
    for pair in given["mediation_pairs"].iter_rows(named=True):
        clean = answers[0, pair["pair"]]
        tokens = pair["answer_token"], pair["counterfactual_answer_token"]
        for site, position_class in product(SITES, sorted(set(pair["classes"]))):
            each = []
            for place, name in enumerate(pair["classes"]):
                if name == position_class:
                    patched = answers[numbers[*site, place], pair["pair"]]
                    each.append(_token(clean, patched, *tokens))
            values = np.array([list(token.values()) for token in each], float)
            means = dict(zip(each[0], values.mean(0).tolist(), strict=True))
            counts = {"tokens": len(each), "correct": clean["correct"]}
            effects[pair["pair"], *site, position_class] = means | counts
    return effects


def _token(
    clean: dict[str, Any], patched: dict[str, Any], answer: int, other: int
) -> dict[str, float]:
    """Return the values of one patched token."""
    p, q = (np.float64(clean[name]) for name in PROBABILITIES)
    p2, q2 = (np.float64(patched[name]) for name in PROBABILITIES)
    with np.errstate(divide="ignore", invalid="ignore"):
        effect = ((q2 - q) / q + (p - p2) / p2) / 2
    rise = patched["counterfactual_logit"] - clean["counterfactual_logit"]
    fall = clean["answer_logit"] - patched["answer_logit"]
    differ = 1 if answer != other else np.nan
    is_desired = patched["predicted"] == other != clean["predicted"]
    is_other = patched["predicted"] not in (answer, other)
    return {
        "effect": effect if np.isfinite(effect) else np.nan,
        "logit_effect": differ * (rise + fall) / 2,
        "desired": differ * is_desired,
        "undesired": float(clean["predicted"] == answer and is_other),
    }
