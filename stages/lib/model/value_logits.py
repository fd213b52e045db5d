"""Value logits: which answers a neuron's value vector votes for when nothing stands between it and the unembedding."""

from typing import Any

import numpy as np
import torch
from torch import nn

from stages.lib.model.architecture import value_vectors
from stages.lib.model.checkpoint import Checkpoint


@torch.no_grad()
def value_logits(checkpoint: Checkpoint, tokens: list[int]) -> np.ndarray:
    """Value vector · unembedding of each token: (layers, neurons, tokens), float32.

    The final norm's gain is folded into the unembedding, the unembedding is centred over the whole vocabulary, and no
    norm is applied to the value vector (Nikankin et al. 2025, Sec. 3: the logit lens). Where the final norm subtracts
    the mean over the width (LayerNorm), so does this. Only differences between a neuron's logits have a meaning.
    """
    a = checkpoint.architecture
    folded = a.unembedding.weight.double() * gain(a.final_norm, a.width)  # (vocabulary, width)
    if isinstance(a.final_norm, nn.LayerNorm):
        folded = folded - folded.mean(1, keepdim=True)
    numbers = (folded - folded.mean(0))[tokens]
    return torch.stack([value_vectors(layer).double() @ numbers.T for layer in a.layers]).float().cpu().numpy()


def gain(norm: Any, width: int) -> torch.Tensor:
    """The norm's gain, read off its behaviour: some architectures store it as a difference from 1."""
    weight: torch.Tensor = norm.weight
    signs = torch.ones(width, dtype=weight.dtype, device=weight.device)
    signs[1::2] = -1  # mean 0, mean square 1: only the gain and the bias are left, and the bias cancels below
    return ((norm(signs) - norm(-signs)) / 2 * signs).double()
