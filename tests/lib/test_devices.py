"""A model whose layers lie on several devices: every kind of patch gives the bytes of one device, and no tensor is on a wrong one."""

from pathlib import Path

import numpy as np
import pytest
import torch

from stages.circuit import discriminant, streams
from stages.lib import ask
from stages.lib.executor import canary, executor, interventions, pairs
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
    intervention_table,
    measured,
    pair_table,
    random_means,
    subject,
)

SPLITS = [[0, 1, 1], [1, 1, 0]]  # the device of each layer, as far as there are layers
EITHER = [(kind, SPLITS[number % 2]) for number, kind in enumerate(CONFIGS)]


def places(model: torch.nn.Module, layers: list[int]) -> dict[str, int]:
    """Where each part of a model is: layers as said, embeddings with the first, final norm and unembedding with the last, or, where
    embeddings are unembeddings, with them."""
    names = {id(module): name for name, module in model.named_modules()}
    found = search.find(model)
    where = {names[id(layer.block)]: layers[number] for number, layer in enumerate(found.layers)}
    first, last = layers[0], layers[len(found.layers) - 1]
    inside = [*where, names[id(found.final_norm)], names[id(found.unembedding)]]
    end = first if found.unembedding.weight is model.get_input_embeddings().weight else last
    where |= {names[id(found.final_norm)]: end, names[id(found.unembedding)]: end}
    for name, module in model.named_modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if own and not any(name == other or name.startswith(other + ".") for other in inside):
            where[name] = first
    return where


def on_devices(
    kind: str, layers: list[int], dtype: torch.dtype = torch.float32
) -> checkpoint.Checkpoint:
    model = random_model(kind).to(dtype)
    spread(model, places(model, layers))
    return checkpoint.Checkpoint(model, search.find(model))


def patches() -> list[list[dict]]:
    """Of every component, at a role and everywhere, alone and together; those of many single units are carried out in one go."""
    made: list[list[dict]] = []
    for layer in (0, 1):
        for component, units in (
            ("mlp", None),
            ("head", [1]),
            ("neuron", [3, 5]),
            ("coordinate", [2]),
            ("residual", None),
        ):
            for position, replacement in (
                ("op2", "counterfactual"),
                ("last", "zero"),
                ("all", "zero"),
                ("op1", "mean"),
            ):
                if component != "coordinate" or replacement != "mean":
                    made.append([{"component": component, "layer": layer, "units": units, "position": position, "key_position": None,
                                  "replacement": replacement}])  # fmt: skip
        made += [
            [{"component": component, "layer": layer, "units": [unit], "position": "last", "key_position": None,
              "replacement": "counterfactual"}] for component in ("neuron", "coordinate", "head") for unit in range(2)
        ]  # fmt: skip
        made.append(
            [
                {
                    "component": "edge",
                    "layer": layer,
                    "units": [0],
                    "position": "last",
                    "key_position": "op1",
                    "replacement": "zero",
                }
            ]
        )
    return [*made, made[0] + made[-1], made[2] + made[-4], []]


@pytest.mark.parametrize(("kind", "layers"), EITHER)
def test_every_patch_gives_the_bytes_of_one_device(kind: str, layers: list[int]):
    table = pair_table(3, [(5, 5)] * 3)
    alone = subject(kind)
    means = random_means(alone, 5)
    with Devices():
        apart = on_devices(kind, layers)
        found = []
        for loaded in (alone, apart):
            several = patches()
            rows = interventions.read(
                intervention_table(several, [None] * len(several)), loaded.architecture, ROLES
            )
            runner = executor.Executor(loaded, means, 200, 1 << 30)
            canary.check(runner, runner.plan(table, rows))
            found.append(
                (
                    measured(runner, table, rows),
                    runner.additive,
                    runner.attends,
                    [e is not None for e in runner.entrances],
                )
            )
    assert found[0][1:] == found[1][1:]  # no shortcut is lost
    assert found[0][0].keys() == found[1][0].keys()
    assert all(np.array_equal(numbers, found[1][0][key]) for key, numbers in found[0][0].items())


@pytest.mark.parametrize(("kind", "layers"), EITHER)
def test_what_is_dumped_is_the_same(kind: str, layers: list[int]):
    tokens = np.random.default_rng(0).integers(3, 130, (4, 6, 5))
    tokens[:, :, :3] = tokens[:, :1, :3]
    alone = subject(kind)
    with Devices():
        dumped = []
        for loaded in (alone, on_devices(kind, layers)):
            a = loaded.architecture
            into = {
                layer: np.empty((a.neurons, 4, 6), np.float16) for layer in range(len(a.layers))
            }
            means = grid.Means.zeros(loaded, 5)
            said = list(grid.run(loaded, tokens, np.full((4, 6), 7), 2, into, means))
            logits = list(value_logits.value_logits(loaded, [5, 6, 7]))
            dumped.append(
                [
                    *into.values(),
                    means.neurons,
                    means.heads,
                    means.residual,
                    *logits,
                    *(s.max_logit for s in said),
                ]
            )
    assert all(np.array_equal(one, other) for one, other in zip(*dumped, strict=True))


@pytest.mark.parametrize(
    "family", ["llama, tied, biases", "falcon, ALiBi", "opt", "gemma2", "mixtral"]
)
def test_any_family_is_checked_and_patched_alike_where_accelerate_puts_it(family: str):
    """What is put in the place of its parts, what it does behind its unembedding, and every check when a model is loaded."""
    name, more = families.VARIANTS.get(family, (family, {}))
    one, other = (families.random_model(name, **more) for _ in range(2))
    bare, outline = (
        checkpoint.bare(other.config, "float32"),
        checkpoint.outline_of(other.config, "float32").architecture,
    )
    where = on_gpus(
        bare, {type(layer.block).__name__ for layer in outline.layers}, [nbytes(bare)] * 2, 2
    )
    assert where
    assert set(where.values()) == {0, 1}
    for model in (one, other):
        model.set_experts_implementation("eager")  # the usual one is CUDA's own
    with Devices():
        spread(other, where)
        found = []
        for loaded in (checkpoint.prepared(one), checkpoint.prepared(other)):
            several = patches()[:20:3]
            rows = interventions.read(
                intervention_table(several, [None] * len(several)), loaded.architecture, ROLES
            )
            runner = executor.Executor(loaded, random_means(loaded, 5), 200, 1 << 30)
            table = pair_table(3, [(5, 5)] * 3)
            canary.check(runner, runner.plan(table, rows))
            wide = canary._only_rounding(
                runner, runner.fresh(runner.sizes.groups(table)[0]), rows[0]
            )
            found.append((checkpoint.canary(loaded), wide, measured(runner, table, rows)))
    assert found[0][:2] == found[1][:2]
    assert all(np.array_equal(numbers, found[1][2][key]) for key, numbers in found[0][2].items())


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("llama", torch.float32), ("gptj", torch.float32), ("llama", torch.bfloat16)],
)
def test_what_is_asked_read_and_estimated_is_the_same(
    kind: str, dtype: torch.dtype, tmp_path: Path
):
    """Answers to prompts of several lengths, streams, neurons, attention, probes and attributions: what other stages do with a model."""
    random = np.random.default_rng(1)
    tokens, labels = random.integers(3, 130, (6, 5)), random.integers(0, 2, 6)
    asked = ask.EncodedPrompts([row[: 3 + i % 3].tolist() for i, row in enumerate(tokens)], np.array([7, -1, 9, 7, 8, 8]))
    [group] = pairs.by_length(pair_table(3, [(5, 5)] * 3), 9)
    alone = subject(kind, dtype)
    with Devices():
        found = []
        for loaded in (alone, on_devices(kind, SPLITS[0], dtype)):
            layers = range(len(loaded.architecture.layers))
            positions = np.tile([1, 4], (6, 1))
            with residuals.read(loaded, tokens.tolist(), positions, 4, tmp_path, "") as stored:
                residual = [
                    stored.at(level, at) for level in range(len(layers) + 1) for at in (0, 1)
                ]
            said = vars(ask.ask(loaded, asked, 4, desc=""))
            sites = [(layer, role) for layer in layers for role in ("op1", "last")]
            slopes = gradients.attributions(Values(loaded, group, None), sites)
            device = loaded.model.device
            accuracy = discriminant.probe(residual[2], [labels], 2, 0.1, device)
            found.append([
                *said.values(), *residual, *(streams.neurons(loaded, tokens, layer, 4) for layer in layers),
                *streams.attention(loaded, tokens, 4), *(slopes[site].float().cpu().numpy() for site in sites), np.array(accuracy),
            ])  # fmt: skip
    assert all(
        np.array_equal(one, other, equal_nan=True) for one, other in zip(*found, strict=True)
    )


def test_a_copy_from_a_gpu_is_whole_once_it_was_waited_for():
    random = np.random.default_rng(0)
    blocks = [
        random.standard_normal((3, 4 - number % 2)).astype(np.float32) for number in range(20)
    ]
    kept, added = [np.full_like(block, 7) for block in blocks], np.ones((3, 3), np.float32)
    with Devices():
        under_way = staging.Staging()
        for block, target in zip(blocks, kept, strict=True):
            under_way.put(torch.from_numpy(target), put(torch.from_numpy(block), 0))
            under_way.put(torch.from_numpy(added), put(torch.from_numpy(block[:, :3]), 1), add=True)
        assert not np.array_equal(kept[-1], blocks[-1])
        under_way.finish()
    assert all(np.array_equal(one, other) for one, other in zip(kept, blocks, strict=True))
    expected = np.ones((3, 3), np.float32)
    for block in blocks:
        expected += block[:, :3]
    assert np.array_equal(added, expected)


def test_the_simulated_devices_refuse_what_real_ones_do():
    with Devices():
        here, there, home = put(torch.ones(3), 0), put(torch.ones(3), 1), torch.ones(3)
        for wrong in (
            lambda: here + there, lambda: torch.cat([here, home]), lambda: here[put(torch.tensor([0]), 1)], here.numpy,
            lambda: here.__setitem__(torch.tensor([0]), there[:1]), lambda: np.asarray(here),
        ):  # fmt: skip
            with pytest.raises(ElsewhereError):
                wrong()
        assert (
            place(here + 1)
            == place(here * torch.tensor(2.0))
            == place(here[torch.tensor([0])])
            == place(here[None].T)
            == 0
        )
        assert (
            place(there.to(here.device))
            == place(torch.zeros(2, device=here.device))
            == place(here.new_zeros(2))
            == 0
        )
        assert here.device == torch.device("cuda", 0)
        assert place(here.cpu()) is None
