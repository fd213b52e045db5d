"""Check models whose layers are on several devices: results have the bytes of one device."""

from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stages.circuit import discriminant, recording
from stages.lib import ask
from stages.lib.executor import executor, interventions, pairs, parity_check
from stages.lib.executor.values import Values
from stages.lib.model import checkpoint, residuals, search, staging, value_logits
from stages.lib.model.spread import nbytes, on_gpus
from stages.neurons import gradients
from stages.store import grid
from tests import families
from tests.conftest import CONFIGS, random_model
from tests.lib.devices import Devices, ElsewhereError, place, put, spread
from tests.lib.test_executor import (
    ROLES,
    Results,
    intervention_table,
    measured,
    pair_table,
    patch_row,
    random_means,
    subject,
)

SPLITS = [[0, 1, 1], [1, 1, 0]]  # the device of each layer, as far as there are layers
EITHER = list(zip(CONFIGS, SPLITS * len(CONFIGS), strict=False))


def places(model: torch.nn.Module, layers: list[int]) -> dict[str, int]:
    """Return the device of each part of a model; layers: the device of each layer.

    Embeddings are with the first layer. Final norm and unembedding are with the last, or with the
    embeddings if these are also the unembedding.
    """
    names = {id(module): name for name, module in model.named_modules()}
    parts = search.find(model)
    devices: dict[str, int] = {}
    for layer, device in zip(parts.layers, layers, strict=False):
        devices[names[id(layer.block)]] = device
    first, last = layers[0], layers[len(parts.layers) - 1]
    tied = parts.unembedding.weight is model.get_input_embeddings().weight
    for part in (parts.final_norm, parts.unembedding):
        devices[names[id(part)]] = first if tied else last
    named = tuple(devices)
    for name, module in model.named_modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if own and not any(f"{name}.".startswith(f"{other}.") for other in named):
            devices[name] = first
    return devices


def on_devices(
    kind: str, layers: list[int], dtype: torch.dtype = torch.float32
) -> checkpoint.Checkpoint:
    model = random_model(kind).to(dtype)
    spread(model, places(model, layers))
    return checkpoint.Checkpoint(model, search.find(model))


def patches() -> list[list[dict]]:
    """Return patches of every component, at a role and everywhere, alone and together.

    Patches of single units run as a sweep.
    """
    components = {"mlp": None, "head": [1], "neuron": [3, 5], "coordinate": [2], "residual": None}
    sites = {"op2": "counterfactual", "last": "zero", "all": "zero", "op1": "mean"}
    made: list[list[dict]] = []
    for layer in (0, 1):
        for (component, units), (position, replacement) in product(
            components.items(), sites.items()
        ):
            if (component, replacement) != ("coordinate", "mean"):
                made.append([patch_row(component, layer, units, position, replacement)])
        for component, unit in product(("neuron", "coordinate", "head"), range(2)):
            made.append([patch_row(component, layer, [unit], "last", "counterfactual")])
        made.append([patch_row("edge", layer, [0], "last", "zero", "op1")])
    return [*made, made[0] + made[-1], made[2] + made[-4], []]


def swept(
    loaded: checkpoint.Checkpoint, several: list[list[dict]]
) -> tuple[executor.Executor, list[interventions.Intervention], Results]:
    """Run interventions after a parity check; return the executor, the interventions, measures."""
    table = pair_table(3, [(5, 5)] * 3)
    rows = interventions.read(intervention_table(several), loaded.architecture, ROLES)
    runner = executor.Executor(loaded, random_means(loaded, 5), 200, 1 << 30)
    parity_check.check(runner, runner.plan(table, rows))
    return runner, rows, measured(runner, table, rows)


def assert_same(arrays: Iterable[np.ndarray], others: Iterable[np.ndarray]) -> None:
    """Assert that both have the same arrays, bit for bit, and at least one."""
    pairs = list(zip(arrays, others, strict=True))
    assert pairs
    for array, other in pairs:
        np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize(("kind", "layers"), EITHER)
def test_every_patch_gives_the_bytes_of_one_device(kind: str, layers: list[int]):
    with Devices():
        alone, _, expected = swept(subject(kind), patches())
        apart, _, results = swept(on_devices(kind, layers), patches())
    assert apart.shortcuts.additive == alone.shortcuts.additive  # no shortcut is lost
    assert apart.shortcuts.attends == alone.shortcuts.attends
    assert list(map(bool, apart.entrances)) == list(map(bool, alone.entrances))
    assert results.keys() == expected.keys()
    assert_same(results.values(), expected.values())


@pytest.mark.parametrize(("kind", "layers"), EITHER)
def test_the_store_is_the_same(kind: str, layers: list[int]):
    tokens = np.random.default_rng(0).integers(3, 130, (4, 6, 5))
    tokens[:, :, :3] = tokens[:, :1, :3]

    def dumped(loaded: checkpoint.Checkpoint) -> list[np.ndarray]:
        a = loaded.architecture
        blocks = {n: np.empty((a.neurons, 4, 6), np.float16) for n in range(len(a.layers))}
        means = grid.Means.zeros(loaded, 5)
        parts = list(grid.run(loaded, tokens, np.full((4, 6), 7), 2, blocks, means))
        arrays = [*blocks.values(), means.neurons, means.heads, means.residual]
        arrays += value_logits.value_logits(loaded, [5, 6, 7])
        return arrays + [part.max_logit for part in parts]

    with Devices():
        assert_same(dumped(on_devices(kind, layers)), dumped(subject(kind)))


@pytest.mark.parametrize(
    "family", ["llama, tied, biases", "falcon, ALiBi", "opt", "gemma2", "mixtral"]
)
def test_any_family_gives_the_same_where_accelerate_puts_it(family: str):
    """Compared are the checks when a model is loaded, patches, and logits after the unembedding."""
    name, more = families.VARIANTS.get(family, (family, {}))
    alone, apart = families.random_model(name, **more), families.random_model(name, **more)
    bare = checkpoint.bare(apart.config, "float32")
    outline = checkpoint.outline_of(apart.config, "float32").architecture
    blocks = {type(layer.block).__name__ for layer in outline.layers}
    devices = on_gpus(bare, blocks, [nbytes(bare)] * 2, 2)
    assert devices
    assert set(devices.values()) == {0, 1}
    for model in (alone, apart):
        model.set_experts_implementation("eager")  # the usual implementation is CUDA's own

    def checked(model: Any) -> tuple[str, bool, Results]:
        loaded = checkpoint.prepared(model)
        runner, rows, results = swept(loaded, patches()[:20:3])
        group = runner.sizes.groups(pair_table(3, [(5, 5)] * 3))[0]
        wide = parity_check._only_rounding(runner, runner.fresh(group), rows[0])
        return checkpoint.parity_digest(loaded), wide, results

    with Devices():
        spread(apart, devices)
        *facts, expected = checked(alone)
        *other_facts, results = checked(apart)
    assert other_facts == facts
    assert results.keys() == expected.keys()
    assert_same(results.values(), expected.values())


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("llama", torch.float32), ("gptj", torch.float32), ("llama", torch.bfloat16)],
)
def test_other_uses_of_a_model_give_the_same(kind: str, dtype: torch.dtype, tmp_path: Path):
    """Predictions, residual streams, neurons, attention, probes and attributions are compared."""
    random = np.random.default_rng(1)
    tokens, labels = random.integers(3, 130, (6, 5)), random.integers(0, 2, 6)
    prompts = [row[: 3 + number % 3].tolist() for number, row in enumerate(tokens)]
    encoded = ask.EncodedPrompts(prompts, np.array([7, -1, 9, 7, 8, 8]))
    positions = np.tile([1, 4], (6, 1))
    [group] = pairs.by_length(pair_table(3, [(5, 5)] * 3), 9)

    def computed(loaded: checkpoint.Checkpoint) -> list[np.ndarray]:
        layers = range(len(loaded.architecture.layers))
        arrays = list(vars(ask.ask(loaded, encoded, 4, desc="")).values())
        with residuals.read(loaded, tokens.tolist(), positions, 4, tmp_path, "") as stored:
            levels = product(range(len(layers) + 1), (0, 1))
            residual = [stored.at(level, at) for level, at in levels]
        arrays += residual
        arrays += [recording.neurons(loaded, tokens, layer, 4) for layer in layers]
        arrays += recording.attention(loaded, tokens, 4)
        sites = list(product(layers, ("op1", "last")))
        slopes = gradients.attributions(Values(loaded, group, None), sites)
        arrays += [slope.float().cpu().numpy() for slope in slopes.values()]
        device = loaded.model.device
        return [*arrays, np.array(discriminant.probe(residual[2], [labels], 2, 0.1, device))]

    with Devices():
        assert_same(computed(on_devices(kind, SPLITS[0], dtype)), computed(subject(kind, dtype)))


def test_a_copy_from_a_gpu_is_whole_after_it_was_waited_for():
    random = np.random.default_rng(0)
    shapes = [(3, 4 - number % 2) for number in range(20)]
    blocks = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    copies = [np.full_like(block, 7) for block in blocks]
    added, expected = np.ones((3, 3), np.float32), np.ones((3, 3), np.float32)
    with Devices():
        under_way = staging.Staging()
        for block, target in zip(blocks, copies, strict=True):
            narrow = torch.from_numpy(block[:, :3])
            under_way.put(torch.from_numpy(target), put(torch.from_numpy(block), 0))
            under_way.put(torch.from_numpy(added), put(narrow, 1), add=True)
            expected += block[:, :3]
        under_way.finish()
    assert_same(copies, blocks)
    np.testing.assert_array_equal(added, expected)


def index(number: int) -> torch.Tensor:
    return torch.tensor([number])


REFUSED: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]] = {
    "a sum of two devices": lambda first, second, _: first + second,
    "a device and the CPU": lambda first, _, cpu: torch.cat([first, cpu]),
    "an index of another device": lambda first, *_: first[put(index(0), 1)],
    "numpy": lambda first, *_: first.numpy(),
    "an array": lambda first, *_: np.asarray(first),
    "an assignment": lambda first, second, _: first.__setitem__(index(0), second[:1]),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_the_simulated_devices_refuse_what_real_devices_refuse(wrong: str):
    with Devices():
        first, second = put(torch.ones(3), 0), put(torch.ones(3), 1)
        with pytest.raises(ElsewhereError):
            REFUSED[wrong](first, second, torch.ones(3))


def test_results_are_on_the_device_of_their_operands():
    with Devices():
        first, second = put(torch.ones(3), 0), put(torch.ones(3), 1)
        results = [first + 1, first * torch.tensor(2.0), first[index(0)], first[None].T]
        results += [second.to(first.device), torch.zeros(2, device=first.device)]
        results.append(first.new_zeros(2))
        assert {*map(place, results)} == {0}
        assert first.device == torch.device("cuda", 0)
        assert place(first.cpu()) is None
