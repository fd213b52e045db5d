"""A model whose layers lie on several devices: every kind of patch gives the bytes of one device, and no tensor is on a wrong one."""

import numpy as np
import pytest
import torch

from stages.lib.executor import canary, executor, interventions
from stages.lib.model import checkpoint, search, value_logits
from stages.store import grid
from tests.conftest import random_model
from tests.lib.devices import Devices, ElsewhereError, place, put, spread
from tests.lib.test_executor import ROLES, intervention_table, measured, pair_table, random_means, subject

SPLITS = [[0, 1, 1], [1, 1, 0]]  # the device of each layer, as far as there are layers


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


def on_devices(kind: str, layers: list[int]) -> checkpoint.Checkpoint:
    model = random_model(kind)
    spread(model, places(model, layers))
    return checkpoint.Checkpoint(model, search.find(model))


def patches() -> list[list[dict]]:
    """Of every component, at a role and everywhere, alone and together; those of many single units are carried out in one go."""
    made: list[list[dict]] = []
    for layer in (0, 1):
        for component, units in (("mlp", None), ("head", [1]), ("neuron", [3, 5]), ("coordinate", [2]), ("residual", None)):
            for position, replacement in (("op2", "counterfactual"), ("last", "zero"), ("all", "zero"), ("op1", "mean")):
                if component != "coordinate" or replacement != "mean":
                    made.append([{"component": component, "layer": layer, "units": units, "position": position, "key_position": None,
                                  "replacement": replacement}])  # fmt: skip
        made += [
            [{"component": component, "layer": layer, "units": [unit], "position": "last", "key_position": None,
              "replacement": "counterfactual"}] for component in ("neuron", "coordinate", "head") for unit in range(2)
        ]  # fmt: skip
        made.append([{"component": "edge", "layer": layer, "units": [0], "position": "last", "key_position": "op1", "replacement": "zero"}])
    return [*made, made[0] + made[-1], made[2] + made[-4], []]


@pytest.mark.parametrize("layers", SPLITS)
def test_every_patch_gives_the_bytes_of_one_device(kind: str, layers: list[int]):
    table = pair_table(3, [(5, 5)] * 3)
    alone = subject(kind)
    means = random_means(alone, 5)
    with Devices():
        apart = on_devices(kind, layers)
        found = []
        for loaded in (alone, apart):
            several = patches()
            rows = interventions.read(intervention_table(several, [None] * len(several)), loaded.architecture, ROLES)
            runner = executor.Executor(loaded, means, 200, 1 << 30)
            canary.check(runner, runner.plan(table, rows))
            found.append((measured(runner, table, rows), runner.additive, runner.attends, [e is not None for e in runner.entrances]))
    assert found[0][1:] == found[1][1:]  # no shortcut is lost
    assert found[0][0].keys() == found[1][0].keys()
    assert all(np.array_equal(numbers, found[1][0][key]) for key, numbers in found[0][0].items())


@pytest.mark.parametrize("layers", SPLITS)
def test_what_is_dumped_is_the_same(kind: str, layers: list[int]):
    tokens = np.random.default_rng(0).integers(3, 130, (4, 6, 5))
    tokens[:, :, :3] = tokens[:, :1, :3]
    alone = subject(kind)
    with Devices():
        dumped = []
        for loaded in (alone, on_devices(kind, layers)):
            a = loaded.architecture
            into = {layer: np.empty((a.neurons, 4, 6), np.float16) for layer in range(len(a.layers))}
            means = grid.Means.zeros(loaded, 5)
            said = list(grid.run(loaded, tokens, np.full((4, 6), 7), 2, into, means))
            logits = list(value_logits.value_logits(loaded, [5, 6, 7]))
            dumped.append([*into.values(), means.neurons, means.heads, means.residual, *logits, *(s.max_logit for s in said)])
    assert all(np.array_equal(one, other) for one, other in zip(*dumped, strict=True))


def test_the_simulated_devices_refuse_what_real_ones_do():
    with Devices():
        here, there, home = put(torch.ones(3), 0), put(torch.ones(3), 1), torch.ones(3)
        for wrong in (
            lambda: here + there, lambda: torch.cat([here, home]), lambda: here[put(torch.tensor([0]), 1)], here.numpy,
            lambda: here.__setitem__(torch.tensor([0]), there[:1]),
        ):  # fmt: skip
            with pytest.raises(ElsewhereError):
                wrong()
        assert place(here + 1) == place(here * torch.tensor(2.0)) == place(here[torch.tensor([0])]) == place(here[None].T) == 0
        assert place(there.to(here.device)) == place(torch.zeros(2, device=here.device)) == place(here.new_zeros(2)) == 0
        assert here.device == torch.device("cuda", 0)
        assert place(here.cpu()) is None
