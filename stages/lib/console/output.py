"""How the console prints rows: as a table that fits the terminal, whole, a record a block, or for programs."""

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
AT_ONCE = 10_240  # rows in memory, of those that programs read


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
    """Prints a query's rows; what does not fit is said on stderr."""
    relation = database.sql(query, **parameters)
    if look.style == "csv":
        _print_csv(relation)
    elif look.style == "json":
        _print_json(relation)
    elif look.style == "records":
        values = cells.texts(relation.limit(look.rows + 1)).fetchall()
        print(records(relation.columns, values[: look.rows]))
        if len(values) > look.rows:
            remark(f"only the first {look.rows} records are printed; --rows says how many")
        texts = [value for row in values for value in row if value]
        if any(len(text) == cells.SHOWN and text.endswith("…") for text in texts):
            remark(_cut(look.asks))
    else:
        whole = look.style == "wide" or not sys.stdout.isatty()
        printed = io.StringIO()
        with redirect_stdout(printed):
            cells.printed(relation).show(
                max_rows=look.rows,
                max_width=UNLIMITED if whole else shutil.get_terminal_size().columns,
            )
        print(printed.getvalue(), end="")
        for line in remarks(printed.getvalue(), len(relation.columns), whole, look.asks):
            remark(line)


def _print_csv(relation: Any) -> None:
    count = 0
    for number, rows in enumerate(_frames(cells.as_csv(relation))):
        print(rows.write_csv(include_header=number == 0), end="")
        count += len(rows)
    if not count:
        remark("no rows")


def _print_json(relation: Any) -> None:
    separator, lost = "[", False
    for rows in _frames(cells.as_json(relation)):
        floats = rows.select(cs.float())
        lost |= any(bool((column.is_nan() | column.is_infinite()).any()) for column in floats)
        if len(rows):
            print(separator + rows.write_json().strip()[1:-1], end="")
            separator = ","
    print("[]" if separator == "[" else "]")
    if separator == "[":
        remark("no rows")
    if lost:
        remark("NaN and infinity are null here, since JSON has neither; --csv tells them apart")


def _frames(relation: Any) -> Iterator[pl.DataFrame]:
    """The rows, so many at a time in memory; at least one frame."""
    reader = relation.to_arrow_reader(AT_ONCE)
    yield pl.DataFrame(reader.schema.empty_table())
    for batch in reader:
        yield pl.DataFrame(pa.table(batch))


def records(columns: list[str], rows: list[tuple[str | None, ...]]) -> str:
    """A block for each row, of a line `column  value` for each column."""
    width = max(map(len, columns))
    blocks = []
    for number, row in enumerate(rows, start=1):
        lines = [
            f"{column:<{width}}  {_indented(value, width + 2)}"
            for column, value in zip(columns, row, strict=True)
        ]
        blocks.append("\n".join([f"─── record {number} ───", *lines]))
    return "\n\n".join(blocks) if blocks else "0 rows"


def _indented(value: str | None, width: int) -> str:
    return "NULL" if value is None else value.replace("\n", "\n" + " " * width)


def remarks(table: str, columns: int, whole: bool, asks: str) -> list[str]:
    """What a printed table of so many columns lacks, and how to see it."""
    types = [
        cell.strip() for cell in table.splitlines()[2].split("│")[1:-1]
    ]  # the third line names a type for every column printed
    more = f"{asks}wide prints them whole, {asks}records a line `column  value` for each"
    if "…" in types:
        return [f"{columns - len(types) + 1} of {columns} columns are left out; {more}"]
    if not whole and re.search("… +│", table):
        return [f"values that end in … are cut; {more}"]
    if whole and re.search(f"[^│]{{{cells.SHOWN - 1}}}… +│", table):
        return [_cut(asks)]
    if not sys.stdout.isatty() and "shown)" in table.rpartition("┘")[2]:
        return ["not all rows are printed; --rows says how many, --csv prints all"]
    return []


def _cut(asks: str) -> str:
    return f"values of more than {cells.SHOWN:,} characters are cut; {asks}csv prints them whole"


def remark(text: str) -> None:
    """Print a sentence for people, after what is printed for programs."""
    sys.stdout.flush()
    print(f"bag: {text}", file=sys.stderr)
