"""The parts of a causal language model, and contexts in which they are read or changed.

search.py finds the parts, agreement.py verifies them against forward passes.
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
    """A model that lacks a part of a supported decoder, or computes more than its parts do."""


@dataclass(frozen=True)
class DecoderLayer:
    """One decoder layer.

    mlp: None where the MLP is not a module of its own; mixer: the part that mixes tokens.
    mlp_out: the output projection whose inputs are the neurons' activations.
    mixer_out: the mixer's output projection; attention_out: the same, whose inputs are the heads'
    outputs, or None where the mixer is not attention and has no heads.
    post_norm: the norm that is applied to the MLP's output before it is added to the residual
    stream, None if there is none.
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

    width: of the residual stream; neurons: per MLP; heads: per layer; heads x head_width: inputs of
    the attention's output projection; vocabulary: tokens that have a logit; head: the function that
    turns the unembedding's output into logits, None where that output is the logits.
    """

    layers: list[DecoderLayer]
    final_norm: Any  # a module; the norms of different architectures share no class
    unembedding: nn.Linear | Conv1D
    width: int
    neurons: int
    heads: int
    head_width: int
    vocabulary: int
    head: Callable[[torch.Tensor], torch.Tensor] | None = None


def in_features(linear: nn.Linear | Conv1D) -> int:
    """Return the number of a linear map's inputs."""
    return out_of(linear).shape[1]


def out_of(linear: nn.Linear | Conv1D) -> torch.Tensor:
    """Return a linear map's matrix: (outputs, inputs)."""
    return linear.weight.T if isinstance(linear, Conv1D) else linear.weight


def value_vectors(layer: DecoderLayer) -> torch.Tensor:
    """Return the vector that each neuron writes into the residual stream: (neurons, width)."""
    return out_of(layer.mlp_out).T


@contextmanager
def patched(module: Any, change: Any, first: bool = False) -> Iterator[None]:
    """Within the context, replace the module's input x by change(x), or keep x if that is None.

    first: whether the change comes before those of other hooks.
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
    """Within the context, replace the module's output y by change(y), or keep y if that is None."""
    handle = module.register_forward_hook(lambda _, __, out: change(out))
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def watched_streams(
    architecture: Architecture,
    look: Callable[[int, torch.Tensor], torch.Tensor | None],
) -> Iterator[None]:
    """Within the context, call look(level, stream) with the residual stream at every level.

    stream: (prompts, positions, width). Level l is the input of layer l; the last level is the
    output of the last layer. If `look` returns a tensor, this enters the layer instead.
    """

    def leave(output: Any) -> None:
        look(len(architecture.layers), output[0] if isinstance(output, tuple) else output)

    with ExitStack() as hooks:
        for level, layer in enumerate(architecture.layers):
            hooks.enter_context(patched(layer.block, partial(look, level)))
        hooks.enter_context(rewritten(architecture.layers[-1].block, leave))
        yield
