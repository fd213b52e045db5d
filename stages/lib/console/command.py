"""Run `bag`'s queries and its own commands. `bag --help` lists them all."""

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

COMMANDS = ("tables", "made", "shell", "verify", "check", "add", "explore", "try", "new")
# exceptions that printing a query's rows may raise
ANY = (*ERRORS, MemoryError, pa.ArrowException, pl.exceptions.PolarsError)
WAY_OUT = "Run bag in the project's root after `make` or `make pull`, or name a folder with --data."
EXAMPLES = """\
examples:
  bag "select * from accuracy"    bag query.sql -p layer=1    bag tables    bag made
  bag shell    bag verify    bag check models/mine    bag explore"""
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
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument(
        "query",
        nargs="?",
        help=f'a SELECT, a .sql file, "-" for standard input, or a command: {", ".join(COMMANDS)}',
    )
    result.add_argument(
        "tables",
        nargs="*",
        metavar="table",
        help="after the command tables: the tables to show (default: all)",
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
        option = f"--{name}"
        style.add_argument(option, action="store_const", const=name, dest="style", help=meaning)
    result.set_defaults(style="table")
    result.add_argument(
        "--data",
        default="data",
        help="folder with the tables (default: data), also in storage, such as s3://bucket/data",
    )
    result.add_argument(
        "--rows",
        type=_rows,
        default=40,
        help="rows to print of a table at most (default: 40)",
    )
    result.add_argument(
        "--heal",
        action="store_true",
        help="with verify: remove damaged copies, which `dvc repro` or `make pull` then replaces",
    )
    return result


def _rows(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= UNLIMITED:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows, 1 to {UNLIMITED}")
    return int(text)


def main(given: list[str]) -> None:
    options = parser().parse_args(given)
    if options.query != "shell":
        # Ctrl-C ends bag at once, even within a query; see bag.py
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not options.query:
        parser().print_help()
        return
    if options.tables and options.query != "tables":
        after = " ".join(options.tables)
        parser().error(f"expected one query, in quotes; {after!r} follows it")
    try:
        run(options)
        sys.stdout.flush()  # a full disk raises now, and not at exit
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
    """Run a command or a query. Raises one of ERRORS, or OSError."""
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
            problem = f"${min(values)} is not in the query: in double quotes the shell replaces it"
            raise QueryError(f"{problem}; use single quotes")
        for line in (*under_way(query, data), *unlike_lock(query, data)):
            print(f"bag: {line}", file=sys.stderr)
        show(database, query, values, look)


def _folder(text: str) -> Path:
    """Return the folder of the tables. Raises QueryError if there is none, or no access to it."""
    try:
        folder = place(text)
        if folder.is_dir():
            return folder
    except Exception as error:  # every kind of storage has errors of its own
        raise QueryError(f"cannot access {text}: {type(error).__name__}: {error}") from None
    parent = "" if "://" in text else f" in {Path.cwd()}"
    raise QueryError(f"there is no folder {text}{parent}. {WAY_OUT}")


def _verify(heal: bool) -> None:
    from stages.lib.console.locks import LockError  # only here: DVC takes a second to load
    from stages.lib.console.verify import verify

    try:
        lines, is_whole = verify(Path.cwd(), heal)
    except LockError as error:
        raise SystemExit(f"bag: {error}") from None
    print("\n".join(lines))
    if not is_whole:
        raise SystemExit(1)


def _text(query: str) -> str:
    """Return the SELECT that `bag QUERY` means: QUERY, or the content of a file or of stdin."""
    if query == "-":
        return _decoded(sys.stdin.buffer.read(), "standard input")
    if query.endswith(".sql"):
        if not Path(query).is_file():
            problem = f"there is no file {query} in {Path.cwd()}"
            raise QueryError(f"{problem}; give the path of a file with a SELECT, or the SELECT")
        return _decoded(Path(query).read_bytes(), query)
    if re.fullmatch(r"\w+", query):
        commands = f"unknown command {query!r}; available commands: {', '.join(COMMANDS)}"
        raise QueryError(f'{commands}. For the rows of a table: "from {query}".')
    return query


def _decoded(content: bytes, source: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        problem = f"{source} is not text in UTF-8: byte {error.start} is wrong"
        raise QueryError(f"{problem}; save it as UTF-8") from None
