"""Attend from a row's prompts to their shared prefix, storing its keys and values once per row.

transformers' cache would be repeated for every prompt and concatenated with the prompt's keys in
every layer. A GPU spends more time on that, and on kernels made for long prompts, than on the
attention itself.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "row-attention"
CHANGES = ("softcap", "s_aux")  # arguments that make attention another function


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    prefix_keys: torch.Tensor,
    prefix_values: torch.Tensor,
    scaling: float,
) -> torch.Tensor:
    """Return causal softmax attention to a row's prefix and to a prompt's own positions.

    query: (prompts, heads, positions, head width); key, value: (prompts, key heads, positions, head
    width), of prompts = rows x columns; prefix_keys, prefix_values: (rows, key heads, prefix, head
    width). Returns (prompts, positions, heads, head width).
    """
    (prompts, heads, positions, width), (rows, groups, prefix, _) = query.shape, prefix_keys.shape
    columns, shared = prompts // rows, heads // groups
    by_row = query.view(rows, columns, groups, shared, positions, width).permute(0, 2, 1, 4, 3, 5)
    queries = by_row.reshape(rows, groups, columns, positions * shared, width)
    keys, values = _by_row(key, rows), _by_row(value, rows)
    to_prefix = prefix_keys @ queries.flatten(2, 3).transpose(-1, -2)
    to_own = _hide_later(queries @ keys.transpose(-1, -2), shared)
    to_own = to_own.flatten(2, 3).transpose(-1, -2)
    scores = torch.cat([to_prefix, to_own], 2) * scaling  # rows, groups, keys, all queries of a row
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = torch.softmax(scores, 2, dtype=wide).to(query.dtype)
    out = weights[:, :, :prefix].transpose(-1, -2) @ prefix_values
    own = weights[:, :, prefix:].transpose(-1, -2).unflatten(2, (columns, positions * shared))
    out = out.view_as(queries) + own @ values
    out = out.view(rows, groups, columns, positions, shared, width).permute(0, 2, 3, 1, 4, 5)
    return out.reshape(prompts, positions, heads, width)


def _by_row(x: torch.Tensor, rows: int) -> torch.Tensor:
    """Return keys or values (prompts, groups, …) as (rows, groups, columns, …)."""
    return x.unflatten(0, (rows, -1)).transpose(1, 2)


def _hide_later(scores: torch.Tensor, shared: int) -> torch.Tensor:
    """Put -inf where a position would attend to a later position of its prompt.

    scores: (…, positions x shared, positions).
    """
    positions = scores.shape[-1]
    later = torch.ones(positions, positions, dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(later.repeat_interleave(shared, 0), -torch.inf)


@contextmanager
def exchanged(model: PreTrainedModel, name: str, attention: Callable) -> Iterator[None]:
    """Within the context, a model uses this attention function, registered under this name."""
    before = model.config._attn_implementation
    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = before


@contextmanager
def attending(model: PreTrainedModel, cache: DynamicCache) -> Iterator[None]:
    """Within the context, prompts passed row by row attend to the prefix that filled this cache.

    The model raises TypeError if its attention is another function.
    """

    def function(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        scaling: float,
        **more: Any,
    ) -> tuple[torch.Tensor, None]:
        changed = [name for name in CHANGES if more.get(name) is not None]
        if changed:
            raise TypeError(f"{type(module).__name__} attends with {', '.join(changed)}")
        kept = cache.layers[module.layer_idx]
        window, length = more.get("sliding_window"), kept.keys.shape[2] + query.shape[2]
        if window is not None and window < length:
            raise TypeError(f"{type(module).__name__} sees {window} positions of {length}")
        return attend(query, key, value, kept.keys, kept.values, scaling), None

    with exchanged(model, NAME, function):
        yield
