"""The benchmark of a GPU: a dump and runs of a random model on it, against this processor, by sizes of passes."""

import time

import numpy as np
import torch

from stages.lib.core import machine
from stages.lib.core.settings import load
from stages.lib.executor.executor import Executor
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.settings import Passes, Runs
from stages.store import grid
from tests.bench.patching import patches, random_llama, sweep

WIDTH, NEURONS, DTYPE = 2048, 5632, torch.bfloat16  # of 8 layers: 0.4 B parameters
SIZES = (1, 4, 16, 64)  # of a pass, in what the settings say
COLUMNS, ROUNDS = 300, 3


def gpu() -> None:
    """Prompts dumped and runs carried out a second, and the GPU's memory. No bar: none was measured on a GPU when this was written."""
    if not torch.cuda.is_available():
        print("gpu: skipped, as torch sees no GPU here")
        return
    print(f"gpu: {torch.cuda.get_device_name()}")
    for device, sizes in (("cpu", SIZES[:1]), ("cuda", SIZES)):
        loaded, table = random_llama(WIDTH, NEURONS, device, DTYPE)
        for size in sizes:
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            prompts = dumped(loaded, size, rows=40 * size if device == "cuda" else 5)
            runs = carried_out(loaded, table, size, neurons=NEURONS if device == "cuda" else 64)
            memory = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if device == "cuda" else ""
            print(f"gpu: {device}, {machine.PASSES}={size}: {prompts:.0f} prompts/s dumped, {runs:.0f} runs/s{memory}")


def dumped(loaded: Checkpoint, size: int, rows: int) -> float:
    """Prompts a second: activations of all layers as float16 in this machine's memory, and sums of every component."""
    random, a = np.random.default_rng(0), loaded.architecture
    tokens = random.integers(3, a.vocabulary, (rows, COLUMNS, 4))
    tokens[:, :, :2] = tokens[:, :1, :2]
    into = {layer: np.empty((a.neurons, rows, COLUMNS), np.float16) for layer in range(len(a.layers))}
    means, answers = grid.Means.zeros(loaded, 4), np.full((rows, COLUMNS), -1)
    at_once = max(1, load(Passes).prompts_per_pass * size // COLUMNS)
    return tokens[:, :, 0].size / _least(lambda: list(grid.run(loaded, tokens, answers, at_once, into, means)))


def carried_out(loaded: Checkpoint, table, size: int, neurons: int) -> float:
    """Runs a second: neurons of a layer in the middle patched one by one at the last position, on 50 pairs."""
    settings = load(Runs)
    runner = Executor(loaded, None, settings.rows_per_pass * size, (settings.memory_mib << 20) * size)
    wanted = patches("neuron", len(loaded.architecture.layers) // 2, range(neurons), "last")
    return len(table) * neurons / _least(lambda: sweep(runner, table, wanted))


def _least(action) -> float:
    """Seconds of the fastest of a few rounds; results are on this machine when it ends, so a GPU is waited for."""
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
