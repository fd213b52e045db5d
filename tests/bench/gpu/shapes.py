"""Make models of real sizes with random weights on the device, with prompts and pairs."""

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from stages.lib.model import search
from stages.lib.model.checkpoint import Checkpoint

ROLES = {"op1": 1, "operator": 2, "op2": 3, "last": 4}  # in a prompt of BOS, op1, operator, op2, =


@dataclass(frozen=True)
class Shape:
    """A model's sizes, and how much work is done with it.

    rows x columns: prompts of the dump; pairs: of runs; many: prompts of the larger batch of plain
    forward passes; checked: prompts compared with float32; passes: sizes of passes, in multiples
    of the settings; matrix: side of the matrix product; copied, written: MiB.
    """

    family: str
    sizes: dict[str, Any]
    rows: int = 80
    columns: int = 250
    pairs: int = 50
    many: int = 1000
    checked: int = 64
    passes: tuple[int, ...] = (1, 4, 16)
    run_passes: tuple[int, ...] = (4, 16, 64, 128)
    matrix: int = 8192
    copied: int = 4096
    written: int = 4096
    seconds: float = 1.5  # of one measurement of runs


LLAMA_8B = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
PYTHIA_7B = {
    "vocab_size": 50432,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "tie_word_embeddings": False,
}
SMALL = {
    "vocab_size": 160,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
}
SHAPES = {
    "toy": Shape(
        "llama", SMALL, rows=6, columns=20, pairs=4, many=8, checked=4, passes=(1, 4),
        run_passes=(4, 16), matrix=128, copied=4, written=16, seconds=0.01,
    ),
    "llama-3-8b": Shape("llama", LLAMA_8B),
    "pythia-6.9b": Shape("gpt_neox", PYTHIA_7B),
}  # fmt: skip


def random_model(
    family: str,
    sizes: dict[str, Any],
    device: str,
    dtype: torch.dtype,
) -> PreTrainedModel:
    """Return a model with transformers' own random weights and plain attention."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **copy.deepcopy(sizes))
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    return model.eval().requires_grad_(False)


def with_parts(model: PreTrainedModel) -> Checkpoint:
    """Return the model and its parts, unchecked."""
    return Checkpoint(model, search.find(model))


def grid_of_prompts(vocabulary: int, rows: int, columns: int) -> np.ndarray:
    """Return tokens (rows, columns, 5); prompts of a row begin with the same three tokens."""
    random = np.random.default_rng(0)
    tokens = np.empty((rows, columns, 5), np.int64)
    tokens[..., 0], tokens[..., 2], tokens[..., 4] = 1, 3, 4
    tokens[..., 1] = random.integers(5, vocabulary, rows)[:, None]
    tokens[..., 3] = random.integers(5, vocabulary, columns)[None]
    return tokens


def pair_table(vocabulary: int, pairs: int) -> pl.DataFrame:
    """Return pairs of random prompts whose operands differ."""
    random = np.random.default_rng(1)
    table = {"pair": range(pairs), "operator": ["add"] * pairs, "split": ["discovery"] * pairs}
    for which in ("", "counterfactual_"):
        tokens = np.tile([1, 0, 3, 0, 4], (pairs, 1))
        tokens[:, [1, 3]] = random.integers(5, vocabulary, (pairs, 2))
        table[f"{which}tokens"] = tokens.tolist()
        table[f"{which}answer_token"] = random.integers(5, vocabulary, pairs).tolist()
        table[f"{which}positions"] = [ROLES] * pairs
    return pl.DataFrame(table)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let torch use this number of threads within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(device: str, action: Callable[[], object]) -> float:
    """Return the seconds until the device has finished an action."""
    wait(device)
    start = time.perf_counter()
    action()
    wait(device)
    return time.perf_counter() - start


def typical(device: str, action: Callable[[], object], rounds: int = 5, warm: int = 2) -> float:
    """Return median seconds after unmeasured rounds; on a GPU between events on the device."""
    for _ in range(warm):
        action()
    if device != "cuda":
        return statistics.median(seconds_of(device, action) for _ in range(rounds))
    measured = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        action()
        end.record()
        end.synchronize()
        measured.append(start.elapsed_time(end) / 1e3)
    return statistics.median(measured)


def forget_peak(device: str) -> None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak(device: str) -> float:
    """Return the most GiB of the GPU's memory that tensors took, 0 on a processor."""
    return torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
