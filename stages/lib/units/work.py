"""Long stages work in units, which any number of workers share, on one machine or many, and take up again when they were killed.

    the stage's process                        workers: BAG_WORKERS processes, or one for each core
      makes the Work: which units are there      make the same Work, each its own, when they get their first unit
      hands out those not yet done        ──►    do a unit, and write its part, whole or not at all
      puts all parts together             ◄──    say that it is done

What units there are comes from settings and inputs alone, never from who is there to do them: so the bytes are the same, whoever did them,
and doing one twice is harmless.

Who works is the environment's BAG_ENGINE:
    local      processes of this machine, the default
    array:I/N  this command is the I-th (from 0) of N, on as many machines as share a disk, such as a cluster's array of jobs: it does
               every N-th unit, by such processes, and puts nothing together; the plain command then does what is missing, and that
    ray        actors of a Ray cluster (stages/lib/units/actors.py)
"""

import os
import re
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from stages.lib.core import progress
from stages.lib.core.layered import StoreError
from stages.lib.core.settings import ParamsError
from stages.lib.units import local
from stages.lib.units.pool import Do, Report
from stages.lib.units.queue import Unit

ENGINE = "BAG_ENGINE"
Part = tuple[int, int]  # the I-th of N


class Work(Protocol):
    """What a stage has to do.

    title, counts: what the progress bar says, such as "nulls abacus" and "neuron"; few: so much of it, in what the units' sizes are
    in, takes one process no longer than others take to start.
    """

    title: str
    counts: str
    few: int
    units: list[Unit]

    def missing(self) -> list[int]:
        """Which units are still to be done."""
        ...

    def do(self, number: int, report: Report) -> None:
        """Do a unit, and write its result: whole, or not at all.

        report: is told how much of the unit's size was done since the last report.
        """
        ...

    def finish(self) -> bool | None:
        """Puts together what all units wrote, and removes it; or returns True if more units have to be done first."""
        ...


def carry_out(make: Callable[..., Work], *arguments: str) -> None:
    """Does a stage's work. make: called with the arguments, here and in every worker process, gives the same Work."""
    try:
        _carry_out(make, *arguments)
    except KeyboardInterrupt:
        raise SystemExit(
            "interrupted; what is done is kept, and the same command goes on from there"
        ) from None
    except (FloatingPointError, StoreError) as error:  # a value is not finite, or the disk is full
        raise SystemExit(f"{' '.join(arguments)}: {error}") from None


def _carry_out(make: Callable[..., Work], *arguments: str) -> None:
    engine, share = _engine()
    with engine(partial(_doing, _place(make), make.__name__), *arguments) as workers:
        work = make(*arguments)
        while True:
            missing = [n for n in work.missing() if share is None or n % share[1] == share[0]]
            todo = {number: work.units[number] for number in missing}
            left = sum(unit.size for unit in todo.values())
            total = left if share else sum(unit.size for unit in work.units)
            counted: dict[str, Any] = {"desc": work.title, "unit": work.counts, "unit_scale": True}
            with progress.bar(total=total, initial=total - left, **counted) as bar:
                for _ in workers.do(todo, work.do, 1 if left <= work.few else None, bar.update):
                    pass
            if share is not None or not work.finish():
                break
    if share is not None:
        print(
            f"{work.title}: part {share[0]} of {share[1]} is done, {len(todo)} units of work; once all parts are, the same command "
            f"without {ENGINE} puts them together",
            file=sys.stderr,
        )


def _place(made: Callable) -> str:
    """The module that other processes find this in; the one that Python was started with has another name here."""
    spec = sys.modules["__main__"].__spec__ if made.__module__ == "__main__" else None
    return spec.name if spec else made.__module__


def _doing(module: str, name: str, *arguments: str) -> Do:
    return getattr(import_module(module), name)(*arguments).do


def _engine() -> tuple[Callable, Part | None]:
    """What makes workers, and which part of the work is this command's, None for all. Raises ParamsError where BAG_ENGINE says neither."""
    given = os.environ.get(ENGINE, "local")
    if given == "local":
        return local.ready, None
    if given == "ray":
        try:
            from stages.lib.units import actors
        except ImportError:
            raise ParamsError(
                f"{ENGINE}=ray asks for Ray, which is not installed here: pip install -e '.[cluster]'"
            ) from None
        return actors.ready, None
    found = re.fullmatch(r"array:(\d{1,6})/(\d{1,6})", given)
    if not found or int(found[1]) >= int(found[2]):
        raise ParamsError(
            f"the environment says {ENGINE}={given!r}, but it is local, ray or array:I/N, with I from 0 to N - 1, such as array:0/8"
        )
    return local.ready, (int(found[1]), int(found[2]))
