"""What hands units of work to workers, whatever these are: processes of this machine, or actors of a cluster.

A worker that is killed is replaced, and what it was at is done again. One that is refused, since it would not write the same bytes,
is not, and the others do its work.
"""

import pickle
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

from stages.lib.units.queue import DEATHS, Queue, Unit

Do = Callable[[int], Any]


class WorkerError(SystemExit):
    """Workers that end before their work does."""


class Died(Exception):
    """A worker is gone."""


class Refused(SystemExit):
    """This process computes otherwise than the one that began the work."""


class Worker(Protocol):
    """One worker. unit: what it was given last, None before that; its `str` is for messages."""

    unit: int | None

    def give(self, unit: int) -> None:
        """Lets it do a unit."""
        ...

    def result(self) -> None:
        """Takes notice that it has done its unit, or is there. Raises what the unit raised, Refused, or Died."""
        ...

    def end(self) -> None:
        """Ends it, whatever it is at."""
        ...


class Workers:
    """So many workers that share units.

    hire: makes one; finished: waits until some of the busy ones have done their unit, or died; here: whether this process does what
    one process is to do, and workers are there as soon as they are hired, as on one machine.
    """

    def __init__(self, number: int, hire: Callable[[], Worker], finished: Callable[[Collection[Any]], Collection[Any]], here: bool = True):
        self.number, self._hire, self._finished, self._here = number, hire, finished, here
        self.hired: list[Worker] = []

    def do(self, units: Mapping[int, Unit], here: Do, most: int | None = None) -> Iterator[int]:
        """Does every unit, and gives its number when it is done, in whatever order.

        here: does a unit in this process, where only one is to work; most: at most so many. Raises whatever a unit raises, and
        WorkerError where workers die again and again, or none is left.
        """
        number = min(most or self.number, self.number, len(units))
        if number <= 1 and self._here:
            for unit in units:
                here(unit)
                yield unit
        elif number:
            yield from self._share(Queue(units), number)

    def dismiss(self) -> None:
        """Ends all of them."""
        while self.hired:
            self.hired.pop().end()

    def _share(self, queue: Queue, number: int) -> Iterator[int]:
        self.hired += [self._hire() for _ in range(number - len(self.hired))]
        idle, busy = (self.hired[:number], []) if self._here else ([], self.hired[:number])
        lost = 0
        while True:
            while idle and (unit := queue.next(id(idle[-1]))) is not None:
                busy.append(idle.pop())
                busy[-1].give(unit)
            if all(worker.unit is None for worker in busy) and not queue:
                return
            if not busy:
                raise WorkerError("no worker is left; what is done is kept, and the same command goes on from there")
            for worker in self._finished(busy):
                busy.remove(worker)
                try:
                    worker.result()
                except Refused as why:
                    print(f"{worker} is refused: {why}", file=sys.stderr)
                    self.hired.remove(worker)
                    queue.back(id(worker), worker.unit)
                except Died:
                    self.hired.remove(worker)
                    lost += 1
                    _mourn(worker, queue, lost > 10 * number)
                    self.hired.append(self._hire())
                    (idle if self._here else busy).append(self.hired[-1])
                else:
                    idle.append(worker)
                    if worker.unit is not None:
                        yield worker.unit


def _mourn(worker: Worker, queue: Queue, often: bool) -> None:
    """Puts back what a worker was at that died. Raises WorkerError where one after another does."""
    way_out = "what is done is kept, and the same command goes on from there"
    if worker.unit is None or often:
        if often:
            raise WorkerError(f"workers are killed again and again; {way_out}")
        print(f"{worker} was killed before it began", file=sys.stderr)
        return
    name = queue.units[worker.unit].name
    print(f"{worker} was killed at {name}, which is done again", file=sys.stderr)
    if not queue.died(id(worker), worker.unit):
        raise WorkerError(
            f"{DEATHS} workers were killed at one unit of work, {name}, perhaps for want of memory: fewer workers at once (BAG_WORKERS=1) "
            f"take less; {way_out}"
        )


def sent(error: BaseException) -> BaseException:
    """A worker's error with where it came from; in other words, where it cannot be sent as it is."""
    error.add_note("in a worker process:\n" + "".join(traceback.format_tb(error.__traceback__)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
