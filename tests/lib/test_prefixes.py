"""Check prompts that share first tokens: these are computed once, and nothing changes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, MistralConfig

from stages.lib import ask
from stages.lib.model import checkpoint, norms, prefixes, residuals
from tests.conftest import SIZES, random_model

EXAMPLES = np.random.default_rng(1).integers(3, 100, 12).tolist()
LENGTHS = (3, 5, 4, 3, 5, 5, 3)  # of what follows the examples
PLACES = np.array([[12, 11 + length] for length in LENGTHS])


def sequences(front: list[int] = EXAMPLES) -> list[list[int]]:
    random = np.random.default_rng(0)
    return [front + random.integers(3, 100, length).tolist() for length in LENGTHS]


def loaded(kind: str = "llama", **more: Any) -> checkpoint.Checkpoint:
    return checkpoint.prepared(random_model(kind, **more))


def counted(subject: checkpoint.Checkpoint) -> list[int]:
    """Return a list to which each forward pass adds the tokens that it computes."""
    tokens: list[int] = []
    embedding = subject.model.get_input_embeddings()
    embedding.register_forward_pre_hook(lambda _, inputs: tokens.append(inputs[0].numel()))
    return tokens


def check_streams(subject: checkpoint.Checkpoint, prompts: list[list[int]], folder: Path) -> None:
    """Compare residual streams at PLACES with hidden states of plain forward passes."""
    final_norm = subject.architecture.final_norm
    with residuals.read(subject, prompts, PLACES, 2, folder, "test") as streams:
        for number, (tokens, places) in enumerate(zip(prompts, PLACES, strict=True)):
            states = subject.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
            for level, state in enumerate(states):
                stored = [streams.at(level, at)[number] for at in (0, 1)]
                vectors = torch.from_numpy(np.stack(stored))
                if level == len(states) - 1:  # transformers shows the last one normalised
                    vectors = final_norm(vectors)
                expected = state[0, places].to(vectors.dtype)
                torch.testing.assert_close(vectors, expected, rtol=1e-3, atol=1e-4)


def check_answers(subject: checkpoint.Checkpoint, prompts: list[list[int]]) -> None:
    """Compare answers with plain forward passes, and whole answers with greedy decoding."""
    encoded = ask.EncodedPrompts(prompts, np.arange(len(prompts)) + 3)
    answers, whole = ask.ask(subject, encoded, 3, "test"), []
    for number, tokens in enumerate(prompts):
        logits = subject.model(torch.tensor([tokens])).logits[0, -1]
        assert answers.predicted[number] == int(logits.argmax())
        np.testing.assert_allclose(answers.max_logit[number], logits.max(), rtol=1e-4)
        greedy = [int(logits.argmax())]
        greedy.append(int(subject.model(torch.tensor([tokens + greedy])).logits[0, -1].argmax()))
        whole += [(tokens, greedy), (tokens, [greedy[0], greedy[1] - 1])]
    assert ask.says(subject, whole, 3).tolist() == [True, False] * len(prompts)


def test_shared_tokens_change_nothing_and_are_computed_once(kind: str, tmp_path: Path):
    subject = loaded(kind)
    assert prefixes.find(subject, sequences(), 100).length == len(EXAMPLES)
    check_streams(subject, sequences(), tmp_path)
    check_answers(subject, sequences())
    assert set(subject.continues.values()) == {True}
    tokens = counted(subject)
    with residuals.read(subject, sequences(), PLACES, 2, tmp_path, "test"):
        assert sum(tokens) == len(EXAMPLES) + sum(LENGTHS)


def ignore_cache(_: Any, inputs: tuple, named: dict[str, Any]) -> tuple:
    return inputs, {**named, "past_key_values": None}


def refuse_cache(_: Any, inputs: tuple, named: dict[str, Any]) -> None:
    if named.get("past_key_values") is not None:
        raise TypeError("this model knows no cache")


@pytest.mark.parametrize("hook", [ignore_cache, refuse_cache])
def test_a_model_that_cannot_go_on_after_a_prefix_computes_whole_prompts(hook, tmp_path: Path):
    subject = loaded()
    subject.model.base_model.register_forward_pre_hook(hook, with_kwargs=True)
    assert prefixes.find(subject, sequences(), 100).length == 0
    assert set(subject.continues.values()) == {False}
    check_streams(subject, sequences(), tmp_path)
    check_answers(subject, sequences())


def test_a_prefix_longer_than_the_attentions_window(tmp_path: Path):
    torch.manual_seed(0)
    config = MistralConfig(
        **SIZES,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=6,
        bos_token_id=1,
        eos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.3 + (parameter.ndim == 1)
    subject = checkpoint.prepared(model.requires_grad_(False))
    check_streams(subject, sequences(), tmp_path)
    check_answers(subject, sequences())


def test_few_shared_tokens_are_computed_with_each_prompt(tmp_path: Path):
    """Small trained models share one or a few tokens, and so keep their bytes."""
    subject = loaded()
    assert prefixes.find(subject, sequences(EXAMPLES[: prefixes.FEWEST - 1]), 100).length == 0
    assert prefixes.find(subject, sequences(), prefixes.FEWEST - 1).length == 0
    assert prefixes.find(subject, sequences(), prefixes.FEWEST).length == prefixes.FEWEST
    assert prefixes.find(subject, [], 100).length == 0
    with residuals.read(subject, [], np.zeros((0, 2), int), 4, tmp_path, "test") as streams:
        assert streams.at(0, 1).shape == (0, 32)


def test_passes_are_as_large_as_memory_allows(monkeypatch: pytest.MonkeyPatch):
    prefix = prefixes.find(loaded(), sequences(), 100)
    assert prefix.in_pass(17, 5) == 5
    shared, whole = prefix.in_pass(17, 10**9), prefixes.Prefix(prefix.checkpoint).in_pass(17, 10**9)
    assert shared > whole > 1000
    monkeypatch.setattr(prefixes, "MEMORY", 1)
    assert prefix.in_pass(17, 5) == 1


def test_a_stream_that_is_not_finite_is_an_error(tmp_path: Path):
    subject = loaded()
    subject.architecture.layers[1].mlp_out.weight[:] = float("inf")
    with (
        pytest.raises(FloatingPointError, match="residual stream is not finite; try a wider dtype"),
        residuals.read(subject, sequences(), PLACES, 4, tmp_path, "test"),
    ):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_quick_norms_give_what_the_norms_give_for_large_residual_streams(dtype: torch.dtype):
    """The square of a length above 256 does not fit into float16."""
    subject = checkpoint.prepared(random_model("llama").to(dtype))
    pairs = norms.quick_norms(subject)
    assert len(pairs) > 2
    x = 1000 * torch.randn(
        3, subject.architecture.width, generator=torch.Generator().manual_seed(0)
    )
    for norm, quick in pairs:
        usual = norm(x.to(dtype))
        assert usual.abs().max() > 0.1
        close = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(quick(x.to(dtype)), usual, rtol=close, atol=close)
