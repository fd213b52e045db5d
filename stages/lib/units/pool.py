"""What hands units of work to workers, whatever these are: processes of this machine, or actors of a cluster.

A worker that is killed is replaced, and what it was at is done again. One that is refused, since it would not write the same bytes,
is not, and the others do its work.
"""

import pickle
import sys
import time
import traceback
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any, Protocol

from stages.lib.units.queue import DEATHS, Queue, Unit

Report = Callable[[int], None]  # how much more of its unit a worker has done, or 0 as it begins
Do = Callable[[int, Report], Any]
Update = Callable[[int, Hashable], Any]  # how much more is done, and by which worker
SECONDS_BETWEEN_REPORTS = 1.0


def silent(*_: object) -> None:
    """Report nothing."""


class SparseReport:
    """Passes reports on at most once a second, added up."""

    def __init__(self, send: Report, clock: Callable[[], float] = time.monotonic):
        self.send, self.clock = send, clock
        self.amount, self.sent = 0, -SECONDS_BETWEEN_REPORTS

    def __call__(self, amount: int) -> None:
        self.amount += amount
        if (now := self.clock()) - self.sent >= SECONDS_BETWEEN_REPORTS:
            self.send(self.amount)
            self.amount, self.sent = 0, now


class Share:
    """What a worker has reported of the unit that it is at."""

    def __init__(self, update: Update):
        self.update, self.reported = update, 0

    def add(self, amount: int) -> None:
        self.reported += amount
        self.update(amount, self)

    def end(self, size: int) -> None:
        """Report the rest of a unit of this size, or take everything back with a size of 0."""
        rest, self.reported = size - self.reported, 0
        if rest:
            self.update(rest, self)


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

    def result(self) -> int | None:
        """Return how much more of its unit it has done, or None once it has done all, or is there.

        Raises what the unit raised, Refused, or Died.
        """
        ...

    def end(self) -> None:
        """Ends it, whatever it is at."""
        ...


class Workers:
    """So many workers that share units.

    hire: makes one; finished: waits until some of the busy ones have done their unit, or died; here: whether this process does what
    one process is to do, and workers are there as soon as they are hired, as on one machine.
    """

    def __init__(
        self,
        number: int,
        hire: Callable[[], Worker],
        finished: Callable[[Collection[Any]], Collection[Any]],
        here: bool = True,
    ):
        self.number, self._hire, self._finished, self._here = number, hire, finished, here
        self.hired: list[Worker] = []

    def do(
        self,
        units: Mapping[int, Unit],
        here: Do,
        most: int | None = None,
        update: Update = silent,
    ) -> Iterator[int]:
        """Do every unit; yield its number when it is done, in whatever order.

        here: does a unit in this process, if only one process is to work; most: the largest number
        of workers; update: is told of progress within units too. Raises whatever a unit raises, and
        WorkerError if workers die again and again, or none is left.
        """
        number = min(most or self.number, self.number, len(units))
        if number <= 1 and self._here:
            share = Share(update)
            for unit in units:
                here(unit, share.add)
                share.end(units[unit].size)
                yield unit
        elif number:
            yield from self._share(Queue(units), number, update)

    def dismiss(self) -> None:
        """Ends all of them."""
        while self.hired:
            self.hired.pop().end()

    def _share(self, queue: Queue, number: int, update: Update) -> Iterator[int]:
        shares: dict[Worker, Share] = {}
        self.hired += [self._hire() for _ in range(number - len(self.hired))]
        idle, busy = (self.hired[:number], []) if self._here else ([], self.hired[:number])
        lost = 0
        while True:
            while idle and (unit := queue.next(id(idle[-1]))) is not None:
                busy.append(idle.pop())
                shares.setdefault(busy[-1], Share(update))
                busy[-1].give(unit)
            if all(worker.unit is None for worker in busy) and not queue:
                return
            if not busy:
                raise WorkerError(
                    "no worker is left; what is done is kept, and the same command goes on from there"
                )
            for worker in self._finished(busy):
                try:
                    amount = worker.result()
                    if amount is not None:
                        shares[worker].add(amount)
                        continue
                    busy.remove(worker)
                except Refused as why:
                    busy.remove(worker)
                    print(f"{worker} is refused: {why}", file=sys.stderr)
                    self.hired.remove(worker)
                    queue.back(id(worker), worker.unit)
                except Died:
                    busy.remove(worker)
                    if worker in shares:
                        shares.pop(worker).end(0)
                    self.hired.remove(worker)
                    lost += 1
                    _mourn(worker, queue, lost > 10 * number)
                    self.hired.append(self._hire())
                    (idle if self._here else busy).append(self.hired[-1])
                else:
                    idle.append(worker)
                    if worker.unit is not None:
                        shares[worker].end(queue.units[worker.unit].size)
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
