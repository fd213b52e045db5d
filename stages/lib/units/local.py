"""Worker processes on this machine: one for each core, or as many as the environment's BAG_WORKERS says.

Two processes of one thread each do more than one of two threads, which wait for each other, and lose less beside other work.
"""

import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from stages.lib.core import machine
from stages.lib.units.pool import Died, Do, SparseReport, Workers, sent

FORKS = (
    sys.platform == "linux"
)  # elsewhere a fork of a process that has loaded such libraries may hang


@contextmanager
def ready(start: Callable[..., Do], *arguments: Any, fork: bool = True) -> Iterator[Workers]:
    """Worker processes that share units.

    start: called with the arguments in each worker process once it gets a unit, gives what does one there. fork: they are there at
    once, forks of this process with all it has imported, which must not have computed anything with several threads (Polars does);
    otherwise each is a Python of its own, which takes seconds to import the same, started when there is something to do.
    """
    number = machine.workers()
    workers = Workers(number, partial(_Process, "spawn", start, arguments), _finished)
    if fork and FORKS and number > 1:
        workers.hired += [_Process("fork", start, arguments) for _ in range(number)]
    try:
        yield workers
    finally:
        workers.dismiss()


class _Process:
    """A worker process, and what it was given last."""

    def __init__(self, how: str, start: Callable[..., Do], arguments: tuple):
        context = get_context(how)
        self.pipe, theirs = context.Pipe()
        inherited = self.pipe if how == "fork" else None
        self.process = context.Process(
            target=_work, args=(theirs, inherited, start, arguments), daemon=True
        )  # type: ignore[attr-defined]
        self.process.start()
        theirs.close()
        self.unit: int | None = None

    def __str__(self) -> str:
        return f"worker process {self.process.pid}"

    def give(self, unit: int) -> None:
        self.unit = unit
        with suppress(BrokenPipeError):  # it died idle; what waits for it will see
            self.pipe.send(unit)

    def result(self) -> int | None:
        try:
            told = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise Died from None
        if isinstance(told, BaseException):
            raise told
        return told

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _finished(busy: Collection[_Process]) -> list[_Process]:
    told = set(wait([at for one in busy for at in (one.pipe, one.process.sentinel)]))
    return [one for one in busy if one.pipe in told or one.process.sentinel in told]


def _work(
    pipe: Connection, inherited: Connection | None, start: Callable[..., Do], arguments: tuple
) -> None:
    """What a worker process does until nobody is there to ask it."""
    if inherited:
        inherited.close()  # or this process would not see when the other end is gone
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asked
    os.environ[machine.WORKERS] = "1"
    do: Do | None = None
    with suppress(EOFError, BrokenPipeError):
        while True:
            unit = pipe.recv()
            try:
                do = do or start(*arguments)
                do(unit, SparseReport(pipe.send))
            except BaseException as error:
                pipe.send(sent(error))
            else:
                pipe.send(None)
