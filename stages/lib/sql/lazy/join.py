"""Let a join with a short list of neurons read only those neurons.

DuckDB hands a registered table the constants of a query, but not the keys of its joins. So before
a query runs, this module looks in its parse tree for lazy tables that plain equalities tie to
another source: in inner and semi joins, IN (subquery) and EXISTS. It asks for the distinct keys
of that source. In the query's text, it replaces the name of the lazy table by the name of a table
that reads only these keys. The rest of the text stays as it is.

sqlglot says which source a column belongs to. A key too many is harmless and a missing key is not,
therefore a query that this module does not understand reads more:
* a source counts only if it gives the same rows twice (REPEATABLE in keys.py);
* a condition counts only if that source alone can evaluate it; without it there are more keys;
* an equality counts only between numbers, or between texts, which Python compares as DuckDB does.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa
import sqlglot
from sqlglot import exp

from stages.lib.sql.lazy.keys import Ask, Asker, kind
from stages.lib.sql.lazy.names import qualified

KEYS = ("subject", "operator", "layer", "neuron")
PLAIN: dict[type, set[str]] = {  # the parts of sources, joins and an EXISTS that are understood
    exp.Table: {"this", "alias"},
    exp.Subquery: {"this", "alias"},
    exp.Values: {"expressions", "alias"},
    exp.Join: {"this", "kind", "on"},
    exp.Select: {"expressions", "from_", "joins", "where", "kind"},
}

Column = tuple[str, str]  # the name of a source and of its column
Equal = dict[Column, list[Column]]  # a column -> those that are equal to it, itself included


def narrow(
    query: str,
    lazy: set[str],
    macros: set[str],
    ask: Ask,
    register: Callable[[str, list[pa.Table]], str],
) -> str:
    """Return the query with its lazy tables replaced where keys are known.

    macros, ask: see Asker; register: makes a narrowed table and returns its name.
    """
    try:
        tree = qualified(sqlglot.parse_one(query, dialect="duckdb"), ask)
    except sqlglot.errors.SqlglotError:
        return query  # DuckDB will say what is wrong, or knows a syntax that sqlglot does not
    replacements = []
    asker = Asker(tree, lazy, macros, ask)
    for select in tree.find_all(exp.Select):
        for table, keys in _Scope(select, asker).narrowed():
            alias = "" if table.args["alias"].this.meta else f" AS {table.name}"
            text = register(table.name, keys) + alias
            replacements.append((table.this.meta["start"], table.this.meta["end"] + 1, text))
    for start, end, text in sorted(replacements, reverse=True):
        query = query[:start] + text + query[end:]
    return query


def _is_plain(node: exp.Expr) -> bool:
    """Return whether a node has no part that changes its meaning, such as a sample."""
    if isinstance(node, exp.Subquery) and not isinstance(node.this, exp.Query):
        return False
    alias = node.args.get("alias")
    if isinstance(node, exp.Table) and (alias is None or alias.columns):
        return False
    parts = {name for name, part in node.args.items() if part}
    return parts <= PLAIN.get(type(node), set())


def _conjuncts(condition: exp.Expr | None) -> list[exp.Expr]:
    """Return the conditions that AND ties together."""
    if isinstance(condition, exp.Where | exp.Paren):
        return _conjuncts(condition.this)
    if isinstance(condition, exp.And):
        return _conjuncts(condition.left) + _conjuncts(condition.right)
    return [condition] if condition else []


class _Scope:
    """The sources of one SELECT, and the conditions that every row of its result satisfies.

    IN and EXISTS add the sources and conditions of their subqueries.
    """

    def __init__(self, select: exp.Select, asker: Asker):
        self.asker = asker
        self.sources: dict[str, exp.Expr] = {}
        self.conditions: list[exp.Expr] = []
        self.tables: list[exp.Table] = []  # lazy tables in FROM, none if it is not understood
        lazy: list[exp.Table] = []
        for node in _from(select):
            if isinstance(node, exp.Table) and node.name in asker.lazy:
                lazy.append(node)
        if lazy and self._read(select):
            self.tables = lazy
            self.types = {name: asker.types(node) for name, node in self.sources.items()}

    def narrowed(self) -> Iterator[tuple[exp.Table, list[pa.Table]]]:
        """Yield the lazy tables that need not be read as a whole, each with the keys to read."""
        if not self.tables:
            return
        equal = self._equal()
        for table in self.tables:
            known: list[pa.Table] = []
            for other in self.sources:
                keys = self._keys(table.alias, other, equal)
                if keys is not None:
                    known.append(keys)
            if known:
                yield table, known

    def _equal(self) -> Equal:
        """Return the columns that `a.x = b.x` makes equal."""
        equal: Equal = {}
        for test in self.conditions:
            left, right = test.this, test.args.get("expression")
            is_equality = isinstance(test, exp.EQ)
            if is_equality and isinstance(left, exp.Column) and isinstance(right, exp.Column):
                first, second = (left.table, left.name), (right.table, right.name)
                common = kind(self._type(first))
                if common and common == kind(self._type(second)):
                    merged = sorted({*equal.get(first, [first]), *equal.get(second, [second])})
                    equal |= dict.fromkeys(merged, merged)
        return equal

    def _names(self, source: str, column: Column, equal: Equal) -> list[str]:
        """Return the names of a source's columns that are equal to a column."""
        return [name for table, name in equal.get(column, [column]) if table == source]

    def _type(self, column: Column) -> pa.DataType | None:
        return self.types.get(column[0], {}).get(column[1])

    def _keys(self, table: str, other: str, equal: Equal) -> pa.Table | None:
        """Return the keys of a lazy table that another source has, None if they are unknown."""
        if other == table:
            return None
        query = exp.select().from_(self.sources[other].copy())
        for key in KEYS:
            names = self._names(other, (table, key), equal)
            if names:
                query = query.select(exp.column(names[0], table=other, quoted=True).as_(key))
        if not query.expressions:
            return None
        for condition in self.conditions:
            query = query.where(self._about(other, condition, equal))
        return self.asker.keys(query)

    def _about(self, other: str, condition: exp.Expr, equal: Equal) -> exp.Expr | None:
        """Return a condition in columns of one source alone, None if that is not possible."""
        condition = condition.copy()
        if condition.find(exp.Query) or not self.asker.is_repeatable(condition):
            return None
        for column in list(condition.find_all(exp.Column)):
            place = (column.table, column.name)
            known = self._type(place)
            names = self._names(other, place, equal)
            names = [name for name in names if self._type((other, name)) == known]
            if known is None or not names:
                return None
            column.replace(exp.column(names[0], table=other, quoted=True))
        return condition

    def _read(self, select: exp.Select) -> bool:
        """Add the sources and conditions of a SELECT. Return False if it is not understood."""
        joins, nodes = select.args.get("joins") or [], _from(select)
        sources = {node.alias_or_name: node for node in nodes}
        if len(sources) < len(nodes) or sources.keys() & self.sources.keys():
            return False
        if not _are_inner(joins) or not all(map(_is_plain, [*nodes, *joins])):
            return False
        self.sources |= sources
        for node in [*joins, select]:
            for test in _conjuncts(node.args.get("on") or node.args.get("where")):
                self._add(test)
        return True

    def _add(self, condition: exp.Expr) -> None:
        self.conditions.append(condition)
        if isinstance(condition, exp.In) and condition.args.get("query"):
            self._add_in(condition)
        if isinstance(condition, exp.Exists) and isinstance(condition.this, exp.Select):
            query = condition.this
            sums = query.find(exp.AggFunc, exp.Anonymous)  # sums of no rows are a row
            if query.args.get("from_") and _is_plain(query) and not sums:
                self._read(query)

    def _add_in(self, condition: exp.In) -> None:
        """Add the subquery of `(x, y) in (select …)` as a source with equal columns."""
        query, left = condition.args["query"].unnest(), condition.this.unnest()
        columns = left.expressions if isinstance(left, exp.Tuple) else [left]
        names, alias = query.named_selects, f"in__{len(self.sources)}"
        if len(names) == len(columns) == len(set(names)):
            self.sources[alias] = query.copy().subquery(alias)
            for column, name in zip(columns, names, strict=True):
                equality = exp.EQ(this=column.copy(), expression=exp.column(name, table=alias))
                self.conditions.append(equality)


def _from(select: exp.Select) -> list[exp.Expr]:
    """Return the sources of a FROM clause, in order."""
    start = select.args.get("from_")
    if start is None:
        return []
    return [start.this, *(join.this for join in select.args.get("joins") or [])]


def _are_inner(joins: list[exp.Join]) -> bool:
    """Return whether joins are inner, apart from a semi join at the end.

    No other join can name the source of the last one.
    """
    outer = [join.kind for join in joins if join.kind not in ("", "INNER", "CROSS")]
    return not outer or (outer == ["SEMI"] and joins[-1].kind == "SEMI")
