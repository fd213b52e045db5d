"""Ask the database for the columns and the keys of what a query joins with a lazy table."""

from collections.abc import Callable

import pyarrow as pa
from sqlglot import exp

MANY = 100_000  # keys; with more, the lazy table is read as a whole
REPEATABLE = (  # no LIMIT, samples, windows; no sums, which depend on the order of rows
    exp.Select, exp.From, exp.Join, exp.Table, exp.TableAlias, exp.Subquery, exp.Values, exp.Tuple,
    exp.Where, exp.Group, exp.Having, exp.Order, exp.Ordered, exp.Distinct, exp.Union, exp.Except,
    exp.Intersect, exp.Alias, exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null,
    exp.Parameter, exp.Placeholder, exp.Var, exp.Star, exp.Paren, exp.And, exp.Or, exp.Not, exp.EQ,
    exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Is, exp.In, exp.Exists, exp.Between, exp.Like,
    exp.ILike, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.Abs, exp.Cast,
    exp.DataType, exp.DataTypeParam, exp.Coalesce, exp.Case, exp.If, exp.Lower, exp.Upper,
    exp.Count, exp.Min, exp.Max,
)  # fmt: skip

Ask = Callable[[str], pa.Table | None]


class Asker:
    """Asks with `ask`, which returns None for a wrong query; CTEs are replaced by their queries.

    macros: the names of macros that give the same rows twice.
    """

    def __init__(self, tree: exp.Expr, lazy: set[str], macros: set[str], ask: Ask):
        self.ctes = {cte.alias: cte.this for cte in tree.find_all(exp.CTE)}
        self.lazy, self.macros, self.ask = lazy, macros, ask

    def types(self, source: exp.Expr) -> dict[str, pa.DataType]:
        """Return the types of a source's columns, none where they are unknown."""
        answer = self._rows(exp.select("*").from_(source.copy()).limit(0))
        if answer is None:
            return {}
        return {field.name.lower(): field.type for field in answer.schema}

    def keys(self, query: exp.Select) -> pa.Table | None:
        """Return the distinct rows, None where another run may give others or they are too many."""
        whole = exp.expand(query, self.ctes, dialect="duckdb")
        tables = {table.name for table in whole.find_all(exp.Table)}
        if tables & self.lazy or not self.is_repeatable(whole):
            return None
        answer = self._rows(query.distinct().limit(MANY + 1))
        if answer is None or len(answer) > MANY:
            return None
        return answer

    def is_repeatable(self, node: exp.Expr) -> bool:
        """Return whether a query or a condition gives the same result in every run."""
        for part in node.walk():
            if isinstance(part, exp.Anonymous) and part.name.lower() in self.macros:
                continue
            first_of_group = isinstance(part, exp.Distinct) and part.args.get("on")
            positional = isinstance(part, exp.Join) and part.method
            if not isinstance(part, REPEATABLE) or first_of_group or positional:
                return False
        return True

    def _rows(self, query: exp.Select) -> pa.Table | None:
        return self.ask(exp.expand(query, self.ctes, dialect="duckdb").sql(dialect="duckdb"))


def kind(column: pa.DataType | None) -> str:
    """Return "number" or "text", whose values Python compares as DuckDB does, "" for the rest."""
    if column is None:
        return ""
    value = column
    if pa.types.is_dictionary(column):  # an ENUM
        value = column.value_type
    if pa.types.is_integer(value) or pa.types.is_floating(value):
        return "number"
    return "text" if pa.types.is_string(value) else ""
