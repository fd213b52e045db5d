"""The benchmark of sharing a stage's work between processes, alone and beside a busy process: stages of the default subject."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stages.heuristics.nulls import NullsWork
from stages.lib.core import machine
from stages.lib.executor.runs import RunsWork
from stages.lib.units import local
from stages.lib.units.parts import Parts
from stages.lib.units.pool import Do
from stages.store.dump import DumpWork

SUBJECT = "abacus"
ROUNDS = 3
STAGES: dict[
    str, tuple[Callable[..., Any], tuple[str, ...], float]
] = {  # what makes the work, of what, and which share of it is done
    "dump": (DumpWork, (SUBJECT,), 0.4),
    "neuron runs": (RunsWork, ("neurons/neuron", SUBJECT), 0.1),
    "mediation runs": (
        RunsWork,
        ("mediation/mediation", SUBJECT, "mediation/mediation_pairs"),
        0.2,
    ),
    "nulls": (NullsWork, (SUBJECT,), 0.1),
}


def workers() -> None:
    """Two processes against one, and against one of two threads; beside a process that never rests. Bars: 1.6 x, as fast, 2.5 x slower."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for name, (_, _, share) in STAGES.items():
            run = partial(_run, name, folder)
            ways = (
                partial(run, 1),
                partial(run, 2),
                partial(run, 1, threads=2),
                partial(_beside, run),
            )
            rounds = [[way() for way in ways] for _ in range(ROUNDS)]
            one, two, threads, beside = map(statistics.median, zip(*rounds, strict=True))
            print(
                f"workers: {name} of {SUBJECT}, {share:.0%} of the units: 1 process {one:.1f} s, 2 processes {two:.1f} s, "
                f"{one / two:.2f} x (bar 1.6); 1 process of two threads {threads:.1f} s, {threads / two:.2f} x (bar 1); "
                f"2 processes beside a busy one {beside:.1f} s, {beside / two:.2f} x slower (bar 2.5)"
            )


def _run(name: str, folder: str, processes: int, threads: int = 1) -> float:
    """Seconds of a process that has its libraries loaded, as stages under stages.warm have."""
    environment = os.environ | {machine.WORKERS: str(processes)}
    command = [sys.executable, "-m", "tests.bench.workers", name, folder, str(threads)]
    return float(
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    )


def _beside(run: Callable[[int], float]) -> float:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return run(2)
    finally:
        busy.kill()
        busy.wait()


def make(name: str, folder: str) -> Any:
    """A stage's work, whose parts lie in a folder of their own."""
    kind, arguments, _ = STAGES[name]
    work = kind(*arguments)
    if isinstance(work.parts, dict):
        work.parts = {table: Parts(Path(folder) / table, "benchmark") for table in work.parts}
    else:
        work.parts = Parts(Path(folder) / "table", "benchmark")
    return work


def start(name: str, folder: str) -> Do:
    return make(name, folder).do


def do(name: str, folder: str, threads: int) -> None:
    """The first units of a stage, as stages/lib/units/work.py does them."""
    with local.ready(start, name, folder) as processes:
        work = make(name, folder)
        left, todo = STAGES[name][2] * sum(unit.size for unit in work.units), {}
        for number, unit in enumerate(work.units):
            if left > 0:
                todo[number], left = unit, left - unit.size
        if threads > 1:
            _ = (
                work.executor
                if isinstance(work, RunsWork)
                else work.loaded
                if isinstance(work, DumpWork)
                else None
            )
            torch.set_num_threads(threads)
        for _ in processes.do(todo, work.do):
            pass


if __name__ == "__main__":
    began = time.perf_counter()
    do(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    print(time.perf_counter() - began)
