"""`bag query "select …"`: run a query and print its rows.

The query is a SELECT in quotes, a .sql file, or "-" for standard input. `query` may be left out:
bag "select …"
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from stages.lib.console.common import (
    add_data,
    add_look,
    add_parameters,
    folder,
    look,
    opened,
)
from stages.lib.console.folders import unlike_lock
from stages.lib.console.output import show
from stages.lib.console.under_way import under_way
from stages.lib.console.values import parameters
from stages.lib.sql.database import Database, QueryError


@dataclass(frozen=True)
class Query:
    """A query, the values of its `$NAME`s, and the open tables that it reads."""

    database: Database
    text: str
    values: dict[str, object]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_query(parser)
    add_look(parser)


def add_query(parser: argparse.ArgumentParser) -> None:
    """Add what names a query, its parameters and its tables."""
    meaning = 'a SELECT in quotes, a .sql file, or "-" for standard input'
    parser.add_argument("query", nargs="+", metavar="QUERY", help=meaning)
    add_parameters(parser)
    add_data(parser)


def run(options: argparse.Namespace) -> None:
    query = read(options)
    show(query.database, query.text, query.values, look(options))


def read(options: argparse.Namespace) -> Query:
    """Return the query of a command's options; warn if its tables may be incomplete.

    Raises QueryError if there is no query, or no table.
    """
    query, *more = options.query
    if more:
        raise QueryError(f"expected one query, in quotes; {' '.join(more)!r} follows it")
    return opened_query(query, options.parameter, options.data)


def opened_query(query: str, pairs: list[str], data_folder: str) -> Query:
    """Return a query with its tables; warn if they may be incomplete.

    query: a SELECT, a .sql file or "-"; pairs: NAME=VALUE. Raises QueryError as `read` does.
    """
    data = folder(data_folder)
    database = opened(data)
    text, values = _text(query), parameters(pairs)
    if values and text == query and "$" not in text:
        problem = f"${min(values)} is not in the query: in double quotes the shell replaces it"
        raise QueryError(f"{problem}; use single quotes")
    for line in (*under_way(text, data), *unlike_lock(text, data)):
        print(f"bag: {line}", file=sys.stderr)
    return Query(database, text, values)


def _text(query: str) -> str:
    """Return the SELECT that QUERY means: QUERY itself, or the content of a file or of stdin."""
    if query == "-":
        return _decoded(sys.stdin.buffer.read(), "standard input")
    if query.endswith(".sql"):
        if not Path(query).is_file():
            problem = f"there is no file {query} in {Path.cwd()}"
            raise QueryError(f"{problem}; give the path of a file with a SELECT, or the SELECT")
        return _decoded(Path(query).read_bytes(), query)
    return query


def _decoded(content: bytes, source: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        problem = f"{source} is not text in UTF-8: byte {error.start} is wrong"
        raise QueryError(f"{problem}; save it as UTF-8") from None
