"""Compute RMS norms in three passes over memory instead of seven.

A restarted run is short enough for this to matter.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stages.lib.model.agreement import exact, near
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.spread import at_hand
from stages.lib.model.value_logits import gain

Forward = Callable[[torch.Tensor], torch.Tensor]


def epsilon(norm: Any) -> float | None:
    """Return the number that a norm adds to the mean square; None if no attribute holds it."""
    for name in ("eps", "variance_epsilon", "epsilon"):
        if hasattr(norm, name):
            return getattr(norm, name)
    return None


@torch.no_grad()
def quick_norms(checkpoint: Checkpoint) -> list[tuple[Any, Forward]]:
    """Return the model's RMS norms of the residual stream, each with a faster forward function.

    An RMS norm is a module that computes x / sqrt(mean(x²) + epsilon) · gain on random inputs.
    """
    a = checkpoint.architecture
    quick = []
    for module in (*(m for layer in a.layers for m in layer.block.modules()), a.final_norm):
        if _may_be_rms_norm(module, a.width) and _is_same(module, a.width):
            quick.append((module, _quick(module, a.width)))
    return quick


def _may_be_rms_norm(module: Any, width: int) -> bool:
    weight = getattr(module, "weight", None)
    if weight is None or weight.shape != (width,) or isinstance(module, torch.nn.LayerNorm):
        return False
    return epsilon(module) is not None


def _quick(norm: Any, width: int) -> Forward:
    small = float(epsilon(norm) or 0)
    with at_hand(norm):
        measured = gain(norm, norm.weight)  # on a mean square of 1
    scaled = (measured * (1 + small) ** 0.5).to(norm.weight.dtype)

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = x.to(scaled.device)  # the replaced forward function would have moved it
        if x.is_cuda:
            return torch.nn.functional.rms_norm(x, (width,), scaled, small)
        # the square of a length above 256 exceeds float16
        precise = torch.promote_types(x.dtype, torch.float32)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=precise)
        scale = length.square_().div_(width).add_(small).rsqrt_()
        return (x * scale.to(x.dtype)).mul_(scaled)

    return forward


def _is_same(norm: Any, width: int) -> bool:
    """Return whether the faster forward function gives what the norm gives, up to rounding."""
    norm = exact(norm)
    forward = _quick(norm, width)
    with at_hand(norm):
        like = norm.weight.new_empty(0)
    x = torch.randn(5, width, generator=torch.Generator().manual_seed(0)).to(like) * 3
    usual = norm(x)
    return near(forward(x), usual, 16 * torch.finfo(usual.dtype).eps)


@contextmanager
def quicker(norms: list[tuple[Any, Forward]]) -> Iterator[None]:
    """Within the context, these norms use their faster forward functions."""
    usual = [norm.forward for norm, _ in norms]
    for norm, forward in norms:
        norm.forward = forward
    try:
        yield
    finally:
        for (norm, _), forward in zip(norms, usual, strict=True):
            norm.forward = forward
