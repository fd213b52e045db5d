"""Units of work, shared by worker processes: one for each core, or as many as the environment's BAG_WORKERS says.

Two processes of one thread each do more than one of two threads, which wait for each other, and lose less beside other work. Who
does a unit changes nothing of what it writes. Every unit is written whole when it is done, so that a stage that is stopped, or a
worker of which is, goes on behind those that are.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from stages.lib.core.settings import ParamsError

VARIABLE = "BAG_WORKERS"
Do = Callable[[int], Any]
_do: Do | None = None  # of a worker process


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


def shared(units: Sequence[int], do: Do, start: Callable[..., Do], *arguments: Any, workers: int | None = None) -> Iterator[int]:
    """Does every unit, and gives its number when it is done, in whatever order.

    do: does a unit in this process, where there is one worker; start: called with the arguments once in each worker process, gives
    what does a unit there. workers: at most so many, by default `count()`. Raises whatever a unit raises, and WorkerError.
    """
    number = min(workers or count(), len(units))
    if number <= 1:
        for unit in units:
            do(unit)
            yield unit
        return
    with ProcessPoolExecutor(number, get_context("spawn"), _begin, (start, arguments)) as pool:
        waiting = {pool.submit(_one, unit): unit for unit in units}
        try:
            for done in as_completed(waiting):
                done.result()
                yield waiting[done]
        except BrokenProcessPool:
            raise WorkerError(
                "a worker process was killed, perhaps for want of memory (fewer workers, such as BAG_WORKERS=1, take less); "
                "what is done is kept: the same command goes on from there"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(start: Callable[..., Do], arguments: tuple) -> None:
    global _do  # noqa: PLW0603  the state of this process, made once
    _do = start(*arguments)


def _one(unit: int) -> None:
    assert _do is not None
    _do(unit)
