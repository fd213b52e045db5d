"""Run the query that an item declares, and pack its rows for the page."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import polars as pl

from stages.lib.sql.database import Database, DatabaseError
from stages.lib.sql.files import subject_files
from stages.report.page.contents import Rows

DIGITS = 6  # of a number that the page carries; it shows three, and all on hover


class ContentsError(SystemExit):
    """An item that names a column or value that its tables do not have."""


def database(tables: Iterable[str], subject: str | None = None) -> Database:
    """Return a database with the existing tables: a model's own, and those of all models."""
    return Database(subject_files(subject, list(tables)), threads=1)


def places(tables: Iterable[str], subject: str | None = None) -> dict[str, str]:
    """Return the file of each existing table, or the folder of its files if there are several."""
    listed = {}
    for name, paths in subject_files(subject, list(tables)).items():
        listed[name] = str(paths[0] if len(paths) == 1 else paths[0].parent)
    return listed


def query(rows: Rows, shared: bool = False) -> str:
    """Return the SELECT of an item, with the parameter $subject unless models share it.

    Anyone can run it in the console.
    """
    default = "*" if shared else "* exclude (subject)"
    lines = [
        f"select {', '.join(rows.columns) or default}",
        f"from {rows.source or rows.table}",
    ]
    conditions = [] if shared else ["subject = $subject"]
    if rows.where != "true":
        conditions.append(f"({rows.where})")
    if conditions:
        lines.append(f"where {' and '.join(conditions)}")
    return "\n".join([*lines, f"order by {rows.sort or 'all'}"])


def ask(
    rows: Rows,
    data: Database,
    subject: str | None,
    limit: int,
    key: str = "",
    values: list[str] | None = None,
) -> tuple[pl.DataFrame, dict[str, int]] | None:
    """Return the first `limit` rows of each operator, and how many rows each operator has.

    Rows without an operator count as rows of "". The result is None if a table is missing.

    key: SQL expression by whose value rows are counted instead of the operator; values: of the key,
    to which the rows are restricted. Raises ContentsError if the query fails.
    """
    if set(rows.tables) - set(data.tables()):
        return None
    bare, _, order = query(rows, subject is None).rpartition("\norder by ")
    parameters: dict[str, Any] = {} if subject is None else {"subject": subject}
    try:
        names = data.sql(bare, **parameters).columns
        quoted = [f'"{name}"' for name in names]
        order = ", ".join(quoted if order == "all" else [order, *quoted])
        by = key or next(filter(names.__contains__, rows.operators), "''")
        if values is not None:
            bare = f"select * from ({bare}) where {by} in (select unnest($among))"
            parameters["among"] = values
        counted = f"select {by} as of_, count(*) from ({bare}) group by all order by all"
        counts = dict(data.sql(counted, **parameters).fetchall())
        run: Callable[..., Any] = partial(data.sql, limit=limit, **parameters)
        if values is not None:
            place = f"row_number() over (partition by {by} order by {order}) as place_"
            ranked = f"select *, {place} from ({bare})"
            parts = [run(f"select * exclude (place_) from ({ranked}) where place_ <= $limit").pl()]
        else:  # a window function would hold all rows of a large table in memory
            own = f"where {by} is not distinct from $group order by {order}"
            parts = [run(f"from ({bare}) {own} limit $limit", group=group).pl() for group in counts]
            parts = parts or [run(f"from ({bare}) limit $limit").pl()]
        some = _sorted(data, pl.concat(parts), order)
    except DatabaseError as error:
        place = "in a page.yaml or stages/report/page/contents.yaml"
        raise ContentsError(f"{rows.title!r} {place}: {error}") from None
    return some, counts


def _sorted(data: Database, rows: pl.DataFrame, order: str) -> pl.DataFrame:
    """Return rows in the order of SQL expressions."""
    data.connection.register("unsorted_", rows.to_arrow())
    return data.sql(f"from unsorted_ order by {order}").pl()


def packed(frame: pl.DataFrame) -> dict[str, Any]:
    """Return a frame as the page reads it: names and kinds of its columns, and its rows."""
    rows = [list(map(_cell, row)) for row in frame.iter_rows()]
    return {"columns": frame.columns, "kinds": list(map(_kind, frame.dtypes)), "rows": rows}


def _kind(dtype: pl.DataType) -> str:
    if dtype == pl.Boolean:
        return "boolean"
    return "number" if dtype.is_numeric() else "text"


def _cell(value: Any) -> Any:
    """Return a value that JSON has: floats with DIGITS digits, lists as text."""
    if isinstance(value, float):
        return rounded(value, DIGITS, str(value))
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def rounded(value: float, digits: int, otherwise: Any) -> Any:
    """Return a number with a few digits, or `otherwise` if it is infinite or NaN."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else otherwise
