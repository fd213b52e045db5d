"""Output projections of MLPs brought to one shape: each is given (prompts, positions, neurons), and every layer has as many neurons.

Some MLPs get all tokens in one line (OPT). Some layers have fewer neurons than others, such as the dense ones of a model of mixtures:
they are filled up with neurons that say 0 and write nothing.
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
    """In the place of a linear map, which it has as `inner`, of (prompts, positions, neurons)."""

    def __init__(self, inner: Any, block: Any, neurons: int):
        super().__init__()
        self.inner, self.neurons, self.rows = inner, neurons, torch.Size()
        block.register_forward_pre_hook(self._note, with_kwargs=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        filled = nn.functional.pad(x, (0, self.neurons - x.shape[-1]))
        return self.inner(filled if x.ndim > 2 else filled.view(*self.rows, -1)).view(*x.shape[:-1], -1)

    def _note(self, _: Any, inputs: tuple, named: dict[str, Any]) -> None:
        self.rows = next(value for value in (*inputs, *named.values()) if isinstance(value, torch.Tensor)).shape[:-1]


def of_one_shape(layers: list[DecoderLayer], flat: Collection[int]) -> list[DecoderLayer]:
    """The layers, each with as many neurons as the largest. flat: `id` of the modules that are given all tokens in one line."""
    neurons = max(in_features(layer.mlp_out) for layer in layers)
    return [
        replace(layer, mlp_out=_reshaped(layer.block, layer.mlp_out, neurons))
        if id(layer.mlp_out) in flat or in_features(layer.mlp_out) < neurons
        else layer
        for layer in layers
    ]


def _reshaped(block: nn.Module, linear: Any, neurons: int) -> Any:
    """Puts a Reshaped in the place of a linear map below a block; returns the one inside, of so many neurons."""
    inner = linear
    if (missing := neurons - in_features(linear)) > 0:
        inner = nn.Linear(1, 1, bias=False, device="meta")
        with at_hand(linear):
            inner.weight = nn.Parameter(nn.functional.pad(out_of(linear).data, (0, missing)), requires_grad=False)
            inner.bias = linear.bias
        inner.out_features, inner.in_features = inner.weight.shape
    experts.replace(block, linear, Reshaped(inner, block, neurons))
    return inner
