"""`bag shell`: open a prompt for queries, with history and completion of names.

The options set how rows are printed and the values of $NAME at the start.
"""

import argparse
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Thread

import polars as pl
import pyarrow as pa
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory

from stages.lib.console.common import (
    add_data,
    add_look,
    add_parameters,
    count_of_rows,
    folder,
    look,
    opened,
)
from stages.lib.console.output import STYLES, Look, show
from stages.lib.console.tables import print_tables
from stages.lib.console.values import parameters, value_of
from stages.lib.sql.database import ERRORS, Database, sentence

WORDS = [
    "select",
    "from",
    "where",
    "join",
    "using",
    "group by",
    "order by",
    "limit",
    "avg",
    "count",
    "describe",
]
COMMANDS = ["help", "tables", "set", "rows", "exit"]
ENDS = ("exit", "quit", "\\q")
BANNER = "SQL over {count} tables: end a query with ;  Commands: help, tables, set, rows, exit."
HELP = """\
select … ;            runs a query, of one line or several
tables                lists the tables; also \\d
tables NAME …         prints the columns of tables with their meaning; also \\d NAME …
set NAME VALUE        fills $NAME in queries; `set` alone prints what is set, `set NAME` removes it
table, wide, records, csv, json
                      how the rows of later queries are printed
rows COUNT            prints at most COUNT rows of later queries
help                  prints this
exit                  ends the session; also quit, \\q, Ctrl-D"""


# exceptions that showing a query's rows may raise; an interrupted query is a RuntimeError
ANY = (
    *ERRORS,
    RuntimeError,
    MemoryError,
    OSError,
    pa.ArrowException,
    pl.exceptions.PolarsError,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_look(parser)
    add_parameters(parser)
    add_data(parser)


def run(options: argparse.Namespace) -> None:
    database = opened(folder(options.data))
    converse(database, look(options), parameters(options.parameter))


class History(FileHistory):
    """The lines typed so far, kept in a file, or in memory if the file cannot be written."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


@dataclass
class Session:
    """An open console. values: of $NAME in queries."""

    database: Database
    look: Look
    values: dict[str, object] = field(default_factory=dict)

    def takes(self, line: str) -> bool:
        """Run a line that is a command. Return False if it is part of a query."""
        word, *more = line.split() or [""]
        if word in STYLES and not more:
            self.look = replace(self.look, style=word)
        elif word in ("help", "\\h", "\\?", "?") and not more:
            print(HELP)
        elif word in ("tables", "\\d", "\\dt"):
            self._tables(more)
        elif word == "set":
            self._set(more)
        elif word == "rows" and len(more) == 1:
            self._rows(more[0])
        elif word.startswith("\\"):
            print(f"unknown command {word}; `help` lists the commands")
        else:
            return False
        return True

    def _tables(self, names: list[str]) -> None:
        try:
            print_tables(self.database, names)
        except ERRORS as error:
            print(sentence(error))

    def _set(self, more: list[str]) -> None:
        if len(more) > 1:
            name, text = more[0].lstrip("$"), " ".join(part for part in more[1:] if part != "=")
            self.values[name] = value_of(text)
        elif more:
            self.values.pop(more[0].lstrip("$"), None)
        for name, value in self.values.items():
            print(f"${name} = {value!r}")
        if not self.values:
            print("nothing is set; `set NAME VALUE` fills $NAME in queries")

    def _rows(self, text: str) -> None:
        try:
            self.look = replace(self.look, rows=count_of_rows(text))
        except argparse.ArgumentTypeError as error:
            print(error)

    def answer(self, query: str) -> None:
        """Show a query's rows or what is wrong with it. Ctrl-C ends the query.

        A second thread runs the query, since only the main thread receives signals.
        """
        named = {*re.findall(r"\$(\w+)", query)}
        values = {name: value for name, value in self.values.items() if name in named}

        def ask() -> None:
            try:
                show(self.database, query, values, self.look)
            except ANY as error:
                print(sentence(error))

        asking = Thread(target=ask, daemon=True)
        asking.start()
        try:
            while asking.is_alive():
                asking.join(0.1)  # a longer wait hears no signal
        except KeyboardInterrupt:
            self.database.connection.interrupt()
            asking.join()


def converse(database: Database, look: Look, values: dict[str, object]) -> None:
    """Read commands and statements, each statement ended by `;`, until end of file or `exit`.

    An error does not end the session. values: of $NAME at the start.
    """
    session = Session(database, replace(look, asks=""), values)
    print(BANNER.format(count=len(database.tables())))
    prompt: PromptSession = PromptSession(
        history=History(".bag_history"),
        completer=_completer(database),
        complete_while_typing=False,
    )
    text = ""
    while True:
        try:
            text += prompt.prompt("bag> " if not text else "...> ") + "\n"
        except KeyboardInterrupt:
            text = ""
            continue
        except EOFError:
            return
        line = text.strip().rstrip(";").strip()
        if line in ENDS:
            return
        if not line or session.takes(line):
            text = ""
        elif text.rstrip().endswith(";"):
            session.answer(text)
            text = ""


def _completer(database: Database) -> WordCompleter:
    """Return what completes commands, and names of tables and columns."""
    names: set[str] = set()
    for table in database.tables():
        with suppress(*ERRORS):  # a query that names the table reports them
            names |= database.columns(table).keys()
    return WordCompleter(sorted({*names, *database.tables(), *WORDS, *STYLES, *COMMANDS}))
