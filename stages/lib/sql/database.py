"""SQL over the project's tables. The one importer of duckdb.

`connect()` opens the read-only view of data/ that the console and notebooks share. stage.py runs
the queries of the pipeline.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from stages.lib.core import hdf5_store, tables
from stages.lib.core.storage import place
from stages.lib.core.vocabulary import CHAPTERS, OPERATORS
from stages.lib.sql.files import MEASURES, dataset, files_of, parquet, parts
from stages.lib.sql.lazy.table import SUMS, LayerSums, LayerTable
from stages.lib.sql.limits import limits
from stages.lib.sql.missing import explained, renamed

DatabaseError = duckdb.Error
EXPLAIN = re.compile(r"^\s*explain\b\s*(analyze\b|\([^)]*\))?", re.IGNORECASE)
# in queries that list tables
CATALOG = re.compile("show|information_schema|duckdb_|pg_")
# in queries that may compute a table's name: query(…), query_table(…)
ANY = re.compile(r"\bquery(_table)?\b")
SUMS_OF_DUMP = {"activations": "neuron_sums"}  # lazy table -> the table that has its sums
SUMS_COLUMNS = (
    "subject, operator, layer, neuron, "
    "prompts as rows__, total as total__, smallest as smallest__, largest as largest__"
)
MACROS = Path(__file__).with_name("macros.sql")
MACRO = re.compile(r"create macro (\w+)")
LISTED = 20  # subjects or operators that a remark names


class QueryError(ValueError):
    """A query that is not one read-only statement."""


ERRORS = (
    QueryError,
    tables.TableError,
    hdf5_store.StoreError,
    duckdb.Error,
)  # what a query may raise
DEEP = "the query is nested too deeply: remove parentheses, or name parts of it in WITH"
LIMIT = "A query may take a quarter of the memory, and spill 16 GiB at most"
LARGE = f"{LIMIT}; ask for fewer rows, or group them."


def sentence(error: BaseException) -> str:
    """Return an error's message, without advice to change settings, which no query can."""
    if isinstance(error, duckdb.OutOfMemoryException):
        return f"{str(error).splitlines()[0]} {LARGE}"
    return str(error)


class Database:
    """A DuckDB connection to tables in files. Scans of lazy tables read only what a query needs.

    As a context manager, it closes the connection at the end.

    The engine can neither read nor write files, and never sees their names, whatever a query says.
    This class opens a table's files when a query first names the table, and verifies them. A
    damaged file is an error of the queries that name its table, and of no others.

    files: table -> its Parquet or HDF5 files, one per subject or operator.
    settings: more settings of the engine, in order; no query can change any.
    tell: called with a sentence for each subject or operator that a query names and that its
    tables lack.
    """

    def __init__(
        self,
        files: dict[str, list[Path]],
        threads: int | None = None,
        settings: Mapping[str, str] | None = None,
        tell: Callable[[str], None] | None = None,
    ):
        config: dict[str, Any] = {"python_enable_replacements": False}
        if threads:
            config["threads"] = threads
        self.connection = duckdb.connect(config=config)
        for name, value in (settings or {}).items():
            quoted = value.replace("'", "''")
            self.connection.execute(f"set {name} = '{quoted}'")
        self.connection.execute("set enable_external_access = false")
        self.connection.execute("set lock_configuration = true")
        self.files, self.lazy, self.tell = files, dict[str, LayerTable](), tell
        self._opened: set[str] = set()  # tables that the engine knows
        self._checked: set[str] = set()  # tables whose files were verified
        self._macros: dict[str, str] = {}  # name -> statement; they build on earlier ones
        for statement in self.connection.extract_statements(MACROS.read_text(encoding="utf-8")):
            self._macros[MACRO.findall(statement.query)[0]] = statement.query
        self._created: set[str] = set()  # macros that the engine knows
        # name -> why not: the macro reads a table or column that is missing here
        self._not_created: dict[str, str] = {}
        self._narrowed = 0

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def _prepare(self, query: str) -> None:
        """Open the tables that a query or its macros may read, and create these macros.

        Raises TableError, StoreError or QueryError if one of these tables is damaged.
        """
        text = query.lower()
        called = self._called_macros(text)
        whole_text = text + "".join(self._macros[name].lower() for name in called)
        for name in sorted(self.files.keys() - self._checked):
            # a table too many costs only time, unless it is damaged
            if _has_word(whole_text, name.lower()) or ANY.search(whole_text):
                tables.check(parquet(self.files[name]))
                self._open(name)
                self._checked.add(name)
        if CATALOG.search(whole_text):
            self._open_all()
        for name in called:
            if name not in self._created:
                try:
                    self.connection.execute(self._macros[name])
                    self._created.add(name)
                except (duckdb.CatalogException, duckdb.BinderException) as error:
                    self._not_created[name] = str(error)

    def _called_macros(self, text: str) -> list[str]:
        """Return the macros that a text names, and those that they call, in order of definition."""
        called: list[str] = []
        for name, statement in reversed(self._macros.items()):
            if name in text:
                called.insert(0, name)
                text += statement.lower()
        return called

    def _open_all(self) -> None:
        """Make every readable table known to the engine."""
        for name in self.files:
            with suppress(*ERRORS):
                self._open(name)

    def _open(self, name: str) -> None:
        """Make a table known to the engine. Raises one of ERRORS if its files cannot be opened."""
        if name in self._opened:
            return
        try:
            if name in MEASURES:
                self._open_lazy(name)
            else:
                # before any reader trusts the footer: it may hang on a damaged one
                tables.check(parquet(self.files[name]), data=False)
                self.connection.register(name, dataset(self.files[name]))
        except ERRORS:
            raise
        except (OSError, ValueError, pa.ArrowException) as error:
            problem = f"the files of the table {name} cannot be read, or not together: {error}"
            raise QueryError(f"{problem}; `bag verify` names damaged files") from None
        self._opened.add(name)

    def _open_lazy(self, name: str) -> None:
        """Make a lazy table and the table of its sums over each neuron known to the engine."""
        self.lazy[name] = LayerTable(parts(self.files[name]), MEASURES[name])
        self.connection.register(name, self.lazy[name])
        with suppress(*ERRORS):
            if self._open_sums_of_dump(name):
                return
        self.connection.register(name + SUMS, LayerSums(self.lazy[name]))

    def _open_sums_of_dump(self, name: str) -> bool:
        """Use the sums that the dump wrote, if it wrote a row for each neuron of a lazy table."""
        source = SUMS_OF_DUMP.get(name)
        if source not in self.files:
            return False
        tables.check(parquet(self.files[source]))
        self._open(source)
        counts = f"select subject, operator, layer, count(*) from {source} group by all"
        rows = self.connection.sql(counts).fetchall()
        if {tuple(key): count for *key, count in rows} != self.lazy[name].neurons():
            return False
        view = f"create temp view {name}{SUMS} as select {SUMS_COLUMNS} from {source}"
        self.connection.execute(view)
        return True

    def sql(self, query: str, **parameters: Any) -> duckdb.DuckDBPyRelation:
        """Return the relation of one SELECT; keywords are the values of its `$name`s.

        The relation's `.pl()` returns a Polars frame, its `.df()` a pandas frame if pandas is
        installed. Raises QueryError on any other statement, duckdb.Error on a wrong one, TableError
        or StoreError if it names a damaged table.
        """
        try:
            relation = self._sql(query, parameters)
        except duckdb.CatalogException:  # it proposes a name only of tables that it knows
            relation = self._sql_of_all(query, parameters)
        except duckdb.BinderException as error:
            message = renamed(str(error), self._aliases(query))
            if message == str(error):
                raise
            raise QueryError(message) from None
        except RecursionError:
            raise QueryError(DEEP) from None
        if self.tell:
            for remark in self.unknown_names(query, parameters):
                self.tell(remark)
        return relation

    def _sql_of_all(self, query: str, parameters: dict[str, Any]) -> duckdb.DuckDBPyRelation:
        """Run a query with all tables open; on a missing table, name the stage that makes it."""
        self._open_all()
        try:
            return self._sql(query, parameters)
        except duckdb.CatalogException as error:
            message, subject = self._reason(str(error)), self._subject(query, parameters)
            raise QueryError(explained(message, self.tables(), subject)) from None

    def _reason(self, message: str) -> str:
        """Return an error's message, for an unknown macro the error that kept it from creation."""
        for name, why in self._not_created.items():
            if f"Function with name {name} does not exist" in message:
                return why
        return message

    def unknown_names(self, query: str, parameters: Mapping[str, Any]) -> list[str]:
        """Return remarks on subjects and operators of a query that none of its tables has."""
        remarks: list[str] = []
        names, texts = self._names(query, parameters)
        for column, wanted in texts.items():
            if not wanted:
                continue
            tables = [name for name in names & self.files.keys() if column in self.columns(name)]
            unsure = wanted - self._words_of_paths(tables) - {*OPERATORS}
            if not tables or not unsure:  # reading the tables takes time
                continue
            known = set().union(*map(partial(self._values, column=column), tables))
            listed = sorted(map(str, known))
            ending = ", …" if len(listed) > LISTED else ""
            present = ", ".join(listed[:LISTED]) + ending or "none"
            for text in sorted(unsure - known):
                remarks.append(f"no {column} {text!r} here; {column}s here: {present}")
        return remarks

    def _words_of_paths(self, tables: list[str]) -> set[str]:
        """Return the names of all files and folders of some tables, files without their ending."""
        words: set[str] = set()
        for name in tables:
            for path in self.files[name]:
                words.update(path.parts, [path.stem])
        return words

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

    def _aliases(self, query: str) -> dict[str, str]:
        """Return the tables that a query reads, by alias; none if sqlglot cannot parse it."""
        from sqlglot.errors import SqlglotError  # only here: it is slow to import

        from stages.lib.sql.literals import aliases

        try:
            return aliases(query)
        except (SqlglotError, RecursionError):
            return {}

    def _subject(self, query: str, parameters: Mapping[str, Any]) -> str:
        """Return the subject that a query names, else the first subject that has tables here."""
        named = sorted(self._names(query, parameters)[1].get("subject", set()))
        folders: set[str] = set()
        for paths in self.files.values():
            folders.update(path.parent.parent.name for path in paths)
        return next(iter([*named, *sorted(folders - {*CHAPTERS, "data"})]), "<subject>")

    def _sql(self, query: str, parameters: dict[str, Any]) -> duckdb.DuckDBPyRelation:
        statement = self._only_statement(query)
        self._prepare(query)
        _check_parameters(statement.named_parameters, parameters.keys())
        if statement.type == duckdb.StatementType.SELECT:
            query = self._rewritten(query, parameters)
        return self.connection.sql(query, params=parameters or None)

    def _rewritten(self, query: str, parameters: dict[str, Any]) -> str:
        """Return the query, changed where lazy tables give the same rows with fewer reads."""
        lazy = {name for name in self.lazy if name in query.lower()}
        if not lazy:
            return query
        # only here: sqlglot is slow to import
        from stages.lib.sql.lazy.group_by import summed
        from stages.lib.sql.lazy.join import narrow

        names = self.connection.sql(query, params=parameters or None).columns
        ask = partial(self._ask, parameters=parameters)
        columns = {name: table.columns.names for name, table in self.lazy.items()}
        by_sums = summed(query, columns, names)
        return by_sums or narrow(query, lazy, set(self._macros), ask, self._narrow)

    def tables(self) -> list[str]:
        """Return the names of all tables."""
        return sorted(self.files)

    def columns(self, table: str) -> dict[str, str]:
        """Return a table's columns: name -> type. Raises one of ERRORS if it cannot be opened."""
        self._open(table)
        relation = self.connection.sql(f'from "{table}" limit 0')
        return dict(zip(relation.columns, map(str, relation.types), strict=True))

    def _only_statement(self, query: str) -> duckdb.Statement:
        statements = self.connection.extract_statements(query)
        if len(statements) != 1:
            raise QueryError(f"expected one statement, found {len(statements)}")
        try:
            kind = statements[0].type
        except ValueError:  # the bindings have no name for this kind of statement
            raise QueryError("this connection only reads: SELECT is allowed, this is not") from None
        if kind == duckdb.StatementType.EXPLAIN:
            self._only_statement(EXPLAIN.sub("", statements[0].query))
        elif kind == duckdb.StatementType.MULTI:
            way_out = "list the values that become columns (pivot … on operator in ('add'))"
            raise QueryError(f"PIVOT without a list of values runs several statements: {way_out}")
        elif kind != duckdb.StatementType.SELECT:
            raise QueryError(f"this connection only reads: {kind.name} is not allowed, SELECT is")
        return statements[0]

    def _ask(self, query: str, parameters: dict[str, Any]) -> pa.Table | None:
        """Return the rows of a part of a query, None if it cannot be run alone."""
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


def _has_word(text: str, word: str) -> bool:
    """Return whether a text has a word, rather than a longer one that contains it."""
    return word in text and bool(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text))


def _check_parameters(needed: Iterable[str], given: Iterable[str]) -> None:
    """Raise QueryError on a value without its `$name`, and on a `$name` without a value."""
    problems = [f"${name} is not in the query" for name in sorted({*given}.difference(needed))]
    problems += [f"${name} has no value" for name in sorted({*needed}.difference(given))]
    if problems:
        raise QueryError("; ".join(problems))


def project_data(folder: Path | str) -> Path:
    """Return the folder data/ of the project that a folder is in.

    Raises QueryError if it is in no project.
    """
    start = Path(folder).absolute()
    way_out = "pass the project's folder, as in connect('path/to/project')"
    if not start.is_dir():
        raise QueryError(f"there is no folder {start}; {way_out}")
    for root in (start, *start.parents):
        # chapters have a params.yaml as well, but no folder stages/
        if (root / "params.yaml").is_file() and (root / "stages").is_dir():
            return root / "data"
    problem = f"{start} is not in a project, as no params.yaml is in it or above it"
    raise QueryError(f"{problem}; {way_out}")


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
