"""SQL over the project's tables, and the runner of SQL stages. The one importer of duckdb.

`connect()` opens the read-only view of data/ that the console and notebooks share. `python -m stages.lib.sql STAGE
[SUBJECT]` runs stages/STAGE.sql as its entry in dvc.yaml declares: one view per file below data/ that it depends on,
the params sections it lists as $names, $subject, and nothing else within reach, so that its declared dependencies are true.
"""

import re
import sys
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import yaml

from stages.lib import store
from stages.lib.files import write_table
from stages.lib.narrowing import narrow
from stages.lib.params.sections import read
from stages.lib.pruning import StorePart
from stages.lib.scan import LayerSums, LayerTable
from stages.lib.summing import SUMS, summed

DatabaseError = duckdb.Error
SHARED = ("trajectory", "trajectory_kinds", "trajectory_knockouts", "trajectory_mediation", "finetuned")  # data/<table>/<subject>.parquet
FOLDERS = {"activations": "h5", "runs": "parquet"} | dict.fromkeys(SHARED, "parquet")  # tables that are a folder of files
MEASURES = {"activations": "activation", "value_logits": "logit"}  # lazy table -> its measure


class QueryError(ValueError):
    """A query that is not one read-only statement."""


class Database:
    """A read-only DuckDB connection to tables in files; lazy tables are read from HDF5 as queries ask for them.

    files: table -> the parquet or HDF5 files it is made of, one per subject or operator.
    """

    def __init__(self, files: dict[str, list[Path]], threads: int | None = None):
        self.connection = duckdb.connect(config={"python_enable_replacements": False, **({"threads": threads} if threads else {})})
        self.lazy: dict[str, LayerTable] = {}
        self._narrowed = 0
        for name, paths in sorted(files.items()):
            if name in MEASURES:
                self.lazy[name] = LayerTable([_part(path) for path in paths], MEASURES[name])
                self.connection.register(name, self.lazy[name])
                self.connection.register(name + SUMS, LayerSums(self.lazy[name]))
            else:
                listed = ", ".join(f"'{path}'" for path in paths)
                reader = "read_csv" if paths[0].suffix == ".csv" else "read_parquet"
                self.connection.execute(f'create view "{name}" as from {reader}([{listed}], union_by_name => true)')
        allowed = [str(path) for name, paths in files.items() if name not in MEASURES for path in paths]
        self._lock(allowed)

    def _lock(self, allowed: list[str]) -> None:
        """Leaves nothing within reach of a query but these files."""
        self.connection.execute("set allowed_paths = $paths", {"paths": allowed})
        self.connection.execute("set enable_external_access = false")
        self.connection.execute("set lock_configuration = true")

    def sql(self, query: str, **parameters: Any) -> duckdb.DuckDBPyRelation:
        """The relation of one SELECT; its values for `$name` come by keyword. `.pl()` makes it a Polars frame.

        Raises QueryError on any other statement, duckdb.Error on a wrong one.
        """
        statement = self._only_statement(query)
        unknown = parameters.keys() - statement.named_parameters
        missing = statement.named_parameters - parameters.keys()
        if unknown or missing:
            problems = [f"${name} is not in the query" for name in sorted(unknown)] + [f"${name} has no value" for name in sorted(missing)]
            raise QueryError("; ".join(problems))
        columns = {name: set(table.columns.names) for name, table in self.lazy.items()}
        if any(name in query for name in columns) and statement.type == duckdb.StatementType.SELECT:
            names = self.connection.sql(query, params=parameters or None).columns
            if rewritten := summed(query, MEASURES, names):
                return self.connection.sql(rewritten, params=parameters or None)
            query = narrow(query, columns, lambda text: self._ask(text, parameters), self._narrow)
        return self.connection.sql(query, params=parameters or None)

    def tables(self) -> list[str]:
        """The names of all tables."""
        views = self.connection.sql("select view_name from duckdb_views() where not internal").fetchall()
        return sorted({name for (name,) in views if "__" not in name} | self.lazy.keys())

    def columns(self, table: str) -> dict[str, str]:
        """A table's columns: name -> type."""
        relation = self.connection.sql(f'from "{table}" limit 0')
        return dict(zip(relation.columns, map(str, relation.types), strict=True))

    def _only_statement(self, query: str) -> duckdb.Statement:
        statements = self.connection.extract_statements(query)
        if len(statements) != 1:
            raise QueryError(f"expected one statement, found {len(statements)}")
        kind = statements[0].type
        if kind == duckdb.StatementType.EXPLAIN:
            explained = statements[0].query.strip()[len("explain") :].strip()
            self._only_statement(explained[len("analyze") :] if explained.lower().startswith("analyze") else explained)
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
    """Every table below `data`, the project's or a pulled copy of it.

    data/<table>.parquet is one table; data/<subject>/<table>.parquet of all subjects are one, as are their stores and
    the files of a folder data/<subject>/<table>/.
    """
    files: dict[str, list[Path]] = {}
    for pattern in ("*.parquet", "*/*.parquet", "*/value_logits.h5", *(f"*/{folder}/*.{kind}" for folder, kind in FOLDERS.items())):
        for path in sorted(Path(data).glob(pattern)):
            files.setdefault(_table(path), []).append(path)
    return Database(files, threads)


def _table(path: Path) -> str:
    """The table that a file is (part of): its own name, or that of its folder where a table has one."""
    return path.parent.name if path.parent.name in FOLDERS else path.stem


def subject_files(subject: str, tables: list[str]) -> dict[str, list[Path]]:
    """One subject's files of these tables, for a Database that sees nothing else; of tables about several subjects those of all."""
    folder = Path("data") / subject
    several = {"activations": sorted(folder.glob("activations/*.h5")), "value_logits": [folder / "value_logits.h5"]}
    several |= {name: sorted(Path("data", name).glob("*.parquet")) for name in SHARED}
    found = {name: several.get(name, [folder / f"{name}.parquet"]) for name in tables}
    return {name: paths for name, paths in found.items() if paths}


def _part(path: Path) -> StorePart:
    opened = store.LayerStore(path)
    return StorePart(opened, {name: opened.attributes[name] for name in ("subject", "operator") if name in opened.attributes})


def run_stage(stage: str, subject: str | None) -> None:
    """Runs stages/<stage>.sql and writes the one output that dvc.yaml declares for it."""
    settings = read()
    declared = yaml.safe_load(Path("dvc.yaml").read_text())["stages"][stage]
    entry = declared.get("do", declared)
    item = settings.get(str(declared.get("foreach")).strip("${}"), {}).get(subject, {})
    names = {"${key}": subject or "", **{f"${{item.{name}}}": str(value) for name, value in item.items()}}
    expand = partial(re.sub, r"\$\{[\w.]+\}", lambda found: names[found[0]])
    query = Path(f"stages/{stage}.sql").read_text()
    files: dict[str, list[Path]] = {}
    for path in sorted({Path(expand(dependency)) for dependency in entry["deps"]}):
        if path.parts[0] == "data" and path.suffix in ("", ".parquet", ".csv", ".h5"):
            files.setdefault(_table(path), []).extend(sorted(path.glob("*.h5")) if path.is_dir() else [path])
    values: dict[str, Any] = {"subject": subject}
    for section in map(expand, entry.get("params", [])):
        for name, value in reduce(getitem, section.split("."), settings).items():
            if name in values:
                raise QueryError(f"${name} is a setting of two of the sections {entry['params']}")
            values[name] = value
    database = Database(files, threads=1)  # one thread: sums of floats come out the same every time
    named = database.connection.extract_statements(query)[0].named_parameters
    out = Path(expand(next(iter(entry["outs"]))))
    write_table(database.sql(query, **{name: values[name] for name in named}).pl(), out)


if __name__ == "__main__":
    run_stage(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
