"""Reads what flows through a model and changes nothing: attention weights, neurons behind a prefix.

All of it comes from forward hooks on the parts that `architecture` finds, so any decoder it accepts will do: an
attention's second output is its weights (models are loaded with eager attention, which returns them). Prompts of one
call have the same length.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from stages.lib.model.architecture import ArchitectureError, patched
from stages.lib.model.checkpoint import Checkpoint


@contextmanager
def watched(module: nn.Module, look: Callable[[Any], None]) -> Iterator[None]:
    """Within the context, look(output) is called with what the module returns."""
    handle = module.register_forward_hook(lambda _, __, output: look(output))
    try:
        yield
    finally:
        handle.remove()


def attention(checkpoint: Checkpoint, tokens: np.ndarray, prompts_per_pass: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over prompts of every head's attention weights.

    tokens: (prompts, positions); each result: (layers, heads, query positions, key positions), float64.
    Raises ArchitectureError where an attention does not return its weights.
    """
    found = checkpoint.architecture
    first: dict[int, torch.Tensor] = {}  # layer -> weights of the first prompt
    # Sums of distances from the first prompt, and of their squares: from sums of the weights themselves, a deviation far smaller than
    # they are would be the difference of two equal numbers, and the processor's rounding.
    sums = np.zeros((2, len(found.layers), found.heads, tokens.shape[1], tokens.shape[1]))

    def look(output: Any, layer: int) -> None:
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if not isinstance(weights, torch.Tensor) or weights.shape[1:] != sums.shape[2:]:
            raise ArchitectureError(f"layer {layer}: {type(found.layers[layer].mixer).__name__} does not return its attention weights")
        weights = weights.double()
        distance = weights - first.setdefault(layer, weights[0])
        sums[0, layer] += distance.sum(0).cpu().numpy()
        sums[1, layer] += distance.square().sum(0).cpu().numpy()

    with ExitStack() as stack:
        for index, layer in enumerate(found.layers):
            stack.enter_context(watched(layer.mixer, partial(look, layer=index)))
        for rows in _passes(len(tokens), prompts_per_pass):
            _run(checkpoint, tokens[rows])
    mean, square = sums / len(tokens)
    start = np.stack([first[layer].cpu().numpy() for layer in range(len(sums[0]))])
    return start + mean, np.sqrt(np.maximum(square - mean**2, 0))


def neurons(checkpoint: Checkpoint, tokens: np.ndarray, layer: int, prompts_per_pass: int) -> np.ndarray:
    """Activations of a layer's neurons at the last position; tokens: (prompts, positions); result: (prompts, neurons), float32."""
    parts: list[np.ndarray] = []
    with patched(checkpoint.architecture.layers[layer].mlp_out, lambda x: parts.append(_narrow(x[:, -1]))):
        for rows in _passes(len(tokens), prompts_per_pass):
            _run(checkpoint, tokens[rows])
    return np.concatenate(parts)


def _narrow(x: torch.Tensor) -> np.ndarray:
    """As float32, by numpy: within a model that computes in float64, torch's own conversion gives float64 (see lib/model/float64.py)."""
    return (x if x.dtype == torch.float64 else x.float()).cpu().numpy().astype(np.float32, copy=False)


def _passes(prompts: int, prompts_per_pass: int) -> Iterator[slice]:
    for start in range(0, prompts, prompts_per_pass):
        yield slice(start, min(start + prompts_per_pass, prompts))


@torch.no_grad()
def _run(checkpoint: Checkpoint, tokens: np.ndarray) -> None:
    """One forward pass without the unembedding, which nothing here looks at."""
    checkpoint.model.base_model(input_ids=torch.from_numpy(tokens).to(checkpoint.model.device), use_cache=False)
