"""The command `bag`: `bag check`, `add` and `explore` are chapters' (bag.commands in pyproject.toml), all else is command.py's.

What a command loads it needs until it ends, seconds later. Garbage is looked for less often in all of that, and at the end not at all:
of the five seconds that torch and transformers take to come and go, this saves more than one.
"""

import atexit
import gc
import os
import signal
import sys
import threading
from importlib.metadata import entry_points
from io import TextIOWrapper

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
ENDING = {getattr(signal, name) for name in NAMES if hasattr(signal, name)}
# commands that go on after Ctrl-C, or whose library starts processes
OWN_SIGNALS = {"shell", "verify"}


def main() -> None:
    gc.set_threshold(50_000, 10, 10)
    atexit.register(_leave)
    if hasattr(signal, "SIGPIPE"):  # Windows has none
        signal.signal(
            signal.SIGPIPE, signal.SIG_DFL
        )  # in `bag … | head`, a closed pipe ends bag as it ends any other command: quietly
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # where the terminal's encoding lacks a letter
    given = sys.argv[1:]
    _check_locale(given)
    for chapters in entry_points(group="bag.commands", name=given[0]) if given else ():
        return chapters.load()(given[1:])
    if not OWN_SIGNALS & {*given} and hasattr(signal, "pthread_sigmask"):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # blocked before the engine starts threads, so that these do not take the signals either
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        threading.Thread(target=_end_at_once, daemon=True).start()
    from stages.lib.console import (
        command,
    )  # only here: DuckDB and Polars take half a second to load

    command.main(given)


def _check_locale(given: list[str]) -> None:
    """End the program where a path has letters that the engine, which expects UTF-8, misreads."""
    encoding = sys.getfilesystemencoding()
    if encoding == "utf-8":
        return
    values = [text.rpartition("=")[2] if text.startswith("--") else text for text in given]
    paths = [text for text in values if not _encodable(text) or os.path.exists(text)]
    for path in [*paths, os.getcwd()]:
        if not path.isascii():
            shown = os.fsencode(path).decode("utf-8", "replace")
            problem = f"{shown} has letters beyond ASCII, and file names are {encoding} here"
            sys.exit(f"bag: {problem}, not UTF-8; set PYTHONUTF8=1")


def _encodable(text: str) -> bool:
    """Whether a text is whole: bytes that a locale lacks are lone surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _end_at_once() -> None:
    """Wait for Ctrl-C or another signal to end, remove spilled rows, and end this process.

    A handler would wait for the end of the engine's call, which may take hours.
    """
    number = signal.sigwait(ENDING)
    if "stages.lib.sql.limits" in sys.modules:
        sys.modules["stages.lib.sql.limits"].remove_spilled()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    os.kill(os.getpid(), number)


def _leave() -> None:
    if "duckdb" not in sys.modules:  # it would say on stderr that it is still there
        gc.freeze()


if __name__ == "__main__":
    main()
