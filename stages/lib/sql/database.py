"""SQL over the project's tables. The one importer of duckdb.

`connect()` opens the read-only view of data/ that the console and notebooks share; stage.py runs the queries of the pipeline.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from stages.lib import store
from stages.lib.core import tables
from stages.lib.core.words import CHAPTERS
from stages.lib.sql.lazy.table import SUMS, LayerSums, LayerTable
from stages.lib.sql.lazy.where import StorePart

DatabaseError = duckdb.Error
MEASURES = {"activations": "activation", "value_logits": "logit"}  # lazy table -> its measure
EXPLAIN = re.compile(r"^\s*explain\b\s*(analyze\b|\([^)]*\))?", re.IGNORECASE)
ANY = ("query_table", "query(")  # in queries that may compute the name of a table
MACROS = Path(__file__).with_name("macros.sql")


class QueryError(ValueError):
    """A query that is not one read-only statement."""


ERRORS = (QueryError, tables.TableError, store.StoreError, duckdb.Error)  # what a query may raise


class Database:
    """A DuckDB connection to tables in files; lazy tables are read from HDF5 as queries ask for them.

    files: table -> the Parquet or HDF5 files it is made of, one per subject or operator. They are opened here, not by the
    engine, which can neither read nor write any file, whatever a query says, and never sees the name of one. What is damaged is refused
    to the query that names it, and to no other.
    """

    def __init__(self, files: dict[str, list[Path]], threads: int | None = None):
        self.connection = duckdb.connect(config={"python_enable_replacements": False, **({"threads": threads} if threads else {})})
        self.files, self.lazy = files, dict[str, LayerTable]()
        self._unread: dict[str, Exception] = {}  # table -> why it could not be opened
        self._checked: set[str] = set()  # tables whose files were held against their checksums
        self._macros: dict[str, str] = {}  # name -> text
        self._narrowed = 0
        for name, paths in sorted(files.items()):
            try:
                self._register(name, paths)
            except ERRORS as error:
                self._unread[name] = error
            except (OSError, ValueError, pa.ArrowException) as error:
                self._unread[name] = QueryError(
                    f"the files of the table {name} cannot be read together, or one of them not at all: {error}"
                )
        self._add_macros()
        self.connection.execute("set enable_external_access = false")
        self.connection.execute("set lock_configuration = true")

    def _register(self, name: str, paths: list[Path]) -> None:
        if name in MEASURES:
            self.lazy[name] = LayerTable([_part(path) for path in paths], MEASURES[name])
            self.connection.register(name, self.lazy[name])
            self.connection.register(name + SUMS, LayerSums(self.lazy[name]))
        else:
            tables.check(_parquet(paths), data=False)  # a reader that trusts a damaged footer may hang
            self.connection.register(name, _dataset(paths))

    def _add_macros(self) -> None:
        """Formulas that queries share, and of shared small tables those that can be made of the tables here."""
        for statement in self.connection.extract_statements(MACROS.read_text()):
            name = re.findall(r"create macro (\w+)", statement.query)[0]
            self._macros[name] = statement.query.lower()
            with suppress(duckdb.CatalogException, duckdb.BinderException):  # a table that it reads, or a column, is not here
                self.connection.execute(statement)

    def _check(self, query: str) -> None:
        """Raises TableError (StoreError) where a table that the query may read, by itself or by a macro, is damaged."""
        text, macros = query.lower(), dict(self._macros)
        while named := [name for name in macros if name in text]:
            text += "".join(map(macros.pop, named))
        for name in self.files.keys() - self._checked:
            if name.lower() in text or any(word in text for word in ANY):
                tables.check(_parquet(self.files[name]))
                if name in self._unread:
                    raise self._unread[name]
                self._checked.add(name)

    def sql(self, query: str, **parameters: Any) -> duckdb.DuckDBPyRelation:
        """The relation of one SELECT; its values for `$name` come by keyword. `.pl()` makes it a Polars frame.

        Raises QueryError on any other statement, duckdb.Error on a wrong one, TableError or StoreError where it names what is damaged.
        """
        statement = self._only_statement(query)
        self._check(query)
        unknown = parameters.keys() - statement.named_parameters
        missing = statement.named_parameters - parameters.keys()
        if unknown or missing:
            problems = [f"${name} is not in the query" for name in sorted(unknown)] + [f"${name} has no value" for name in sorted(missing)]
            raise QueryError("; ".join(problems))
        columns = {name: set(table.columns.names) for name, table in self.lazy.items()}
        if any(name in query for name in columns) and statement.type == duckdb.StatementType.SELECT:
            from stages.lib.sql.lazy.group_by import summed  # only here: sqlglot, which they take, is slow to import
            from stages.lib.sql.lazy.join import narrow

            names = self.connection.sql(query, params=parameters or None).columns
            if rewritten := summed(query, MEASURES, names):
                return self.connection.sql(rewritten, params=parameters or None)
            query = narrow(query, columns, lambda text: self._ask(text, parameters), self._narrow)
        return self.connection.sql(query, params=parameters or None)

    def tables(self) -> list[str]:
        """The names of all tables."""
        return sorted(self.files)

    def columns(self, table: str) -> dict[str, str]:
        """A table's columns: name -> type. Raises TableError or StoreError where it could not be opened."""
        if table in self._unread:
            raise self._unread[table]
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

    def _ask(self, query: str, parameters: dict[str, Any]) -> pa.Table:
        names = self.connection.extract_statements(query)[0].named_parameters
        return self.connection.sql(query, params={n: parameters[n] for n in names} or None).to_arrow_table()

    def _narrow(self, name: str, keys: list[pa.Table]) -> str:
        self._narrowed += 1
        narrowed = f"{name}__{self._narrowed}"
        self.connection.register(narrowed, self.lazy[name].narrowed(keys))
        return narrowed


def connect(data: Path | str = "data", threads: int | None = None) -> Database:
    """Every table below `data`, the project's or a pulled copy of it."""
    tables = (path for path in Path(data).rglob("*") if path.suffix in (".parquet", ".h5"))
    return Database(files_of(tables, Path(data)), threads)


def subject_files(subject: str | None, tables: list[str], data: Path = Path("data")) -> dict[str, list[Path]]:
    """The files of these tables for a Database that sees nothing else: a subject's own, and those that are about none or about several."""
    own = (path for folder in (*([subject] if subject else []), *CHAPTERS) for path in (data / folder).rglob("*"))
    return {name: paths for name, paths in files_of(own, data).items() if name in tables}


def files_of(paths: Iterable[Path], data: Path = Path("data")) -> dict[str, list[Path]]:
    """The files of each table among paths below `data`; of folders, all that is in them.

    A table is what stands behind its chapter: data/<subject>/<chapter>/<table>.parquet, or, where it is about no subject or about
    several, data/<chapter>/<table>.parquet. It may be a folder of files, such as activations/<operator>.h5.
    """
    found: dict[str, list[Path]] = {}
    for file in sorted({file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])}):
        if name := _table(file.relative_to(data)):
            found.setdefault(name, []).append(file)
    return found


def _table(path: Path) -> str | None:
    """The table that a file below data/ is (part of), None if it is of none; the log of a training lies beside the weights."""
    if path.match("models/*/training_log.parquet"):
        return path.stem
    for chapter, behind in zip(path.parts[:2], path.parts[1:3], strict=False):
        if chapter in CHAPTERS:
            name = Path(behind).stem
            return name if path.suffix == (".h5" if name in MEASURES else ".parquet") else None
    return None


def _parquet(paths: list[Path]) -> list[Path]:
    return [path for path in paths if path.suffix == ".parquet"]


def _dataset(paths: list[Path]) -> ds.Dataset:
    """Files of one table, whose columns are put together by name."""
    names = [str(path.absolute()) for path in paths]
    schema = pa.unify_schemas([pq.read_schema(name) for name in names], promote_options="permissive")
    return ds.dataset(names, schema=schema, format="parquet")


def _part(path: Path) -> StorePart:
    opened = store.LayerStore(path)
    return StorePart(opened, {name: opened.attributes[name] for name in ("subject", "operator") if name in opened.attributes})
