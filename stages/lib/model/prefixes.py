"""Run prompts that share their first tokens, such as solved examples, and compute these once.

    prefix = prefixes.find(checkpoint, sequences, most=30)
    logits = prefix.run(checkpoint.model, tokens, logits_to_keep=1).logits

Hooks and results get the positions from `prefix.length` on. The keys and values of earlier
positions serve all prompts of all passes. If a model cannot continue after a cached prefix, the
prefix has length 0 and the model computes whole prompts.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import Cache, DynamicCache

from stages.lib.model.agreement import CANNOT, rounding
from stages.lib.model.architecture import watched_streams
from stages.lib.model.checkpoint import Checkpoint

# Tokens; fewer save little. Prompts of our own models share up to three tokens, so they are
# computed as whole prompts, with the same bytes as ever.
FEWEST = 8
MEMORY = 512 << 20  # bytes that the activations of one layer may take in a pass
TRIED = 3  # prompts on which a shared prefix is compared with whole prompts


class Repeated(Cache):
    """The keys and values of one prompt's first tokens, for any number of prompts.

    They never change, and are repeated for each prompt one layer at a time.
    """

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a layer's keys and values of the prefix, followed by those of its prompts."""
        layer: Any = copy.copy(self.layers[layer_idx])
        layer.keys = layer.keys.expand(len(key_states), -1, -1, -1)
        layer.values = layer.values.expand(len(value_states), -1, -1, -1)
        return layer.update(key_states, value_states, *args, **kwargs)


@dataclass(frozen=True)
class Prefix:
    """The first tokens of some prompts, computed once. length: in tokens, 0 for no prefix."""

    checkpoint: Checkpoint
    length: int = 0
    cache: Cache | None = None

    @torch.no_grad()
    def run(self, module: Any, tokens: np.ndarray, **named: Any) -> Any:
        """Run prompts from position `length` on; return the module's output.

        module: the checkpoint's model or its base model; tokens: (prompts, positions), of whole
        prompts; named: further arguments of its forward.
        """
        if self.cache is not None:
            named["past_key_values"] = self.cache
        inputs = torch.from_numpy(tokens[:, self.length :]).to(self.checkpoint.model.device)
        return module(input_ids=inputs, use_cache=self.cache is not None, **named)

    def in_pass(self, positions: int, most: int) -> int:
        """Return how many prompts one pass takes: up to `most`, within MEMORY.

        positions: of each prompt. The estimate counts an MLP's activations, and each head's keys,
        values and scores.
        """
        a, computed = self.checkpoint.architecture, positions - self.length
        mlp = 4 * computed * (a.neurons + a.width)
        attention = 4 * positions * a.heads * a.head_width + 2 * a.heads * computed * positions
        per_prompt = (mlp + attention) * self.checkpoint.model.dtype.itemsize
        return max(1, min(most, MEMORY // per_prompt))


def find(
    checkpoint: Checkpoint, sequences: Sequence[list[int]], most: int, fewest: int = FEWEST
) -> Prefix:
    """Compute the first tokens that all prompts share, at most `most` tokens.

    The prefix is empty if the prompts share fewer than `fewest` tokens, or if the model computes
    something else after a cached prefix than in whole prompts. The checkpoint remembers the result
    of this test for each pair of lengths.
    """
    length = min(most, _shared(sequences))
    if length < max(1, fewest):
        return Prefix(checkpoint)
    longest = max(map(len, sequences))
    if (length, longest) not in checkpoint.continues:
        alike = [tokens for tokens in sequences if len(tokens) == longest]
        tried = np.array(alike[:: -(-len(alike) // TRIED)])
        checkpoint.continues[length, longest] = _agrees(checkpoint, tried, length)
    if not checkpoint.continues[length, longest]:
        return Prefix(checkpoint)
    return _computed(checkpoint, np.array(sequences[0][:length]))


def _shared(sequences: Sequence[list[int]]) -> int:
    """Return how many first tokens all sequences share."""
    # the first and the last sequence in sorted order share the fewest
    first, last = min(sequences, default=[]), max(sequences, default=[])
    for position, (a, b) in enumerate(zip(first, last, strict=False)):
        if a != b:
            return position
    return min(len(first), len(last))


@torch.no_grad()
def _computed(checkpoint: Checkpoint, tokens: np.ndarray) -> Prefix:
    model, cache = checkpoint.model, DynamicCache(config=checkpoint.model.config)
    inputs = torch.from_numpy(tokens)[None].to(model.device)
    model.base_model(input_ids=inputs, past_key_values=cache, use_cache=True)
    return Prefix(checkpoint, len(tokens), Repeated(layers=cache.layers))


def _agrees(checkpoint: Checkpoint, tokens: np.ndarray, length: int) -> bool:
    """Return whether each layer computes the same after this prefix as in whole prompts.

    tokens: (prompts, positions). Each layer gets its input from whole prompts, because rounding
    grows through many layers. The prefix serves two passes, because the first must not change it.
    """
    whole: list[torch.Tensor] = []
    same: list[bool] = []
    allowed = max(1e-6, rounding(checkpoint.model.dtype))

    def keep(_: int, stream: torch.Tensor) -> None:
        whole.append(stream)

    def compare(level: int, stream: torch.Tensor, positions: slice) -> torch.Tensor:
        expected = whole[level][: len(stream), positions].contiguous()
        same.append(bool((stream - expected).norm() <= allowed * expected.norm()))
        return expected

    model, architecture = checkpoint.model.base_model, checkpoint.architecture
    with watched_streams(architecture, keep):
        Prefix(checkpoint).run(model, tokens)
    try:
        with watched_streams(architecture, partial(compare, positions=slice(length))):
            prefix = _computed(checkpoint, tokens[0, :length])
        with watched_streams(architecture, partial(compare, positions=slice(length, None))):
            for _ in range(2):
                prefix.run(model, tokens)
    except CANNOT:
        return False
    return all(same)
