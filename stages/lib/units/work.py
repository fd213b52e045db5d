"""Do a long stage's work in units, which any number of workers share, on one machine or many.

    the stage's process                        workers: BAG_WORKERS processes, or one per core
      makes the Work, which lists the units      make the same Work when they get their first unit
      hands out units that are not done   ──►    do a unit, and write its part, whole or not at all
      joins all parts                     ◄──    report that it is done

Units depend on settings and inputs alone, never on the workers. The bytes are therefore the same
whoever does them, doing a unit twice is harmless, and a stage that was killed continues.

The environment variable BAG_ENGINE configures the workers:
    local      processes of this machine, the default
    array:I/N  this command is the I-th (from 0) of N on machines that share a disk, such as a
               cluster's job array. It does every N-th unit in local processes and joins nothing;
               then the plain command does what is missing, and joins all parts.
    ray        actors of a Ray cluster (stages/lib/units/actors.py)
"""

import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Protocol

from stages.lib.core import progress
from stages.lib.core.hdf5_store import StoreError
from stages.lib.core.settings import ParamsError
from stages.lib.core.tables import TableError
from stages.lib.units import local
from stages.lib.units.pool import RESUME, Do, Report, Workers
from stages.lib.units.queue import Unit

ENGINE = "BAG_ENGINE"


class Work(Protocol):
    """What a stage has to do.

    title, counts: for the progress bar, such as "scores abacus" and "neuron".
    few: an amount, in the units' sizes, that one process does before others have started.
    """

    title: str
    counts: str
    few: int
    units: list[Unit]

    def missing(self) -> list[int]:
        """Return the numbers of the units that are still to be done."""
        ...

    def do(self, number: int, report: Report) -> None:
        """Do a unit, and write its result: whole, or not at all.

        report: called with how much of the unit's size was done since the last report.
        """
        ...

    def finish(self) -> bool | None:
        """Join what all units wrote, and remove it; or return True if there are more units now."""
        ...


@dataclass(frozen=True)
class Part:
    """The part of the units that one command of a job array does: every `count`-th one."""

    index: int
    count: int

    def has(self, unit: int) -> bool:
        return unit % self.count == self.index


def carry_out(make: Callable[..., Work], *arguments: str) -> None:
    """Do a stage's work.

    make: called with the arguments, in this process and in every worker, returns the same Work.
    """
    try:
        _carry_out(make, *arguments)
    except KeyboardInterrupt:
        raise SystemExit(f"interrupted; {RESUME}") from None
    except (FloatingPointError, StoreError, TableError) as error:
        # a value is not finite, the disk is full, or an input is damaged
        raise SystemExit(f"{' '.join(arguments)}: {error}") from None


def _carry_out(make: Callable[..., Work], *arguments: str) -> None:
    engine, part = _engine()
    start = partial(_doing, _module(make), make.__name__)
    with engine(start, *arguments) as workers:
        work = make(*arguments)
        done = _do_missing(work, part, workers)
        while part is None and work.finish():
            _do_missing(work, part, workers)
    if part:
        name = f"{work.title}: part {part.index} of {part.count}"
        next_step = f"when all parts are done, run the same command without {ENGINE} to join them"
        print(f"{name} is done, {done} units of work; {next_step}", file=sys.stderr)


def _do_missing(work: Work, part: Part | None, workers: Workers) -> int:
    """Do the units of a part, or all, that are not done yet; return how many there were."""
    numbers = list(filter(part.has, work.missing())) if part else work.missing()
    missing = {number: work.units[number] for number in numbers}
    left = _size(missing.values())
    total = left if part else _size(work.units)
    most = 1 if left <= work.few else None
    with progress.bar(
        total=total, initial=total - left, desc=work.title, unit=work.counts, unit_scale=True
    ) as bar:
        for _ in workers.do(missing, work.do, most, bar.update):
            pass
    return len(missing)


def _size(units: Iterable[Unit]) -> int:
    return sum(unit.size for unit in units)


def _module(made: Callable) -> str:
    """Return the module in which other processes find a function.

    The module that Python was started with has another name in this process.
    """
    if made.__module__ == "__main__":
        spec = sys.modules["__main__"].__spec__
        if spec:
            return spec.name
    return made.__module__


def _doing(module: str, name: str, *arguments: str) -> Do:
    """Make the Work in a worker; return what does its units."""
    return getattr(import_module(module), name)(*arguments).do


def _engine() -> tuple[Callable, Part | None]:
    """Return what makes workers, and this command's part of the units, None for all.

    Raises ParamsError if BAG_ENGINE has another value than the module's docstring allows, or if Ray
    is not installed.
    """
    value = os.environ.get(ENGINE, "local")
    if value == "local":
        return local.ready, None
    if value == "ray":
        return _ray(), None
    numbers = re.fullmatch(r"array:(\d{1,6})/(\d{1,6})", value)
    if numbers:
        part = Part(*map(int, numbers.groups()))
        if part.index < part.count:
            return local.ready, part
    raise ParamsError(
        f"the environment says {ENGINE}={value!r}, but it is local, ray or array:I/N, "
        "with I from 0 to N - 1, such as array:0/8"
    )


def _ray() -> Callable:
    try:
        from stages.lib.units import actors
    except ImportError:
        way_out = "pip install -e '.[cluster]'"
        raise ParamsError(
            f"{ENGINE}=ray asks for Ray, which is not installed here: {way_out}"
        ) from None
    return actors.ready
