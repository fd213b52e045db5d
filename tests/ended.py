"""Runs a stage again and again, each time ended by force a little later, until one run is whole.

`python tests/ended.py STEP MODULE ARGUMENT…` in a project's folder: first it is killed before its first change of a file, before the
STEPth behind that, and so on; then it may write no file beyond a kilobyte, four, and so on, as on a disk that is full. Each run is a fork
of this process, which has loaded all that the stage imports and done nothing. Prints how many runs ended early in either way.
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
NO_CHANGE = (
    "__pycache__",
    ".nbi",
    ".nbc",
    "/dev/",
    "/proc/",
)  # of the project: what Python and numba keep for themselves


def kill_before(change: int) -> None:
    """This process dies before it has made so many changes of files and one more."""
    seen = 0

    def look(event: str, arguments: tuple) -> None:
        nonlocal seen
        writes = (
            event == "open"
            and isinstance(arguments[2], int)
            and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        if (writes or event in CHANGES) and not any(
            word in str(arguments[0]) for word in NO_CHANGE
        ):
            seen += 1
            if seen > change:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def fill(number: int) -> None:
    most = 1024 * 4**number
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def ended(numbers: count, hinder: Callable[[int], None], module: str, arguments: list[str]) -> int:
    """How many runs did not end well before the first that did; hinder: called with a number in each."""
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
    del sys.modules[module]  # each run runs it
    if "torch" in sys.modules:
        import_module("transformers.models.llama.modeling_llama")  # which loading a model imports
    for numbers, hinder in ((count(0, int(step)), kill_before), (count(), fill)):
        print(ended(numbers, hinder, module, list(arguments)))


if __name__ == "__main__":
    main(*sys.argv[1:])
