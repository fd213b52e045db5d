"""Keep a float64 model in float64.

transformers computes norms, attention scores and softmax in float32, whatever the weights are.
"""

import functools
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from transformers import PreTrainedModel


class _Wide(TorchFunctionMode):
    """Within this mode, code that asks for float32 gets float64."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        named = kwargs or {}
        wide = dict(zip(named, map(_wide, named.values()), strict=True))
        return function(*map(_wide, args), **wide)


def _wide(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


def widen(model: PreTrainedModel) -> PreTrainedModel:
    """Make every part of a model compute in float64, also when it is called by itself."""
    for parameter in model.parameters():
        # transformers keeps some parameters, such as a mixture's router, in float32
        parameter.data = parameter.data.double()
    for module in model.modules():
        module.forward = _widened(module.forward)  # type: ignore[method-assign]
    return model


def _widened(forward: Any) -> Any:
    @functools.wraps(forward)  # keeps the signature, which search.py reads
    def wide(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(mode, _Wide) for mode in _get_current_function_mode_stack()):
            return forward(*args, **kwargs)  # a nested mode would double the cost
        with _Wide():
            return forward(*args, **kwargs)

    return wide
