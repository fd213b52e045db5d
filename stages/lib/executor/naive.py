"""Run one intervention the plain way: whole prompts through the whole model, values set by hooks.

It is slow and simple. Tests compare the executor with it, and so does every run on a few of its
interventions before it starts.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack

import torch

from stages.lib.executor.clean import masked
from stages.lib.executor.interventions import ALL, EARLIER, Intervention, Patch
from stages.lib.executor.values import KINDS, Values
from stages.lib.model.architecture import patched, rewritten


@torch.no_grad()
def logits(values: Values, intervention: Intervention) -> torch.Tensor:
    """Return logits at the last position (prompts, vocabulary) under one intervention."""
    values.prepare(intervention.patches)
    hooks = [_hook(values, patch) for patch in intervention.patches]  # before any of them applies
    with ExitStack() as context:
        for hook in hooks:
            context.enter_context(hook)
        tokens = values.clean.tokens
        out = values.checkpoint.model(input_ids=tokens, use_cache=False, logits_to_keep=1)
        return out.logits[:, -1]


def _hook(values: Values, patch: Patch) -> AbstractContextManager:
    """Return a context in which a patch applies."""
    layer = values.architecture.layers[patch.layer]
    if patch.component == "edge":
        return masked(layer.block, _cut(values, patch))
    new = values.replacement(patch)

    def replace(x: torch.Tensor) -> torch.Tensor:
        return _replaced(values, x, patch, new)

    kind = KINDS[patch.component]
    if kind == "outputs":
        return rewritten(layer.mlp_out, replace)
    readers = {"neurons": layer.mlp_out, "heads": layer.attention_out, "residual": layer.block}
    return patched(readers[kind], replace)


def _replaced(values: Values, x: torch.Tensor, patch: Patch, new: torch.Tensor) -> torch.Tensor:
    """Return x (prompts, positions, features) with the patched positions and units overwritten."""
    x = x.clone()
    width = values.architecture.head_width if patch.component == "head" else 1
    features = torch.arange(x.shape[-1]).view(-1, width)[list(_units(patch, x.shape[-1] // width))]
    features = features.flatten().to(x.device)
    for prompt in range(len(x)):
        value = new[prompt].reshape(-1, x.shape[-1]).to(x.device)  # (positions or 1, features)
        positions: Iterable[int] = range(x.shape[1])
        if patch.position != ALL:
            positions = [int(values.positions[patch.position][prompt])]
        for row, position in enumerate(positions):
            x[prompt, position, features] = value[row, features]
    return x


def _cut(values: Values, edge: Patch) -> torch.Tensor:
    """Return a mask that forbids attention along one edge: (prompts, heads, queries, keys)."""
    prompts, length = values.clean.tokens.shape
    heads = values.architecture.heads
    mask = torch.zeros(prompts, heads, length, length, dtype=values.checkpoint.model.dtype)
    lowest = torch.finfo(mask.dtype).min
    for prompt in range(prompts):
        query = int(values.positions[edge.position][prompt])
        keys: Iterable[int] = range(query)
        if edge.key_position != EARLIER:
            keys = [int(values.positions[str(edge.key_position)][prompt])]
        for head in _units(edge, heads):
            for key in keys:
                mask[prompt, head, query, key] = lowest
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    return mask.masked_fill(later, lowest).to(values.clean.tokens.device)


def _units(patch: Patch, count: int) -> Iterable[int]:
    """Return the units of a patch, which may be all of `count`."""
    units = patch.unit_numbers()
    return range(count) if units is None else units
