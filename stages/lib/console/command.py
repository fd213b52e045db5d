"""SQL over neurons: what `bag` does with a query, and its own commands. `bag --help` shows them all."""

import argparse
import os
import re
import signal
import sys
from pathlib import Path

import polars as pl
import pyarrow as pa

from stages.lib.console.describe import print_tables
from stages.lib.console.folders import unlike_lock
from stages.lib.console.output import UNLIMITED, Look, remark, show
from stages.lib.console.under_way import under_way
from stages.lib.console.values import parameters
from stages.lib.core.storage import place
from stages.lib.sql.database import ERRORS, QueryError, connect, sentence

COMMANDS = ("tables", "made", "shell", "verify", "check", "add", "explore")
# exceptions that printing a query's rows may raise
ANY = (*ERRORS, MemoryError, pa.ArrowException, pl.exceptions.PolarsError)
WAY_OUT = "Run bag in the project's root after `make` or `make pull`, or name a folder with --data."
MEANINGS = {
    "wide": "print every column of a table, however wide the terminal is",
    "records": "print a block for each row, a line `column  value` for each of its columns",
    "csv": "print comma-separated values",
    "json": "print one JSON array of objects",
}


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="bag",
        description="Ask any question of any neuron, in SQL.",
        epilog='examples:  bag "select * from accuracy"   bag query.sql -p layer=1   bag tables   bag made   bag shell   bag verify   '
        "bag check models/mine   bag explore",
    )
    commands = ", ".join(COMMANDS)
    result.add_argument(
        "query",
        nargs="?",
        help=f'a SELECT, a file that ends in .sql, "-" for standard input, or one of: {commands}',
    )
    result.add_argument(
        "tables",
        nargs="*",
        metavar="table",
        help="of the command tables: which ones are shown; by default all are",
    )
    result.add_argument(
        "-p",
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="value of $NAME in the query; repeatable",
    )
    style = result.add_mutually_exclusive_group()
    for name, meaning in MEANINGS.items():
        style.add_argument(
            f"--{name}", action="store_const", const=name, dest="style", help=meaning
        )
    result.set_defaults(style="table")
    result.add_argument(
        "--data",
        default="data",
        help="folder with the tables (default: data), or one such as s3://bucket/data",
    )
    result.add_argument(
        "--rows", type=_rows, default=40, help="rows a printed table shows at most (default: 40)"
    )
    result.add_argument(
        "--heal",
        action="store_true",
        help="of verify: removes damaged copies, which `dvc repro` or `make pull` then replaces",
    )
    return result


def _rows(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= UNLIMITED:
        raise argparse.ArgumentTypeError(f"{text} is no number of rows, 1 to {UNLIMITED}")
    return int(text)


def main(given: list[str]) -> None:
    options = parser().parse_args(given)
    if options.query != "shell":
        # Ctrl-C ends it at once, even in the middle of a query; see bag.py
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not options.query:
        parser().print_help()
        return
    if options.tables and options.query != "tables":
        parser().error(
            f"one query at a time, in quotes; behind it stands {' '.join(options.tables)!r}"
        )
    try:
        run(options)
        sys.stdout.flush()  # here, where a full disk is a message
    except (*ANY, OSError) as error:
        _drop_output()
        raise SystemExit(f"bag: {sentence(error)}") from None


def _drop_output() -> None:
    """Drop buffered output that cannot be written; else the interpreter would try again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 open until exit


def run(options: argparse.Namespace) -> None:
    """Does what is asked. Raises one of ERRORS, or OSError."""
    if options.query == "verify":
        return _verify(options.heal)
    data = _folder(options.data)
    database = connect(data, tell=remark)
    look = Look(options.style, options.rows)
    if options.query == "made":
        from stages.lib.console.made import made  # only here: it reads params.yaml

        print("\n".join(made(database, data)))
    elif not database.tables():
        raise QueryError(f"there is no table in {data.absolute()}. {WAY_OUT}")
    elif options.query == "tables":
        print_tables(database, options.tables)
    elif options.query == "shell":
        from stages.lib.console import shell  # only here: it needs a terminal

        shell.run(database, look, parameters(options.parameter))
    else:
        query, values = _text(options.query), parameters(options.parameter)
        if values and query == options.query and "$" not in query:
            raise QueryError(
                f"${min(values)} is not in the query: in double quotes the shell probably took it; use single quotes"
            )
        for line in (*under_way(query, data), *unlike_lock(query, data)):
            print(f"bag: {line}", file=sys.stderr)
        show(database, query, values, look)


def _folder(text: str) -> Path:
    try:
        folder = place(text)
        if folder.is_dir():
            return folder
    except Exception as error:  # of storage there are many kinds, each with errors of its own
        raise QueryError(f"{text} cannot be reached: {type(error).__name__}: {error}") from None
    raise QueryError(
        f"there is no folder {text}{'' if '://' in text else f' in {Path.cwd()}'}. {WAY_OUT}"
    )


def _verify(heal: bool) -> None:
    from stages.lib.console.locks import LockError  # only here: DVC takes a second to load
    from stages.lib.console.verify import verify

    try:
        lines, well = verify(Path.cwd(), heal)
    except LockError as error:
        raise SystemExit(f"bag: {error}") from None
    print("\n".join(lines))
    if not well:
        raise SystemExit(1)


def _text(query: str) -> str:
    if query.endswith(".sql") and not Path(query).is_file():
        raise QueryError(
            f"there is no file {query} in {Path.cwd()}. Give the path of one that holds a SELECT, or the SELECT itself."
        )
    if query == "-" or query.endswith(".sql"):
        try:
            return (sys.stdin.buffer.read() if query == "-" else Path(query).read_bytes()).decode()
        except UnicodeDecodeError as error:
            where = "standard input" if query == "-" else query
            raise QueryError(
                f"{where} is no text in UTF-8: its byte {error.start} is not"
            ) from None
    if re.fullmatch(r"\w+", query):
        raise QueryError(
            f'there is no command {query}, only {", ".join(COMMANDS)}. For the rows of a table: "from {query}".'
        )
    return query
