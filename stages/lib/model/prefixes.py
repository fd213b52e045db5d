"""Runs prompts that begin with the same tokens, such as solved examples, and computes those once.

    prefix = prefixes.of(checkpoint, sequences, most=30)
    logits = prefix.run(checkpoint.model, tokens, logits_to_keep=1).logits

Hooks see, and results hold, the positions from `prefix.length` on. The keys and values of earlier
positions serve all prompts of all passes. A model that cannot go on after a cached prefix computes
whole prompts instead, with length 0.
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

# Tokens. Fewer save little. Models of ours share up to three, and are computed as they always were,
# to the last bit.
FEWEST = 8
MEMORY = 512 << 20  # bytes that the activations of one layer may take in a pass
TRIED = 3  # prompts on which a shared prefix is compared with whole prompts


class Repeated(Cache):
    """The keys and values of one prompt's first tokens, for any number of prompts.

    They are repeated for each prompt one layer at a time, and never change.
    """

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a layer's keys and values of the prefix, followed by these."""
        layer: Any = copy.copy(self.layers[layer_idx])
        layer.keys = layer.keys.expand(len(key_states), -1, -1, -1)
        layer.values = layer.values.expand(len(value_states), -1, -1, -1)
        return layer.update(key_states, value_states, *args, **kwargs)


@dataclass(frozen=True)
class Prefix:
    """The first tokens of some prompts, computed once. length: in tokens, 0 for none."""

    checkpoint: Checkpoint
    length: int = 0
    cache: Cache | None = None

    @torch.no_grad()
    def run(self, module: Any, tokens: np.ndarray, **named: Any) -> Any:
        """Run whole prompts (prompts, positions) from position `length` on; return the output.

        module: the checkpoint's model or its base model; named: further arguments of its forward.
        """
        if self.cache is not None:
            named["past_key_values"] = self.cache
        inputs = torch.from_numpy(tokens[:, self.length :]).to(self.checkpoint.model.device)
        return module(input_ids=inputs, use_cache=self.cache is not None, **named)

    def in_pass(self, positions: int, most: int) -> int:
        """Return how many prompts of this length one pass takes: up to `most`, within MEMORY.

        The estimate counts an MLP's activations, and each head's keys, values and scores.
        """
        a, computed = self.checkpoint.architecture, positions - self.length
        mlp = 4 * computed * (a.neurons + a.width)
        attention = 4 * positions * a.heads * a.head_width + 2 * a.heads * computed * positions
        per_prompt = (mlp + attention) * self.checkpoint.model.dtype.itemsize
        return max(1, min(most, MEMORY // per_prompt))


def of(checkpoint: Checkpoint, sequences: Sequence[list[int]], most: int) -> Prefix:
    """Return the first tokens that all of these prompts share, at most `most`, computed.

    The prefix is empty where the prompts share fewer than FEWEST tokens, or where the model
    computes something else after a cached prefix than in whole prompts. Each checkpoint remembers
    for which lengths it was tried.
    """
    length = min(most, _shared(sequences))
    if length < FEWEST:
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
    """Return how many tokens all sequences begin with: those of the first and last of them sorted."""
    ends = [min(sequences, default=[]), max(sequences, default=[])]
    differ = (place for place, (a, b) in enumerate(zip(*ends, strict=False)) if a != b)
    return next(differ, min(map(len, ends)))


@torch.no_grad()
def _computed(checkpoint: Checkpoint, tokens: np.ndarray) -> Prefix:
    model, cache = checkpoint.model, DynamicCache(config=checkpoint.model.config)
    inputs = torch.from_numpy(tokens)[None].to(model.device)
    model.base_model(input_ids=inputs, past_key_values=cache, use_cache=True)
    return Prefix(checkpoint, len(tokens), Repeated(layers=cache.layers))


def _agrees(checkpoint: Checkpoint, tokens: np.ndarray, length: int) -> bool:
    """Whether each layer computes the same after this prefix from what enters it in whole prompts.

    tokens: (prompts, positions). Layers are compared one by one, as rounding grows through many
    of them. The prefix serves two passes, because the first must leave it as it was.
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
