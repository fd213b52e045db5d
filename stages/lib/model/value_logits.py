"""Value logits: which answers a neuron's value vector votes for when nothing stands between it and the unembedding."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from stages.lib.model.architecture import DecoderLayer, value_vectors
from stages.lib.model.checkpoint import Checkpoint

AT_ONCE = 1 << 14  # tokens of the vocabulary


def value_logits(checkpoint: Checkpoint, tokens: list[int]) -> Iterator[np.ndarray]:
    """Value vector · unembedding of each token: of each layer (neurons, tokens), float32.

    The final norm's gain is folded into the unembedding, the unembedding is centred over the whole vocabulary, and no
    norm is applied to the value vector (Nikankin et al. 2025, Sec. 3: the logit lens). Where the final norm subtracts
    the mean over the width (LayerNorm), so does this. Only differences between a neuron's logits have a meaning.
    """
    votes = directions(checkpoint, tokens)
    for layer in checkpoint.architecture.layers:
        yield of_layer(layer, votes)


@torch.no_grad()
def directions(checkpoint: Checkpoint, tokens: list[int]) -> torch.Tensor:
    """What a value vector is multiplied with: (tokens, width), float64."""
    a = checkpoint.architecture
    scale = gain(a.final_norm, a.width).to(a.unembedding.weight.device)

    def folded(rows: torch.Tensor) -> torch.Tensor:
        wide = rows.double() * scale  # (tokens, width)
        return wide - wide.mean(1, keepdim=True) if isinstance(a.final_norm, nn.LayerNorm) else wide

    vocabulary = a.unembedding.weight.split(AT_ONCE)
    mean = torch.stack([folded(rows).sum(0) for rows in vocabulary]).sum(0) / len(a.unembedding.weight)
    return folded(a.unembedding.weight[tokens]) - mean


@torch.no_grad()
def of_layer(layer: DecoderLayer, votes: torch.Tensor) -> np.ndarray:
    """The value logits of one layer's neurons: (neurons, tokens), float32. votes: as of `directions`."""
    vectors = value_vectors(layer)
    return (vectors.double() @ votes.T.to(vectors.device)).float().cpu().numpy()


def gain(norm: Any, width: int) -> torch.Tensor:
    """The norm's gain, read off its behaviour: some architectures store it as a difference from 1."""
    weight: torch.Tensor = norm.weight
    signs = torch.ones(width, dtype=weight.dtype, device=weight.device)
    signs[1::2] = -1  # mean 0, mean square 1: only the gain and the bias are left, and the bias cancels below
    return ((norm(signs) - norm(-signs)) / 2 * signs).double()
