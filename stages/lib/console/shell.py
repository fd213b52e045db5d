"""The interactive console: a prompt with history and completion of table and column names."""

from contextlib import suppress
from dataclasses import replace
from threading import Thread

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory

from stages.lib.console.output import STYLES, Look, show
from stages.lib.sql.database import ERRORS, Database

WORDS = ["select", "from", "where", "join", "using", "group by", "order by", "limit", "avg", "count", "describe"]


def run(database: Database, look: Look) -> None:
    """Reads statements, each ended by `;`, until end of file or `exit`; an error does not end the session.

    A style's name (table, wide, records, csv, json) is how the answers to what follows are printed.
    """
    look = replace(look, asks="")
    names: set[str] = set()
    for table in database.tables():
        with suppress(*ERRORS):  # they are said when it is asked for
            names |= database.columns(table).keys()
    session: PromptSession = PromptSession(
        history=FileHistory(".bag_history"),
        completer=WordCompleter(sorted({*names, *database.tables(), *WORDS, *STYLES})),
        complete_while_typing=False,
    )
    text = ""
    while True:
        try:
            text += session.prompt("bag> " if not text else "...> ") + "\n"
        except KeyboardInterrupt:
            text = ""
            continue
        except EOFError:
            return
        word = text.strip().rstrip(";")
        if word in ("exit", "quit"):
            return
        if word in STYLES:
            look, text = replace(look, style=word), ""
        if not text.strip() or text.rstrip().endswith(";"):
            if text.strip():
                _answer(database, text, look)
            text = ""


def _answer(database: Database, query: str, look: Look) -> None:
    """Shows a query's rows or what is wrong with it. Ctrl-C ends it; so this thread, the one that hears signals, only waits."""

    def ask() -> None:
        try:
            show(database, query, {}, look)
        except (*ERRORS, RuntimeError) as error:
            print(error)  # an interrupted query is a RuntimeError

    asking = Thread(target=ask, daemon=True)
    asking.start()
    try:
        while asking.is_alive():
            asking.join(0.1)  # a longer wait hears no signal
    except KeyboardInterrupt:
        database.connection.interrupt()
        asking.join()
