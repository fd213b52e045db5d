"""`bag tables`: list the tables, or print the columns of some.

Each line has a table's name and what it is. With names, every column's type and meaning follow.
"""

import argparse
import re
import shutil
import sys
from pathlib import Path

from stages.lib import dictionary
from stages.lib.console.command import PROJECT
from stages.lib.console.common import add_data, folder, opened
from stages.lib.console.output import remark
from stages.lib.sql.database import ERRORS, Database, QueryError
from stages.lib.sql.missing import is_known, ways_to

# a full stop ends it, unless in parentheses, as in (Eq. 2)
SENTENCE = re.compile(r"(?:[^.(]|\([^)]*\)?|\.(?! ))*")
UNDOCUMENTED = dictionary.Table("", Path(), "", {})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    meaning = "a table whose columns to print; repeatable"
    parser.add_argument("tables", nargs="*", metavar="NAME", help=meaning)
    meaning = "list the tables and columns with WORD in their names or meaning"
    parser.add_argument("--search", metavar="WORD", help=meaning)
    add_data(parser)


def run(options: argparse.Namespace) -> None:
    database = opened(folder(options.data))
    if options.search is not None:
        print_matches(database, options.tables, options.search)
        return
    print_tables(database, options.tables)
    if not options.tables and sys.stdout.isatty():
        remark("`bag tables NAME` prints a table's columns, `--search WORD` finds columns")


def print_tables(database: Database, names: list[str]) -> None:
    """Print these tables with their columns; without names, print a line for each table."""
    documented, present = dictionary.tables(PROJECT / "stages"), _present(database, names)
    if names:
        for name in present:
            _print_columns(database, documented.get(name, UNDOCUMENTED), name)
        return
    for name in present:
        print(_line(name, documented.get(name, UNDOCUMENTED), max(map(len, present))))


def print_matches(database: Database, names: list[str], word: str) -> None:
    """Print every table, of these or of all, in whose description a word is, with its columns.

    Only columns that have the word are printed. Raises QueryError if there are none.
    """
    documented, present = dictionary.tables(PROJECT / "stages"), _present(database, names)
    is_empty = True
    for name in present:
        table = documented.get(name, UNDOCUMENTED)
        columns = {}
        for column, (kind, meaning) in table.columns.items():
            if _has(word, column, meaning):
                columns[column] = (kind, meaning)
        if columns or _has(word, name, table.meaning):
            is_empty = False
            print(_line(name, table, len(name)))
            for column, (kind, meaning) in columns.items():
                _print_column(column, kind, meaning)
    if is_empty:
        problem = f"no table or column has {word!r} in its name or meaning"
        raise QueryError(f"{problem}; `bag tables` lists all tables")


def _present(database: Database, names: list[str]) -> list[str]:
    """Return these tables, or all without names. Raises QueryError if one does not exist."""
    present = database.tables()
    for name in sorted({*names}.difference(present)):
        if is_known(name):
            raise QueryError(f"there is no table {name} here. {ways_to(name, '<subject>')}")
        raise QueryError(f"unknown table {name}; available tables: {', '.join(present)}")
    return names or present


def _has(word: str, *texts: str) -> bool:
    return any(word.lower() in text.lower() for text in texts)


def _line(name: str, table: dictionary.Table, width: int) -> str:
    """Return a table's name and its meaning's first sentence, cut to the terminal's width."""
    sentence = first_sentence(table.meaning)
    line = f"{name:<{width}}  {sentence[:1].upper()}{sentence[1:]}".rstrip()
    columns = shutil.get_terminal_size().columns
    if sys.stdout.isatty() and len(line) > columns:
        return line[: columns - 1] + "…"
    return line


def first_sentence(meaning: str) -> str:
    """Return a description's first sentence, without its full stop."""
    return SENTENCE.match(meaning)[0].rstrip(".")  # type: ignore[index]


def _print_columns(database: Database, table: dictionary.Table, name: str) -> None:
    print(f"{name}  {table.meaning}")
    try:
        columns = database.columns(name)
    except ERRORS as error:
        print(f"    {error}\n")
        return
    for column, kind in columns.items():
        _, meaning = table.columns.get(column, ("", ""))
        _print_column(column, kind, meaning)
    print()


def _print_column(column: str, kind: str, meaning: str) -> None:
    print(f"    {column:<20} {kind:<10} {meaning}")
