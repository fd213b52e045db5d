"""The benchmark of sharing work: what units that do nothing cost, by processes of this machine and by Ray."""

import os
import time
from collections.abc import Callable
from importlib.util import find_spec

import psutil

from stages.lib.core import machine
from stages.lib.units import local
from stages.lib.units.pool import Do
from stages.lib.units.queue import Unit

NUMBERS = (100, 5_000, 20_000)
WORKERS = 2


def start() -> Do:
    return lambda *_: None


def units() -> None:
    """Processor time of every process that has a part in it: loads of other work do not show. Bars: 8 s a stage, 2 ms a unit, linear."""
    os.environ[machine.WORKERS] = str(WORKERS)
    engines = {"local": local.ready}
    if find_spec("ray"):
        from stages.lib.units import actors

        engines["ray"] = actors.ready
    for name, ready in engines.items():
        before: tuple[int, float] | None = None
        for number in NUMBERS:
            seconds, passed = _cost(ready, number)
            each = (
                f", {(seconds - before[1]) / (number - before[0]) * 1e3:.2f} ms of it each more unit"
                if before
                else ""
            )
            print(
                f"units: {name}, {WORKERS} workers, {number} units: {seconds:.1f} s of processor{each} ({passed:.0f} s passed)"
            )
            before = before or (number, seconds)


def _cost(ready: Callable, number: int) -> tuple[float, float]:
    """Seconds of all processors from nothing to all units done, and seconds that passed."""
    began, spent = time.perf_counter(), _spent()
    with ready(start) as workers:
        done = list(
            workers.do(
                {unit: Unit(f"unit {unit}", group=unit // 50) for unit in range(number)}, start()
            )
        )
        spent = _spent() - spent
    assert sorted(done) == list(range(number))
    return spent, time.perf_counter() - began


def _spent() -> float:
    """Seconds of processor that this process, and all that it started and that live, have had."""
    me = psutil.Process()
    return sum(
        times.user + times.system
        for times in (process.cpu_times() for process in (me, *me.children(recursive=True)))
    )
