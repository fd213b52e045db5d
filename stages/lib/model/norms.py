"""RMS norms in three passes over memory instead of seven; a restarted run is short enough for that to count."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stages.lib.model.agreement import exact
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.spread import at_hand
from stages.lib.model.value_logits import gain

Forward = Callable[[torch.Tensor], torch.Tensor]


def epsilon(norm: Any) -> float | None:
    """What a norm adds to the mean square, under whichever name it keeps it; None where it says nothing."""
    return next((getattr(norm, name) for name in ("eps", "variance_epsilon", "epsilon") if hasattr(norm, name)), None)


@torch.no_grad()
def quick_norms(checkpoint: Checkpoint) -> list[tuple[Any, Forward]]:
    """Every norm of the stream that is x / sqrt(mean x² + epsilon) · gain, found by trying, and the same computed faster."""
    a = checkpoint.architecture
    leaves = [m for layer in a.layers for m in layer.block.modules()] + [a.final_norm]
    weighted = [m for m in leaves if getattr(m, "weight", None) is not None]
    norms = [m for m in weighted if m.weight.shape == (a.width,) and not isinstance(m, torch.nn.LayerNorm) and epsilon(m) is not None]
    quick = [(norm, _quick(norm, a.width)) for norm in norms]
    return [(norm, forward) for norm, forward in quick if _same(norm, a.width)]


def _quick(norm: Any, width: int) -> Forward:
    small = float(epsilon(norm) or 0)
    with at_hand(norm):
        measured = gain(norm, norm.weight)  # on a mean square of 1
    scaled = (measured * (1 + small) ** 0.5).to(norm.weight.dtype)

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = x.to(scaled.device)  # what would have moved it stands in the forward that this one replaces
        if x.is_cuda:
            return torch.nn.functional.rms_norm(x, (width,), scaled, small)
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(width).add_(small).rsqrt_()
        return (x * scale).mul_(scaled)

    return forward


def _same(norm: Any, width: int) -> bool:
    norm = exact(norm)
    forward = _quick(norm, width)
    with at_hand(norm):
        like = norm.weight.new_empty(0)
    x = torch.randn(5, width, generator=torch.Generator().manual_seed(0)).to(like) * 3
    usual = norm(x)
    return bool((forward(x) - usual).abs().max() <= 16 * torch.finfo(usual.dtype).eps * usual.abs().max())


@contextmanager
def quicker(norms: list[tuple[Any, Forward]]) -> Iterator[None]:
    """A context in which these norms compute the quick way."""
    kept = [norm.forward for norm, _ in norms]
    for norm, forward in norms:
        norm.forward = forward
    try:
        yield
    finally:
        for (norm, _), forward in zip(norms, kept, strict=True):
            norm.forward = forward
