"""Show progress: as a bar on a terminal, as lines in a log. The one importer of tqdm.

    with progress.bar(total=6144, desc="permutation_tests abacus", unit="neuron") as bar:
        bar.update()
    for group in progress.bar(groups, desc="attributions abacus", unit="group"):
        ...

Where stderr is not a terminal (a log file, CI), work that takes longer than ten seconds writes a
line about every ten seconds, and one at its end:
`scores abacus: 1,234 of 6,144 neurons, 45 s, about 3 min left`. Shorter work writes nothing.
Both show the same estimate of the time left, that of `seconds_left`.
"""

import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sized
from threading import Event, Lock, Thread
from typing import Any, Generic, TypeVar

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10
Item = TypeVar("Item")


class Pace:
    """One worker's speed since its first report.

    The first report starts the clock, so loading a model or compiling a function does not count.
    """

    def __init__(self, now: float):
        self.started = self.reported = now
        self.done = self.step = 0

    def add(self, amount: int, now: float) -> None:
        self.done += amount
        self.step = max(self.step, amount)
        self.reported = now

    def progress(self, now: float) -> float:
        """Return what is done by now: the reports, and at most one further report in progress."""
        if self.done <= 0 or self.reported == self.started:
            return 0.0
        usual = self.done * (now - self.reported) / (self.reported - self.started)
        return self.done + min(self.step, usual)


def seconds_left(remaining: float, paces: Iterable[Pace], now: float) -> float | None:
    """Estimate the time for the remaining work, or return None if no worker has a speed yet.

    Speeds are measured worker by worker: when all of them report at the same moments, the time
    between two reports says nothing. A worker without a speed gets the mean of the others.

    Args:
        remaining: work that no worker has reported.
        paces: those of all workers at work.
        now: the present, on the clock of the paces.
    """
    every = list(paces)
    progress = {pace: pace.progress(now) for pace in every}
    speeds = [done / (now - pace.started) for pace, done in progress.items() if done]
    if not speeds:
        return None
    under_way = sum(done - pace.done for pace, done in progress.items() if done)
    return max(0.0, remaining - under_way) * len(speeds) / (sum(speeds) * len(every))


Paces = dict[Hashable, Pace]  # worker -> its pace


def add_report(paces: Paces, amount: int, worker: Hashable, now: float) -> None:
    """Add what a worker reports to its pace. Its first report starts its clock, an amount of 0 too.

    worker: None for work without named workers.
    """
    if worker in paces:
        paces[worker].add(amount, now)
    elif amount or worker is not None:
        # What the first report adds took a warm-up, or an earlier run did it.
        paces[worker] = Pace(now)


class Log(Generic[Item]):
    """A bar for log files: plain lines on stderr. Several threads may call `update`."""

    def __init__(
        self,
        iterable: Iterable[Item] | None = None,
        *,
        total: int | None,
        desc: str,
        unit: str,
        initial: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.iterable = () if iterable is None else iterable
        self.total, self.desc, self.unit, self.done, self.clock = total, desc, unit, initial, clock
        self.started = self.printed = clock()
        self.paces: Paces = {}
        self.remark = ""
        self.lock, self.ended = Lock(), Event()

    def __enter__(self) -> "Log[Item]":
        Thread(target=self._repeat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        now = self.clock()
        if now - self.started > SECONDS_BETWEEN_LINES:
            self._print(now)

    def __iter__(self) -> Iterator[Item]:
        with self:
            for item in self.iterable:
                yield item
                self.update()

    def update(self, n: int = 1, worker: Hashable = None) -> None:
        """Add what was done. A worker's first report starts its clock, an amount of 0 too."""
        with self.lock:
            self.done += n
            now = self.clock()
            add_report(self.paces, n, worker, now)
            self._show(now)

    def _repeat(self) -> None:
        """Write lines while one piece of work takes long."""
        while not self.ended.wait(SECONDS_BETWEEN_LINES):
            with self.lock:
                self._show(self.clock())

    def _show(self, now: float) -> None:
        if now - self.printed >= SECONDS_BETWEEN_LINES and self.done != self.total:
            self.printed = now
            self._print(now, self._left(now))

    def set_postfix_str(self, s: str, refresh: bool = True) -> None:
        """Set a remark that ends the next lines."""
        self.remark = f"; {s}"

    def _left(self, now: float) -> str:
        if self.total is None:
            return ""
        seconds = seconds_left(self.total - self.done, self.paces.values(), now)
        return "" if seconds is None else f", about {spoken(seconds)} left"

    def _print(self, now: float, left: str = "") -> None:
        count = f"{self.done:,}"
        if self.total is not None:
            count += f" of {self.total:,}"
        units = self.unit
        if (self.total or self.done) != 1:
            units += "es" if units.endswith("s") else "s"
        spent = spoken(now - self.started)
        line = f"{self.desc}: {count} {units}, {spent}{left}{self.remark}"
        print(line, file=sys.stderr, flush=True)


class TerminalBar(tqdm):
    """A bar on a terminal. Several threads may call `update`."""

    def __init__(
        self,
        *arguments: Any,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ):
        self.paces: Paces = {}
        self.clock, self.lock = clock, Lock()
        super().__init__(*arguments, **options)  # which draws the bar

    def update(self, n: float | None = 1, worker: Hashable = None) -> bool | None:
        """Add what was done, as `Log.update` does."""
        with self.lock:
            add_report(self.paces, int(n or 0), worker, self.clock())
            return super().update(n)

    @property
    def format_dict(self) -> Any:
        """What tqdm draws. It divides the remaining work by `rate`, which 0 makes unknown.

        tqdm's own rate counts the start of workers as work, and what an earlier run did as speed.
        """
        drawn = super().format_dict
        remaining = (self.total or 0) - self.n
        if remaining > 0 and not self.disable:
            left = seconds_left(remaining, [*self.paces.values()], self.clock())
            drawn["rate"] = 0 if left is None else remaining / max(1, left)
        return drawn


Bar = TerminalBar | Log


def bar(
    iterable: Iterable[Any] | None = None,
    *,
    total: int | None = None,
    desc: str = "",
    unit: str = "unit",
    initial: int = 0,
    disable: bool = False,
    **looks: Any,
) -> Bar:
    """Return a bar over `iterable`, or over `total` units that `update` reports.

    total: by default the length of `iterable`, if it has one; initial: units that are done already;
    looks: further options of tqdm's own bar, such as unit_scale and leave.
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    if disable or sys.stderr.isatty():
        return TerminalBar(
            iterable,
            total=total,
            desc=desc,
            unit=unit,
            initial=initial,
            disable=disable,
            **looks,
        )
    return Log(iterable, total=total, desc=desc, unit=unit, initial=initial)


def say(text: str) -> None:
    """Print a line that stays, above any bars."""
    tqdm.write(text, file=sys.stderr)


def spoken(seconds: float) -> str:
    """Write a duration in at most two units, such as 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
