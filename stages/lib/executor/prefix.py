"""Attention of one new position per copy to a prefix that all copies of a prompt share, without copying the prefix."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from stages.lib.executor.clean import Resumed, clean_run, record_calls
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.row_attention import exchanged

NAME = "shared-prefix"


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
) -> torch.Tensor:
    """Softmax attention over a shared prefix and the position itself.

    query (rows, heads, 1, head width) and key, value (rows, key heads, 1, head width) of rows = copies x prompts; keys,
    values (prompts, key heads, prefix, head width). Returns (rows, 1, heads, head width).
    """
    (rows, heads, _, width), (prompts, groups, _, _) = query.shape, keys.shape
    copies, shared = rows // prompts, heads // groups
    q = query.view(copies, prompts, groups, shared, width)
    together = q.permute(1, 2, 0, 3, 4).reshape(
        prompts, groups, copies * shared, width
    )  # one product per prompt and key head
    past = keys @ together.transpose(
        -1, -2
    )  # (prompts, key heads, prefix, copies x shared): a softmax along it is vectorised
    own = (
        (q * key.view(copies, prompts, groups, 1, width))
        .sum(-1)
        .permute(1, 2, 0, 3)
        .reshape(prompts, groups, 1, -1)
    )
    scores = torch.cat([past, own], 2) * scaling
    weights = torch.softmax(scores, 2, dtype=torch.promote_types(scores.dtype, torch.float32)).to(
        query.dtype
    )
    from_past = weights[:, :, :-1].transpose(-1, -2) @ values
    out = from_past.view(prompts, groups, copies, shared, width).permute(2, 0, 1, 3, 4).contiguous()
    out.addcmul_(
        weights[:, :, -1].view(prompts, groups, copies, shared).permute(2, 0, 1, 3)[..., None],
        value.view(copies, prompts, groups, 1, width),
    )
    return out.view(rows, 1, heads, width)


@contextmanager
def attending(
    model: PreTrainedModel, keys: list[torch.Tensor], values: list[torch.Tensor]
) -> Iterator[None]:
    """Within the context, attention sees this prefix (layer -> (prompts, key heads, prefix, head width)) in front of its own keys."""

    def function(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        scaling: float,
        **__: Any,
    ) -> tuple:
        return attend(
            query, key, value, keys[module.layer_idx], values[module.layer_idx], scaling
        ), None

    with exchanged(model, NAME, function):
        yield


@torch.no_grad()
def shares_prefix(checkpoint: Checkpoint) -> bool:
    """Whether this model's attention is the one above: some models bound, shift or mask it in their own way, or do not ask for it."""
    tokens = (np.arange(8).reshape(2, 4) + 1) % checkpoint.architecture.vocabulary
    clean, calls = clean_run(checkpoint, tokens), record_calls(checkpoint, tokens[0], 3)
    keys, values = ([x[:, :, :3] for x in kept] for kept in (clean.keys, clean.values))
    for layer in range(len(checkpoint.architecture.layers)):
        entering = clean.streams[layer][:, 3:]
        usual = calls.block(checkpoint, layer, entering, Resumed(clean, 3), None)
        try:
            with attending(checkpoint.model, keys, values):
                here = calls.block(checkpoint, layer, entering, None, None)
        except (
            TypeError,
            RuntimeError,
            AttributeError,
        ):  # without a mask, or a cache, it does not compute
            return False
        if not (here - usual).abs().max() <= 64 * torch.finfo(usual.dtype).eps * usual.abs().max():
            return False
    return True
