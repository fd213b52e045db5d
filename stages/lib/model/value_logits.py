"""Value logits: which answers a neuron's value vector votes for when nothing stands between it and the unembedding."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from stages.lib.model.architecture import DecoderLayer, value_vectors
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.spread import at_hand

AT_ONCE = 1 << 14  # tokens of the vocabulary


def value_logits(checkpoint: Checkpoint, tokens: list[int]) -> Iterator[np.ndarray]:
    """Value vector · unembedding of each token: of each layer (neurons, tokens), float32.

    The final norm's gain is folded into the unembedding, the unembedding is centred over the whole vocabulary, and no
    norm is applied to the value vector (Nikankin et al. 2025, Sec. 3: the logit lens). Where the final norm subtracts
    the mean over the width (LayerNorm), so does this. Where what the MLP puts out is normalised before it is added to the stream, that
    norm's gain is folded into the value vector; its scale is not, as every prompt has another. Only differences between a neuron's logits
    have a meaning.
    """
    votes = directions(checkpoint, tokens)
    for layer in checkpoint.architecture.layers:
        yield of_layer(layer, votes)


@torch.no_grad()
def directions(checkpoint: Checkpoint, tokens: list[int]) -> torch.Tensor:
    """What a value vector is multiplied with: (tokens, width), float64."""
    a = checkpoint.architecture
    with at_hand(a.unembedding):
        weight = a.unembedding.weight
    scale = gain(a.final_norm, weight).to(weight.device)
    centred = centres(a.final_norm, weight)

    def folded(rows: torch.Tensor) -> torch.Tensor:
        wide = rows.double() * scale  # (tokens, width)
        return wide - wide.mean(1, keepdim=True) if centred else wide

    mean = torch.stack([folded(rows).sum(0) for rows in weight.split(AT_ONCE)]).sum(0) / len(weight)
    return folded(weight[tokens]) - mean


@torch.no_grad()
def of_layer(layer: DecoderLayer, votes: torch.Tensor) -> np.ndarray:
    """The value logits of one layer's neurons: (neurons, tokens), float32. votes: as of `directions`."""
    with at_hand(layer.mlp_out):
        vectors = value_vectors(layer)
    wide = vectors.double()
    if layer.post_norm is not None:  # its scale is the prompt's own, above 0; so only the direction is the neuron's
        centred = wide - wide.mean(1, keepdim=True) if centres(layer.post_norm, vectors) else wide
        wide = centred * gain(layer.post_norm, vectors).to(wide.device)
    return (wide @ votes.T.to(wide.device)).float().cpu().numpy()


def gain(norm: Any, like: torch.Tensor) -> torch.Tensor:
    """The norm's gain, (width,) in float64, read off its behaviour: some architectures store it as a difference from 1, some have none.

    like: a matrix (…, width) of the model.
    """
    signs = _signs(norm, like)
    return ((norm(signs) - norm(-signs)) / 2 * signs).double()  # mean 0, mean square 1: what is left is the gain; a bias cancels


def centres(norm: Any, like: torch.Tensor) -> bool:
    """Whether the norm takes away the mean over the width: then a number added to all coordinates changes nothing."""
    signs = _signs(norm, like)
    return torch.equal(norm(signs + 1), norm(signs))


def _signs(norm: Any, like: torch.Tensor) -> torch.Tensor:
    weight = getattr(norm, "weight", None)  # without weights, or while they are elsewhere, it computes where it is asked to
    there = like.device if weight is None or weight.is_meta else weight.device
    signs = torch.ones(like.shape[-1], dtype=like.dtype, device=there)
    signs[1::2] = -1
    return signs
