"""Print rows: as a table that fits the terminal or is whole, as records, as CSV or as JSON."""

import io
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import polars as pl
import polars.selectors as cs
import pyarrow as pa

from stages.lib.sql import cells
from stages.lib.sql.database import Database

STYLES = ("table", "wide", "records", "csv", "json")
UNLIMITED = 2**31 - 1
AT_ONCE = 10_240  # rows in memory while CSV or JSON is printed


@dataclass(frozen=True)
class Look:
    """How to print rows.

    style: a name in STYLES; rows: the most rows to print, except as csv and json; asks: the prefix
    of a style's name, by which a user asks for it.
    """

    style: str = "table"
    rows: int = 40
    asks: str = "--"


def show(database: Database, query: str, parameters: dict[str, object], look: Look) -> None:
    """Print a query's rows, and on stderr what is left out."""
    relation = database.sql(query, **parameters)
    if look.style == "csv":
        _print_csv(relation)
    elif look.style == "json":
        _print_json(relation)
    elif look.style == "records":
        _print_records(relation, look)
    else:
        _print_table(relation, look)


def _print_records(relation: Any, look: Look) -> None:
    rows = cells.texts(relation.limit(look.rows + 1)).fetchall()
    print(records(relation.columns, rows[: look.rows]))
    if len(rows) > look.rows:
        remark(f"only the first {look.rows} records are printed; {look.asks}rows COUNT prints more")
    for row in rows:
        if any(map(_is_cut, row)):
            return remark(_cut(look.asks))


def _is_cut(text: str | None) -> bool:
    return text is not None and len(text) == cells.SHOWN and text.endswith("…")


def _print_table(relation: Any, look: Look) -> None:
    is_whole = look.style == "wide" or not sys.stdout.isatty()
    width = UNLIMITED if is_whole else shutil.get_terminal_size().columns
    printed = io.StringIO()
    with redirect_stdout(printed):
        cells.printed(relation).show(max_rows=look.rows, max_width=width)
    print(printed.getvalue(), end="")
    for line in remarks(printed.getvalue(), len(relation.columns), is_whole, look.asks):
        remark(line)


def _print_csv(relation: Any) -> None:
    count = 0
    for number, rows in enumerate(_frames(cells.as_csv(relation))):
        print(rows.write_csv(include_header=number == 0), end="")
        count += len(rows)
    if not count:
        remark("no rows")


def _print_json(relation: Any) -> None:
    separator, lost = "[", False  # lost: NaN or infinity
    for rows in _frames(cells.as_json(relation)):
        for column in rows.select(cs.float()):
            lost |= not column.drop_nulls().is_finite().all()
        if len(rows):
            print(separator + rows.write_json().strip()[1:-1], end="")
            separator = ","
    if separator == "[":
        print("[]")
        remark("no rows")
    else:
        print("]")
    if lost:
        remark("NaN and infinity are null here, since JSON has neither; --csv tells them apart")


def _frames(relation: Any) -> Iterator[pl.DataFrame]:
    """Yield the rows in frames of at most AT_ONCE rows; at least one frame."""
    reader = relation.to_arrow_reader(AT_ONCE)
    yield pl.DataFrame(reader.schema.empty_table())
    for batch in reader:
        yield pl.DataFrame(pa.table(batch))


def records(columns: list[str], rows: list[tuple[str | None, ...]]) -> str:
    """Return a block of text for each row, with a line `column  value` for each column."""
    width = max(map(len, columns))
    blocks = []
    for number, row in enumerate(rows, start=1):
        lines = [f"─── record {number} ───"]
        for column, value in zip(columns, row, strict=True):
            indented = "NULL" if value is None else value.replace("\n", "\n" + " " * (width + 2))
            lines.append(f"{column:<{width}}  {indented}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) or "0 rows"


def remarks(table: str, columns: int, whole: bool, asks: str) -> list[str]:
    """Return what a printed table leaves out, and which style prints it.

    columns: how many the query has; whole: whether the table is not fitted to the terminal.
    """
    # the third line names a type for every column printed
    types = list(map(str.strip, table.splitlines()[2].split("│")[1:-1]))
    more = f"{asks}wide prints them whole, {asks}records a line `column  value` for each"
    if "…" in types:
        return [f"{columns - len(types) + 1} of {columns} columns are left out; {more}"]
    if not whole and re.search("… +│", table):
        return [f"values that end in … are cut; {more}"]
    if whole and re.search(f"[^│]{{{cells.SHOWN - 1}}}… +│", table):
        return [_cut(asks)]
    if not sys.stdout.isatty() and "shown)" in table.rpartition("┘")[2]:
        return ["not all rows are printed; --rows COUNT prints more, --csv prints all"]
    return []


def _cut(asks: str) -> str:
    return f"values of more than {cells.SHOWN:,} characters are cut; {asks}csv prints them whole"


def remark(text: str) -> None:
    """Print a sentence for people, after what is printed for programs."""
    sys.stdout.flush()
    print(f"bag: {text}", file=sys.stderr)
