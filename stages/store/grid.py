"""Runs a square of prompts, op1 x op2, through a model, computing what the prompts of a row share only once.

The prompts of a row share their first tokens (BOS, op1, operator): those go through the model once per row, and their
keys and values serve every op2. Prompts that share no prefix take the plain path: the whole prompt, every time.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from transformers import DynamicCache

from stages.lib.ask import Said, read_off
from stages.lib.model.agreement import CANNOT, rounding
from stages.lib.model.architecture import patched
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.staging import Staging

SUMS = ("neurons", "heads", "residual")  # of Means


@dataclass
class Means:
    """Running sums of every component's activations by position, over all prompts seen.

    neurons: (layers, positions, neurons), the MLPs' activations; heads: (layers, positions, heads, head width), the
    attention's output before its output projection; residual: (layers, positions, width), the stream entering each layer.
    """

    neurons: np.ndarray
    heads: np.ndarray
    residual: np.ndarray
    prompts: int = 0

    @classmethod
    def zeros(cls, checkpoint: Checkpoint, positions: int) -> "Means":
        a = checkpoint.architecture
        shapes = ((a.neurons,), (a.heads, a.head_width), (a.width,))
        neurons, heads, residual = (np.zeros((len(a.layers), positions, *shape)) for shape in shapes)
        return cls(neurons, heads, residual)

    def add(self, other: "Means", slots: np.ndarray) -> None:
        """Adds other sums, each of its positions to one of these."""
        for name in SUMS:
            getattr(self, name)[:, slots] += getattr(other, name)
        self.prompts += other.prompts


def shared_prefix(tokens: np.ndarray) -> int:
    """How many leading tokens the prompts of each row share; tokens: (rows, columns, positions)."""
    same = (tokens == tokens[:, :1]).all(axis=(0, 1))
    prefix = int(np.argmin(same)) if not same.all() else len(same)
    return min(prefix, tokens.shape[2] - 1)


@torch.no_grad()
def shares(checkpoint: Checkpoint, tokens: np.ndarray) -> bool:
    """Whether this model can go on behind a row's first tokens, by a few prompts of a square: (rows, columns, positions).

    Its cache may be of another kind, or its mask or positions may not be those of a continued prompt.
    """
    few = np.ascontiguousarray(tokens[:: max(1, len(tokens) // 3), :: max(1, tokens.shape[1] // 4)])
    if not shared_prefix(few):
        return True  # nothing is shared
    try:
        fast = _computed(checkpoint, few, len(few))
        plain, by_row = (_computed(checkpoint, few, rows, share=False) for rows in (len(few), 1))
    except CANNOT:
        return False
    share = max(1e-6, rounding(checkpoint.model.dtype))
    for shared, whole, rows in zip(fast, plain, by_row, strict=True):
        # In few digits and many layers, a model differs as much from itself in smaller passes.
        allowed = max(share * np.linalg.norm(whole), 2 * np.linalg.norm(rows - whole))
        if not np.linalg.norm(shared - whole) <= allowed:
            return False
    return True


def _computed(
    checkpoint: Checkpoint,
    tokens: np.ndarray,
    rows_at_once: int,
    share: bool = True,
) -> list[np.ndarray]:
    """Return the largest logit of each prompt, and the last position's activations by layer."""
    a = checkpoint.architecture
    shape = (a.neurons, *tokens.shape[:2])
    activations = {layer: np.empty(shape, np.float32) for layer in range(len(a.layers))}
    answers = np.full(tokens.shape[:2], -1)
    predictions = run(checkpoint, tokens, answers, rows_at_once, activations, share=share)
    logits = np.concatenate([part.max_logit for part in predictions])
    return [logits, *activations.values()]


@torch.no_grad()
def run(
    checkpoint: Checkpoint,
    tokens: np.ndarray,
    answers: np.ndarray,
    rows_at_once: int,
    into: dict[int, np.ndarray],
    means: Means | None = None,
    *,
    share: bool = True,
) -> Iterator[Said]:
    """Streams a square of prompts through the model, `rows_at_once` rows at a time; yields what it says to each prompt.

    tokens: (rows, columns, positions); answers: (rows, columns), -1 where a prompt has none. The last position's
    activations of each layer in `into` are written to its array (neurons, rows, columns), of float16 or float32; a value
    that does not fit becomes infinite there. `means`, if given, is added to. `share=False` recomputes every prefix.
    """
    prefix = shared_prefix(tokens) if share and tokens.shape[1] > 1 else 0
    device, staging = checkpoint.model.device, Staging()
    for first in range(0, len(tokens), rows_at_once):
        block = torch.from_numpy(tokens[first : first + rows_at_once]).to(device)
        rows, columns, positions = block.shape
        cache = None
        if prefix:
            cache = DynamicCache(config=checkpoint.model.config)
            with _watching(checkpoint, {}, means, 0, columns, staging):
                checkpoint.model(input_ids=block[:, 0, :prefix], past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache.batch_repeat_interleave(columns)
        targets = {layer: torch.from_numpy(array[:, first : first + rows]) for layer, array in into.items()}
        with _watching(checkpoint, targets, means, prefix, 1, staging):
            suffix = block[:, :, prefix:].reshape(rows * columns, positions - prefix)
            logits = checkpoint.last_logits(suffix, past_key_values=cache, use_cache=prefix > 0)
        if means is not None:
            means.prompts += rows * columns
        said = read_off(logits, torch.from_numpy(answers[first : first + rows].ravel()).to(device))
        staging.finish()
        yield said


def _watching(
    checkpoint: Checkpoint, targets: dict[int, torch.Tensor], means: Means | None, start: int, weight: int, staging: Staging
) -> ExitStack:
    """A context in which forward passes fill `targets` and add to `means` from position `start` on, each prompt `weight` times."""

    def keep_last(target: torch.Tensor):
        def look(x: torch.Tensor) -> None:
            last = x[:, -1].T.reshape(target.shape)  # (neurons, rows, columns)
            staging.put(target, last if x.device.type == "cpu" else last.to(target.dtype).contiguous())

        return look

    def add_to(sums: torch.Tensor):
        def look(x: torch.Tensor) -> None:
            staging.put(sums[start : start + x.shape[1]], weight * _sum(x).reshape(x.shape[1], *sums.shape[1:]), add=True)

        return look

    stack = ExitStack()
    for index, layer in enumerate(checkpoint.architecture.layers):
        if index in targets:
            stack.enter_context(patched(layer.mlp_out, keep_last(targets[index])))
        if means is not None:
            heads = [(layer.attention_out, means.heads)] if layer.attention_out else []
            for module, sums in ((layer.mlp_out, means.neurons), *heads, (layer.block, means.residual)):
                stack.enter_context(patched(module, add_to(torch.from_numpy(sums[index]))))
    return stack


def _sum(x: torch.Tensor) -> torch.Tensor:
    """Sum over the prompts of one pass, in at least float32; passes are added up in float64."""
    return x.sum(0, dtype=torch.promote_types(x.dtype, torch.float32)).double()
