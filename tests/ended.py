"""Run a stage again and again, each time killed a little later, until one run finishes.

    python tests/ended.py STEP MODULE ARGUMENT…

in a project's folder. First a run is killed before its first change of a file, then before the
STEPth after that, and so on. Then a run may write no file beyond a kilobyte, four, and so on, as on
a full disk. Each run is a fork of this process, which has loaded everything that the stage imports.
Prints how many runs ended early in either way.
"""

import os
import resource
import runpy
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import count

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# Files that do not count: what Python and numba keep for themselves.
NO_CHANGE = ("__pycache__", ".nbi", ".nbc", "/dev/", "/proc/")


def _is_change(event: str, arguments: tuple) -> bool:
    """Return whether an audit event changes a file of the project."""
    opens = event == "open" and isinstance(arguments[2], int)
    if not (opens and arguments[2] & WRITE) and event not in CHANGES:
        return False
    return not any(word in str(arguments[0]) for word in NO_CHANGE)


def kill_before(change: int) -> None:
    """Let this process kill itself after `change` changes of files, before the next."""
    changes = 0

    def look(event: str, arguments: tuple) -> None:
        nonlocal changes
        if not _is_change(event, arguments):
            return
        changes += 1
        if changes > change:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def fill(number: int) -> None:
    """Let this process write no file beyond 4^number kilobytes."""
    most = 1024 * 4**number
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def ended(numbers: count, hinder: Callable[[int], None], module: str, arguments: list[str]) -> int:
    """Return how many runs failed before the first that did not.

    hinder: called with a number in each run.
    """
    for early, number in enumerate(numbers):
        process = os.fork()
        if process == 0:
            sys.argv = [module, *arguments]
            try:
                hinder(number)
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            except BaseException as error:
                print(type(error).__name__, error, file=sys.stderr)
                os._exit(1)
            os._exit(0)
        if os.waitpid(process, 0)[1] == 0:
            return early
    raise AssertionError


def main(step: str, module: str, *arguments: str) -> None:
    sys.path.insert(0, os.getcwd())
    import_module(module)
    del sys.modules[module]  # each run executes it
    if "torch" in sys.modules:
        import_module("transformers.models.llama.modeling_llama")  # loading a model imports it
    for numbers, hinder in ((count(0, int(step)), kill_before), (count(), fill)):
        print(ended(numbers, hinder, module, list(arguments)))


if __name__ == "__main__":
    main(*sys.argv[1:])
