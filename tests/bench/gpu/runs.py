"""Measure runs per second by pass size, compared with one forward pass per run."""

from dataclasses import replace

import numpy as np
import polars as pl
import torch

from stages.lib.core import environment
from stages.lib.core.settings import load
from stages.lib.executor import runs as tables
from stages.lib.executor.blocks import PassSizes
from stages.lib.executor.executor import Executor
from stages.lib.executor.interventions import Intervention
from stages.lib.executor.pairs import by_length
from stages.lib.executor.values import Values
from stages.lib.model.architecture import patched
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.settings import Runs
from tests.bench.gpu.report import Report
from tests.bench.gpu.shapes import ROLES, Shape, forget_peak, pair_table, peak, seconds_of, threads
from tests.bench.patching import patches

MOST_PASSES = 6  # of one measurement
LOOPED = 6  # forward passes of one measurement


class Sweeps:
    """Measurements of one model on one table of pairs."""

    def __init__(self, report: Report, loaded: Checkpoint, shape: Shape, device: str):
        self.report, self.loaded, self.shape, self.device = report, loaded, shape, device
        self.table = pair_table(loaded.architecture.vocabulary, shape.pairs)
        self.looped: dict[int, float] = {}  # layer -> runs per second of plain forward passes
        settings = load(Runs)
        self.executor = Executor(loaded, None, settings.rows_per_pass, settings.memory_mib << 20)

    def layers(self) -> dict[str, int]:
        depth = len(self.loaded.architecture.layers)
        return {"late": 3 * depth // 4, "middle": depth // 2, "first": 0}

    def shortcuts(self) -> None:
        """Report which of the executor's shortcuts hold on this device and in this precision."""
        executor, depth = self.executor, len(self.loaded.architecture.layers)
        self.report.figure("restarts in the middle of prompts", str(executor.restarts))
        if executor.restarts:
            known = executor.shortcuts
            self.report.figure(
                "shortcuts", "hold", prefix=str(known.attends), narrow=str(known.narrows),
                additive=f"{sum(known.additive)} of {depth}",
                entrances=f"{sum(map(bool, executor.entrances))} of {depth + 1}",
                norms=f"{len(executor.norms)} of {2 * depth + 1}",
            )  # fmt: skip

    def sizes(self, size: int) -> PassSizes:
        """Return sizes as BAG_PASSES does: a multiple of the settings' rows and memory."""
        settings = load(Runs)
        memory = (settings.memory_mib << 20) * size
        return PassSizes(self.loaded, settings.rows_per_pass * size, memory)

    def looping(self) -> None:
        """Measure one forward pass per run, with the same pairs and with many pairs at once.

        Both are repeated with logits computed as Checkpoint.last_logits does; ratios compare with
        these.
        """
        for pairs in (self.shape.pairs, self.shape.many):
            name = f"forward pass per run, {pairs} pairs"
            self.report.attempt(name, lambda n=name, p=pairs: self._looped(n, p), 3)
        self.looped = {}  # the ratios are to the quicker one
        unembedding = self.loaded.architecture.unembedding
        for pairs in (self.shape.pairs, self.shape.many):
            with patched(unembedding, torch.Tensor.contiguous):
                name = f"the same, mended unembedding, {pairs} pairs"
                self.report.attempt(name, lambda n=name, p=pairs: self._looped(n, p), 3)

    def _looped(self, name: str, pairs: int) -> None:
        [group] = by_length(pair_table(self.loaded.architecture.vocabulary, pairs), pairs)
        tokens = torch.from_numpy(group.tokens).to(self.device)
        forget_peak(self.device)
        for layer in self.layers().values():
            plain_run(self.loaded, tokens, layer, 0)
            seconds = seconds_of(self.device, lambda at=layer: self._loop(tokens, at))
            rate = LOOPED * pairs / seconds
            self.looped[layer] = max(rate, self.looped.get(layer, 0.0))
        self.report.figure(name, rate, "runs/s", GiB=peak(self.device))

    def _loop(self, tokens: torch.Tensor, layer: int) -> None:
        for unit in range(LOOPED):
            plain_run(self.loaded, tokens, layer, unit)

    def neurons(self, place: str, size: int, position: str = "last") -> float:
        """Return runs per second of one layer's neurons, one at a time."""
        layer = self.layers()[place]
        self.executor.sizes = self.sizes(size)
        most = self.loaded.architecture.neurons
        [group] = by_length(self.table, len(self.table))
        in_pass = min(
            most, self.executor.sizes.copies(group, ROLES[position], shared=position == "last")
        )
        rows = in_pass * len(group) * (len(ROLES) + 1 - ROLES[position])
        name = f"neurons, {place} layer {layer}, {position}, passes {size}"
        wanted = patches("neuron", layer, range(most), position)
        forget_peak(self.device)
        self._swept(wanted[:in_pass])
        seconds = self._swept(wanted[:in_pass])
        passes = int(np.clip(self.shape.seconds / seconds, 1, MOST_PASSES))
        some = wanted[: in_pass * passes]
        if len(some) > in_pass:
            seconds = self._swept(some)
        rate = len(some) * len(self.table) / seconds
        self._tell(name, rate, layer, rows=rows, neurons=len(some))
        return rate

    def components(self, place: str, size: int) -> float:
        """Return runs per second of one layer's heads and MLP at all positions."""
        layer = self.layers()[place]
        self.executor.sizes = self.sizes(size)
        heads = range(self.loaded.architecture.heads)
        wanted = []
        for position in ROLES:
            wanted += patches("head", layer, heads, position)
            wanted += patches("mlp", layer, [None], position)
        wanted = [replace(each, number=number) for number, each in enumerate(wanted)]
        forget_peak(self.device)
        self._swept(wanted)
        seconds = self._swept(wanted)
        rate = len(wanted) * len(self.table) / seconds
        self._tell(f"heads, MLP, {place} layer {layer}, passes {size}", rate, layer)
        return rate

    def _swept(self, wanted: list[Intervention]) -> float:
        """Return the seconds that these interventions take, up to the rows of the table."""
        return seconds_of(self.device, lambda: self.swept(wanted))

    def swept(self, wanted: list[Intervention]) -> pl.DataFrame:
        blocks = self.executor.plan(self.table, wanted)
        return tables.rows(self.executor, blocks, "bench", "random")

    def _tell(self, name: str, rate: float, layer: int, **more: float) -> None:
        ratio = rate / self.looped[layer] if layer in self.looped else "unknown"
        self.report.figure(name, rate, "runs/s", ratio=ratio, GiB=peak(self.device), **more)


def runs(report: Report, loaded: Checkpoint, shape: Shape, device: str) -> Sweeps | None:
    """Measure neurons by pass size and layer, then components; the default size comes first."""
    with threads(1):
        sweeps = report.attempt("executor", lambda: Sweeps(report, loaded, shape, device))
        if not sweeps:
            return None
        sweeps.shortcuts()
        sweeps.looping()
        rates: dict[int, float] = {}
        sizes = sorted(shape.run_passes, key=lambda size: abs(size - environment.PASSES_ON_GPU))
        for size in sizes:  # the default first
            for place in sweeps.layers():
                name = f"neurons, {place}, passes {size}"
                rate = report.attempt(name, lambda p=place, s=size: sweeps.neurons(p, s), 4)
                if rate and place == "middle":
                    rates[size] = rate
        if rates:
            best = max(rates, key=lambda size: rates[size])
            report.figure("best size, in the middle layer", f"{environment.PASSES}={best}")
            _more(report, sweeps, best)
        report.attempt("correct", lambda: _correct(report, sweeps), 4)
    return sweeps


def _more(report: Report, sweeps: Sweeps, best: int) -> None:
    """Measure components, and neurons at op1, whose runs go through all layers."""
    for size in dict.fromkeys((best, environment.PASSES_ON_GPU)):
        for place in sweeps.layers():
            name = f"heads, MLP, {place}, passes {size}"
            report.attempt(name, lambda p=place, s=size: sweeps.components(p, s), 4)
    name = "neurons, first layer at op1"
    report.attempt(name, lambda: sweeps.neurons("first", best, "op1"), 8)


def _correct(report: Report, sweeps: Sweeps) -> None:
    """Report differences of swept answers' logits from forward passes, as shares of spread."""
    layer = sweeps.layers()["middle"]
    wanted = patches("neuron", layer, range(4), "last")
    [group] = by_length(sweeps.table, len(sweeps.table))
    values = Values(sweeps.loaded, group, None)
    values.prepare(wanted[0].patches)
    swept = sweeps.swept(wanted)["answer_logit"].to_numpy().reshape(len(wanted), -1)
    off = 0.0
    for number in range(len(wanted)):
        source = values.counterfactual.neurons[layer][:, -1, number]
        logits = plain_run(sweeps.loaded, values.clean.tokens, layer, number, source)
        answers = torch.from_numpy(group.answers).to(logits.device)[:, None]
        plain = logits.gather(1, answers)[:, 0].float().cpu().numpy()
        off = max(off, float(np.abs(plain - swept[number]).max() / plain.std()))
    report.figure("swept against forward passes, of spread", off)


@torch.no_grad()
def plain_run(
    loaded: Checkpoint,
    tokens: torch.Tensor,
    layer: int,
    neuron: int,
    source: torch.Tensor | float = 0.0,
) -> torch.Tensor:
    """Return logits (prompts, vocabulary) of a forward pass with a hook that replaces a neuron."""

    def change(x: torch.Tensor) -> torch.Tensor:
        x[:, -1, neuron] = source
        return x

    with patched(loaded.architecture.layers[layer].mlp_out, change):
        out = loaded.model(input_ids=tokens, use_cache=False, logits_to_keep=1)
    return out.logits[:, -1]
