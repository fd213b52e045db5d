"""Keeps a float64 model in float64: transformers computes norms, attention scores or softmax in float32 whatever the weights are."""

import functools
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from transformers import PreTrainedModel


class _Wide(TorchFunctionMode):
    """Within it, what asks for float32 gets float64."""

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        return function(*args, **{k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()})


def widen(model: PreTrainedModel) -> PreTrainedModel:
    """The same model, every part of which computes in float64, also when it is called by itself; for the exactness of checks."""
    for parameter in model.parameters():
        parameter.data = parameter.data.double()  # transformers keeps some, such as a mixture's router, in float32
    for module in model.modules():
        module.forward = _widened(module.forward)  # type: ignore[method-assign]
    return model


def _widened(forward: Any) -> Any:
    @functools.wraps(forward)  # keeps the signature, by which parts of a layer are told apart
    def wide(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(mode, _Wide) for mode in _get_current_function_mode_stack()):
            return forward(*args, **kwargs)  # a mode within a mode costs as much again
        with _Wide():
            return forward(*args, **kwargs)

    return wide
