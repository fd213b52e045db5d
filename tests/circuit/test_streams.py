"""What is read off a model is what transformers puts out."""

from pathlib import Path

import numpy as np
import pytest
import torch

from stages.circuit import recording
from stages.lib.model import architecture
from tests.circuit.prompted import loaded, tokens


def test_attention_is_transformers_attentions(checkpoint_folder: Path):
    subject, prompts = loaded(checkpoint_folder), tokens()
    mean, std = recording.attention(subject, prompts, 3)
    own = (
        torch.stack(subject.model(torch.from_numpy(prompts), output_attentions=True).attentions)
        .double()
        .numpy()
    )
    np.testing.assert_allclose(mean, own.mean(1), atol=1e-6)
    np.testing.assert_allclose(std, own.std(1), atol=1e-5)
    np.testing.assert_allclose(mean.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama"])
def test_weights_that_are_alike_deviate_by_nothing(checkpoint_folder: Path):
    """The deviation of equal weights is 0, without the rounding errors of their squares.

    Prompts are equal but for their last token, which earlier tokens do not attend to.
    """
    subject, prompts = loaded(checkpoint_folder), np.repeat(tokens()[:1], 7, axis=0)
    prompts[:, -1] = tokens()[:, -1]
    _, std = recording.attention(subject, prompts, 3)
    assert (std[:, :, :-1] < 1e-7).all()
    assert (std[:, :, -1] > 0).any()


@pytest.mark.parametrize("kind", ["llama"])
def test_an_attention_without_weights_is_named(checkpoint_folder: Path):
    subject = loaded(checkpoint_folder)
    handle = subject.architecture.layers[1].mixer.register_forward_hook(
        lambda _, __, output: (output[0], None)
    )
    with pytest.raises(
        architecture.ArchitectureError, match=r"layer 1: .* does not return its attention weights"
    ):
        recording.attention(subject, tokens(), 3)
    handle.remove()


def test_neurons_of_a_cut_prompt_are_those_of_the_whole(checkpoint_folder: Path):
    subject, prompts = loaded(checkpoint_folder), tokens()
    seen: list[torch.Tensor] = []
    with architecture.patched(
        subject.architecture.layers[0].mlp_out, lambda x: seen.append(x[:, 1].clone())
    ):
        subject.model(torch.from_numpy(prompts))
    np.testing.assert_allclose(
        recording.neurons(subject, prompts[:, :2], 0, 3), seen[0].numpy(), rtol=1e-4, atol=1e-5
    )
