"""Let copies of a prompt attend to a prefix that they share, without copying the prefix.

Each copy has one new position.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from stages.lib.executor.clean import Clean, Resumed, record_calls
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
    """Return softmax attention over a shared prefix and the position itself.

    query: (rows, heads, 1, head width); key, value: (rows, key heads, 1, head width), of rows =
    copies x prompts; keys, values: (prompts, key heads, prefix, head width). Returns (rows, 1,
    heads, head width).
    """
    (rows, heads, _, width), (prompts, groups, _, _) = query.shape, keys.shape
    copies, shared = rows // prompts, heads // groups
    q = query.view(copies, prompts, groups, shared, width)
    # One product per prompt and key head.
    together = q.permute(1, 2, 0, 3, 4).reshape(prompts, groups, copies * shared, width)
    # (prompts, key heads, prefix, copies x shared): a softmax along the prefix is vectorised.
    past = keys @ together.transpose(-1, -2)
    own = (q * key.view(copies, prompts, groups, 1, width)).sum(-1)
    own = own.permute(1, 2, 0, 3).reshape(prompts, groups, 1, -1)
    scores = torch.cat([past, own], 2) * scaling
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = torch.softmax(scores, 2, dtype=wide).to(query.dtype)
    from_past = weights[:, :, :-1].transpose(-1, -2) @ values
    out = from_past.view(prompts, groups, copies, shared, width).permute(2, 0, 1, 3, 4).contiguous()
    own_weights = weights[:, :, -1].view(prompts, groups, copies, shared).permute(2, 0, 1, 3)
    out.addcmul_(own_weights[..., None], value.view(copies, prompts, groups, 1, width))
    return out.view(rows, 1, heads, width)


@contextmanager
def attending(
    model: PreTrainedModel, keys: list[torch.Tensor], values: list[torch.Tensor]
) -> Iterator[None]:
    """Let attention see a prefix before its own keys, within the context.

    keys, values: per layer (prompts, key heads, prefix, head width).
    """

    def function(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        scaling: float,
        **__: Any,
    ) -> tuple[torch.Tensor, None]:
        layer = module.layer_idx
        return attend(query, key, value, keys[layer], values[layer], scaling), None

    with exchanged(model, NAME, function):
        yield


@torch.no_grad()
def shares_prefix(checkpoint: Checkpoint, clean: Clean) -> bool:
    """Return whether `attend` computes what this model's attention computes.

    clean: a run of some prompts. Some models bound, shift or mask attention in their own way, or
    cannot exchange it.
    """
    start = clean.tokens.shape[1] - 1
    calls = record_calls(checkpoint, clean.tokens[0].cpu().numpy(), start)
    prefix = clean.prefix(start)
    for layer in range(len(checkpoint.architecture.layers)):
        entering = clean.streams[layer][:, start:]
        usual = calls.block(checkpoint, layer, entering, Resumed(clean, start), None)
        try:
            with attending(checkpoint.model, *prefix):
                shared = calls.block(checkpoint, layer, entering, None, None)
        except (TypeError, RuntimeError, AttributeError):  # it needs a mask, or a cache
            return False
        allowed = 64 * torch.finfo(usual.dtype).eps * usual.abs().max()
        if not (shared - usual).abs().max() <= allowed:  # also false for a NaN
            return False
    return True
