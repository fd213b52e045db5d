"""The command `bag`, as a process: its signals, streams and memory. command.py finds the command.

What a command imports, it needs until it ends, seconds later.
So the garbage collector runs less often, and not at exit: of the five seconds that torch and
transformers take to load and unload, this saves more than one.
"""

import atexit
import gc
import os
import signal
import sys
import threading
from io import TextIOWrapper

from stages.lib.console import command

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
MASKS = hasattr(signal, "pthread_sigmask")  # not on Windows
ENDING = {getattr(signal, name) for name in NAMES if hasattr(signal, name)}


def main() -> None:
    gc.set_threshold(50_000, 10, 10)
    atexit.register(_leave)
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        # in `bag … | head`, a closed pipe ends bag quietly, as it ends other commands
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # print ? for letters that the terminal's encoding lacks
            stream.reconfigure(errors="replace")
    arguments = sys.argv[1:]
    _check_locale(arguments)
    name, rest = command.named(arguments)
    if name in command.COMMANDS and name not in command.OWN_SIGNALS and MASKS:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # blocked before the engine starts threads, so that these do not take the signals either
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        threading.Thread(target=_end_at_once, daemon=True).start()
    try:
        command.run(name, rest)
    except (KeyboardInterrupt, RuntimeError) as error:
        # Ctrl-C at a command that cleans up first, such as `bag export`; DuckDB raises RuntimeError
        if not isinstance(error, KeyboardInterrupt) and str(error) != "Query interrupted":
            raise
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _check_locale(arguments: list[str]) -> None:
    """End the program if a path has letters that the engine, which expects UTF-8, misreads."""
    encoding = sys.getfilesystemencoding()
    if encoding == "utf-8":
        return
    paths = [os.getcwd()]
    for argument in arguments:
        text = argument.rpartition("=")[2] if argument.startswith("--") else argument
        if not _encodable(text) or os.path.exists(text):
            paths.append(text)
    for path in paths:
        if not path.isascii():
            shown = os.fsencode(path).decode("utf-8", "replace")
            problem = f"{shown} has letters beyond ASCII, and file names are {encoding} here"
            sys.exit(f"bag: {problem}, not UTF-8; set PYTHONUTF8=1")


def _encodable(text: str) -> bool:
    """Return whether a text has no lone surrogates, which stand for bytes that a locale lacks."""
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
    """Skip the last garbage collection, except with DuckDB, which would warn of leaked objects."""
    if "duckdb" not in sys.modules:
        gc.freeze()


if __name__ == "__main__":
    main()
