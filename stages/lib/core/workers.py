"""Units of work, shared by worker processes: one for each core, or as many as the environment's BAG_WORKERS says.

Two processes of one thread each do more than one of two threads, which wait for each other, and lose less beside other work. Who
does a unit changes nothing of what it writes. Every unit is written whole when it is done, so that a stage that is stopped, or a
worker of which is, goes on behind those that are.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

from stages.lib.core.settings import ParamsError

VARIABLE = "BAG_WORKERS"
FORKS = sys.platform == "linux"  # elsewhere a fork of a process that has loaded such libraries may hang
Do = Callable[[int], Any]
_start: Callable[[], Do] | None = None  # of a worker process
_do: Do | None = None


class WorkerError(SystemExit):
    """A worker process that ended before its work did."""


def count() -> int:
    """How many processes may share work. Raises ParamsError where BAG_WORKERS is no number from 1 on."""
    given = os.environ.get(VARIABLE)
    if given is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not given.isdecimal() or not 1 <= int(given) <= 1024:
        raise ParamsError(f"the environment says {VARIABLE}={given!r}, but it is a number of worker processes, 1 to 1024")
    return int(given)


@contextmanager
def ready(start: Callable[..., Do], *arguments: Any, fork: bool = True) -> Iterator["Workers"]:
    """Worker processes that share units.

    start: called with the arguments in each worker process once it gets a unit, gives what does one there. fork: they are there at
    once, forks of this process with all it has imported, which must not have computed anything with several threads (Polars does);
    otherwise each is a Python of its own, which takes seconds to import the same, started when there is something to do.
    """
    number = count()
    if number == 1:
        yield Workers(None, 1)
        return
    fork = fork and FORKS
    with ProcessPoolExecutor(number, get_context("fork" if fork else "spawn"), _remember, (start, arguments)) as pool:
        if fork:
            pool.submit(os.getpid).result()  # forks all of them
        try:
            yield Workers(pool, number)
        finally:
            pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Workers:
    """So many processes that share units; without a pool, this one alone."""

    pool: ProcessPoolExecutor | None
    number: int

    def do(self, units: Sequence[int], here: Do, most: int | None = None) -> Iterator[int]:
        """Does every unit, and gives its number when it is done, in whatever order.

        here: does a unit in this process, where only one is to work; most: at most so many. Raises whatever a unit raises, and
        WorkerError.
        """
        if self.pool is None or min(most or self.number, len(units)) <= 1:
            for unit in units:
                here(unit)
                yield unit
            return
        waiting = {self.pool.submit(_one, unit): unit for unit in units}
        try:
            for done in as_completed(waiting):
                done.result()
                yield waiting[done]
        except BrokenProcessPool:
            raise WorkerError(
                "a worker process was killed, perhaps for want of memory (fewer workers, such as BAG_WORKERS=1, take less); "
                "what is done is kept: the same command goes on from there"
            ) from None


def _remember(start: Callable[..., Do], arguments: tuple) -> None:
    global _start  # noqa: PLW0603  the state of this process, made once
    _start = partial(start, *arguments)


def _one(unit: int) -> None:
    global _do  # noqa: PLW0603
    assert _start is not None
    _do = _do or _start()
    _do(unit)
