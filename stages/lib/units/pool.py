"""Hand units of work to workers: processes of this machine, or actors of a cluster.

A worker that is killed is replaced, and its unit is done again. A worker that is refused, because
it would not write the same bytes, is not replaced; the others do its work.
"""

import pickle
import sys
import time
import traceback
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any, Protocol

from stages.lib.units.queue import DEATHS, Queue, Unit

Report = Callable[[int], None]  # how much more of its unit a worker has done; 0 as it begins
Do = Callable[[int, Report], Any]  # does the unit of this number
Update = Callable[[int, Hashable], Any]  # how much more is done, and by which worker
SECONDS_BETWEEN_REPORTS = 1.0
RESUME = "what is done is kept, and the same command goes on from there"


def silent(*_: object) -> None:
    """Report nothing."""


class SparseReport:
    """Add up reports and pass them on at most once a second."""

    def __init__(self, send: Report, clock: Callable[[], float] = time.monotonic):
        self.send, self.clock = send, clock
        self.amount, self.sent = 0, -SECONDS_BETWEEN_REPORTS

    def __call__(self, amount: int) -> None:
        self.amount += amount
        now = self.clock()
        if now - self.sent >= SECONDS_BETWEEN_REPORTS:
            self.send(self.amount)
            self.amount, self.sent = 0, now


class Share:
    """What a worker has reported of its current unit."""

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
    """Workers ended before their work was done."""


class Died(Exception):
    """A worker has ended by force."""


class Refused(SystemExit):
    """This process computes other numbers than the one that began the work."""


class Worker(Protocol):
    """One worker; `str` of it is for messages.

    unit: the unit that it was given last, None before the first.
    """

    unit: int | None

    def give(self, unit: int) -> None:
        """Start a unit."""
        ...

    def result(self) -> int | None:
        """Return how much more of its unit is done; None when all is, or when the worker is ready.

        Raises what the unit raised, Refused, or Died.
        """
        ...

    def end(self) -> None:
        """End the worker, whatever it is doing."""
        ...


class Workers:
    """A number of workers that share units.

    hire: makes a worker; finished: waits until some of the busy workers have a result, and returns
    these; at_once: whether workers are ready as soon as they are hired, as on one machine. Then
    work for a single worker is done by this process.
    """

    def __init__(
        self,
        number: int,
        hire: Callable[[], Worker],
        finished: Callable[[Collection[Any]], Collection[Any]],
        at_once: bool = True,
    ):
        self.number, self.hire, self.finished, self.at_once = number, hire, finished, at_once
        self.hired: list[Worker] = []

    def do(
        self, units: Mapping[int, Unit], do: Do, most: int | None = None, update: Update = silent
    ) -> Iterator[int]:
        """Do every unit; yield its number when it is done, in any order.

        do: does a unit in this process, if only one process is to work; most: the largest number
        of workers; update: called with progress, within units too. Raises what a unit raises, and
        WorkerError if workers die again and again, or none is left.
        """
        number = min(most or self.number, self.number, len(units))
        if number <= 1 and self.at_once:
            share = Share(update)
            for unit in units:
                do(unit, share.add)
                share.end(units[unit].size)
                yield unit
        elif number:
            yield from Round(self, Queue(units), number, update).run()

    def dismiss(self) -> None:
        """End all workers."""
        while self.hired:
            self.hired.pop().end()


class Round:
    """One queue of units and the workers that share it.

    idle: workers that wait for a unit; busy: those that do one or are not ready yet; shares: what
    each worker has reported; deaths: how many workers have died.
    """

    def __init__(self, workers: Workers, queue: Queue, number: int, update: Update):
        self.workers, self.queue, self.number, self.update = workers, queue, number, update
        self.idle: list[Worker] = []
        self.busy: list[Worker] = []
        self.shares: dict[Worker, Share] = {}
        self.deaths = 0
        while len(workers.hired) < number:
            workers.hired.append(workers.hire())
        for worker in workers.hired[:number]:
            is_ready = workers.at_once or worker.unit is not None  # it has worked before
            (self.idle if is_ready else self.busy).append(worker)

    def run(self) -> Iterator[int]:
        """Do the units of the queue; yield each one's number when it is done."""
        while True:
            self._hand_out()
            if not self.queue and all(worker.unit is None for worker in self.busy):
                return
            if not self.busy:
                raise WorkerError(f"no worker is left; {RESUME}")
            for worker in self.workers.finished(self.busy):
                unit = self._take_result(worker)
                if unit is not None:
                    yield unit

    def _hand_out(self) -> None:
        """Give each idle worker a unit, as long as there are any."""
        while self.idle:
            worker = self.idle[-1]
            unit = self.queue.next(id(worker))
            if unit is None:
                return
            self.busy.append(self.idle.pop())
            self.shares.setdefault(worker, Share(self.update))
            worker.give(unit)

    def _take_result(self, worker: Worker) -> int | None:
        """Take what a busy worker reports; return the unit that it has done, if it has."""
        try:
            amount = worker.result()
        except Refused as reason:
            self._dismiss(worker, reason)
            return None
        except Died:
            self._replace(worker)
            return None
        if amount is not None:
            self.shares[worker].add(amount)
            return None
        self.busy.remove(worker)
        self.idle.append(worker)
        if worker.unit is not None:
            self.shares[worker].end(self.queue.units[worker.unit].size)
        return worker.unit

    def _dismiss(self, worker: Worker, reason: Refused) -> None:
        """Go on without a refused worker; another one does its unit."""
        self.busy.remove(worker)
        print(f"{worker} is refused: {reason}", file=sys.stderr)
        self.workers.hired.remove(worker)
        worker.end()
        if worker in self.shares:
            self.shares.pop(worker).end(0)
        if worker.unit is not None:
            self.queue.back(id(worker), worker.unit)

    def _replace(self, worker: Worker) -> None:
        """Hire another worker for one that died. Raises WorkerError if that happens repeatedly."""
        self.busy.remove(worker)
        if worker in self.shares:
            self.shares.pop(worker).end(0)
        self.workers.hired.remove(worker)
        self.deaths += 1
        if self.deaths > 10 * self.number:
            raise WorkerError(f"workers are killed again and again; {RESUME}")
        self._put_back(worker)
        hired = self.workers.hire()
        self.workers.hired.append(hired)
        (self.idle if self.workers.at_once else self.busy).append(hired)

    def _put_back(self, worker: Worker) -> None:
        """Put back the unit of a worker that died. Raises WorkerError if the unit is to blame."""
        if worker.unit is None:
            print(f"{worker} was killed before it began", file=sys.stderr)
            return
        name = self.queue.units[worker.unit].name
        print(f"{worker} was killed at {name}, which is done again", file=sys.stderr)
        if not self.queue.died(id(worker), worker.unit):
            raise WorkerError(
                f"{DEATHS} workers were killed at one unit of work, {name}, perhaps for want of "
                f"memory: fewer workers at once (BAG_WORKERS=1) take less; {RESUME}"
            )


def sent(error: BaseException) -> BaseException:
    """Return a worker's error with a note of where it came from.

    An error that cannot be pickled becomes a RuntimeError with the same text.
    """
    error.add_note("in a worker process:\n" + "".join(traceback.format_tb(error.__traceback__)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
