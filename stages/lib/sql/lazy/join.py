"""Lets a join with a short list of neurons read only those neurons.

DuckDB hands a registered table the constants of a query, but not the keys of its joins. So before a query runs, this
module looks in its parse tree for lazy tables that plain equalities tie to another source: in inner, left and semi joins
(USING, ON or WHERE), IN (subquery) and EXISTS. It asks for the distinct keys of that source and replaces the name of the
lazy table, in the query's text, by one that reads only these keys. All else in the query stays as it is. A key too many
is harmless and a missing key is not, therefore
* a source counts only if it consists of the node types of REPEATABLE, so that it gives the same rows twice;
* a condition counts only if all of its columns belong to that source; others are dropped, which leaves more keys;
* keys count only if Python compares them as DuckDB does: numbers with numbers, text with text.
Any other query reads more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import sqlglot
from sqlglot import exp

KEYS = ("subject", "operator", "layer", "neuron")
NUMBERS = ("layer", "neuron")  # among them; the others are text
MANY = 100_000  # keys; a longer list is no short list
INNER, LEFT, SEMI, ANTI = "INNER", "LEFT", "SEMI", "ANTI"
JOINS = {
    ("", ""): INNER, ("", "INNER"): INNER, ("", "CROSS"): INNER, ("LEFT", ""): LEFT, ("LEFT", "OUTER"): LEFT,
    ("", "SEMI"): SEMI, ("", "ANTI"): ANTI,
}  # fmt: skip
REPEATABLE = (  # no LIMIT, samples or windows; no sums, which depend on the order of rows; no functions that are not known
    exp.Select, exp.From, exp.Join, exp.Table, exp.TableAlias, exp.Subquery, exp.CTE, exp.Values, exp.Tuple, exp.Where,
    exp.Group, exp.Having, exp.Order, exp.Ordered, exp.Distinct, exp.Union, exp.Except, exp.Intersect, exp.Alias,
    exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Parameter, exp.Placeholder, exp.Var, exp.Star,
    exp.Paren, exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Is, exp.In, exp.Exists,
    exp.Between, exp.Like, exp.ILike, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.Abs,
    exp.Cast, exp.DataType, exp.DataTypeParam, exp.Coalesce, exp.Case, exp.If, exp.Lower, exp.Upper,
    exp.Count, exp.Min, exp.Max,
)  # fmt: skip
PLAIN: dict[type, set[str]] = {  # the arguments of a source, and of a join, that are understood
    exp.Table: {"this", "alias"}, exp.Subquery: {"this", "alias"}, exp.Values: {"expressions", "alias"},
    exp.Join: {"this", "side", "kind", "on", "using"},
}  # fmt: skip

Ask = Callable[[str], pa.Table | None]


def narrow(query: str, lazy: set[str], macros: set[str], ask: Ask, register: Callable[[str, list[pa.Table]], str]) -> str:
    """The query with its lazy tables replaced where keys are known.

    macros: the names of macros that give the same rows twice; ask: runs a query, None if it is
    wrong; register: makes a narrowed table and returns its name.
    """
    try:
        tree = sqlglot.parse_one(query, dialect="duckdb")
    except sqlglot.errors.SqlglotError:
        return query  # DuckDB will say what is wrong, or knows a syntax that sqlglot does not
    for select in list(tree.find_all(exp.Select)):
        first = _from(select)[:1]  # `from a join b` keeps its joins in a, `select … from a join b` in the SELECT
        if first and first[0].args.get("joins"):
            select.set("joins", [*first[0].args["joins"], *(select.args.get("joins") or [])])
            first[0].set("joins", None)
    withs = list(tree.find_all(exp.With))
    if withs and (withs != [tree.args.get("with_")] or withs[0].args.get("recursive")):
        return query  # the same name may mean different tables in different places
    ctes = list(withs[0].expressions) if withs else []
    lazy = lazy - {cte.alias.lower() for cte in ctes}
    replacements = []
    for select in tree.find_all(exp.Select):
        if not any(_table_name(node) in lazy for node in _from(select)):
            continue
        around = select.find_ancestor(exp.CTE)
        visible = [cte for cte in ctes if around is None or ctes.index(cte) < ctes.index(around)]
        for node, keys in _Scope(select, _Asker(visible, lazy, macros, ask)).keys(lazy):
            alias = "" if node.alias else f" AS {node.name}"
            name = register(node.name.lower(), keys)
            replacements.append((node.this.meta["start"], node.this.meta["end"] + 1, name + alias))
    for start, end, text in sorted(replacements, reverse=True):
        query = query[:start] + text + query[end:]
    return query


def _from(select: exp.Select) -> list[exp.Expr]:
    """The tables and subqueries of a FROM clause, in order."""
    start = select.args.get("from_")
    return [start.this, *(join.this for join in select.args.get("joins") or [])] if start else []


def _table_name(node: exp.Expr) -> str:
    """The name of a table that is given by its name alone, "" for anything else."""
    plain = isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier) and not node.db
    return node.name.lower() if plain else ""


def _is_plain(node: exp.Expr) -> bool:
    """Whether a source or a join has no argument that changes its meaning, such as a sample or NATURAL."""
    nested = isinstance(node, exp.Subquery) and not isinstance(node.this, exp.Query)  # (a join b)
    return not nested and all(name in PLAIN.get(type(node), ()) for name, value in node.args.items() if value)


def _is_repeatable(node: exp.Expr, macros: set[str]) -> bool:
    """Whether a query gives the same rows each time that it runs."""
    for part in node.walk():
        if isinstance(part, exp.Anonymous) and part.name.lower() in macros:
            continue
        positional = isinstance(part, exp.Join) and part.method
        first_of_group = isinstance(part, exp.Distinct) and part.args.get("on")
        if not isinstance(part, REPEATABLE) or positional or first_of_group:
            return False
    return True


def _conjuncts(condition: exp.Expr | None) -> list[exp.Expr]:
    """The conditions that AND ties together."""
    if condition is None:
        return []
    return list(condition.flatten()) if isinstance(condition, exp.And) else [condition]


class _Asker:
    """Asks for the columns and keys of sources, which may be CTEs or read from them."""

    def __init__(self, ctes: list[exp.CTE], lazy: set[str], macros: set[str], ask: Ask):
        self.ctes, self.lazy, self.macros, self.ask = ctes, lazy, macros, ask

    def columns(self, node: exp.Expr) -> frozenset[str] | None:
        """The columns of a source, None where they are unknown."""
        answer = self.ask(self._text(exp.select("*").from_(node.copy()).limit(0)))
        return None if answer is None else frozenset(name.lower() for name in answer.column_names)

    def keys(self, query: exp.Select) -> pa.Table | None:
        """The distinct rows of a query for keys, None where another run may give others or where they are too many."""
        needed = [query, *self._needed(query, self.ctes)]
        tables = {_table_name(table) for node in needed for table in node.find_all(exp.Table)}
        if tables & self.lazy or not all(_is_repeatable(node, self.macros) for node in needed):
            return None
        answer = self.ask(self._text(query.distinct().limit(MANY + 1)))
        if answer is None or len(answer) > MANY or not all(map(_compares_as_in_python, answer.schema)):
            return None
        return answer

    def _needed(self, node: exp.Expr, ctes: list[exp.CTE]) -> list[exp.CTE]:
        """The CTEs that a query reads, itself or by other CTEs, in order; ctes: those that it can see."""
        names = {_table_name(table) for table in node.find_all(exp.Table)}
        needed: list[exp.CTE] = []
        for cte in reversed(ctes):
            if cte.alias.lower() in names:
                needed = [cte, *needed]
                names |= {_table_name(table) for table in cte.find_all(exp.Table)}
        return needed

    def _text(self, query: exp.Select) -> str:
        ctes = ", ".join(cte.sql(dialect="duckdb") for cte in self._needed(query, self.ctes))
        return (f"WITH {ctes} " if ctes else "") + query.sql(dialect="duckdb")


def _compares_as_in_python(key: pa.Field) -> bool:
    """Whether keys of this type equal those of the stores in Python where they do in DuckDB."""
    kind = key.type.value_type if pa.types.is_dictionary(key.type) else key.type  # an ENUM is a dictionary
    if key.name in NUMBERS:
        return pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return pa.types.is_string(kind)


@dataclass(frozen=True, eq=False)
class _Source:
    """What a SELECT reads from. kind: how it is joined to the sources before it; columns: None where unknown."""

    name: str
    node: exp.Expr
    kind: str
    columns: frozenset[str] | None


Visible = list[list[_Source]]  # innermost scope first
Place = tuple[_Source, str]  # a source and its column


@dataclass(frozen=True)
class _Condition:
    """A condition and what its columns can mean.

    aliases: names of the SELECT's own; owner: the source of the left join that it is part of, else None.
    """

    test: exp.Expr
    visible: Visible
    aliases: set[str]
    owner: _Source | None = None

    def place(self, column: exp.Expr) -> Place | None:
        """The source that a column belongs to; None where it is unknown, ambiguous, or outside of the SELECT."""
        if not isinstance(column, exp.Column) or not isinstance(column.this, exp.Identifier) or column.args.get("db"):
            return None
        name, table = column.name.lower(), column.table.lower()
        if not table and name in self.aliases:
            return None
        for sources in self.visible:
            named = [source for source in sources if table in ("", source.name)]
            if any(source.columns is None for source in named):
                return None
            owners = [source for source in named if name in (source.columns or ())]
            if owners or (named and table):
                return (owners[0], name) if len(owners) == 1 else None
        return None

    def is_about(self, source: _Source) -> bool:
        """Whether it can be asked of this source alone."""
        columns = list(self.test.find_all(exp.Column))
        places = [self.place(column) for column in columns]
        alone = all(place is not None and place[0] is source for place in places)
        return bool(columns) and alone and not self.test.find(exp.Query) and _is_repeatable(self.test, set())


class _Scope:
    """The FROM and WHERE of one SELECT: its sources, and which of their columns are equal in every row that counts.

    IN and EXISTS count as semi joins with their subqueries.
    """

    def __init__(self, select: exp.Select, asker: _Asker):
        self.asker = asker
        self.aliases = {item.alias.lower() for item in select.expressions if isinstance(item, exp.Alias)}
        self.sources: list[_Source] = []
        self.conditions: list[_Condition] = []
        self.ties: list[tuple[Place, Place, _Source | None]] = []  # equal columns, and the owner as in _Condition
        self.tables: list[_Source] = []  # the sources in FROM, none where it is not understood
        if self._read_from(select):
            self.tables = list(self.sources)
            self._read_where(select)
            self.ties += filter(None, map(self._tie, self.conditions))

    def keys(self, lazy: set[str]) -> Iterator[tuple[exp.Expr, list[pa.Table]]]:
        """The nodes of lazy tables that need not be read as a whole, with the keys to read."""
        for table in self.tables:
            alias = table.node.args.get("alias")
            renamed = bool(alias and alias.columns)  # activations as a(subject, operator, …)
            if _table_name(table.node) not in lazy or renamed or table.kind == ANTI:
                continue
            keys = [self._keys_of(table, other) for other in self.sources]
            known = [some for some in keys if some is not None]
            if known and "start" in table.node.this.meta:
                yield table.node, known

    def _keys_of(self, table: _Source, other: _Source) -> pa.Table | None:
        """The keys of `table` that another source has; None where they are unknown."""
        if other is table or other.kind in (LEFT, ANTI):
            return None
        columns = []
        for key in KEYS:
            equal = [name for source, name in self._equal((table, key), table) if source is other]
            if equal:
                columns.append(exp.alias_(exp.column(equal[0], table=other.name or None, quoted=True), key))
        if not columns:
            return None
        query = exp.select(*columns).from_(other.node.copy())
        for condition in self.conditions:
            if condition.owner in (None, table) and condition.is_about(other):
                query = query.where(condition.test.copy())
        return self.asker.keys(query)

    def _equal(self, place: Place, table: _Source) -> list[Place]:
        """The columns that equal a column of `table` in every row that it has a part in."""
        equal = [place]
        for reached in equal:  # which grows
            for first, second, owner in self.ties:
                if owner in (None, table) and reached in (first, second):
                    equal += [end for end in (first, second) if end not in equal]
        return equal

    def _read_from(self, select: exp.Select) -> bool:
        """Reads the sources and what joins them; False where something is not understood."""
        nodes = _from(select)
        names = {node.alias_or_name.lower() for node in nodes}
        if not nodes or len(names) < len(nodes) or not all(map(_is_plain, nodes)) or select.args.get("laterals"):
            return False
        self._add(nodes[0], INNER)
        first = 0  # of the sources that the next join can see: a comma starts anew
        for join in select.args.get("joins") or []:
            kind = JOINS.get((join.side.upper(), join.kind.upper()))
            if kind is None or not _is_plain(join):
                return False
            if not (join.kind or join.side or join.args.get("on") or join.args.get("using")):
                first = len(self.sources)
            self._read_join(join, kind, first)
        return True

    def _read_join(self, join: exp.Join, kind: str, first: int) -> None:
        before = self._visible(first)
        source = self._add(join.this, kind)
        if kind == ANTI:
            return
        owner = source if kind == LEFT else None
        for test in _conjuncts(join.args.get("on")):
            self.conditions.append(_Condition(test, [[*before, source]], self.aliases, owner))
        for column in join.args.get("using") or []:
            self._use(before, source, column.name.lower(), owner)

    def _add(self, node: exp.Expr, kind: str) -> _Source:
        source = _Source(node.alias_or_name.lower(), node, kind, self.asker.columns(node))
        self.sources.append(source)
        return source

    def _visible(self, first: int = 0) -> list[_Source]:
        """The sources whose columns can be named after all joins so far."""
        return [source for source in self.sources[first:] if source.kind not in (SEMI, ANTI)]

    def _use(self, before: list[_Source], source: _Source, name: str, owner: _Source | None) -> None:
        """Ties a column of USING: it means that of the first source before which has it."""
        for other in before:
            if other.columns is None:
                return
            if name in other.columns:
                self.ties.append(((other, name), (source, name), owner))
                return

    def _read_where(self, select: exp.Select) -> None:
        where = select.args.get("where")
        visible = self._visible()
        for test in _conjuncts(where.this if where else None):
            if isinstance(test, exp.In) and test.args.get("query") is not None:
                self._read_in(test, visible)
            elif isinstance(test, exp.Exists):
                self._read_exists(test.this, visible)
            else:
                self.conditions.append(_Condition(test, [visible], self.aliases))

    def _read_in(self, test: exp.In, visible: list[_Source]) -> None:
        """Reads `(a.x, a.y) in (select …)`."""
        columns = test.this.expressions if isinstance(test.this, exp.Tuple) else [test.this]
        names = [f"key{number}" for number in range(len(columns))]
        name = f"in {len(self.sources)}"  # which no query can name without quotes
        alias = exp.TableAlias(this=exp.to_identifier(name, quoted=True), columns=[exp.to_identifier(n) for n in names])
        source = self._add(exp.Subquery(this=test.args["query"].this.copy(), alias=alias), SEMI)
        for column, key in zip(columns, names, strict=True):
            place = _Condition(test, [visible], self.aliases).place(column)
            if place and source.columns and key in source.columns:
                self.ties.append((place, (source, key), None))

    def _read_exists(self, inner: exp.Expr, visible: list[_Source]) -> None:
        """Reads `exists (select 1 from b where b.x = a.x and …)`."""
        if not isinstance(inner, exp.Select) or len(_from(inner)) != 1 or not _is_plain(_from(inner)[0]):
            return
        if any(value for name, value in inner.args.items() if name not in ("expressions", "from_", "where")):
            return
        if not all(isinstance(item, exp.Literal | exp.Star | exp.Column) for item in inner.expressions):
            return  # an aggregate has a row even where it has nothing to aggregate
        source = self._add(_from(inner)[0], SEMI)
        where = inner.args.get("where")
        for test in _conjuncts(where.this if where else None):
            self.conditions.append(_Condition(test, [[source], visible], self.aliases))

    def _tie(self, condition: _Condition) -> tuple[Place, Place, _Source | None] | None:
        """The two columns of `a.x = b.x`."""
        if not isinstance(condition.test, exp.EQ):
            return None
        places = condition.place(condition.test.this), condition.place(condition.test.expression)
        if places[0] is None or places[1] is None or places[0][0] is places[1][0]:
            return None
        return places[0], places[1], condition.owner
