"""Runs a square of prompts, op1 x op2, through a model, computing what the prompts of a row share only once.

The prompts of a row share their first tokens (BOS, op1, operator): those go through the model once per row, and their
keys and values serve every op2. Prompts that share no prefix take the plain path: the whole prompt, every time.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from stages.lib.ask import Said, read_off
from stages.lib.model.agreement import CANNOT, rounding
from stages.lib.model.architecture import patched
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.norms import quick_norms, quicker
from stages.lib.model.row_attention import attending
from stages.lib.model.staging import Staging

DENSE = torch.contiguous_format
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
        neurons, heads, residual = (
            np.zeros((len(a.layers), positions, *shape)) for shape in shapes
        )
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


def bytes_per_prompt(checkpoint: Checkpoint, tokens: np.ndarray, way: "Sharing") -> int:
    """Return about how many bytes each prompt of a pass takes besides the weights.

    These are its logits, its keys and values of all layers if it continues a prefix, and what one
    layer computes on the way. tokens: (rows, columns, positions) of prompts that share a prefix.
    """
    a, positions = checkpoint.architecture, tokens.shape[2]
    prefix = 0 if way is Sharing.NONE else shared_prefix(tokens)
    config = checkpoint.model.config.get_text_config()
    key_heads = getattr(config, "num_key_value_heads", None) or a.heads
    cached = len(a.layers) * positions * 2 * key_heads * a.head_width if prefix else 0
    keys_and_values = 2 * positions * a.heads * a.head_width  # repeated for every head
    own = (positions - prefix) * (4 * a.neurons + 8 * a.width + 3 * a.heads * positions)
    values = a.vocabulary + cached + keys_and_values + own
    return values * checkpoint.model.dtype.itemsize


class Sharing(Enum):
    """How the prompts of a row share what is computed of their prefix."""

    NONE = auto()  # every prompt is computed whole
    CACHE = auto()  # transformers' own cache, repeated for each prompt
    ATTENTION = auto()  # one copy of keys and values per row, and quick norms


@torch.no_grad()
def sharing(
    checkpoint: Checkpoint,
    tokens: np.ndarray,
    ways: tuple[Sharing, ...] | None = None,
) -> Sharing:
    """Return the first of these ways that agrees with whole prompts on a few of tokens, or NONE.

    tokens: (rows, columns, positions). A model's cache may be of another kind, or its mask or
    positions may not be those of a continued prompt. A float64 model on a processor does not try
    ATTENTION unless ways name it: models of ours are small, which gain little, and keep their bytes.
    """
    if ways is None:
        exact = checkpoint.model.device.type == "cpu" and checkpoint.model.dtype == torch.float64
        ways = (Sharing.CACHE,) if exact else (Sharing.ATTENTION, Sharing.CACHE)
    step = max(1, len(tokens) // 3), max(1, tokens.shape[1] // 4)
    few = np.ascontiguousarray(tokens[:: step[0], :: step[1]])
    if not shared_prefix(few):
        return ways[-1]  # nothing is shared
    streams: list[torch.Tensor] = []
    with ExitStack() as context:
        for layer in checkpoint.architecture.layers:
            context.enter_context(patched(layer.block, streams.append))
        whole = _computed(checkpoint, few, Sharing.NONE)
    whole.append(streams[0].float())
    return next(
        (way for way in ways if _agrees(checkpoint, few, way, streams, whole)), Sharing.NONE
    )


def _agrees(
    checkpoint: Checkpoint,
    tokens: np.ndarray,
    way: Sharing,
    streams: list[torch.Tensor],
    whole: list[torch.Tensor],
) -> bool:
    """Whether each layer computes the same in this way from what enters it in whole prompts.

    streams: what enters each layer there, (prompts, positions, width); whole: what _computed
    returns there. Layers are compared one by one, as rounding grows through many of them.
    """
    prefix, (rows, columns, positions) = shared_prefix(tokens), tokens.shape
    entered: list[torch.Tensor] = []  # into the first layer: the prefix of each row, then the rest

    def enter(layer: int, x: torch.Tensor, calls: list[int]) -> torch.Tensor:
        if layer == 0:
            entered.append(x)
        kept = streams[layer].view(rows, columns, positions, -1)
        calls.append(layer)
        if len(calls) == 1:
            return kept[:, 0, :prefix]
        return kept[:, :, prefix:].flatten(0, 1)

    try:
        with ExitStack() as context:
            for number, layer in enumerate(checkpoint.architecture.layers):
                change = partial(enter, number, calls=[])
                context.enter_context(patched(layer.block, change, first=True))
            shared = _computed(checkpoint, tokens, way)
    except CANNOT:
        return False
    front, rest = entered
    front = front[:, None].expand(rows, columns, prefix, -1).flatten(0, 1)
    shared.append(torch.cat([front, rest], 1).float())
    allowed = max(1e-6, rounding(checkpoint.model.dtype))
    pairs = zip(shared, whole, strict=True)
    return all(bool((x - y).norm() <= allowed * y.norm()) for x, y in pairs)


def _computed(checkpoint: Checkpoint, tokens: np.ndarray, way: Sharing) -> list[torch.Tensor]:
    """Return each prompt's largest logit, and by layer the last position's activations and heads."""
    a = checkpoint.architecture
    shape = (a.neurons, *tokens.shape[:2])
    activations = {layer: np.empty(shape, np.float32) for layer in range(len(a.layers))}
    heads: dict[int, torch.Tensor] = {}  # the later pass, of whole prompts or of their ends, counts
    with ExitStack() as context:
        for number, layer in enumerate(a.layers):
            if layer.attention_out is not None:
                keep = partial(_keep_last, heads, number)
                context.enter_context(patched(layer.attention_out, keep))
        answers = np.full(tokens.shape[:2], -1)
        [said] = run(checkpoint, tokens, answers, len(tokens), activations, sharing=way)
    arrays = (said.max_logit, *activations.values())
    return [*map(torch.from_numpy, arrays), *heads.values()]


def _keep_last(kept: dict[int, torch.Tensor], layer: int, x: torch.Tensor) -> None:
    kept[layer] = x[:, -1].float()


@torch.no_grad()
def run(
    checkpoint: Checkpoint,
    tokens: np.ndarray,
    answers: np.ndarray,
    rows_at_once: int,
    activations: dict[int, np.ndarray],
    means: Means | None = None,
    *,
    sharing: Sharing = Sharing.CACHE,
) -> Iterator[Said]:
    """Stream a square of prompts through the model; yield what it answers, some rows at a time.

    tokens: (rows, columns, positions); answers: (rows, columns), -1 where a prompt has none;
    activations: layer -> (neurons, rows, columns), float16 or float32, to which the last position's
    are written; a value that does not fit becomes infinite. means: added to, if given. Both are
    whole once the last answers were taken. sharing: as the function of that name finds; NONE
    computes every prefix again.
    """
    way = sharing if tokens.shape[1] > 1 else Sharing.NONE
    prefix = 0 if way is Sharing.NONE else shared_prefix(tokens)
    device, staging = checkpoint.model.device, Staging()
    with quicker(quick_norms(checkpoint) if prefix and way is Sharing.ATTENTION else []):
        for first in range(0, len(tokens), rows_at_once):
            some = slice(first, first + rows_at_once)
            block = torch.from_numpy(tokens[some]).to(device)
            targets = {i: torch.from_numpy(array[:, some]) for i, array in activations.items()}
            kept: dict[str, Any] = {"targets": targets, "means": means, "staging": staging}
            logits = _logits(checkpoint, block, prefix, way, **kept)
            if means is not None:
                means.prompts += block.shape[0] * block.shape[1]
            yield read_off(logits, torch.from_numpy(answers[some].ravel()).to(device))
        staging.finish()


def _logits(
    checkpoint: Checkpoint,
    block: torch.Tensor,
    prefix: int,
    way: Sharing,
    *,
    targets: dict[int, torch.Tensor],
    means: Means | None,
    staging: Staging,
) -> torch.Tensor:
    """Return the last position's logits (rows x columns, vocabulary) of a block of rows.

    block: tokens (rows, columns, positions); targets and means are filled on the way.
    """
    rows, columns, positions = block.shape
    named: dict[str, Any] = {"use_cache": False}
    with ExitStack() as context:
        if prefix:
            cache = DynamicCache(config=checkpoint.model.config)
            with _watching(checkpoint, {}, means, 0, columns, staging):
                front = block[:, 0, :prefix]
                checkpoint.model(
                    input_ids=front, past_key_values=cache, use_cache=True, logits_to_keep=1
                )
            if way is Sharing.ATTENTION:
                behind = torch.arange(prefix, positions, device=block.device)
                named["position_ids"] = behind.expand(rows * columns, -1)
                context.enter_context(attending(checkpoint.model, cache))
            else:
                cache.batch_repeat_interleave(columns)
                named = {"past_key_values": cache, "use_cache": True}
        context.enter_context(_watching(checkpoint, targets, means, prefix, 1, staging))
        suffix = block[:, :, prefix:].reshape(rows * columns, positions - prefix)
        return checkpoint.last_logits(suffix, **named)


def _watching(
    checkpoint: Checkpoint,
    targets: dict[int, torch.Tensor],
    means: Means | None,
    start: int,
    weight: int,
    staging: Staging,
) -> ExitStack:
    """A context in which forward passes fill `targets` and add to `means` from position `start` on, each prompt `weight` times."""

    def keep_last(target: torch.Tensor):
        def look(x: torch.Tensor) -> None:
            last = x[:, -1].T.reshape(target.shape)  # (neurons, rows, columns)
            if x.device.type != "cpu":
                last = torch.empty_like(last, dtype=target.dtype, memory_format=DENSE).copy_(last)
            staging.put(target, last)

        return look

    def add_to(sums: torch.Tensor):
        def look(x: torch.Tensor) -> None:
            staging.put(
                sums[start : start + x.shape[1]],
                weight * _sum(x).reshape(x.shape[1], *sums.shape[1:]),
                add=True,
            )

        return look

    stack = ExitStack()
    for index, layer in enumerate(checkpoint.architecture.layers):
        if index in targets:
            stack.enter_context(patched(layer.mlp_out, keep_last(targets[index])))
        if means is not None:
            heads = [(layer.attention_out, means.heads)] if layer.attention_out else []
            for module, sums in (
                (layer.mlp_out, means.neurons),
                *heads,
                (layer.block, means.residual),
            ):
                stack.enter_context(patched(module, add_to(torch.from_numpy(sums[index]))))
    return stack


def _sum(x: torch.Tensor) -> torch.Tensor:
    """Sum over the prompts of one pass, in at least float32; passes are added up in float64."""
    return x.sum(0, dtype=torch.promote_types(x.dtype, torch.float32)).double()
