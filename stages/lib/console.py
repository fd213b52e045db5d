"""The console `bag`: SQL over neurons. `bag --help` shows every command."""

import argparse
import sys
from pathlib import Path

from stages.lib import dictionary
from stages.lib.sql import Database, DatabaseError, QueryError, connect
from stages.lib.store import StoreError

ERRORS = (QueryError, StoreError, DatabaseError, OSError)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="bag",
        description="Ask any question of any neuron, in SQL.",
        epilog='examples:  bag "select * from accuracy"   bag query.sql -p layer=1   bag tables   bag shell',
    )
    result.add_argument("query", nargs="?", help='a SELECT, a file that ends in .sql, "-" for standard input, or one of: tables, shell')
    result.add_argument(
        "-p", "--parameter", action="append", default=[], metavar="NAME=VALUE", help="value of $NAME in the query; repeatable"
    )
    style = result.add_mutually_exclusive_group()
    style.add_argument("--csv", action="store_const", const="csv", dest="style", help="print comma-separated values")
    style.add_argument("--json", action="store_const", const="json", dest="style", help="print one JSON array of objects")
    result.add_argument("--data", type=Path, default=Path("data"), help="folder with the tables (default: data)")
    result.add_argument("--rows", type=int, default=40, help="rows a printed table shows at most (default: 40)")
    return result


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if not options.query:
        parser().print_help()
        return
    try:
        if not options.data.is_dir():
            raise QueryError(f"there is no folder {options.data}; run `dvc repro` or `dvc pull` in the project's root first")
        database = connect(options.data)
        if options.query == "tables":
            print_tables(database)
        elif options.query == "shell":
            from stages.lib.shell import run  # only here: it needs a terminal

            run(database, lambda text: show(database, text, {}, options.style, options.rows))
        else:
            show(database, _text(options.query), _parameters(options.parameter), options.style, options.rows)
    except ERRORS as error:
        raise SystemExit(f"bag: {error}") from None


def _text(query: str) -> str:
    if query == "-":
        return sys.stdin.read()
    return Path(query).read_text() if query.endswith(".sql") else query


def _parameters(given: list[str]) -> dict[str, object]:
    """NAME=VALUE pairs; a value that reads as a number is one."""
    values: dict[str, object] = {}
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator:
            raise QueryError(f"expected NAME=VALUE behind -p, found {pair!r}")
        for convert in (int, float, str):
            try:
                values[name] = convert(value)
                break
            except ValueError:
                continue
    return values


def show(database: Database, query: str, parameters: dict[str, object], style: str | None, rows: int) -> None:
    """Prints a query's rows, as a table unless `style` is csv or json."""
    relation = database.sql(query, **parameters)
    if style == "csv":
        print(relation.pl().write_csv(), end="")
    elif style == "json":
        print(relation.pl().write_json())
    else:
        relation.show(max_rows=rows)


def print_tables(database: Database) -> None:
    """Prints every table there is, with its columns and their meaning."""
    described = dictionary.tables()
    for name in database.tables():
        table = described.get(name)
        print(f"{name}  {table.meaning if table else ''}")
        for column, kind in database.columns(name).items():
            meaning = table.columns.get(column, ("", ""))[1] if table else ""
            print(f"    {column:<20} {kind:<10} {meaning}")
        print()


if __name__ == "__main__":
    main()
