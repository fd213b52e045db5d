"""Run a grid of prompts, op1 x op2, through a model, and compute the prefix of each row only once.

The prompts of a row share their first tokens (BOS, op1, operator). These go through the model once
per row, and their keys and values serve every op2. Prompts without a shared prefix are run whole.
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

from stages.lib.ask import Predictions, read_off
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
    """Running sums of every component's activations by position, over all prompts so far.

    neurons: (layers, positions, neurons), the MLPs' activations.
    heads: (layers, positions, heads, head width), the attention before its output projection.
    residual: (layers, positions, width), the residual stream entering each layer.
    """

    neurons: np.ndarray
    heads: np.ndarray
    residual: np.ndarray

    @classmethod
    def zeros(cls, checkpoint: Checkpoint, positions: int) -> "Means":
        a = checkpoint.architecture
        shape = (len(a.layers), positions)
        return cls(
            neurons=np.zeros((*shape, a.neurons)),
            heads=np.zeros((*shape, a.heads, a.head_width)),
            residual=np.zeros((*shape, a.width)),
        )

    def add(self, other: "Means", slots: np.ndarray) -> None:
        """Add other sums. slots: (positions of `other`,), which position here each belongs to."""
        for name in SUMS:
            getattr(self, name)[:, slots] += getattr(other, name)


def shared_prefix(tokens: np.ndarray) -> int:
    """Return how many first tokens the prompts of each row share.

    tokens: (rows, columns, positions). The last token does not count: it is always run.
    """
    same = (tokens[:, :, :-1] == tokens[:, :1, :-1]).all(axis=(0, 1))
    return int(np.logical_and.accumulate(same).sum())


def bytes_per_prompt(checkpoint: Checkpoint, tokens: np.ndarray, way: "Sharing") -> int:
    """Estimate the bytes that each prompt of a forward pass takes besides the weights.

    These are its logits, its keys and values of all layers if it continues a prefix, and what one
    layer computes meanwhile. tokens: (rows, columns, positions) of prompts that share a prefix.
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
    """How the prompts of a row share the computation of their prefix."""

    NONE = auto()  # every prompt is computed whole
    CACHE = auto()  # transformers' own cache, repeated for each prompt
    ATTENTION = auto()  # one copy of keys and values per row, and faster norms


@torch.no_grad()
def sharing(
    checkpoint: Checkpoint,
    tokens: np.ndarray,
    ways: tuple[Sharing, ...] | None = None,
) -> Sharing:
    """Return the first of these ways that agrees with whole prompts on a sample, or NONE.

    tokens: (rows, columns, positions). Some models have another kind of cache, or do not support a
    mask or positions that continue a prompt. A float64 model on a CPU does not try ATTENTION unless
    `ways` names it: the models trained here are small, gain little, and must keep their bytes.
    """
    if ways is None:
        exact = checkpoint.model.device.type == "cpu" and checkpoint.model.dtype == torch.float64
        ways = (Sharing.CACHE,) if exact else (Sharing.ATTENTION, Sharing.CACHE)
    step = max(1, len(tokens) // 3), max(1, tokens.shape[1] // 4)
    sample = np.ascontiguousarray(tokens[:: step[0], :: step[1]])
    if not shared_prefix(sample):
        return ways[-1]  # nothing is shared
    streams: list[torch.Tensor] = []
    with ExitStack() as context:
        for layer in checkpoint.architecture.layers:
            context.enter_context(patched(layer.block, streams.append))
        whole = _computed(checkpoint, sample, Sharing.NONE)
    whole.append(streams[0].float())
    for way in ways:
        if _agrees(checkpoint, sample, way, streams, whole):
            return way
    return Sharing.NONE


def _agrees(
    checkpoint: Checkpoint,
    tokens: np.ndarray,
    way: Sharing,
    streams: list[torch.Tensor],
    whole: list[torch.Tensor],
) -> bool:
    """Whether each layer, given the residual stream of whole prompts, computes the same this way.

    streams: the residual stream entering each layer for whole prompts, (prompts, positions, width);
    whole: what _computed returns for them. Layers are compared one by one, because rounding errors
    grow through many layers.
    """
    prefix, (rows, columns, positions) = shared_prefix(tokens), tokens.shape
    entered: list[torch.Tensor] = []  # the first layer: the prefix of each row, then the rest

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
    """Return each prompt's largest logit, and each layer's values at the last position."""
    a = checkpoint.architecture
    shape = (a.neurons, *tokens.shape[:2])
    activations = {layer: np.empty(shape, np.float32) for layer in range(len(a.layers))}
    heads: dict[int, torch.Tensor] = {}  # if prefixes are shared, the pass of the ends comes last
    with ExitStack() as context:
        for number, layer in enumerate(a.layers):
            if layer.attention_out is not None:
                keep = partial(_keep_last, heads, number)
                context.enter_context(patched(layer.attention_out, keep))
        answers = np.full(tokens.shape[:2], -1)
        [predicted] = run(checkpoint, tokens, answers, len(tokens), activations, sharing=way)
    arrays = (predicted.max_logit, *activations.values())
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
) -> Iterator[Predictions]:
    """Run a grid of prompts through the model, and yield its predictions, some rows at a time.

    tokens: (rows, columns, positions); answers: (rows, columns), -1 where a prompt has none.
    activations: layer -> (neurons, rows, columns), float16 or float32; receives the activations at
    the last position. A value that does not fit becomes infinite.
    means: receives sums, unless None. Both are complete once the last predictions are taken.
    sharing: what the function of that name returns; NONE computes every prefix again.
    """
    way = sharing if tokens.shape[1] > 1 else Sharing.NONE
    prefix = 0 if way is Sharing.NONE else shared_prefix(tokens)
    device, staging = checkpoint.model.device, Staging()
    with quicker(quick_norms(checkpoint) if prefix and way is Sharing.ATTENTION else []):
        for first in range(0, len(tokens), rows_at_once):
            rows = slice(first, first + rows_at_once)
            block = torch.from_numpy(tokens[rows]).to(device)
            targets = {i: torch.from_numpy(array[:, rows]) for i, array in activations.items()}
            kept: dict[str, Any] = {"targets": targets, "means": means, "staging": staging}
            logits = _logits(checkpoint, block, prefix, way, **kept)
            yield read_off(logits, torch.from_numpy(answers[rows].ravel()).to(device))
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

    block: tokens, (rows, columns, positions). Fills `targets` and adds to `means`.
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
                after = torch.arange(prefix, positions, device=block.device)
                named["position_ids"] = after.expand(rows * columns, -1)
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
    """Return a context in which forward passes fill `targets` and add to `means`.

    start: position of the pass's first token; weight: how often each prompt of the pass counts.
    """

    def keep_last(target: torch.Tensor):
        def look(x: torch.Tensor) -> None:
            last = x[:, -1].T.reshape(target.shape)  # (neurons, rows, columns)
            if x.device.type != "cpu":
                last = torch.empty_like(last, dtype=target.dtype, memory_format=DENSE).copy_(last)
            staging.put(target, last)

        return look

    def add_to(sums: torch.Tensor):
        def look(x: torch.Tensor) -> None:
            added = weight * _sum(x).reshape(x.shape[1], *sums.shape[1:])
            staging.put(sums[start : start + x.shape[1]], added, add=True)

        return look

    stack = ExitStack()
    for index, layer in enumerate(checkpoint.architecture.layers):
        if index in targets:
            stack.enter_context(patched(layer.mlp_out, keep_last(targets[index])))
        if means is None:
            continue
        watched = [
            (layer.mlp_out, means.neurons),
            (layer.attention_out, means.heads),
            (layer.block, means.residual),
        ]
        for module, sums in watched:
            if module is not None:
                stack.enter_context(patched(module, add_to(torch.from_numpy(sums[index]))))
    return stack


def _sum(x: torch.Tensor) -> torch.Tensor:
    """Sum over the prompts of a pass, in at least float32. Passes are added up in float64."""
    return x.sum(0, dtype=torch.promote_types(x.dtype, torch.float32)).double()
