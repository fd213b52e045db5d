"""How far a stage is: a bar on a terminal, in a log now and then a line. The one importer of tqdm.

    with progress.bar(total=6144, desc="nulls abacus", unit="neuron") as bar:
        bar.update()
    for group in progress.bar(groups, desc="attributions abacus", unit="group"):
        ...

Where stderr is no terminal (a log file, CI), work that takes longer than ten seconds writes a line every ten seconds at
most, and one at its end: `nulls abacus: 1,234 of 6,144 neurons, 45 s, about 3 min left`. Shorter work writes nothing.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from threading import Lock
from typing import Any, Generic, TypeVar

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10
Item = TypeVar("Item")


class Log(Generic[Item]):
    """What a bar is where there is no terminal: plain lines on stderr. `update` may be called from several threads."""

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
        self.base: tuple[float, int] | None = None  # a moment, and what was done by then: from there the rate is taken
        self.remark = ""
        self.lock = Lock()

    def __enter__(self) -> "Log[Item]":
        return self

    def __exit__(self, *_: object) -> None:
        now = self.clock()
        if now - self.started > SECONDS_BETWEEN_LINES:
            self._print(now)

    def __iter__(self) -> Iterator[Item]:
        with self:
            for item in self.iterable:
                yield item
                self.update()

    def update(self, n: int = 1) -> None:
        with self.lock:
            self.done += n
            now = self.clock()
            if n and not self.base:  # the first unit warms up, or is all that an earlier run did: neither tells how fast it goes
                self.base = now, self.done
            if now - self.printed >= SECONDS_BETWEEN_LINES and self.done != self.total:
                self.printed = now
                self._print(now, self._left(now))

    def set_postfix_str(self, s: str, refresh: bool = True) -> None:
        """A remark at the end of the next lines."""
        self.remark = f"; {s}"

    def _left(self, now: float) -> str:
        since, before = self.base or (now, self.done)
        if self.total is None or self.done == before:
            return ""
        return f", about {spoken((self.total - self.done) * (now - since) / (self.done - before))} left"

    def _print(self, now: float, left: str = "") -> None:
        units = self.unit if (self.total or self.done) == 1 else self.unit + ("es" if self.unit.endswith("s") else "s")
        of = "" if self.total is None else f" of {self.total:,}"
        print(f"{self.desc}: {self.done:,}{of} {units}, {spoken(now - self.started)}{left}{self.remark}", file=sys.stderr, flush=True)


Bar = tqdm | Log


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
    """A bar over `iterable`, or over `total` units that are reported by `update`.

    total: by default the length of `iterable`, where it has one; initial: units that are done already; looks: what else
    tqdm's own bar takes, such as unit_scale and leave.
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    if disable or sys.stderr.isatty():
        return tqdm(iterable, total=total, desc=desc, unit=unit, initial=initial, disable=disable, **looks)
    return Log(iterable, total=total, desc=desc, unit=unit, initial=initial)


def say(text: str) -> None:
    """A line that stays, above whatever bars there are."""
    tqdm.write(text, file=sys.stderr)


def spoken(seconds: float) -> str:
    """A duration in its two largest units at most, such as 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
