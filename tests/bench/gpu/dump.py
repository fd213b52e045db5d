"""Measure prompts dumped per second, what bounds them, and a plain loop for comparison."""

import ctypes
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from stages.lib.core import environment, hdf5_store
from stages.lib.core.settings import load
from stages.lib.model.architecture import patched
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.memory import MMAP_THRESHOLD, TRIM_THRESHOLD
from stages.lib.settings import Passes
from stages.store import grid, sums
from stages.store.settings import Dump
from tests.bench.gpu.ceilings import DISK, MATMUL, SCATTER_BY_ALL, TO_HOST
from tests.bench.gpu.report import Report
from tests.bench.gpu.shapes import Shape, forget_peak, grid_of_prompts, peak, seconds_of, threads

ROUNDS = 2
SLOTS = 4  # pieces of pinned memory of the plain loop
WRITTEN = 8  # layers, at most, that the real writer writes
WRITER = "layers written and neurons added up, as by a worker"
SUMS = "neurons added up alone"


@dataclass(frozen=True)
class Prompts:
    """The grid of prompts on one model. tokens: (rows, columns, positions)."""

    loaded: Checkpoint
    tokens: np.ndarray
    device: str
    sharing: grid.Sharing = grid.Sharing.CACHE

    @property
    def count(self) -> int:
        return self.tokens.shape[0] * self.tokens.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all activations as float16."""
        a = self.loaded.architecture
        return 2 * self.count * a.neurons * len(a.layers)

    @property
    def operations(self) -> float:
        """2 x parameters x tokens; the unembedding reads only last positions, embeddings none."""
        rows, columns, positions = self.tokens.shape
        prefix = grid.shared_prefix(self.tokens)
        layers = self.loaded.architecture.layers
        blocks = sum(p.numel() for layer in layers for p in layer.block.parameters())
        unembedding = self.loaded.architecture.unembedding.weight.numel()
        tokens = rows * prefix + rows * columns * (positions - prefix)
        return 2.0 * (blocks * tokens + unembedding * (rows * columns + rows))

    def first_rows(self, rows: int) -> "Prompts":
        return replace(self, tokens=self.tokens[:rows])

    def dumped(self, rows_at_once: int, activations: bool = True, means: bool = True) -> dict:
        """Return activations of one block, as a dump's worker does.

        They are layer -> (neurons, rows, columns).
        """
        a, shape = self.loaded.architecture, self.tokens.shape[:2]
        layers = range(len(a.layers)) if activations else ()
        blocks = {layer: np.empty((a.neurons, *shape), np.float16) for layer in layers}
        totals = grid.Means.zeros(self.loaded, self.tokens.shape[2]) if means else None
        answers = np.full(shape, -1)
        grid_of = self.loaded, self.tokens, answers, rows_at_once, blocks, totals
        for _ in grid.run(*grid_of, sharing=self.sharing):
            pass
        return blocks


def dump(report: Report, loaded: Checkpoint, shape: Shape, device: str) -> None:
    """Compare dumps of several pass sizes with the plain loop; write a part; name the bound."""
    _return_freed()
    tokens = grid_of_prompts(loaded.architecture.vocabulary, shape.rows, shape.columns)
    way = report.attempt("sharing", lambda: grid.sharing(loaded, tokens)) or grid.Sharing.CACHE
    report.figure("prompts of a row share their prefix by", way.name)
    prompts = Prompts(loaded, tokens, device, way)
    report.figure("prompts", prompts.count)
    report.figure("arithmetic of them", prompts.operations / 1e12, "TFLOP")
    report.figure("activations of them", prompts.nbytes / 1e9, "GB")
    seconds: dict[int, float] = {}  # rows of a pass -> of a dump
    with threads(environment.threads()):
        for size in reversed(shape.passes):  # the default, the largest, first
            rows = max(1, load(Passes).prompts_per_pass * size // shape.columns)
            rows = min(rows, shape.rows)
            name = f"passes {size}, {rows * shape.columns} prompts"
            taken = report.attempt(name, lambda n=name, r=rows: _in_turn(report, n, prompts, r), 15)
            if taken:
                seconds.setdefault(rows, taken)
            if taken and report.value(WRITER) is None:
                report.attempt("written", lambda r=rows: _written(report, prompts, r), 10)
                _bounds(report, prompts, taken)
        if seconds:
            best = min(seconds, key=lambda rows: seconds[rows])
            report.attempt("variants", lambda: _variants(report, prompts, best), 15)


def _in_turn(report: Report, name: str, prompts: Prompts, rows: int) -> float:
    """Return the median seconds of a dump into memory, in turn with the plain loop."""
    warm = prompts.first_rows(rows)
    loop = PlainLoop(prompts, rows)
    warm.dumped(rows)
    loop.run(warm.tokens)
    actions = {
        "forward": lambda: prompts.dumped(rows, activations=False, means=False),
        "dump": lambda: prompts.dumped(rows),
        "loop": lambda: loop.run(prompts.tokens),
        "mended": lambda: loop.run(prompts.tokens, mended=True),
    }
    taken: dict[str, list[float]] = {action: [] for action in actions}
    peaks = {}
    for _ in range(ROUNDS):
        for action, function in actions.items():
            forget_peak(prompts.device)
            taken[action].append(seconds_of(prompts.device, function))
            peaks[action] = peak(prompts.device)
        if report.left() < sum(map(min, taken.values())) + 20:
            break
    seconds = {action: statistics.median(several) for action, several in taken.items()}
    kept = seconds_of(prompts.device, lambda: loop.run(prompts.tokens, keep=True))
    names = {
        "dump": "dump into memory",
        "forward": "its forward passes alone",
        "loop": "plain loop",
        "mended": "plain loop, mended unembedding",
    }
    ceiling = report.value(MATMUL)
    for action, what in names.items():
        rate = prompts.count / seconds[action]
        reached = prompts.operations / seconds[action] / 1e12
        report.figure(
            f"{name}: {what}", rate, "prompts/s", TFLOPs=reached,
            percent_of_ceiling=100 * reached / ceiling if ceiling else "unknown",
            slowest=prompts.count / max(taken[action]), GiB=peaks[action],
        )  # fmt: skip
    report.figure(f"{name}: plain loop, kept", prompts.count / kept, "prompts/s")
    ratio = seconds["loop"] / seconds["dump"]
    report.figure(
        f"{name}: dump / plain loop", ratio, "x", kept=kept / seconds["dump"],
        mended=seconds["mended"] / seconds["dump"],
    )  # fmt: skip
    return seconds["dump"]


def _variants(report: Report, prompts: Prompts, rows: int) -> None:
    """Measure what the best dump loses by its sums, by one thread, and by a repeated cache."""
    cores = len(os.sched_getaffinity(0))
    if prompts.sharing is grid.Sharing.ATTENTION:
        cached = replace(prompts, sharing=grid.Sharing.CACHE)
        with threads(cores):
            seconds = seconds_of(prompts.device, lambda: cached.dumped(rows))
        report.figure("best size, a cache per prompt", prompts.count / seconds, "prompts/s")
    for number in (1, cores):
        for means in (False, True):
            with threads(number):
                action = lambda m=means: prompts.dumped(rows, means=m)  # noqa: E731
                seconds = seconds_of(prompts.device, action)
            name = f"best size, {number} threads, {'with' if means else 'no'} sums"
            report.figure(name, prompts.count / seconds, "prompts/s")
            if report.left() < 2 * seconds:
                return


class PlainLoop:
    """Whole batches after a cached prefix, with hooks that copy neurons' activations.

    Hooks copy what the MLPs' last projections read at the last position to pinned memory, where
    later layers overwrite it. As in transformers, the unembedding is read once for each prompt (see
    last_logits).
    """

    def __init__(self, prompts: Prompts, rows: int):
        self.loaded, self.device, self.rows = prompts.loaded, prompts.device, rows
        a, columns = self.loaded.architecture, prompts.tokens.shape[1]
        self.prefix = grid.shared_prefix(prompts.tokens)
        size, pin = (rows * columns, a.neurons), self.device == "cuda"
        self.pinned = [torch.empty(size, dtype=torch.float16, pin_memory=pin) for _ in range(SLOTS)]

    @torch.no_grad()
    def run(self, tokens: np.ndarray, keep: bool = False, mended: bool = False) -> None:
        """Run the loop.

        keep: whether to keep all activations, which waits for each copy; mended: whether to compute
        logits as Checkpoint.last_logits does.
        """
        model, layers = self.loaded.model, self.loaded.architecture.layers
        kept: list[torch.Tensor] | None = [] if keep else None
        cores = len(os.sched_getaffinity(0))
        with ExitStack() as hooks, usual_attention(model), threads(cores):
            if mended:
                unembedding = self.loaded.architecture.unembedding
                hooks.enter_context(patched(unembedding, torch.Tensor.contiguous))
            live = {"count": 0}  # of prompts; while the prefix runs, none is copied
            for number, layer in enumerate(layers):
                copier = self._copier(self.pinned[number % SLOTS], live, kept)
                hooks.enter_context(patched(layer.mlp_out, copier))
            for first in range(0, len(tokens), self.rows):
                block = torch.from_numpy(tokens[first : first + self.rows]).to(self.device)
                rows, columns, _ = block.shape
                cache = DynamicCache(config=model.config)
                live["count"] = 0
                if self.prefix:
                    model(
                        input_ids=block[:, 0, : self.prefix],
                        past_key_values=cache,
                        logits_to_keep=1,
                    )
                    cache.batch_repeat_interleave(columns)
                live["count"] = rows * columns
                suffix = block[:, :, self.prefix :].flatten(0, 1)
                out = model(input_ids=suffix, past_key_values=cache, logits_to_keep=1)
                out.logits[:, -1].argmax(-1).cpu()  # waits for the copies, too

    @staticmethod
    def _copier(
        pinned: torch.Tensor,
        live: dict[str, int],
        kept: list[torch.Tensor] | None,
    ) -> Callable[[torch.Tensor], None]:
        def copy(x: torch.Tensor) -> None:
            count = live["count"]
            if not count:
                return
            narrow = x[:, -1].to(torch.float16)
            if kept is None:
                pinned[:count].copy_(narrow, non_blocking=True)
            else:
                kept.append(narrow.cpu())

        return copy


@contextmanager
def usual_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let the model attend by fused kernels, the default of transformers, within the context."""
    before = model.config._attn_implementation
    model.config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        model.config._attn_implementation = before


def _written(report: Report, prompts: Prompts, rows: int) -> None:
    """Measure writing layers and adding up neurons, as a worker does after a dump."""
    blocks = prompts.dumped(rows, means=False)
    settings, results = load(Dump), np.zeros(prompts.tokens.shape[:2], np.int64)
    prompts_per_block = settings.prompts_per_block(len(blocks) * len(blocks[0]), "bfloat16")
    block_rows = min(len(prompts.tokens), max(1, prompts_per_block // results.shape[1]))
    axes = dict(zip(("neuron", "op1", "op2"), blocks[0].shape, strict=True))
    chunk = settings.neurons_per_chunk, block_rows, results.shape[1]
    with tempfile.TemporaryDirectory(dir=".") as folder:

        def write(layer: int) -> None:
            with hdf5_store.writing(Path(folder) / f"{layer}.h5", shared=True) as file:
                of_layer = file, [layer], axes, "float16", chunk, {}
                writer = hdf5_store.LayerWriter(*of_layer, columns={"result": results})
                writer.write(layer, 0, blocks[layer])

        some = {layer: blocks[layer] for layer in list(blocks)[:WRITTEN]}
        few = {0: blocks[0][:1]}
        write(0)  # compiles what it needs, as the next does
        sums.of_block("add", few, results)
        action = lambda: sums.while_writing(write, "add", some, results)  # noqa: E731
        spent = seconds_of("cpu", action)
        size = sum(block.nbytes for block in some.values())
        report.figure(WRITER, size / spent / 1e9, "GB/s")
        spent = seconds_of("cpu", lambda: sums.of_block("add", some, results))
        report.figure(SUMS, size / spent / 1e9, "GB/s")


def _bounds(report: Report, prompts: Prompts, dump_seconds: float) -> None:
    """Report how long each part takes at its own rate; writing and sums follow the dump."""
    rates = {
        "arithmetic": (prompts.operations / 1e12, MATMUL),
        "transfer": (prompts.nbytes / 1e9, TO_HOST),
        "copies in memory": (prompts.nbytes / 1e9, SCATTER_BY_ALL),
        "bare disk": (prompts.nbytes / 1e9, DISK),
        "written and added up": (prompts.nbytes / 1e9, WRITER),
    }
    seconds = {}
    for name, (amount, figure) in rates.items():
        rate = report.value(figure)
        if rate:
            seconds[name] = amount / rate
    by_name = {name.replace(" ", "_"): needed for name, needed in seconds.items()}
    report.figure("all prompts, dump into memory", dump_seconds, "s", **by_name)
    inside = ("arithmetic", "transfer", "copies in memory")
    known = [name for name in inside if name in seconds]
    if known:
        bound = max(known, key=lambda name: seconds[name])
        share = 100 * seconds[bound] / dump_seconds
        report.figure("bound of the dump into memory", bound, percent_of_its_time=share)
    after = seconds.get("written and added up")
    if after:
        total = dump_seconds + after
        bound = "writing" if after > dump_seconds else "the dump into memory"
        rate = prompts.count / total
        name = "all prompts, a worker's whole unit"
        report.figure(name, total, "s", bound=bound, prompts_per_second=rate)


def _return_freed() -> None:
    """Undo what an executor told glibc: a dump's worker returns freed memory to the system."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(TRIM_THRESHOLD, 128 << 10)
        library.mallopt(MMAP_THRESHOLD, 128 << 10)
