"""Profile a device: kernels by their time, and the share of time without any kernel."""

from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from stages.lib.core import environment
from stages.lib.core.settings import load
from stages.lib.executor.pairs import by_length
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.settings import Passes
from stages.store import grid
from tests.bench.gpu.dump import Prompts
from tests.bench.gpu.report import Report
from tests.bench.gpu.runs import Sweeps
from tests.bench.gpu.shapes import ROLES, Shape, grid_of_prompts, threads, wait
from tests.bench.patching import patches

TOP = 5
COPIES = ("Memcpy", "Memset")  # beginnings of names of events that are no kernels
PASSES = 2  # of runs


def profile(
    report: Report,
    loaded: Checkpoint,
    sweeps: Sweeps | None,
    shape: Shape,
    device: str,
) -> None:
    """Profile two passes of a dump, and two of neuron runs in the middle layer."""
    tokens = grid_of_prompts(loaded.architecture.vocabulary, shape.rows, shape.columns)
    rows = max(1, load(Passes).prompts_per_pass * 4 // shape.columns)
    some = tokens[: 2 * rows]
    prompts = Prompts(loaded, some, device, grid.sharing(loaded, some))
    with threads(1):
        dump = lambda: prompts.dumped(rows)  # noqa: E731
        report.attempt("dump", lambda: _profiled(report, "dump", dump, device), 6)
        if not sweeps:
            return
        sweeps.executor.sizes = sweeps.sizes(environment.PASSES_ON_GPU)
        [group] = by_length(sweeps.table, len(sweeps.table))
        in_pass = sweeps.executor.sizes.copies(group, ROLES["last"], shared=True)
        neurons = min(loaded.architecture.neurons, PASSES * in_pass)
        wanted = patches("neuron", sweeps.layers()["middle"], range(neurons), "last")
        sweep = lambda: sweeps.swept(wanted)  # noqa: E731
        report.attempt("runs", lambda: _profiled(report, "runs", sweep, device), 6)


def _profiled(report: Report, name: str, action: Callable[[], object], device: str) -> None:
    action()
    wait(device)
    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as profiler:
        action()
        wait(device)
    kind = DeviceType.CUDA if device == "cuda" else DeviceType.CPU
    events = [event for event in profiler.events() if event.device_type == kind]
    if not events:
        report.figure(name, "the profiler recorded no events on the device")
        return
    if device == "cuda":
        _gaps(report, name, events)
    totals: dict[str, list[float]] = {}
    for event in events:
        seconds = event.time_range.elapsed_us() if device == "cuda" else event.self_cpu_time_total
        totals.setdefault(event.name, []).append(seconds / 1e6)
    whole = sum(map(sum, totals.values()))
    ordered = sorted(totals.items(), key=lambda item: -sum(item[1]))
    for place, (kernel, times) in enumerate(ordered[:TOP], 1):
        share = 100 * sum(times) / whole
        report.figure(f"{name}: {place}. by time", share, "%", calls=len(times), kernel=kernel[:70])


def _gaps(report: Report, name: str, events: list) -> None:
    """Report shares of the time between the first event on the device and the end of the last."""
    everything, computing = [], []
    for event in events:
        span = event.time_range.start, event.time_range.end
        everything.append(span)
        if not event.name.startswith(COPIES):
            computing.append(span)
    kernels, anything = _union(computing), _union(everything)
    whole = max(end for _, end in everything) - min(everything)[0]
    report.figure(
        f"{name}: no kernel runs", 100 * (1 - kernels / whole), "%", seconds=whole / 1e6,
        percent_without_copies_too=100 * (1 - anything / whole), kernels_and_copies=len(events),
    )  # fmt: skip


def _union(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
