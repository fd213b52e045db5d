"""Benchmark a GPU at full size: `python -m tests.bench gpu --shape llama-3-8b`.

It measures ceilings, correctness, a dump and runs of a model with random weights, compares them
with plain loops on the same device, and prints a table at the end. It ends within its budget of
seconds. A failure is reported, and the rest continues. `--shape toy` does the same at toy size,
also on a processor.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from stages.lib.core import environment
from stages.lib.model import checkpoint
from tests.bench.gpu.ceilings import ceilings
from tests.bench.gpu.correctness import large, small
from tests.bench.gpu.dump import dump
from tests.bench.gpu.profile import profile
from tests.bench.gpu.report import Report
from tests.bench.gpu.runs import Sweeps, runs
from tests.bench.gpu.shapes import SHAPES, Shape, random_model, wait, with_parts

BUDGET = 480.0  # seconds
UNTIL = {  # section -> share of the budget that has passed at its deadline
    "ceilings": 0.08,
    "float64": 0.16,
    "model": 0.26,
    "bfloat16": 0.36,
    "dump": 0.64,
    "runs": 0.93,
    "profile": 1.0,
}


def gpu(shape: str | None = None, budget: float = BUDGET, out: Path | None = None) -> None:
    """Measure a model's shape on a GPU. Bars: 1 x a plain loop, 50 % of the ceiling, 10 x."""
    if shape not in (None, *SHAPES):
        sys.exit(f"python -m tests.bench gpu: unknown shape {shape!r}; shapes: {', '.join(SHAPES)}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and shape != "toy":
        print("gpu: skipped, as torch sees no GPU here; --shape toy runs on a processor")
        return
    os.environ[environment.DEVICE] = device
    _measure(shape or "llama-3-8b", device, Report(budget, out))


def _measure(name: str, device: str, report: Report) -> None:
    """Run all sections; those in `after` need the model."""
    shape = SHAPES[name]
    made: list[checkpoint.Checkpoint] = []
    swept: list[Sweeps | None] = []
    _machine(report, device)
    before: dict[str, Callable[[], None]] = {
        "ceilings": lambda: ceilings(report, shape, device),
        "float64": lambda: small(report, device),
        "model": lambda: _make(report, shape, device, made),
    }
    after: dict[str, Callable[[], None]] = {
        "bfloat16": lambda: large(report, made[-1], shape, device),
        "dump": lambda: dump(report, made[-1], shape, device),
        "runs": lambda: swept.append(runs(report, made[-1], shape, device)),
        "profile": lambda: profile(report, made[-1], *(swept or [None]), shape, device),
    }
    for section, action in before.items():
        report.section(section, UNTIL[section], action)
    if made:
        for section, action in after.items():
            report.section(section, UNTIL[section], action)
    report.summary()


def _machine(report: Report, device: str) -> None:
    report.section_name = "machine"
    if device == "cpu":
        report.figure("device", "processor")
    else:
        report.figure("device", torch.cuda.get_device_name())
        report.figure("GPU memory", torch.cuda.mem_get_info()[1] / 2**30, "GiB")
    report.figure("cores", len(os.sched_getaffinity(0)))
    report.figure("torch", torch.__version__)


def _make(report: Report, shape: Shape, device: str, made: list[checkpoint.Checkpoint]) -> None:
    """Append the model, and again after the checks that a loaded model goes through."""
    start = time.perf_counter()
    model = random_model(shape.family, shape.sizes, device, torch.bfloat16)
    wait(device)
    spent, start = time.perf_counter() - start, time.perf_counter()
    report.figure("weights made", spent, "s", billions=model.num_parameters() / 1e9)
    made.append(with_parts(model))
    checked = report.attempt("checks", lambda: checkpoint.prepared(model))
    if checked:
        made.append(checked)
        report.figure("checks of a loaded model", time.perf_counter() - start, "s")
