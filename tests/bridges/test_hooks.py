"""Names of hooks against plain transformers models: the executor patches what a hook names."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from stages.bridges.hooks import KINDS, Hook, HookError, ModelPart, from_hook, to_hook
from stages.lib.executor.executor import Executor
from stages.lib.executor.interventions import Intervention, Patch
from stages.lib.executor.pairs import by_length
from stages.lib.model import architecture, checkpoint, search
from stages.store import grid
from tests.conftest import random_model
from tests.families import close, pairs, square

SIZES = {"layers": 3, "heads": 4, "neurons": 48, "width": 32}
WRITTEN = {
    "blocks.3.mlp.hook_post[..., 17]": ModelPart("neuron", 3, 17),
    "blocks.1.attn.hook_z[:, :, 2]": ModelPart("head", 1, 2),
    "blocks.0.hook_mlp_out[..., 0]": ModelPart("coordinate", 0, 0),
    "blocks.12.hook_mlp_out": ModelPart("mlp", 12),
    "blocks.1.hook_attn_out": ModelPart("attention", 1),
    "blocks.2.hook_resid_pre": ModelPart("residual", 2),
    "blocks.2.hook_resid_post": ModelPart("residual_after", 2),
}
# hook -> the module of a plain model whose input or output TransformerLens's HookPoint sees
MODULES = {
    "llama": {
        "mlp.hook_post": ("model.layers.{}.mlp.down_proj", "input"),
        "attn.hook_z": ("model.layers.{}.self_attn.o_proj", "input"),
        "hook_mlp_out": ("model.layers.{}.mlp", "output"),
        "hook_resid_pre": ("model.layers.{}", "input"),
        "hook_resid_post": ("model.layers.{}", "output"),
    },
    "gptj": {
        "mlp.hook_post": ("transformer.h.{}.mlp.fc_out", "input"),
        "attn.hook_z": ("transformer.h.{}.attn.out_proj", "input"),
        "hook_resid_pre": ("transformer.h.{}", "input"),
        "hook_resid_post": ("transformer.h.{}", "output"),
    },
}
PATCHED = [
    ("llama", "neuron", 2),
    ("llama", "head", 3),
    ("llama", "mlp", None),
    ("llama", "coordinate", 5),
    ("llama", "residual", None),
    ("gptj", "neuron", 2),
    ("gptj", "head", 3),
    ("gptj", "residual", None),
]


def loaded_model(kind: str) -> checkpoint.Checkpoint:
    model = random_model(kind)
    return checkpoint.Checkpoint(model, search.find(model))


@contextmanager
def at_hook(
    loaded: checkpoint.Checkpoint,
    kind: str,
    hook: Hook,
    look: Callable[[torch.Tensor], object],
) -> Iterator[None]:
    """Within the context, call `look` with the part of a plain model that a hook stands for."""
    _, layer, name = hook.name.split(".", 2)
    path, side = MODULES[kind][name]
    module = loaded.model.get_submodule(path.format(layer))

    def change(output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        if name == "attn.hook_z":
            tensor = tensor.view(*tensor.shape[:2], loaded.architecture.heads, -1)
        look(tensor[hook.part])

    if side == "input":
        with architecture.patched(module, change):
            yield
    else:
        with architecture.rewritten(module, change):
            yield


def test_texts_and_locations_map_both_ways():
    assert {location.component for location in WRITTEN.values()} == {*KINDS}
    for text, location in WRITTEN.items():
        hook = to_hook(*location)
        assert str(hook) == text
        assert from_hook(text) == from_hook(hook) == location


def test_a_hook_may_take_all_units_and_write_its_index_otherwise():
    assert to_hook("head", 1) == ("blocks.1.attn.hook_z", (...,))
    assert from_hook("blocks.1.attn.hook_z") == ModelPart("head", 1)
    assert from_hook("blocks.1.attn.hook_z[:, :, 2, :]") == ModelPart("head", 1, 2)
    assert from_hook("blocks.3.mlp.hook_post[:,:,17]") == ModelPart("neuron", 3, 17)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: to_hook("neurone", 1), "unknown component 'neurone'; components: neuron, head"),
        (lambda: to_hook("head", -1), "layer of head is -1; allowed: whole numbers, 0 or more"),
        (lambda: to_hook("head", 3, 0, SIZES), "layer of head is 3; allowed: .*, 0 to 2"),
        (lambda: to_hook("head", 1, 4, SIZES), "unit of head is 4; allowed: .*, 0 to 3"),
        (lambda: to_hook("neuron", 1, 48, SIZES), "unit of neuron is 48; .*, 0 to 47"),
        (lambda: to_hook("neuron", 1, True), "unit of neuron is True"),
        (lambda: to_hook("mlp", 1, 2), "mlp has no units, got unit 2; leave out the unit"),
        (lambda: from_hook("blocks.1.attn.hook_z[:, :, 9]", SIZES), "is 9; .*, 0 to 3"),
        (lambda: from_hook("blocks.1.attn.hook_z[..., 2]"), "does not index one head; write it as"),
        (lambda: from_hook("blocks.1.attn.hook_q"), "hook 'attn.hook_q' .* known hooks: mlp.hook"),
        (lambda: from_hook("blocks.1.hook_resid_pre[..., 2]"), "residual has no units"),
        (lambda: from_hook("blocks.1.mlp.hook_post[2]"), "does not index one neuron"),
        (lambda: from_hook("ln_final.hook_scale"), "is not a hook of a layer; write it as"),
    ],
)
def test_errors_name_the_value_and_what_is_allowed(wrong: Callable, message: str):
    with pytest.raises(HookError, match=message):
        wrong()


@pytest.mark.parametrize(("kind", "component", "unit"), PATCHED)
def test_the_executor_patches_what_the_hook_names(kind: str, component: str, unit: int | None):
    loaded, layer = loaded_model(kind), 1
    units = None if unit is None else np.array([unit], np.int32).tobytes()
    intervention = Intervention(
        0, None, None, (Patch(component, layer, units, "last", None, "zero"),)
    )
    executor = Executor(loaded, None, 10**9, 1 << 30)
    [batch] = by_length(pairs(), 10)
    values = executor.fresh(batch)
    patched = executor.logits(values, intervention)
    tokens = values.clean.tokens
    with torch.no_grad():
        usual = loaded.model(input_ids=tokens).logits[:, -1]
        with at_hook(loaded, kind, to_hook(component, layer, unit), lambda x: x[:, -1].zero_()):
            expected = loaded.model(input_ids=tokens).logits[:, -1]
    assert (usual - expected).abs().max() > 0.01
    close(patched.numpy(), expected.numpy(), component)


@pytest.mark.parametrize("kind", MODULES)
def test_the_stored_activation_is_the_value_at_the_hook(kind: str):
    loaded, tokens = loaded_model(kind), square()
    a = loaded.architecture
    stored = {layer: np.zeros((a.neurons, 4, 4), np.float32) for layer in range(len(a.layers))}
    means, answers = grid.Means.zeros(loaded, 5), np.full((4, 4), 7)
    list(grid.run(loaded, tokens, answers, 2, stored, means, sharing=grid.Sharing.NONE))
    for layer, neuron in ((0, 0), (2, 17)):
        values: list[torch.Tensor] = []
        hook = to_hook("neuron", layer, neuron)
        with torch.no_grad(), at_hook(loaded, kind, hook, values.append):
            loaded.model(input_ids=torch.from_numpy(tokens.reshape(16, 5)))
        assert values[0].shape == (16, 5)
        close(stored[layer][neuron].ravel(), values[0][:, -1].numpy(), str(hook))


@pytest.mark.parametrize("kind", MODULES)
def test_the_residual_stream_after_a_layer_is_that_before_the_next(kind: str):
    loaded = loaded_model(kind)
    levels: dict[int, torch.Tensor] = {}
    seen: list[torch.Tensor] = []
    with (
        torch.no_grad(),
        architecture.watched_streams(loaded.architecture, levels.__setitem__),
        at_hook(loaded, kind, to_hook("residual", 1), seen.append),
        at_hook(loaded, kind, to_hook("residual_after", 1), seen.append),
    ):
        loaded.model(input_ids=torch.from_numpy(square()[0]))
    assert seen[0].equal(levels[1])
    assert seen[1].equal(levels[2])
