"""Tasks and conditions of causal mediation: their order in figures, their names, their rows of a table."""

from collections.abc import Iterable

import polars as pl

TASKS = ["arithmetic", "number_words", "three_operands", "retrieval", "factual"]  # then a user's own
CONDITIONS = ["result_varies", "result_fixed", "operator_varies", "query_varies", "entity_varies"]
Kind = tuple[str, str]  # task and condition


def kinds(table: pl.DataFrame) -> list[Kind]:
    """Every task and condition of a table that has both columns."""
    found = set(table.select("task", "condition").iter_rows())
    tasks, conditions = ordered(table["task"], TASKS), ordered(table["condition"], CONDITIONS)
    return sorted(found, key=lambda kind: (tasks.index(kind[0]), conditions.index(kind[1])))


def ordered(found: Iterable[str], known: list[str]) -> list[str]:
    """Each once: the known ones as they are known, then others."""
    return sorted(set(found), key=lambda one: (known.index(one) if one in known else len(known), one))


def of(table: pl.DataFrame, kind: Kind) -> pl.DataFrame:
    """The rows of a task and condition."""
    return table.filter(task=kind[0], condition=kind[1])


def name(parts: Iterable[str]) -> str:
    """A task, a condition, or both in words."""
    return ", ".join(parts).replace("_", " ")
