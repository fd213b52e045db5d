"""SQL over the project's tables. The one importer of duckdb.

`connect()` opens the read-only view of data/ that the console and notebooks share; stage.py runs the queries of the pipeline.
"""

import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from stages.lib.core import layered, tables
from stages.lib.core.storage import place
from stages.lib.core.words import CHAPTERS, OPERATORS
from stages.lib.sql.files import MEASURES, dataset, files_of, parquet, parts
from stages.lib.sql.lazy.table import SUMS, LayerSums, LayerTable
from stages.lib.sql.limits import limits
from stages.lib.sql.missing import explained

DatabaseError = duckdb.Error
EXPLAIN = re.compile(r"^\s*explain\b\s*(analyze\b|\([^)]*\))?", re.IGNORECASE)
ANY = "query"  # in what may compute the name of a table: query(…), query_table(…)
CATALOG = ("show", "information_schema", "duckdb_", "pg_")  # in queries about tables
SUMS_OF_DUMP = {"activations": "neuron_sums"}  # lazy table -> the table that has its sums
SUMS_COLUMNS = "subject, operator, layer, neuron, prompts as rows__, total as total__, smallest as smallest__, largest as largest__"
MACROS = Path(__file__).with_name("macros.sql")


class QueryError(ValueError):
    """A query that is not one read-only statement."""


ERRORS = (QueryError, tables.TableError, layered.StoreError, duckdb.Error)  # what a query may raise
DEEP = "the query is nested too deeply: remove parentheses, or name parts of it in WITH"
LIMIT = "A query may take a quarter of the memory, and spill 16 GiB at most"
LARGE = f"{LIMIT}; ask for fewer rows, or group them."


def sentence(error: BaseException) -> str:
    """Return an error's message, without advice to change settings, which no query can."""
    if isinstance(error, duckdb.OutOfMemoryException):
        return f"{str(error).splitlines()[0]} {LARGE}"
    return str(error)


class Database:
    """A DuckDB connection to tables in files; lazy tables are read from HDF5 as queries ask for them.

    files: table -> the Parquet or HDF5 files it is made of, one per subject or operator. They are
    opened here, when a query first names the table, not by the engine, which can neither read nor
    write any file, whatever a query says, and never sees the name of one. What is damaged is
    refused to the query that names it, and to no other. settings: more settings of the engine, in
    order; no query can change any. tell: is called with a sentence for each subject or operator
    that a query names and its tables do not have.
    """

    def __init__(
        self,
        files: dict[str, list[Path]],
        threads: int | None = None,
        settings: Mapping[str, str] | None = None,
        tell: Callable[[str], None] | None = None,
    ):
        self.connection = duckdb.connect(config={"python_enable_replacements": False, **({"threads": threads} if threads else {})})
        for name, value in (settings or {}).items():
            quoted = value.replace("'", "''")
            self.connection.execute(f"set {name} = '{quoted}'")
        self.connection.execute("set enable_external_access = false")
        self.connection.execute("set lock_configuration = true")
        self.files, self.lazy, self.tell = files, dict[str, LayerTable](), tell
        self._opened: set[str] = set()  # tables that the engine knows
        self._checked: set[str] = set()  # those whose files were held against their checksums
        statements = self.connection.extract_statements(MACROS.read_text(encoding="utf-8"))
        # Formulas and small tables that queries share.
        self._macros = {re.findall(r"create macro (\w+)", of.query)[0]: of for of in statements}
        self._made: set[str] = set()  # macros that the engine knows
        self._narrowed = 0

    def _prepare(self, query: str) -> None:
        """Opens the tables that the query may read, by itself or by a macro, and makes these macros.

        Raises TableError, StoreError or QueryError where one of these tables is damaged.
        """
        text, called = query.lower(), set[str]()
        while new := {name for name in self._macros.keys() - called if name in text}:
            called |= new
            text += "".join(self._macros[name].query.lower() for name in new)
        for name in sorted(self.files.keys() - self._checked):
            if name.lower() in text or ANY in text:  # one too many is only slow
                tables.check(parquet(self.files[name]))
                self._open(name)
                self._checked.add(name)
        if any(word in text for word in CATALOG):
            for name in self.files:
                with suppress(*ERRORS):
                    self._open(name)
        for name in self._macros:  # in the order in which they build on each other
            if name in called - self._made:
                with suppress(duckdb.CatalogException, duckdb.BinderException):  # a table that it reads, or a column, is not here
                    self.connection.execute(self._macros[name])
                    self._made.add(name)

    def _open(self, name: str) -> None:
        """Tells the engine of a table. Raises one of ERRORS where its files cannot be opened."""
        if name in self._opened:
            return
        paths = self.files[name]
        try:
            if name in MEASURES:
                self.lazy[name] = LayerTable(parts(paths), MEASURES[name])
                self.connection.register(name, self.lazy[name])
                self._open_sums(name)
            else:
                tables.check(parquet(paths), data=False)  # a reader that trusts a damaged footer may hang
                self.connection.register(name, dataset(paths))
        except (*ERRORS, OSError, ValueError, pa.ArrowException) as error:
            if isinstance(error, ERRORS):
                raise
            raise QueryError(f"the files of the table {name} cannot be read together, or one of them not at all: {error}") from None
        self._opened.add(name)

    def _open_sums(self, name: str) -> None:
        """Tells the engine of a lazy table's sums over each neuron: those of the dump, where they are of all its stores, else its own."""
        of_dump = SUMS_OF_DUMP.get(name)
        if of_dump in self.files:
            with suppress(*ERRORS):
                tables.check(parquet(self.files[of_dump]))
                self._open(of_dump)
                found = self.connection.sql(f"select subject, operator, layer, count(*) from {of_dump} group by all").fetchall()
                if {row[:3]: row[3] for row in found} == self.lazy[name].neurons():
                    self.connection.execute(f"create temp view {name}{SUMS} as select {SUMS_COLUMNS} from {of_dump}")
                    return
        self.connection.register(name + SUMS, LayerSums(self.lazy[name]))

    def sql(self, query: str, **parameters: Any) -> duckdb.DuckDBPyRelation:
        """The relation of one SELECT; its values for `$name` come by keyword. `.pl()` makes it a Polars frame.

        Raises QueryError on any other statement, duckdb.Error on a wrong one, TableError or StoreError where it names what is damaged.
        """
        try:
            relation = self._sql(query, parameters)
        except duckdb.CatalogException:  # it proposes a name only of tables that it knows
            relation = self._sql_of_all(query, parameters)
        except RecursionError:
            raise QueryError(DEEP) from None
        for remark in self.unknown_names(query, parameters) if self.tell else []:
            self.tell(remark)  # type: ignore[misc]
        return relation

    def _sql_of_all(self, query: str, parameters: dict[str, Any]) -> duckdb.DuckDBPyRelation:
        """Run a query with all tables open; on a missing table, name the stage that makes it."""
        for name in self.files:
            with suppress(*ERRORS):
                self._open(name)
        try:
            return self._sql(query, parameters)
        except duckdb.CatalogException as error:
            subject = self._subject(query, parameters)
            raise QueryError(explained(str(error), self.tables(), subject)) from None

    def unknown_names(self, query: str, parameters: Mapping[str, Any]) -> list[str]:
        """Return remarks on subjects and operators of a query that none of its tables has."""
        remarks = []
        names, texts = self._names(query, parameters)
        for column, wanted in texts.items():
            if not wanted:
                continue
            tables = [name for name in names & self.files.keys() if column in self.columns(name)]
            paths = [path for name in tables for path in self.files[name]]
            by_path = {part for path in paths for part in (*path.parts, path.stem)}
            unsure = wanted - by_path - {*OPERATORS}
            if not tables or not unsure:  # to look into the tables takes time
                continue
            known = {value for name in tables for value in self._values(name, column)}
            listed = ", ".join(map(str, sorted(known)[:20])) + (", …" if len(known) > 20 else "")
            for text in sorted(unsure - known):
                remarks.append(f"no {column} {text!r} here; {column}s here: {listed or 'none'}")
        return remarks

    def _values(self, table: str, column: str) -> list[str]:
        """Return the distinct values of a text column; those of a lazy table need no reading."""
        if table in self.lazy:
            return [part.constants[column] for part in self.lazy[table].parts]
        query = f'select distinct "{column}" from "{table}" where "{column}" is not null'
        return [value for (value,) in self.connection.sql(query).fetchall()]

    def _names(
        self,
        query: str,
        parameters: Mapping[str, Any],
    ) -> tuple[set[str], dict[str, set[str]]]:
        """Return the tables, and the subjects and operators, that a query names.

        Both are empty for a query that sqlglot cannot parse.
        """
        from sqlglot.errors import SqlglotError  # only here: it is slow to import

        from stages.lib.sql.literals import COLUMNS, tables_and_names

        if not any(column in query.lower() for column in COLUMNS):
            return set(), {}
        try:
            return tables_and_names(query, parameters)
        except (SqlglotError, RecursionError):
            return set(), {}

    def _subject(self, query: str, parameters: Mapping[str, Any]) -> str:
        """Return the subject that a query names, else the first subject that has tables here."""
        named = sorted(self._names(query, parameters)[1].get("subject", set()))
        folders = {path.parent.parent.name for paths in self.files.values() for path in paths}
        return next(iter([*named, *sorted(folders - {*CHAPTERS, "data"})]), "<subject>")

    def _sql(self, query: str, parameters: dict[str, Any]) -> duckdb.DuckDBPyRelation:
        statement = self._only_statement(query)
        self._prepare(query)
        unknown = parameters.keys() - statement.named_parameters
        missing = statement.named_parameters - parameters.keys()
        if unknown or missing:
            problems = [f"${name} is not in the query" for name in sorted(unknown)] + [f"${name} has no value" for name in sorted(missing)]
            raise QueryError("; ".join(problems))
        lazy = {name for name in self.lazy if name in query.lower()}  # others are read whole
        if lazy and statement.type == duckdb.StatementType.SELECT:
            from stages.lib.sql.lazy.group_by import summed  # only here: sqlglot, which they take, is slow to import
            from stages.lib.sql.lazy.join import narrow

            names = self.connection.sql(query, params=parameters or None).columns
            if rewritten := summed(query, MEASURES, names):
                return self.connection.sql(rewritten, params=parameters or None)
            query = narrow(
                query,
                lazy,
                set(self._macros),
                lambda text: self._ask(text, parameters),
                self._narrow,
            )
        return self.connection.sql(query, params=parameters or None)

    def tables(self) -> list[str]:
        """The names of all tables."""
        return sorted(self.files)

    def columns(self, table: str) -> dict[str, str]:
        """A table's columns: name -> type. Raises one of ERRORS where it cannot be opened."""
        self._open(table)
        relation = self.connection.sql(f'from "{table}" limit 0')
        return dict(zip(relation.columns, map(str, relation.types), strict=True))

    def _only_statement(self, query: str) -> duckdb.Statement:
        statements = self.connection.extract_statements(query)
        if len(statements) != 1:
            raise QueryError(f"expected one statement, found {len(statements)}")
        try:
            kind = statements[0].type
        except ValueError:  # of a statement that the bindings have no name for
            raise QueryError("this connection only reads: SELECT is allowed, this is not") from None
        if kind == duckdb.StatementType.EXPLAIN:
            self._only_statement(EXPLAIN.sub("", statements[0].query))
        elif kind == duckdb.StatementType.MULTI:
            raise QueryError(
                "this is several statements in one: of PIVOT say which values to make columns of (pivot … on operator in ('add'))"
            )
        elif kind != duckdb.StatementType.SELECT:
            raise QueryError(f"this connection only reads: {kind.name} is not allowed, SELECT is")
        return statements[0]

    def _ask(self, query: str, parameters: dict[str, Any]) -> pa.Table | None:
        """The rows of a part of a query; None if it cannot stand alone."""
        try:
            names = self.connection.extract_statements(query)[0].named_parameters
            values = {name: parameters[name] for name in names}
            return self.connection.sql(query, params=values or None).to_arrow_table()
        except duckdb.InterruptException:
            raise
        except duckdb.Error:
            return None

    def _narrow(self, name: str, keys: list[pa.Table]) -> str:
        self._narrowed += 1
        narrowed = f"{name}__{self._narrowed}"
        self.connection.register(narrowed, self.lazy[name].narrowed(keys))
        return narrowed


def connect(
    data: Path | str = "data",
    threads: int | None = None,
    tell: Callable[[str], None] | None = None,
) -> Database:
    """Open every table below `data`: a folder, or object storage such as s3://bucket/data.

    A query may take a quarter of the memory. tell: see Database; by default Python's warnings,
    which notebooks show.

    Ctrl-C in a query of a lazy table may raise DuckDB's InvalidInputException instead of
    KeyboardInterrupt: it may reach Python while a scan makes a batch. A process must not end while
    a thread still runs a query: wait for the thread, or call `connection.interrupt()` and then
    wait, or Python may abort.
    """
    folder = place(data)
    return Database(files_of([folder], folder), threads, limits(), tell or _warn)


def _warn(remark: str) -> None:
    warnings.warn(remark, stacklevel=3)
