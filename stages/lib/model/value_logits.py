"""Compute value logits, the direct logit attribution of neurons' output weights.

A neuron's value logit for a token is its value vector times the unembedding of the token, as if
nothing came between them.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from stages.lib.model.architecture import DecoderLayer, value_vectors
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.spread import at_hand

AT_ONCE = 1 << 14  # tokens of the vocabulary


def value_logits(checkpoint: Checkpoint, tokens: list[int]) -> Iterator[np.ndarray]:
    """Yield value vector · unembedding of each token, for each layer: (neurons, tokens), float32.

    * The final norm's gain is folded into the unembedding.
    * The unembedding is centred over the whole vocabulary.
    * No norm is applied to the value vector (Nikankin et al. 2025, Sec. 3: the logit lens).
    * If the final norm subtracts the mean over the width (LayerNorm), so does this function.
    * If a norm follows the MLP, its gain is folded into the value vector. Its scale is not, because
      it differs between prompts.

    Only differences between a neuron's logits have a meaning.
    """
    answers = directions(checkpoint, tokens)
    for layer in checkpoint.architecture.layers:
        yield of_layer(layer, answers)


@torch.no_grad()
def directions(checkpoint: Checkpoint, tokens: list[int]) -> torch.Tensor:
    """Return the vectors that value vectors are multiplied with: (tokens, width), float64."""
    a = checkpoint.architecture
    with at_hand(a.unembedding):
        weight = a.unembedding.weight
    scale = gain(a.final_norm, weight).to(weight.device)
    is_centred = centres(a.final_norm, weight)

    def folded(rows: torch.Tensor) -> torch.Tensor:
        scaled = rows.double() * scale  # (tokens, width)
        return _centred(scaled) if is_centred else scaled

    mean = torch.stack([folded(rows).sum(0) for rows in weight.split(AT_ONCE)]).sum(0) / len(weight)
    return folded(weight[tokens]) - mean


@torch.no_grad()
def of_layer(layer: DecoderLayer, directions: torch.Tensor) -> np.ndarray:
    """Return the value logits of one layer's neurons: (neurons, tokens), float32.

    directions: (tokens, width), as the function `directions` returns them.
    """
    with at_hand(layer.mlp_out):
        vectors = value_vectors(layer)
    written = vectors.double()
    if layer.post_norm is not None:
        # the norm's scale is positive and differs between prompts; only the direction is fixed
        if centres(layer.post_norm, vectors):
            written = _centred(written)
        written = written * gain(layer.post_norm, vectors).to(written.device)
    return (written @ directions.T.to(written.device)).float().cpu().numpy()


def gain(norm: Any, like: torch.Tensor) -> torch.Tensor:
    """Return a norm's gain, (width,) in float64, measured from its output.

    Some architectures store the gain as a difference from 1, some have none. like: a matrix
    (…, width) of the model, for its dtype and device.
    """
    signs = _signs(norm, like)
    # the input has mean 0 and mean square 1, so the output is the gain; a bias cancels
    return ((norm(signs) - norm(-signs)) / 2 * signs).double()


def centres(norm: Any, like: torch.Tensor) -> bool:
    """Return whether a norm subtracts the mean over the width.

    If it does, adding a number to all coordinates changes nothing.
    """
    signs = _signs(norm, like)
    return torch.equal(norm(signs + 1), norm(signs))


def _centred(vectors: torch.Tensor) -> torch.Tensor:
    return vectors - vectors.mean(1, keepdim=True)


def _signs(norm: Any, like: torch.Tensor) -> torch.Tensor:
    """Return 1, -1, 1, … (width,), on the device on which the norm computes."""
    weight = getattr(norm, "weight", None)
    # a norm without weights, or whose weights are not loaded, computes on any device
    if weight is None or weight.is_meta:
        weight = like
    signs = torch.ones(like.shape[-1], dtype=like.dtype, device=weight.device)
    signs[1::2] = -1
    return signs
