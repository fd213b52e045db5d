"""Benchmark interventions: heads and neurons patched on a random Llama.

The comparison is one full forward pass per intervention.
"""

import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import polars as pl
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from stages.lib.core import environment
from stages.lib.core.settings import load
from stages.lib.executor import executor
from stages.lib.executor.interventions import Intervention, Patch
from stages.lib.executor.values import Values
from stages.lib.model import architecture, checkpoint, search
from stages.lib.settings import Runs
from tests.bench.timing import median

PAIRS, VOCABULARY, LAYERS, WIDTH, NEURONS = 50, 1100, 8, 512, 1408
ROLES = {"op1": 1, "operator": 2, "op2": 3, "last": 4}


def random_llama() -> tuple[checkpoint.Checkpoint, pl.DataFrame]:
    """Return a random Llama, and pairs of random prompts of 5 tokens."""
    torch.manual_seed(0)
    torch.set_num_threads(environment.workers())
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=NEURONS,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        tie_word_embeddings=False,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.eval().requires_grad_(False)
    random = np.random.default_rng(0)
    table = {"pair": range(PAIRS), "operator": ["add"] * PAIRS, "split": ["discovery"] * PAIRS}
    for which in ("", "counterfactual_"):
        table[f"{which}tokens"] = random.integers(3, VOCABULARY, (PAIRS, 5)).tolist()
        table[f"{which}answer_token"] = random.integers(3, VOCABULARY, PAIRS).tolist()
        table[f"{which}positions"] = [ROLES] * PAIRS
    return checkpoint.Checkpoint(model, search.find(model)), pl.DataFrame(table)


def patches(
    component: str, layer: int, units: Sequence[int | None], position: str
) -> list[Intervention]:
    """Return one intervention per unit: its counterfactual value at one position.

    The unit None is the whole component.
    """
    interventions = []
    for number, unit in enumerate(units):
        packed = None if unit is None else np.int32(unit).tobytes()
        patch = Patch(component, layer, packed, position, None, "counterfactual")
        interventions.append(Intervention(number, None, None, (patch,)))
    return interventions


def looped(values: Values, intervention: Intervention) -> torch.Tensor:
    """Return probabilities (prompts, vocabulary) by one full forward pass with a hook."""
    [patch] = intervention.patches
    a, layer = values.architecture, values.architecture.layers[patch.layer]
    module, source, width = layer.mlp_out, values.counterfactual.neurons, 1
    if patch.component == "head":
        module, source, width = layer.attention_out, values.counterfactual.heads, a.head_width
    units = patch.unit_numbers()
    part = slice(None)
    if units is not None:
        part = slice(int(units[0]) * width, (int(units[0]) + 1) * width)
    at = int(values.positions[patch.position][0])

    def change(x: torch.Tensor) -> torch.Tensor:
        x[:, at, part] = source[patch.layer][:, at, part]
        return x

    with torch.no_grad(), architecture.patched(module, change):
        out = values.checkpoint.model(input_ids=values.clean.tokens, use_cache=False)
    return out.logits[:, -1].softmax(-1)


def matmul_rate(inputs: int = WIDTH, outputs: int = NEURONS, rows: int = 2000) -> float:
    """Return what this machine's matrix products reach, in GFLOP/s."""
    x, w = torch.randn(rows, inputs), torch.randn(inputs, outputs)
    [seconds] = median(30, lambda: x @ w)
    return 2 * rows * inputs * outputs / seconds / 1e9


def sweep(
    runner: executor.Executor, table: pl.DataFrame, interventions: Sequence[Intervention]
) -> dict[int, np.ndarray]:
    """Return the answers' probabilities (prompts,) under each intervention, by its number."""
    probabilities = {}
    for block in runner.plan(table, interventions):
        for batch, measured in runner.run(block):
            for intervention, row in zip(batch, measured.answer_probability, strict=True):
                probabilities[intervention.number] = row
    return probabilities


def neurons() -> None:
    """Compare patching every neuron at the last position with one forward pass per neuron.

    Bar: 28 x over layers 4..7.
    """
    loaded, table = random_llama()
    settings = load(Runs)
    runner = executor.Executor(loaded, None, settings.rows, settings.memory)
    values = runner.values(runner.sizes.groups(table)[0])
    slow_total = fast_total = 0.0
    for layer in range(LAYERS // 2, LAYERS):
        every = patches("neuron", layer, range(NEURONS), "last")
        few = every[:: NEURONS // 8][:8]
        slow, fast = median(
            3,
            lambda few=few: [looped(values, intervention) for intervention in few],
            lambda every=every: sweep(runner, table, every),
        )
        slow, fast = slow / len(few), fast / NEURONS
        slow_total, fast_total = slow_total + slow, fast_total + fast
        figure = f"{slow * 1e3:.0f} ms by a forward pass each, {fast * 1e3:.2f} ms swept"
        rate = _operations(layer) / fast / 1e9 / matmul_rate()
        print(
            f"neurons: layer {layer}: {figure}, {slow / fast:.0f} x; "
            f"a plain restart at this speed: {rate:.0%} of the matmul rate; "
            f"largest difference {_difference(runner, table, few):.0e}"
        )
    print(f"neurons: all four layers {slow_total / fast_total:.1f} x (bar 28)")


def _operations(layer: int) -> int:
    """Return the operations of a restart after a layer without any shortcut, for all pairs."""
    per_layer = 4 * WIDTH * WIDTH + 3 * WIDTH * NEURONS
    return 2 * PAIRS * ((LAYERS - 1 - layer) * per_layer + WIDTH * VOCABULARY)


def _difference(
    runner: executor.Executor, table: pl.DataFrame, few: Sequence[Intervention]
) -> float:
    """Return the largest difference of the answers' probabilities from forward passes."""
    values = runner.values(runner.sizes.groups(table)[0])
    probabilities, rows = sweep(runner, table, few), torch.arange(PAIRS)
    largest = 0.0
    for intervention in few:
        plain = looped(values, intervention)[rows, values.pairs.answers].numpy()
        off = np.abs(probabilities[intervention.number] - plain).max()
        largest = max(largest, float(off))
    return largest


def components() -> None:
    """Compare patching all heads and MLPs at all positions with one forward pass each. Bar: 4 x."""
    loaded, table = random_llama()
    settings, a = load(Runs), loaded.architecture
    runner = executor.Executor(loaded, None, settings.rows, settings.memory)
    values = runner.values(runner.sizes.groups(table)[0])
    every: list[Intervention] = []
    for layer in range(LAYERS):
        for position in ROLES:
            every += patches("head", layer, range(a.heads), position)
            every += patches("mlp", layer, [None], position)
    few = every[::16]
    slow, fast = median(
        3,
        lambda: [looped(values, intervention) for intervention in few],
        lambda: sweep(runner, table, every),
    )
    slow, fast = slow / len(few), fast / len(every)
    figure = f"{slow * 1e3:.0f} ms by a forward pass each, {fast * 1e3:.1f} ms restarted"
    print(f"components: {figure}, {slow / fast:.1f} x (bar 4)")


def bound() -> None:
    """Compare peak memory of sweeps over neurons with runs.memory_mib, in own processes."""
    code = """
import resource, sys
from tests.bench.patching import *
loaded, table = random_llama()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
# No bound on rows: memory alone decides.
runner = executor.Executor(loaded, None, 10**9, int(sys.argv[1]) << 20)
for layer in range(LAYERS - int(sys.argv[2]), LAYERS):
    for block in runner.plan(table, patches("neuron", layer, range(NEURONS), "last")):
        for _ in runner.run(block):
            pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    for mib in (128, 256):
        for layers in (2, 4):
            command = [sys.executable, "-c", code, str(mib), str(layers)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            more = float(done.stdout.split()[-1])
            neurons = f"{layers * NEURONS} neurons"
            print(f"bound: {neurons}, {more:.0f} MiB more than the model (bound {mib})")
