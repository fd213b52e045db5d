"""Lets a join with a short list of neurons read only those neurons.

DuckDB hands a registered table the constants of a query, not the keys of its joins. So before a query runs, its text is
searched for lazy tables that an inner join, a semi-join, IN or EXISTS ties to something small; the distinct keys of
that other side are asked for first, and the lazy table's name is replaced, in the text, by one that reads only those
keys. The query itself stays as it is, so a row too many is harmless, and anything not understood is left alone. Only
sources that give the same rows twice count: none with LIMIT, samples, or functions whose result depends on row order.
And only keys of the lazy table's own kind: where DuckDB converts to compare, as text to numbers, or text without regard
to case, it alone knows what equals what.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp

KEYS = {"subject", "operator", "layer", "neuron"}
NUMBERS = {"layer", "neuron"}  # among them; the others are text
MANY = 100_000  # keys; a longer list is no short list
UNSTABLE = re.compile(
    r"\b(limit|offset|tablesample|sample|random|uuid|gen_random_uuid|setseed|nextval|row_number|ntile|lag|lead|mode|arbitrary|approx_\w+|first|last|first_value|last_value"
    r"|distinct\s+on|reservoir_quantile|collate|nth_value|any_value|arg_min|arg_max|argmin|argmax|min_by|max_by|list|array_agg|string_agg|group_concat|now|current_timestamp)\b",
    re.IGNORECASE,
)


def narrow(query: str, lazy: Mapping[str, set[str]], ask: Callable[[str], pa.Table], register: Callable[[str, list[pa.Table]], str]) -> str:
    """The query with its lazy tables replaced where keys could be found.

    lazy: each lazy table's columns; ask: runs a query; register: makes a narrowed table and returns its name.
    """
    try:
        tree = sqlglot.parse_one(query, dialect="duckdb")
    except sqlglot.errors.SqlglotError:
        return query  # DuckDB will say what is wrong, or knows a syntax that sqlglot does not
    found = list(tree.find_all(exp.CTE))
    ctes = {cte.alias: cte.this for cte in found}
    if len(ctes) < len(found) or any(cte.args["alias"].columns for cte in found):
        return query  # names that mean different things in different places
    hidden = {name.lower() for name in ctes}  # DuckDB's names are the same in capitals
    lazy = {name: columns for name, columns in lazy.items() if name not in hidden}
    replacements = []
    for select in tree.find_all(exp.Select):
        sources = dict(_sources(select))
        for name, (table, _) in sources.items():
            if not isinstance(table, exp.Table) or table.name not in lazy or "start" not in table.this.meta or _renamed(table):
                continue
            ties = _Ties(select, name, sources, ctes, lazy, ask)
            keys = [found for found in map(ties.resolve, ties.find()) if found is not None and len(found) <= MANY]
            if keys:
                alias = "" if table.alias else f" AS {table.name}"
                replacements.append((table.this.meta["start"], table.this.meta["end"] + 1, register(table.name, keys) + alias))
    for start, end, text in sorted(replacements, reverse=True):
        query = query[:start] + text + query[end:]
    return query


Source = tuple[exp.Expr, exp.Join | None]
Tie = tuple[exp.Expr, Mapping[str, exp.Expr], list[exp.Expr]]  # FROM, key -> its expression there, conditions


def _sources(select: exp.Select) -> Iterator[tuple[str, Source]]:
    """Every table and subquery a SELECT reads from, with the join that brings it in."""
    start = select.args.get("from_")
    if start is None:
        return
    yield start.this.alias_or_name, (start.this, None)
    for join in (*(start.this.args.get("joins") or []), *(select.args.get("joins") or [])):
        yield join.this.alias_or_name, (join.this, join)


def _renamed(table: exp.Expr) -> bool:
    """Whether its columns have other names here: `activations as a(subject, operator, …)`."""
    alias = table.args.get("alias")
    return bool(alias and alias.columns)


def _is_own_kind(key: pa.Field) -> bool:
    """Whether keys of this name and type are equal to the lazy table's as Python has it: numbers to numbers, text to text."""
    if key.name in NUMBERS:
        return pa.types.is_integer(key.type) or pa.types.is_floating(key.type)
    return pa.types.is_string(key.type) or pa.types.is_dictionary(key.type)  # an ENUM is a dictionary of texts


def _parts(condition: exp.Expr) -> list[exp.Expr]:
    """The conditions that AND ties together."""
    return list(condition.flatten()) if isinstance(condition, exp.And) else [condition]


class _Ties:
    """What ties one lazy table of one SELECT to its other sources by equality of keys."""

    def __init__(
        self,
        select: exp.Select,
        name: str,
        sources: Mapping[str, Source],
        ctes: dict[str, Any],
        lazy: Mapping[str, set[str]],
        ask: Callable,
    ):
        self.select, self.name, self.sources, self.ctes, self.lazy, self.ask = select, name, sources, ctes, lazy, ask
        self.known: dict[str, set[str]] = {}  # the columns of sources asked for so far
        where = select.args.get("where")
        self.conditions = _parts(where.this) if where else []

    def find(self) -> Iterator[Tie]:
        sides = {(join.side or "").upper() for _, join in self.sources.values() if join}
        if sides & {"RIGHT", "FULL"}:
            return
        for other, (source, join) in self.sources.items():
            if other != self.name:
                yield from self._joined(other, source, join)
        for condition in self.conditions:
            if isinstance(condition, exp.In) and condition.args.get("query") is not None:
                yield from self._member(condition)
            elif isinstance(condition, exp.Exists):
                yield from self._exists(condition.this)

    def resolve(self, tie: Tie) -> pa.Table | None:
        """The distinct keys of a tie's other side; None where it cannot be asked for, or not twice alike."""
        source, keys, conditions = tie
        chosen = [exp.alias_(expression.copy(), key) for key, expression in keys.items() if key in KEYS]
        if not chosen:
            return None
        query = exp.select(*chosen).from_(source.copy()).distinct()
        for condition in conditions:
            query = query.where(condition.copy())
        text = self._with_ctes(query)
        if UNSTABLE.search(text) or any(re.search(rf"\b{name}\b", text) for name in self.lazy):
            return None
        try:
            keys_there = self.ask(f"{text} LIMIT {MANY + 1}")
        except Exception:  # a correlated subquery, say: the query as a whole will tell, if it is wrong
            return None
        return keys_there if all(_is_own_kind(field) for field in keys_there.schema) else None

    def _with_ctes(self, query: exp.Select) -> str:
        """The query's text, with the CTEs that it needs, in the order in which they were defined."""
        needed: set[str] = set()
        text = query.sql(dialect="duckdb")
        for name in reversed(self.ctes):
            within = text + " ".join(self.ctes[n].sql(dialect="duckdb") for n in needed)
            if re.search(rf"\b{re.escape(name)}\b", within, re.IGNORECASE):
                needed.add(name)
        kept = [f"{name} AS ({self.ctes[name].sql(dialect='duckdb')})" for name in self.ctes if name in needed]
        return (f"WITH {', '.join(kept)} " if kept else "") + text

    def _joined(self, other: str, source: exp.Expr, join: exp.Join | None) -> Iterator[Tie]:
        mine = self.sources[self.name][1]
        joins = [j for j in (mine, join) if j is not None]
        if any((j.kind or "").upper() not in {"", "INNER", "SEMI", "CROSS"} or j.method for j in joins):
            return
        if join is not None and (join.side or "").upper() == "LEFT":
            return  # an outer join's optional side does not restrict the rest
        optional = mine is not None and (mine.side or "").upper() == "LEFT"
        pairs: dict[str, exp.Expr] = {}
        for j in joins:
            if j is mine or (self._before(other) and not optional):
                pairs |= {
                    c.name: exp.column(c.name, table=other or None) for c in j.args.get("using") or [] if c.name in self._columns(other)
                }
        on = [part for j in joins if j.args.get("on") for part in _parts(j.args["on"])]
        for condition in on if optional else on + self.conditions:
            pairs |= self._equality(condition, other)
        yield source, pairs, [c for c in on + self.conditions if self._only_about(c, other)]

    def _before(self, other: str) -> bool:
        """Whether the lazy table comes before the other source, so that the other's USING means its columns."""
        names = list(self.sources)
        return names.index(self.name) < names.index(other)

    def _equality(self, condition: exp.Expr, other: str) -> dict[str, exp.Expr]:
        if isinstance(condition, exp.EQ):
            for a, b in ((condition.this, condition.expression), (condition.expression, condition.this)):
                if isinstance(a, exp.Column) and isinstance(b, exp.Column) and a.table == self.name and b.table == other:
                    return {a.name: b}
        return {}

    def _only_about(self, condition: exp.Expr, other: str) -> bool:
        """Whether every column is plainly the other source's own; an unqualified one must be no other source's."""
        columns = list(condition.find_all(exp.Column))
        if condition.find(exp.Subquery, exp.Select, exp.Exists) or not columns:
            return False
        rest = [name for name in self.sources if name != other]
        return all(
            (c.table and c.table == other)
            or (not c.table and c.name in self._columns(other) and not any(c.name in self._columns(name) for name in rest))
            for c in columns
        )

    def _columns(self, name: str) -> set[str]:
        """The columns of a source, none where they cannot be told."""
        source = self.sources[name][0]
        if isinstance(source, exp.Table) and source.name in self.lazy and not _renamed(source):
            return self.lazy[source.name]
        if name not in self.known:
            try:
                self.known[name] = set(self.ask(self._with_ctes(exp.select("*").from_(source.copy()).limit(0))).column_names)
            except Exception:  # as above
                self.known[name] = set()
        return self.known[name]

    def _member(self, condition: exp.In) -> Iterator[Tie]:
        left = condition.this.expressions if isinstance(condition.this, exp.Tuple) else [condition.this]
        inner = condition.args["query"].this
        if not isinstance(inner, exp.Select) or len(inner.expressions) != len(left) or inner.find(exp.Star):
            return
        names = [f"key{i}" for i in range(len(left))]
        renamed = inner.copy()
        renamed.set("expressions", [exp.alias_(e.unalias().copy(), n) for e, n in zip(inner.expressions, names, strict=True)])
        keys = {c.name: exp.column(n) for c, n in zip(left, names, strict=True) if isinstance(c, exp.Column) and self._mine(c)}
        yield renamed.subquery("keys"), keys, []

    def _exists(self, inner: exp.Expr) -> Iterator[Tie]:
        if not isinstance(inner, exp.Select) or len(dict(_sources(inner))) != 1:
            return
        if inner.args.get("having") or not all(isinstance(of, exp.Literal | exp.Star | exp.Column) for of in inner.expressions):
            return  # an aggregate has a row even where there is none to aggregate
        [(other, (source, _))] = _sources(inner)
        ties = _Ties(inner, self.name, {other: (source, None), self.name: self.sources[self.name]}, self.ctes, self.lazy, self.ask)
        pairs: dict[str, exp.Expr] = {}
        for part in ties.conditions:
            pairs |= ties._equality(part, other)
        yield source, pairs, [c for c in ties.conditions if ties._only_about(c, other)]

    def _mine(self, column: exp.Column) -> bool:
        return column.table == self.name or (not column.table and len(self.sources) == 1)
