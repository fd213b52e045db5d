"""The console `bag`: SQL over neurons. `bag --help` shows every command."""

import argparse
import re
import signal
import sys
from pathlib import Path

from stages.lib import dictionary
from stages.lib.console.output import Look, show
from stages.lib.sql.database import ERRORS, Database, QueryError, connect

COMMANDS = ("tables", "made", "shell", "verify")
WAY_OUT = "Run bag in the project's root, once `make` or `dvc pull` has put tables into data/, or say with --data where they are."
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
        epilog='examples:  bag "select * from accuracy"   bag query.sql -p layer=1   bag tables   bag made   bag shell   bag verify',
    )
    result.add_argument(
        "query", nargs="?", help='a SELECT, a file that ends in .sql, "-" for standard input, or one of: tables, made, shell, verify'
    )
    result.add_argument(
        "-p", "--parameter", action="append", default=[], metavar="NAME=VALUE", help="value of $NAME in the query; repeatable"
    )
    style = result.add_mutually_exclusive_group()
    for name, meaning in MEANINGS.items():
        style.add_argument(f"--{name}", action="store_const", const=name, dest="style", help=meaning)
    result.set_defaults(style="table")
    result.add_argument("--data", type=Path, default=Path("data"), help="folder with the tables (default: data)")
    result.add_argument("--rows", type=int, default=40, help="rows a printed table shows at most (default: 40)")
    result.add_argument(
        "--heal", action="store_true", help="of verify: takes damaged copies away, for `dvc repro` or `dvc pull` to bring true ones"
    )
    return result


def main(arguments: list[str] | None = None) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # in `bag … | head`, a closed pipe ends bag as it ends any other command: quietly
    options = parser().parse_args(arguments)
    if not options.query:
        parser().print_help()
        return
    try:
        run(options)
    except (*ERRORS, OSError) as error:
        raise SystemExit(f"bag: {error}") from None


def run(options: argparse.Namespace) -> None:
    """Does what is asked. Raises one of ERRORS, or OSError."""
    if options.query == "verify":
        return _verify(options.heal)
    if not options.data.is_dir():
        raise QueryError(f"there is no folder {options.data} in {Path.cwd()}. {WAY_OUT}")
    database = connect(options.data)
    look = Look(options.style, options.rows)
    if options.query == "made":
        from stages.lib.console.made import made  # only here: it reads params.yaml

        print("\n".join(made(database, options.data)))
    elif not database.tables():
        raise QueryError(f"there is no table in {options.data.absolute()}. {WAY_OUT}")
    elif options.query == "tables":
        print_tables(database)
    elif options.query == "shell":
        from stages.lib.console import shell  # only here: it needs a terminal

        shell.run(database, look)
    else:
        show(database, _text(options.query), _parameters(options.parameter), look)


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
    if query == "-":
        return sys.stdin.read()
    if query.endswith(".sql"):
        if not Path(query).is_file():
            raise QueryError(f"there is no file {query} in {Path.cwd()}. Give the path of one that holds a SELECT, or the SELECT itself.")
        return Path(query).read_text()
    if re.fullmatch(r"\w+", query):
        raise QueryError(f'there is no command {query}, only {", ".join(COMMANDS)}. For the rows of a table: "from {query}".')
    return query


def _parameters(given: list[str]) -> dict[str, object]:
    """NAME=VALUE pairs; a value that reads as a number is one."""
    values: dict[str, object] = {}
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator:
            raise QueryError(f"expected NAME=VALUE behind -p, found {pair!r}. Write -p layer=1 for the value of $layer, say.")
        for convert in (int, float, str):
            try:
                values[name] = convert(value)
                break
            except ValueError:
                continue
    return values


def print_tables(database: Database) -> None:
    """Prints every table there is, with its columns and their meaning."""
    described = dictionary.tables()
    for name in database.tables():
        table = described.get(name)
        print(f"{name}  {table.meaning if table else ''}")
        try:
            columns = database.columns(name)
        except ERRORS as error:
            print(f"    {error}\n")
            continue
        for column, kind in columns.items():
            meaning = table.columns.get(column, ("", ""))[1] if table else ""
            print(f"    {column:<20} {kind:<10} {meaning}")
        print()


if __name__ == "__main__":
    main()
