"""Benchmark processes that share a stage's work, alone and beside a busy process."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from stages.heuristics.permutation_tests import PermutationTestsWork
from stages.lib.core import environment
from stages.lib.executor.runs import RunsWork
from stages.lib.units import local
from stages.lib.units.parts import Parts
from stages.lib.units.pool import Do
from stages.store.dump import DumpWork

SUBJECT = "abacus"
ROUNDS = 3


class Stage(NamedTuple):
    """A stage of the default subject; share: of its units that are done."""

    make: Callable[..., Any]
    arguments: tuple[str, ...]
    share: float


PAIRS = "mediation/mediation_pairs"
STAGES = {
    "dump": Stage(DumpWork, (SUBJECT,), 0.4),
    "neuron runs": Stage(RunsWork, ("neurons/neuron", SUBJECT), 0.1),
    "mediation runs": Stage(RunsWork, ("mediation/mediation", SUBJECT, PAIRS), 0.2),
    "permutation_tests": Stage(PermutationTestsWork, (SUBJECT,), 0.1),
}


def workers() -> None:
    """Compare two processes with one, with one of two threads, and with a busy process beside them.

    Bars: 1.6 x, as fast, 2.5 x slower.
    """
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for name, stage in STAGES.items():
            run = partial(_run, name, folder)
            ways = {
                "single": partial(run, 1),
                "two": partial(run, 2),
                "threads": partial(run, 1, threads=2),
                "beside": partial(_beside, run),
            }
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(ROUNDS):
                for way, action in ways.items():
                    seconds[way].append(action())
            single, two, threads, beside = map(statistics.median, seconds.values())
            print(
                f"workers: {name} of {SUBJECT}, {stage.share:.0%} of the units: "
                f"1 process {single:.1f} s, 2 processes {two:.1f} s, "
                f"{single / two:.2f} x (bar 1.6); "
                f"1 process of two threads {threads:.1f} s, {threads / two:.2f} x (bar 1); "
                f"2 processes beside a busy one {beside:.1f} s, "
                f"{beside / two:.2f} x slower (bar 2.5)"
            )


def _run(name: str, folder: str, processes: int, threads: int = 1) -> float:
    """Return the seconds of a process once its libraries are loaded, as under stages.warm."""
    variables = os.environ | {environment.WORKERS: str(processes)}
    command = [sys.executable, "-m", "tests.bench.workers", name, folder, str(threads)]
    done = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
    return float(done.stdout)


def _beside(run: Callable[[int], float]) -> float:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return run(2)
    finally:
        busy.kill()
        busy.wait()


def make(name: str, folder: str) -> Any:
    """Return a stage's work, whose parts lie in a folder of their own."""
    stage = STAGES[name]
    work = stage.make(*stage.arguments)
    if isinstance(work.parts, dict):
        work.parts = {table: Parts(Path(folder) / table, "benchmark") for table in work.parts}
    else:
        work.parts = Parts(Path(folder) / "table", "benchmark")
    return work


def start(name: str, folder: str) -> Do:
    return make(name, folder).do


def do(name: str, folder: str, threads: int) -> None:
    """Do the first units of a stage, as stages/lib/units/work.py does them."""
    with local.ready(start, name, folder) as processes:
        work = make(name, folder)
        left, some = STAGES[name].share * sum(unit.size for unit in work.units), {}
        for number, unit in enumerate(work.units):
            if left > 0:
                some[number], left = unit, left - unit.size
        if threads > 1:
            if isinstance(work, RunsWork):
                _ = work.executor  # loads the model, which sets the number of threads
            elif isinstance(work, DumpWork):
                _ = work.loaded
            torch.set_num_threads(threads)
        for _ in processes.do(some, work.do):
            pass


if __name__ == "__main__":
    began = time.perf_counter()
    do(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    print(time.perf_counter() - began)
