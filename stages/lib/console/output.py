"""How the console prints rows: as a table that fits the terminal, whole, a record a block, or for programs."""

import io
import re
import shutil
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass

from stages.lib.sql.database import Database

STYLES = ("table", "wide", "records", "csv", "json")
UNLIMITED = 2**31 - 1


@dataclass(frozen=True)
class Look:
    """style: one of STYLES; rows: how many are printed at most, except as csv and json; asks: what stands before a style to ask for it."""

    style: str = "table"
    rows: int = 40
    asks: str = "--"


def show(database: Database, query: str, parameters: dict[str, object], look: Look) -> None:
    """Prints a query's rows; what does not fit is said on stderr."""
    relation = database.sql(query, **parameters)
    if look.style == "csv":
        nested = {
            name for name, kind in zip(relation.columns, relation.types, strict=True) if kind.id in ("list", "array", "struct", "map")
        }
        columns = (f'"{name}"::varchar as "{name}"' if name in nested else f'"{name}"' for name in relation.columns)
        print(relation.project(", ".join(columns)).pl().write_csv(), end="")  # a list as text: CSV has none
    elif look.style == "json":
        print(relation.pl().write_json())
    elif look.style == "records":
        values = relation.limit(look.rows + 1).select("columns(*)::varchar").fetchall()
        print(records(relation.columns, values[: look.rows]))
        if len(values) > look.rows:
            _remark(f"only the first {look.rows} records are printed; --rows says how many")
    else:
        whole = look.style == "wide" or not sys.stdout.isatty()
        printed = io.StringIO()
        with redirect_stdout(printed):
            relation.show(max_rows=look.rows, max_width=UNLIMITED if whole else shutil.get_terminal_size().columns)
        print(printed.getvalue(), end="")
        for remark in remarks(printed.getvalue(), len(relation.columns), whole, look.asks):
            _remark(remark)


def records(columns: list[str], rows: list[tuple[str | None, ...]]) -> str:
    """A block for each row, of a line `column  value` for each column."""
    width = max(map(len, columns))
    blocks = []
    for number, row in enumerate(rows, start=1):
        lines = [f"{column:<{width}}  {_indented(value, width + 2)}" for column, value in zip(columns, row, strict=True)]
        blocks.append("\n".join([f"─── record {number} ───", *lines]))
    return "\n\n".join(blocks) if blocks else "0 rows"


def _indented(value: str | None, width: int) -> str:
    return "NULL" if value is None else value.replace("\n", "\n" + " " * width)


def remarks(table: str, columns: int, whole: bool, asks: str) -> list[str]:
    """What a printed table of so many columns lacks, and how to see it."""
    types = [cell.strip() for cell in table.splitlines()[2].split("│")[1:-1]]  # the third line names a type for every column printed
    more = f"{asks}wide prints them whole, {asks}records a line `column  value` for each"
    if "…" in types:
        return [f"{columns - len(types) + 1} of {columns} columns are left out; {more}"]
    if not whole and re.search("… +│", table):
        return [f"values that end in … are cut; {more}"]
    if not sys.stdout.isatty() and "shown)" in table.rpartition("┘")[2]:
        return ["not all rows are printed; --rows says how many, --csv prints all"]
    return []


def _remark(text: str) -> None:
    sys.stdout.flush()
    print(f"bag: {text}", file=sys.stderr)
