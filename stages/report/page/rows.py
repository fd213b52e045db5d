"""Rows for the page: the query that an item declares, run on the tables that there are."""

from collections.abc import Iterable
from typing import Any

import polars as pl

from stages.lib.sql.database import Database, DatabaseError
from stages.lib.sql.files import subject_files
from stages.report.page.contents import Rows

DIGITS = 4  # that a number on the page has


class ContentsError(SystemExit):
    """An item that asks for what its tables do not have."""


def database(tables: Iterable[str], subject: str | None = None) -> Database:
    """The tables among these that there are: a subject's own, and those that are about none or about several."""
    return Database(subject_files(subject, list(tables)), threads=1)


def places(tables: Iterable[str], subject: str | None = None) -> dict[str, str]:
    """Table -> where it lies: its file, or the folder of its files where it has several; of those among these that there are."""
    found = subject_files(subject, list(tables))
    return {name: str(paths[0] if len(paths) == 1 else paths[0].parent) for name, paths in found.items()}


def query(rows: Rows, shared: bool = False) -> str:
    """The SELECT behind an item, of $subject; anyone can ask it in the console."""
    columns = ", ".join(rows.columns) or ("*" if shared else "* exclude (subject)")
    where = " and ".join([*([] if shared else ["subject = $subject"]), *([] if rows.where == "true" else [f"({rows.where})"])])
    lines = [f"select {columns}", f"from {rows.source or rows.table}", *([f"where {where}"] if where else [])]
    return "\n".join([*lines, f"order by {rows.sort or 'all'}"])


def ask(
    rows: Rows, of: Database, subject: str | None, limit: int, each: str = "", among: list[str] | None = None
) -> tuple[pl.DataFrame, dict[str, int]] | None:
    """The rows, at most `limit` of each operator, and how many each operator has (by "" where rows have none).

    each: SQL expression by whose value rows are counted instead of by operator; among: the only values of it that count.
    None where one of the tables is not there.
    """
    if set(rows.tables) - set(of.tables()):
        return None
    bare, _, order = query(rows, subject is None).rpartition("\norder by ")
    values: dict[str, Any] = {} if subject is None else {"subject": subject}
    try:
        names = of.sql(bare, **values).columns
        order = ", ".join([*([] if order == "all" else [order]), *(f'"{name}"' for name in names)])
        by = each or next((name for name in rows.operators if name in names), "''")
        if among is not None:
            bare, values["among"] = f"select * from ({bare}) where {by} in (select unnest($among))", among
        numbered = f"select *, row_number() over (partition by {by} order by {order}) as place_ from ({bare})"
        some = of.sql(f"select * from ({numbered}) where place_ <= $limit order by {order}", limit=limit, **values).pl()
        found = of.sql(f"select {by} as of_, count(*) as found from ({bare}) group by all order by all", **values).pl()
    except DatabaseError as error:
        raise ContentsError(f"{rows.title!r} in a page.yaml or stages/report/page/contents.yaml: {error}") from None
    return some.drop("place_"), dict(found.iter_rows())


def packed(frame: pl.DataFrame) -> dict[str, Any]:
    """A frame as the page reads it: names and kinds of its columns, and its rows."""
    kinds = ["number" if kind.is_numeric() else "boolean" if kind == pl.Boolean else "text" for kind in frame.dtypes]
    return {"columns": frame.columns, "kinds": kinds, "rows": [[_cell(value) for value in row] for row in frame.iter_rows()]}


def _cell(value: Any) -> Any:
    """A value that JSON has: floats with as many digits as the page shows, lists as text."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if value - value == 0 else str(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if isinstance(value, (bool, int, str)) or value is None else str(value)
