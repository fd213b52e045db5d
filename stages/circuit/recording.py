"""Read attention weights and neuron activations from a model without changing its computation.

Forward hooks on the parts that `architecture` finds read them, so every decoder that it accepts
works. The second output of an attention module is its weights: models are loaded with eager
attention, which returns them. All prompts of one call have the same length.
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
    """Call look(output) with each output of the module while the context lasts."""
    handle = module.register_forward_hook(lambda _, __, output: look(output))
    try:
        yield
    finally:
        handle.remove()


def attention(
    checkpoint: Checkpoint, tokens: np.ndarray, prompts_per_pass: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the standard deviation over prompts of every head's attention weights.

    tokens: (prompts, positions). Each result is float64 (layers, heads, query positions, key
    positions). Raises ArchitectureError if an attention module does not return its weights.
    """
    layers = checkpoint.architecture.layers
    first: dict[int, torch.Tensor] = {}  # layer -> weights of the first prompt
    # Sums are over distances from the first prompt, and over their squares. From sums of the
    # weights themselves, a small deviation would be the difference of two almost equal numbers.
    width = tokens.shape[1]
    sums = np.zeros((2, len(layers), checkpoint.architecture.heads, width, width))

    def look(output: Any, layer: int) -> None:
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if not isinstance(weights, torch.Tensor) or weights.shape[1:] != sums.shape[2:]:
            name = type(layers[layer].mixer).__name__
            raise ArchitectureError(f"layer {layer}: {name} does not return its attention weights")
        weights = weights.double()
        distance = weights - first.setdefault(layer, weights[0])
        sums[0, layer] += distance.sum(0).cpu().numpy()
        sums[1, layer] += distance.square().sum(0).cpu().numpy()

    with ExitStack() as stack:
        for index, layer in enumerate(layers):
            stack.enter_context(watched(layer.mixer, partial(look, layer=index)))
        for rows in _passes(len(tokens), prompts_per_pass):
            _run(checkpoint, tokens[rows])
    mean, square = sums / len(tokens)
    start = np.stack([first[layer].cpu().numpy() for layer in range(len(layers))])
    return start + mean, np.sqrt(np.maximum(square - mean**2, 0))


def neurons(
    checkpoint: Checkpoint, tokens: np.ndarray, layer: int, prompts_per_pass: int
) -> np.ndarray:
    """Return the activations of a layer's neurons at the last position.

    tokens: (prompts, positions). The result is float32 (prompts, neurons).
    """
    parts: list[np.ndarray] = []
    module = checkpoint.architecture.layers[layer].mlp_out
    with patched(module, lambda x: parts.append(_narrow(x[:, -1]))):
        for rows in _passes(len(tokens), prompts_per_pass):
            _run(checkpoint, tokens[rows])
    return np.concatenate(parts)


def _narrow(x: torch.Tensor) -> np.ndarray:
    """Return a float32 array.

    numpy converts from float64, because torch's own conversion gives float64 within a model that
    computes in float64 (see lib/model/float64.py).
    """
    values = x if x.dtype == torch.float64 else x.float()
    return values.cpu().numpy().astype(np.float32, copy=False)


def _passes(prompts: int, prompts_per_pass: int) -> Iterator[slice]:
    for start in range(0, prompts, prompts_per_pass):
        yield slice(start, min(start + prompts_per_pass, prompts))


@torch.no_grad()
def _run(checkpoint: Checkpoint, tokens: np.ndarray) -> None:
    """Run one forward pass without the unembedding, whose output no hook reads."""
    model = checkpoint.model
    ids = torch.from_numpy(tokens).to(model.device)
    model.base_model(input_ids=ids, use_cache=False)
