"""Find the tables, subjects and operators that a query names, to report spelling mistakes."""

from collections.abc import Iterator, Mapping
from typing import Any

import sqlglot
from sqlglot import exp

COLUMNS = ("subject", "operator")


def aliases(query: str) -> dict[str, str]:
    """Return the tables that a query reads: alias -> table; a table without one is its own alias.

    The query must be one that sqlglot parses: SqlglotError or RecursionError otherwise.
    """
    tree = sqlglot.parse_one(query, dialect="duckdb")
    tables = tree.find_all(exp.Table)
    return {table.alias_or_name.lower(): table.name.lower() for table in tables}


def tables_and_names(
    query: str,
    parameters: Mapping[str, object],
) -> tuple[set[str], dict[str, set[str]]]:
    """Return the tables that a query reads, and the texts that it compares with each of COLUMNS.

    A comparison is =, IN or IS NOT DISTINCT FROM; those below a NOT do not count. The query must
    be one that sqlglot parses: SqlglotError or RecursionError otherwise.
    """
    tree = sqlglot.parse_one(query, dialect="duckdb")
    texts: dict[str, set[str]] = {name: set() for name in COLUMNS}
    for node in tree.find_all(exp.EQ, exp.NullSafeEQ, exp.In):
        if not node.find_ancestor(exp.Not):
            for left, right in _pairs(node):
                if isinstance(left, exp.Column) and left.name.lower() in COLUMNS:
                    texts[left.name.lower()].update(_text(right, parameters))
    return {table.name.lower() for table in tree.find_all(exp.Table)}, texts


def _pairs(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each expression of a comparison with each that it is compared with."""
    others = [node.expression]
    if isinstance(node, exp.In):
        others = node.expressions
    for other in others:
        sides = [(node.this, other), (other, node.this)]
        if isinstance(node.this, exp.Tuple) and isinstance(other, exp.Tuple):
            sides = list(zip(node.this.expressions, other.expressions, strict=False))
        yield from sides


def _text(node: Any, parameters: Mapping[str, object]) -> list[str]:
    """Return the text that a literal or a parameter stands for, as a list of at most one."""
    if isinstance(node, exp.Literal) and node.is_string:
        return [node.name]
    if isinstance(node, exp.Placeholder | exp.Parameter):
        value = parameters.get(node.name)
        if isinstance(value, str):
            return [value]
    return []
