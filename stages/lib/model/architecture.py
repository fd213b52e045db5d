"""What a causal language model is to us: layers, neurons, heads and what makes logits; and how these are looked at and changed.

search.py finds them in a model, agreement.py holds what was found against what the model does.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from stages.lib.model.folder import ModelError

LINEAR = (nn.Linear, Conv1D)


class ArchitectureError(ModelError):
    """A model whose parts are not where every supported decoder has them, or that does something besides what they do."""


@dataclass(frozen=True)
class DecoderLayer:
    """One decoder layer: its two output projections, whose inputs are the neurons' activations and the heads' outputs.

    mlp: None where it is no module of its own; mixer: the part that mixes tokens; attention_out: mixer_out, None where the mixer is no
    attention and so has no heads; post_norm: what normalises the MLP's output before it is added to the stream, if anything does.
    """

    block: nn.Module
    mlp: nn.Module | None
    mixer: nn.Module
    mlp_out: nn.Linear | Conv1D
    mixer_out: nn.Linear | Conv1D
    attention_out: nn.Linear | Conv1D | None
    post_norm: Any = None


@dataclass(frozen=True)
class Architecture:
    """A model's layers and sizes.

    neurons: per MLP; heads x head_width: input of the attention's output projection; vocabulary: tokens that have a logit; head: what
    makes logits of what the unembedding puts out, None where those are the logits.
    """

    layers: list[DecoderLayer]
    final_norm: Any  # a module; norms of all architectures share no class
    unembedding: nn.Linear | Conv1D
    width: int
    neurons: int
    heads: int
    head_width: int
    vocabulary: int
    head: Callable[[torch.Tensor], torch.Tensor] | None = None


def in_features(linear: nn.Linear | Conv1D) -> int:
    return linear.weight.shape[0] if isinstance(linear, Conv1D) else linear.weight.shape[1]


def out_of(linear: nn.Linear | Conv1D) -> torch.Tensor:
    """Its matrix: (outputs, inputs)."""
    return linear.weight.T if isinstance(linear, Conv1D) else linear.weight


def value_vectors(layer: DecoderLayer) -> torch.Tensor:
    """What each neuron writes into the residual stream: (neurons, width)."""
    return out_of(layer.mlp_out).T


@contextmanager
def patched(module: Any, change: Any, first: bool = False) -> Iterator[None]:
    """Within the context, the module's input x is replaced by change(x); a change that returns None only looks.

    first: before whatever else looks at the input.
    """

    def hook(_: nn.Module, inputs: tuple, named: dict) -> tuple | None:
        if inputs:
            changed = change(inputs[0])
            return None if changed is None else ((changed, *inputs[1:]), named)
        changed = change(named["hidden_states"])
        return None if changed is None else (inputs, {**named, "hidden_states": changed})

    handle = module.register_forward_pre_hook(hook, with_kwargs=True, prepend=first)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def rewritten(module: Any, change) -> Iterator[None]:
    """Within the context, the module's output y is replaced by change(y)."""
    handle = module.register_forward_hook(lambda _, __, out: change(out))
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def watched_streams(architecture: Architecture, look: Callable[[int, torch.Tensor], torch.Tensor | None]) -> Iterator[None]:
    """Within the context, look(level, stream) is called with the residual stream at every level.

    Level l is what enters layer l; the last level is what leaves the last layer. What `look`
    returns, if anything, enters the layer instead. stream: (prompts, positions, width).
    """

    def leave(output: Any) -> None:
        look(len(architecture.layers), output[0] if isinstance(output, tuple) else output)

    with ExitStack() as hooks:
        for level, layer in enumerate(architecture.layers):
            hooks.enter_context(patched(layer.block, partial(look, level)))
        hooks.enter_context(rewritten(architecture.layers[-1].block, leave))
        yield
