"""Answers a query that only aggregates whole neurons from one row of sums per neuron, instead of row by row.

`select layer, neuron, avg(activation) … group by layer, neuron` needs no hash table of 90,000 rows a neuron. A SELECT over
one lazy table, grouped and filtered by what is constant in a neuron, with avg, sum, min, max and count of the measure, is
rewritten to read `<table>__sums`. Only plain arithmetic and comparisons are understood; everything else is left alone.
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
    exp.Select, exp.From, exp.Table, exp.TableAlias, exp.Where, exp.Group, exp.Having, exp.Order, exp.Ordered, exp.Limit, exp.Alias,
    exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Parameter, exp.Placeholder, exp.Var, exp.Star,
    exp.And, exp.Or, exp.Not, exp.Paren,
    exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.In, exp.Between, exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Round, exp.Abs,
    *FROM_SUMS,
)  # fmt: skip


def summed(query: str, measures: Mapping[str, str], names: list[str]) -> str | None:
    """The query over the table of sums, None where it is not of that kind.

    measures: lazy table -> its measure; names: of the columns that the query returns.
    """
    try:
        tree = sqlglot.parse_one(query, dialect="duckdb")
    except sqlglot.errors.SqlglotError:
        return None
    if not isinstance(tree, exp.Select) or not all(
        type(node) in UNDERSTOOD for node in tree.walk()
    ):
        return None
    tables = list(tree.find_all(exp.Table))
    if (
        len(tables) != 1
        or tables[0].name not in measures
        or tables[0].args.get("joins")
        or len(tree.expressions) != len(names)
    ):
        return None
    if (
        tables[0].args.get("alias") and tables[0].args["alias"].columns
    ):  # other names for them, perhaps those of others
        return None
    aggregates = list(tree.find_all(*FROM_SUMS))
    if not aggregates or not _only_whole_neurons(tree, aggregates, measures[tables[0].name]):
        return None
    for projection, name in zip(tree.expressions, names, strict=True):
        if not isinstance(projection, exp.Alias):
            projection.replace(exp.alias_(projection.copy(), name, quoted=True))
    for aggregate in list(tree.find_all(*FROM_SUMS)):
        aggregate.replace(
            exp.Paren(this=sqlglot.parse_one(FROM_SUMS[type(aggregate)], dialect="duckdb"))
        )
    table = tables[0]
    alias = table.alias_or_name
    table.replace(exp.alias_(exp.to_table(table.name + SUMS), alias, table=True))
    return tree.sql(dialect="duckdb")


def _only_whole_neurons(tree: exp.Select, aggregates: Sequence[exp.Expr], measure: str) -> bool:
    """Whether the aggregates are of the measure alone, or count(*), and all else speaks of keys and of the query's own names."""
    for aggregate in aggregates:
        of_rows = isinstance(aggregate, exp.Count) and isinstance(aggregate.this, exp.Star)
        of_measure = isinstance(aggregate.this, exp.Column) and aggregate.this.name == measure
        if not (of_rows or of_measure) or aggregate.expressions:
            return False
    if len(list(tree.find_all(exp.Star))) > sum(isinstance(a.this, exp.Star) for a in aggregates):
        return False
    own = {e.alias for e in tree.expressions if isinstance(e, exp.Alias)}
    where = tree.args.get("where")
    for column in tree.find_all(exp.Column):
        inside = isinstance(column.parent, tuple(FROM_SUMS))
        named = column.name in own and not column.table and column.find_ancestor(exp.Where) is None
        if not (inside or named or column.name in KEYS):
            return False
    return where is None or where.find(*FROM_SUMS) is None
