"""Bring the output projections of MLPs to one shape.

Each projection takes (prompts, positions, neurons), and every layer has the same number of neurons.
Some MLPs take the tokens of all prompts in one axis (OPT). Some layers have fewer neurons than
others, such as the dense layers of a model with mixtures of experts: they are padded with neurons
whose activation is 0 and which write nothing.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from stages.lib.model import experts
from stages.lib.model.architecture import DecoderLayer, in_features, out_of
from stages.lib.model.spread import at_hand


class Reshaped(nn.Module):
    """Replace a linear map: pass its input to `inner` as (prompts, positions, neurons)."""

    def __init__(self, inner: Any, block: Any, neurons: int):
        super().__init__()
        self.inner, self.neurons, self.rows = inner, neurons, torch.Size()
        block.register_forward_pre_hook(self._note, with_kwargs=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = nn.functional.pad(x, (0, self.neurons - x.shape[-1]))
        if x.ndim <= 2:
            padded = padded.view(*self.rows, -1)
        return self.inner(padded).view(*x.shape[:-1], -1)

    def _note(self, _: Any, inputs: tuple, named: dict[str, Any]) -> None:
        """Note the numbers of prompts and positions that enter the layer."""
        values = (*inputs, *named.values())
        stream = next(value for value in values if isinstance(value, torch.Tensor))
        self.rows = stream.shape[:-1]


def of_one_shape(layers: list[DecoderLayer], flat: Collection[int]) -> list[DecoderLayer]:
    """Return the layers, each with as many neurons as the largest one.

    flat: `id` of the modules that take the tokens of all prompts in one axis.
    """
    neurons = max(in_features(layer.mlp_out) for layer in layers)
    reshaped = []
    for layer in layers:
        linear = layer.mlp_out
        if id(linear) in flat or in_features(linear) < neurons:
            linear = _reshaped(layer.block, linear, neurons)
        reshaped.append(replace(layer, mlp_out=linear))
    return reshaped


def _reshaped(block: nn.Module, linear: Any, neurons: int) -> Any:
    """Replace a linear map below a block by a Reshaped; return the Reshaped's inner map."""
    inner = linear
    missing = neurons - in_features(linear)
    if missing > 0:
        inner = nn.Linear(1, 1, bias=False, device="meta")
        with at_hand(linear):
            weight = nn.functional.pad(out_of(linear).data, (0, missing))
            inner.weight = nn.Parameter(weight, requires_grad=False)
            inner.bias = linear.bias
        inner.out_features, inner.in_features = inner.weight.shape
    experts.replace(block, linear, Reshaped(inner, block, neurons))
    return inner
