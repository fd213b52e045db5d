"""Order and name the tasks and conditions of causal mediation in figures."""

from collections.abc import Iterable

import polars as pl

TASKS = [  # a user's own tasks follow
    "arithmetic",
    "number_words",
    "three_operands",
    "retrieval",
    "factual",
]
CONDITIONS = ["result_varies", "result_fixed", "operator_varies", "query_varies", "entity_varies"]
Kind = tuple[str, str]  # task and condition


def kinds(table: pl.DataFrame) -> list[Kind]:
    """Return every task and condition of a table, in order."""
    tasks, conditions = ordered(table["task"], TASKS), ordered(table["condition"], CONDITIONS)
    distinct = set(table.select("task", "condition").iter_rows())
    return sorted(distinct, key=lambda kind: (tasks.index(kind[0]), conditions.index(kind[1])))


def ordered(values: Iterable[str], known: list[str]) -> list[str]:
    """Return the distinct values: known ones in the order of `known`, then the others sorted."""
    distinct = set(values)
    return [*filter(distinct.__contains__, known), *sorted(distinct - {*known})]


def rows_of(table: pl.DataFrame, kind: Kind) -> pl.DataFrame:
    """Return the rows of a task and condition."""
    return table.filter(task=kind[0], condition=kind[1])


def name(parts: Iterable[str]) -> str:
    """Return a task, a condition, or both in words."""
    return ", ".join(parts).replace("_", " ")
