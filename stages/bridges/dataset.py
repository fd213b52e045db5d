"""Write the rows of a query as a folder that Hugging Face `datasets` loads.

The folder holds Parquet files and a README.md, the dataset card: features, licence, the query, the
meaning of each column, and the models that the numbers are about. Writing it needs no library
beyond those of this project:

    with connect() as bag:
        to_dataset(bag, "select * from labels where subject = 'abacus'", "labels")
    datasets.load_dataset("labels")    # wherever `datasets` is installed

The same query of the same tables writes the same bytes.
"""

import shutil
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

import stages
from stages.lib import dictionary
from stages.lib.core.settings import sections_of
from stages.lib.sql.database import Database
from stages.lib.subject import SECTIONS

PROJECT = Path(stages.__file__).parents[1]
ROWS = 1_000_000  # of a file
AT_ONCE = 50_000  # rows in memory
COMPUTED = "computed by the query"
# Arrow's names of types -> those of `datasets`, where these differ
NAMES = {"float": "float32", "double": "float64", "halffloat": "float16", "date32[day]": "date32"}
HOW = """\
Made with `bag`, which takes language models apart on arithmetic. `bag` wrote the rows of this
query, in this order:"""


class DatasetError(ValueError):
    """A folder that is not empty, or a column that a dataset cannot hold."""


def to_dataset(
    bag: Database,
    query: str,
    folder: Path | str,
    parameters: Mapping[str, object] | None = None,
    rows: int = ROWS,
) -> Path:
    """Write a query's rows and their dataset card to a folder, and return the folder.

    query, parameters: a SELECT and the values of its `$name`s. folder: absent or empty. rows: of a
    Parquet file at most. HUGEINT becomes int64, an enum text.

    Raises DatasetError if the folder has files, if a column has a type that datasets lack, or if a
    whole number needs more than 64 bits, and QueryError as Database.sql does.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DatasetError(f"{target} is not an empty folder; name a new one")
    values = dict(parameters or {})
    reader = bag.sql(query, **values).to_arrow_reader(AT_ONCE)
    schema = pa.schema([(field.name, _stored(field)) for field in reader.schema])
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        (partial / "data").mkdir(parents=True)
        written = Written(partial / "data", schema, rows)
        for batch in reader:
            written.add(_cast(batch, schema))
        written.close()
        card = _card(bag, query, values, schema, written)
        (partial / "README.md").write_text(card, encoding="utf-8")
        partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


class Written:
    """The Parquet files of a dataset, with the number and the models of their rows."""

    def __init__(self, folder: Path, schema: pa.Schema, rows_per_file: int):
        self.folder, self.schema, self.rows_per_file = folder, schema, rows_per_file
        self.rows = self.files = 0
        self.subjects: set[str] = set()
        self._open()

    def _open(self) -> None:
        path = self.folder / f"train-{self.files:05}.parquet"
        self.writer = pq.ParquetWriter(path, self.schema, compression="zstd")
        self.files, self.room = self.files + 1, self.rows_per_file

    def add(self, batch: pa.RecordBatch) -> None:
        """Write a batch of rows, in as many files as it needs."""
        if "subject" in batch.schema.names:
            self.subjects.update(map(str, pc.unique(batch["subject"]).drop_null().to_pylist()))
        while len(batch):
            if not self.room:
                self.writer.close()
                self._open()
            part = batch.slice(0, self.room)
            self.writer.write_batch(part)
            self.room -= len(part)
            self.rows += len(part)
            batch = batch.slice(len(part))

    def close(self) -> None:
        self.writer.close()


def _stored(field: pa.Field) -> pa.DataType:
    """Return the type in which a column is stored. Raises DatasetError if datasets lack it."""
    try:
        return _type(field.type)
    except TypeError:
        problem = f"column {field.name} is of the type {field.type}, which datasets lack"
        raise DatasetError(f"{problem}; cast it in the query, such as to varchar") from None


def _type(kind: pa.DataType) -> pa.DataType:
    """Return the type of values as datasets have them. Raises TypeError if they lack it."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_decimal(kind) and kind.scale == 0:  # DuckDB's HUGEINT, the type of a sum
        return pa.int64()
    if pa.types.is_map(kind) or pa.types.is_interval(kind) or pa.types.is_union(kind):
        raise TypeError(kind)
    if pa.types.is_struct(kind):
        return pa.struct([(child.name, _type(child.type)) for child in kind.fields])
    if pa.types.is_nested(kind):  # a list of any length, or of a fixed one
        return pa.list_(_type(kind.value_type))
    return kind


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field, column in zip(schema, batch.columns, strict=True):
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowInvalid as error:
            problem = f"column {field.name} does not fit {field.type}: {error}"
            raise DatasetError(f"{problem}; cast it in the query, such as to double") from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _feature(name: str, kind: pa.DataType) -> dict[str, Any]:
    """Return a column's entry in the card's list of features."""
    return {"name": name} | _dtype(kind)


def _dtype(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        return {"struct": [_feature(child.name, child.type) for child in kind.fields]}
    if pa.types.is_list(kind):
        inner = _dtype(kind.value_type)
        return {"list": inner.get("dtype", inner)}
    return {"dtype": NAMES.get(str(kind), str(kind))}


def _card(
    bag: Database,
    query: str,
    parameters: Mapping[str, object],
    schema: pa.Schema,
    written: Written,
) -> str:
    """Return the text of the dataset card."""
    documented = dictionary.tables(PROJECT / "stages")
    names, compared = _named(query, parameters)
    tables = [documented[name] for name in sorted(names & documented.keys())]
    title = ", ".join(table.name for table in tables) or "rows of a query"
    split = {"split": "train", "path": "data/train-*.parquet"}
    front = {
        "license": _licence(),
        "pretty_name": title,
        "tags": ["interpretability", "arithmetic"],
        "configs": [{"config_name": "default", "data_files": [split]}],
        "dataset_info": {"features": [_feature(field.name, field.type) for field in schema]},
    }
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=100)
    values = [f"* `${name}` is `{value!r}`" for name, value in sorted(parameters.items())]
    subjects = written.subjects or compared
    parts = [
        f"---\n{head}---",
        f"# {title}",
        HOW,
        f"```sql\n{query.strip()}\n```",
        *(["\n".join(values)] if values else []),
        f"{written.rows:,} rows in {written.files} Parquet files.",
        "## Columns",
        "A column has the meaning of the column of the same name in a table that the query reads.",
        _markdown(("column", "type", "meaning"), _columns(schema, tables)),
        "## Tables",
        _markdown(("table", "meaning"), [(table.name, table.meaning) for table in tables]),
        "## Models",
        _markdown(("subject", "source", "revision", "dtype"), _models(bag, sorted(subjects))),
    ]
    return "\n\n".join(parts) + "\n"


def _named(query: str, parameters: Mapping[str, object]) -> tuple[set[str], set[str]]:
    """Return the tables, and the models, that a query names; none if sqlglot cannot parse it."""
    from sqlglot.errors import SqlglotError  # only here: it is slow to import

    from stages.lib.sql.literals import tables_and_names

    try:
        tables, texts = tables_and_names(query, parameters)
    except (SqlglotError, RecursionError):
        return set(), set()
    return tables, texts["subject"]


def _columns(schema: pa.Schema, tables: list[dictionary.Table]) -> Iterator[tuple[str, str, str]]:
    for field in schema:
        meanings: dict[str, list[str]] = {}  # meaning -> tables; several tables may share a column
        for table in tables:
            if field.name in table.columns:
                meanings.setdefault(table.columns[field.name][1], []).append(table.name)
        text = "; ".join(meanings)
        if len(meanings) > 1:
            each = [f"in {', '.join(names)}: {text}" for text, names in meanings.items()]
            text = "; ".join(each)
        yield field.name, str(field.type), text or COMPUTED


def _models(bag: Database, subjects: list[str]) -> Iterator[tuple[str, ...]]:
    """Yield the origin of each model, from the project's params.yaml if the tables have one."""
    entries = _entries(bag)
    for subject in subjects:
        entry = entries.get(subject) or {}
        yield subject, *(str(entry.get(key, "")) for key in ("source", "revision", "dtype"))


def _entries(bag: Database) -> dict[str, Any]:
    """Return the entry of every model in the params.yaml of the tables' project."""
    for paths in bag.files.values():
        for folder in paths[0].absolute().parents:
            file = folder / "params.yaml"
            if file.is_file():
                sections = sections_of(file, file.read_text(encoding="utf-8"))
                entries: dict[str, Any] = {}
                for section in SECTIONS:
                    entries |= sections.get(section) or {}
                return entries
    return {}


def _licence() -> str:
    """Return the project's licence, as the Hub writes it."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["license"]).lower()


def _markdown(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(map(_line, lines))


def _line(cells: tuple[str, ...]) -> str:
    escaped = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
    return f"| {' | '.join(escaped)} |"
