"""Options, tables and errors that several commands of the console share."""

import argparse
from pathlib import Path

import polars as pl
import pyarrow as pa

from stages.lib.console.output import UNLIMITED, Look, remark
from stages.lib.core.storage import place
from stages.lib.sql.database import ERRORS, Database, QueryError, connect, sentence

__all__ = ["ANY", "sentence"]
# exceptions that printing a query's rows may raise
ANY = (*ERRORS, MemoryError, pa.ArrowException, pl.exceptions.PolarsError)
WAY_OUT = "Run bag in the project's root after `make` or `make pull`, or name a folder with --data."
STYLES = {
    "wide": "print every column of a table, however wide the terminal is",
    "records": "print a block for each row, a line `column  value` for each of its columns",
    "csv": "print comma-separated values",
    "json": "print one JSON array of objects",
}


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the option for the folder of the tables."""
    meaning = "folder with the tables (default: data), also in storage, such as s3://bucket/data"
    parser.add_argument("--data", default="data", metavar="FOLDER", help=meaning)


def add_parameters(parser: argparse.ArgumentParser) -> None:
    """Add the option for values of $NAME."""
    parser.add_argument(
        "-p",
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="value of $NAME in the query; repeatable",
    )


def add_look(parser: argparse.ArgumentParser) -> None:
    """Add the options for how rows are printed."""
    style = parser.add_mutually_exclusive_group()
    for name, meaning in STYLES.items():
        option = f"--{name}"
        style.add_argument(option, action="store_const", const=name, dest="style", help=meaning)
    parser.set_defaults(style="table")
    meaning = "print at most COUNT rows of a table (default: 40)"
    parser.add_argument("--rows", type=count_of_rows, default=40, metavar="COUNT", help=meaning)


def count_of_rows(text: str) -> int:
    """Return how many rows to print. Raises ArgumentTypeError if a text is no such number."""
    if not text.isdecimal() or not 1 <= int(text) <= UNLIMITED:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows, 1 to {UNLIMITED}")
    return int(text)


def look(options: argparse.Namespace) -> Look:
    return Look(options.style, options.rows)


def opened(data: Path) -> Database:
    """Open the tables in a folder. Raises QueryError if there is none."""
    database = connect(data, tell=remark)
    if not database.tables():
        raise QueryError(f"there is no table in {data.absolute()}. {WAY_OUT}")
    return database


def folder(text: str) -> Path:
    """Return the folder of the tables. Raises QueryError if there is none, or no access to it."""
    try:
        path = place(text)
        if path.is_dir():
            return path
    except Exception as error:  # every kind of storage has errors of its own
        raise QueryError(f"cannot access {text}: {type(error).__name__}: {error}") from None
    parent = "" if "://" in text else f" in {Path.cwd()}"
    raise QueryError(f"there is no folder {text}{parent}. {WAY_OUT}")
