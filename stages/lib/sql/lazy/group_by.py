"""Answer a query that only aggregates whole neurons from one row of sums per neuron.

`select layer, neuron, avg(activation) … group by layer, neuron` then needs no hash table of 90,000
rows per neuron. Such a query is a SELECT from one lazy table. It groups and filters by columns
that are constant within a neuron, and has avg, sum, min, max or count of the measure. It is
rewritten to read `<table>__sums`. Only plain arithmetic and comparisons are understood; a query
with anything else stays as it is.
"""

from collections.abc import Mapping, Sequence

import sqlglot
from sqlglot import exp

from stages.lib.sql.lazy.table import SUMS

KEYS = {"subject", "operator", "layer", "neuron"}
FROM_SUMS = {
    exp.Avg: "sum(total__) / sum(rows__)",
    exp.Sum: "sum(total__)",
    exp.Min: "min(smallest__)",
    exp.Max: "max(largest__)",
    exp.Count: "coalesce(sum(rows__), 0)::bigint",
}
UNDERSTOOD = (
    exp.Select, exp.From, exp.Table, exp.TableAlias, exp.Where, exp.Group, exp.Having, exp.Order,
    exp.Ordered, exp.Limit, exp.Alias, exp.Column, exp.Identifier, exp.Literal, exp.Boolean,
    exp.Null, exp.Parameter, exp.Placeholder, exp.Var, exp.Star, exp.And, exp.Or, exp.Not,
    exp.Paren, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.In, exp.Between, exp.Add,
    exp.Sub, exp.Mul, exp.Neg, exp.Round, exp.Abs, *FROM_SUMS,
)  # fmt: skip


def summed(query: str, columns: Mapping[str, Sequence[str]], names: list[str]) -> str | None:
    """Return the query over the table of sums, None if it is not of this kind.

    columns: lazy table -> its columns, the measure last; names: those of the columns that the query
    returns.
    """
    try:
        tree = sqlglot.parse_one(query, dialect="duckdb")
    except sqlglot.errors.SqlglotError:
        return None
    table = _only_table(tree)
    if table is None or table.name not in columns or len(tree.expressions) != len(names):
        return None
    aggregates = list(tree.find_all(*FROM_SUMS))
    if not aggregates or not _only_whole_neurons(tree, aggregates, columns[table.name]):
        return None
    for projection, name in zip(tree.expressions, names, strict=True):
        if not isinstance(projection, exp.Alias):
            projection.replace(exp.alias_(projection.copy(), name, quoted=True))
    for aggregate in list(tree.find_all(*FROM_SUMS)):
        from_sums = sqlglot.parse_one(FROM_SUMS[type(aggregate)], dialect="duckdb")
        aggregate.replace(exp.Paren(this=from_sums))
    sums = exp.to_table(table.name + SUMS)
    table.replace(exp.alias_(sums, table.alias_or_name, table=True))
    return tree.sql(dialect="duckdb")


def _only_table(tree: exp.Expr) -> exp.Table | None:
    """Return the table of a SELECT that is understood and reads a single table, else None."""
    if not isinstance(tree, exp.Select) or any(
        type(node) not in UNDERSTOOD for node in tree.walk()
    ):
        return None
    tables = list(tree.find_all(exp.Table))
    if len(tables) != 1 or tables[0].args.get("joins"):
        return None
    alias = tables[0].args.get("alias")
    if alias and alias.columns:  # new names for columns may be the names of other columns
        return None
    return tables[0]


def _only_whole_neurons(
    tree: exp.Expr, aggregates: Sequence[exp.Expr], columns: Sequence[str]
) -> bool:
    """Return whether the query can be computed from sums over whole neurons.

    The aggregates must be count(*) or of the measure alone. All other columns must be keys, or
    names that the query gives. columns: of the table, the measure last.
    """
    *_, measure = columns
    counted = 0
    for aggregate in aggregates:
        counts_rows = isinstance(aggregate, exp.Count) and isinstance(aggregate.this, exp.Star)
        is_column = isinstance(aggregate.this, exp.Column)
        is_measure = is_column and aggregate.this.name == measure
        if not (counts_rows or is_measure) or aggregate.expressions:
            return False
        counted += counts_rows
    if len(list(tree.find_all(exp.Star))) > counted:
        return False
    given = {column.alias for column in tree.expressions if isinstance(column, exp.Alias)}
    for column in tree.find_all(exp.Column):
        is_aggregated = isinstance(column.parent, tuple(FROM_SUMS))
        is_given = column.name in given and not column.table
        # there the name of a column of the table means this column, and a new name follows it
        if column.find_ancestor(exp.Where) or (
            column.name in columns and column.find_ancestor(exp.Group, exp.Having)
        ):
            is_given = False
        if not (is_aggregated or is_given or column.name in KEYS):
            return False
    where = tree.args.get("where")
    return where is None or where.find(*FROM_SUMS) is None
