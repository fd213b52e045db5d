"""Benchmarks of interventions: heads and neurons patched on a random Llama, against one full forward pass each."""

import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import polars as pl
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from stages.lib.core import machine
from stages.lib.core.settings import load
from stages.lib.executor import executor, interventions
from stages.lib.executor import values as replacing
from stages.lib.model import architecture, checkpoint, search
from stages.lib.settings import Runs
from tests.bench.timing import median


def random_llama(
    width: int = 512, neurons: int = 1408, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[checkpoint.Checkpoint, pl.DataFrame]:
    """A random Llama of 8 layers, 8 heads and 1,100 tokens, and 50 pairs of random prompts of 5 tokens."""
    torch.manual_seed(0)
    torch.set_num_threads(machine.workers())
    config = LlamaConfig(
        vocab_size=1100,
        hidden_size=width,
        intermediate_size=neurons,
        num_hidden_layers=8,
        num_attention_heads=8,
        tie_word_embeddings=False,
    )
    model = (
        AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        .eval()
        .requires_grad_(False)
        .to(device, dtype)
    )
    random, roles = np.random.default_rng(0), {"op1": 1, "operator": 2, "op2": 3, "last": 4}
    rows = [
        {
            "pair": pair, "operator": "add", "split": "discovery", "tokens": random.integers(3, 1100, 5).tolist(),
            "answer_token": int(random.integers(3, 1100)), "positions": roles, "counterfactual_tokens": random.integers(3, 1100, 5).tolist(),
            "counterfactual_answer_token": int(random.integers(3, 1100)), "counterfactual_positions": roles,
        }
        for pair in range(50)
    ]  # fmt: skip
    return checkpoint.Checkpoint(model, search.find(model)), pl.DataFrame(rows)


def patches(
    component: str, layer: int, units: Sequence[int | None], position: str
) -> list[interventions.Intervention]:
    """One intervention per unit: its counterfactual value at one position."""
    return [
        interventions.Intervention(
            number, None, None,
            (interventions.Patch(component, layer, None if u is None else np.int32(u).tobytes(), position, None, "counterfactual"),),
        )
        for number, u in enumerate(units)
    ]  # fmt: skip


def looped(values: replacing.Values, one: interventions.Intervention) -> torch.Tensor:
    """The loop that everyone writes: one full forward pass of the batch, with a hook; probabilities (prompts, vocabulary)."""
    a, [patch] = values.architecture, one.patches
    layer = a.layers[patch.layer]
    module = layer.attention_out if patch.component == "head" else layer.mlp_out
    width = a.head_width if patch.component == "head" else 1
    units = patch.unit_numbers()
    part = (
        slice(None) if units is None else slice(int(units[0]) * width, (int(units[0]) + 1) * width)
    )
    source = (
        values.counterfactual.heads if patch.component == "head" else values.counterfactual.neurons
    )
    at = int(values.positions[patch.position][0])

    def change(x: torch.Tensor) -> torch.Tensor:
        x[:, at, part] = source[patch.layer][:, at, part]
        return x

    with torch.no_grad(), architecture.patched(module, change):
        return (
            values.checkpoint.model(input_ids=values.clean.tokens, use_cache=False)
            .logits[:, -1]
            .softmax(-1)
        )


def matmul_rate(inputs: int = 512, outputs: int = 1408, rows: int = 2000) -> float:
    """What this machine's matrix products reach, in GFLOP/s."""
    x, w = torch.randn(rows, inputs), torch.randn(inputs, outputs)
    [seconds] = median(30, lambda: x @ w)
    return 2 * rows * inputs * outputs / seconds / 1e9


def sweep(
    runner: executor.Executor, table: pl.DataFrame, wanted: list[interventions.Intervention]
) -> dict[int, np.ndarray]:
    """The answers' probabilities (prompts,) under each intervention, by its number."""
    done = [
        (batch, measured.answer_probability)
        for block in runner.plan(table, wanted)
        for batch, measured in runner.run(block)
    ]
    return {one.number: row for batch, rows in done for one, row in zip(batch, rows, strict=True)}


def neurons() -> None:
    """Exact patching of every neuron at the last position, against one full forward pass per neuron. Bar: 28 x over layers 4..7."""
    loaded, table = random_llama()
    settings, a = load(Runs), loaded.architecture
    runner = executor.Executor(loaded, None, settings.rows, settings.memory)
    values = runner.values(runner.sizes.groups(table)[0])
    rows, total = torch.arange(50), [0.0, 0.0]
    for layer in range(4, 8):
        wanted = patches("neuron", layer, range(a.neurons), "last")
        few = wanted[:: a.neurons // 8][:8]
        slow, fast = median(
            3,
            lambda few=few: [looped(values, one) for one in few],
            lambda wanted=wanted: sweep(runner, table, wanted),
        )
        slow, fast = slow / len(few), fast / a.neurons
        total = [total[0] + slow, total[1] + fast]
        found = sweep(runner, table, few)
        difference = max(
            np.abs(
                found[one.number] - looped(values, one)[rows, values.pairs.answers].numpy()
            ).max()
            for one in few
        )
        work = (
            2 * 50 * ((7 - layer) * (4 * 512 * 512 + 3 * 512 * 1408) + 512 * 1100)
        )  # of a restart that avoids nothing
        print(
            f"neurons: layer {layer}: {slow * 1e3:.0f} ms by a forward pass each, {fast * 1e3:.2f} ms swept, {slow / fast:.0f} x; "
            f"a plain restart at this speed: {work / fast / 1e9 / matmul_rate():.0%} of the matmul rate; largest difference {difference:.0e}"
        )
    print(f"neurons: all four layers {total[0] / total[1]:.1f} x (bar 28)")


def components() -> None:
    """Effects of all heads and MLPs at all positions, against one full forward pass per component and position. Bar: 4 x."""
    loaded, table = random_llama()
    settings, a = load(Runs), loaded.architecture
    runner = executor.Executor(loaded, None, settings.rows, settings.memory)
    values = runner.values(runner.sizes.groups(table)[0])
    wanted = [
        one for layer in range(8) for position in table["positions"].struct.fields
        for one in (*patches("head", layer, range(a.heads), position), *patches("mlp", layer, [None], position))
    ]  # fmt: skip
    few = wanted[::16]
    slow, fast = median(
        3, lambda: [looped(values, one) for one in few], lambda: sweep(runner, table, wanted)
    )
    slow, fast = slow / len(few), fast / len(wanted)
    print(
        f"components: {slow * 1e3:.0f} ms by a forward pass each, {fast * 1e3:.1f} ms restarted, {slow / fast:.1f} x (bar 4)"
    )


def bound() -> None:
    """Peak memory of sweeps over some and over all neurons, each in a process of its own, against runs.memory_mib."""
    code = """
import resource, sys
from tests.bench.patching import *
loaded, table = random_llama()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
runner = executor.Executor(loaded, None, 10**9, int(sys.argv[1]) << 20)  # no bound on rows: memory alone decides
for layer in range(8 - int(sys.argv[2]), 8):
    for block in runner.plan(table, patches("neuron", layer, range(1408), "last")):
        for _ in runner.run(block):
            pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    for mib in (128, 256):
        for layers in (2, 4):
            done = subprocess.run(
                [sys.executable, "-c", code, str(mib), str(layers)],
                capture_output=True,
                text=True,
                check=True,
            )
            print(
                f"bound: {layers * 1408} neurons, {float(done.stdout.split()[-1]):.0f} MiB more than the model (bound {mib})"
            )
