"""Benchmark the sharing of work: units that do nothing, by local processes and by Ray."""

import os
import time
from collections.abc import Callable
from importlib.util import find_spec

import psutil

from stages.lib.core import environment
from stages.lib.units import local
from stages.lib.units.pool import Do
from stages.lib.units.queue import Unit

NUMBERS = (100, 5_000, 20_000)
WORKERS = 2


def start() -> Do:
    return lambda *_: None


def units() -> None:
    """Measure processor time of all processes involved; other work does not change it.

    Bars: 8 s a stage, 2 ms a unit, linear.
    """
    os.environ[environment.WORKERS] = str(WORKERS)
    engines = {"local": local.ready}
    if find_spec("ray"):
        from stages.lib.units import actors

        engines["ray"] = actors.ready
    for name, ready in engines.items():
        costs: list[float] = []
        for number in NUMBERS:
            seconds, passed = _cost(ready, number)
            costs.append(seconds)
            figure = f"{seconds:.1f} s of processor ({passed:.0f} s passed)"
            if number > NUMBERS[0]:
                each = (seconds - costs[0]) / (number - NUMBERS[0])
                figure += f", {each * 1e3:.2f} ms of it each more unit"
            print(f"units: {name}, {WORKERS} workers, {number} units: {figure}")


def _cost(ready: Callable, number: int) -> tuple[float, float]:
    """Return processor seconds from nothing to all units done, and seconds that passed."""
    began, spent = time.perf_counter(), _spent()
    wanted = {unit: Unit(f"unit {unit}", group=unit // 50) for unit in range(number)}
    with ready(start) as workers:
        done = list(workers.do(wanted, start()))
        spent = _spent() - spent
    assert sorted(done) == list(range(number))
    return spent, time.perf_counter() - began


def _spent() -> float:
    """Return processor seconds of this process and of all its living descendants."""
    process = psutil.Process()
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        times = each.cpu_times()
        total += times.user + times.system
    return total
