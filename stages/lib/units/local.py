"""Run worker processes on this machine: one per core, or as many as BAG_WORKERS says.

Two processes of one thread each do more than one process of two threads, which wait for each other,
and lose less beside other work.
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

from stages.lib.core import environment
from stages.lib.units.pool import Died, Do, SparseReport, Workers, sent

FORKS = sys.platform == "linux"  # elsewhere a fork after importing such libraries may hang


@contextmanager
def ready(start: Callable[..., Do], *arguments: Any, fork: bool = True) -> Iterator[Workers]:
    """Yield worker processes that share units.

    start: called with the arguments in each worker process when it gets its first unit; returns
    what does a unit there.

    fork: whether workers are forks of this process, with all it has imported, and start at once.
    This process must not have computed anything with several threads by then (Polars does).
    Otherwise each worker is a new Python process, which takes seconds to import everything; it
    starts when there is something to do.
    """
    number = environment.workers()
    workers = Workers(number, partial(_Process, "spawn", start, arguments), _finished)
    if fork and FORKS and number > 1:
        workers.hired += [_Process("fork", start, arguments) for _ in range(number)]
    try:
        yield workers
    finally:
        workers.dismiss()


class _Process:
    """A worker process; unit: the unit that it was given last."""

    def __init__(self, how: str, start: Callable[..., Do], arguments: tuple):
        context: Any = get_context(how)
        self.pipe, theirs = context.Pipe()
        inherited = self.pipe if how == "fork" else None
        works = theirs, inherited, start, arguments
        self.process = context.Process(target=_work, args=works, daemon=True)
        self.process.start()
        theirs.close()
        self.unit: int | None = None

    def __str__(self) -> str:
        return f"worker process {self.process.pid}"

    def give(self, unit: int) -> None:
        self.unit = unit
        with suppress(BrokenPipeError):  # it died idle; `result` will notice
            self.pipe.send(unit)

    def result(self) -> int | None:
        try:
            report = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise Died from None
        if isinstance(report, BaseException):
            raise report
        return report

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _finished(busy: Collection[_Process]) -> list[_Process]:
    """Wait until some of the busy workers have a result, or have died; return these."""
    workers: dict[Any, _Process] = {}
    for worker in busy:
        workers[worker.pipe] = workers[worker.process.sentinel] = worker
    finished = {workers[source] for source in wait(workers)}
    return [worker for worker in busy if worker in finished]


def _work(
    pipe: Connection, inherited: Connection | None, start: Callable[..., Do], arguments: tuple
) -> None:
    """Do the units that come through the pipe until its other end closes."""
    if inherited:
        inherited.close()  # or this process would not notice when the other end closes
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started it
    os.environ[environment.WORKERS] = "1"
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
