"""The interactive console: a prompt with history and completion of table and column names."""

from collections.abc import Callable

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory

from stages.lib.sql import Database, DatabaseError, QueryError
from stages.lib.store import StoreError

WORDS = ["select", "from", "where", "join", "using", "group by", "order by", "limit", "avg", "count", "describe"]


def run(database: Database, show: Callable[[str], None]) -> None:
    """Reads statements, each ended by `;`, until end of file or `exit`; an error does not end the session."""
    names = {column for table in database.tables() for column in database.columns(table)}
    session: PromptSession = PromptSession(
        history=FileHistory(".bag_history"),
        completer=WordCompleter(sorted({*names, *database.tables(), *WORDS})),
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
        if text.strip().rstrip(";") in ("exit", "quit"):
            return
        if not text.strip() or text.rstrip().endswith(";"):
            try:
                if text.strip():
                    show(text)
            except (QueryError, StoreError, DatabaseError) as error:
                print(error)
            text = ""
