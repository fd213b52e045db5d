"""Run prompts without patches, keep every layer's values, and restart from the middle of a run.

Layers before a change, and positions before it, are as in the clean run. A changed run therefore
starts at the changed layer, on the changed and later positions, with the clean keys and values of
the earlier ones. Blocks are called as the model itself calls them: their arguments are recorded
once per prompt length and first position.
"""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from transformers import Cache, DynamicCache

from stages.lib.model.agreement import CANNOT, rounding
from stages.lib.model.architecture import patched
from stages.lib.model.checkpoint import Checkpoint


@dataclass
class Clean:
    """The clean run of prompts of one length.

    streams: what enters each layer, and the final norm: (prompts, positions, width) each;
    neurons: per layer the MLP's activations (prompts, positions, neurons);
    heads: per layer the input of the attention's output projection (prompts, positions, heads x
    head width);
    outputs: layer -> output of the MLP's output projection (prompts, positions, width), of the
    layers that need it;
    keys, values: per layer (prompts, key heads, positions, head width);
    logits: at the last position (prompts, vocabulary).
    """

    tokens: torch.Tensor
    streams: list[torch.Tensor] = field(default_factory=list)
    neurons: list[torch.Tensor] = field(default_factory=list)
    heads: list[torch.Tensor] = field(default_factory=list)
    outputs: dict[int, torch.Tensor] = field(default_factory=dict)
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    logits: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    def prefix(self, end: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return keys and values of the positions before `end`, per layer."""
        return [x[:, :, :end] for x in self.keys], [x[:, :, :end] for x in self.values]

    def front(self, end: int) -> "Clean":
        """Return the first prompt's run on the positions before `end`, without logits."""
        keys, values = self.prefix(end)
        return Clean(
            self.tokens[:1, :end],
            [x[:1, :end] for x in self.streams],
            [x[:1, :end] for x in self.neurons],
            [x[:1, :end] for x in self.heads],
            {layer: x[:1, :end] for layer, x in self.outputs.items()},
            [x[:1] for x in keys],
            [x[:1] for x in values],
        )


@torch.no_grad()
def clean_run(checkpoint: Checkpoint, tokens: np.ndarray, cached: bool = True) -> Clean:
    """Run prompts (prompts, positions) and keep everything.

    cached: whether to keep keys and values, which restarts need. Raises FloatingPointError if a
    logit is not finite.
    """
    a = checkpoint.architecture
    run = Clean(torch.from_numpy(tokens).to(checkpoint.model.device))
    cache = DynamicCache(config=checkpoint.model.config) if cached else None
    with ExitStack() as watching:
        for layer in a.layers:
            watching.enter_context(patched(layer.block, run.streams.append))
            watching.enter_context(patched(layer.mlp_out, run.neurons.append))
            watching.enter_context(patched(layer.mixer_out, run.heads.append))
        watching.enter_context(patched(a.final_norm, run.streams.append))
        run.logits = checkpoint.last_logits(run.tokens, past_key_values=cache, use_cache=cached)
    if not torch.isfinite(run.logits).all():
        problem = "the model's logits are not finite"
        raise FloatingPointError(f"{problem}; try a wider dtype for this subject in params.yaml")
    layers: list[Any] = cache.layers if cache else []
    run.keys = [x.keys for x in layers]
    run.values = [x.values for x in layers]
    return run


class Earlier(Cache):
    """Keys and values of earlier positions, which passes see before their own; nothing is added."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def before(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values, (copies or 1, prompts or 1, key heads, positions, width) each."""
        raise NotImplementedError

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both; key_states, value_states: of rows, copies x prompts."""
        keys, values = self.before(layer_idx)
        return _joined(keys, key_states), _joined(values, value_states)


def _joined(earlier: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    rows, heads, positions, width = new.shape
    copies, prompts, _, end, _ = earlier.shape
    joined = new.new_empty(rows, heads, end + positions, width)
    shape = (copies, rows // copies) if copies > 1 else (rows // prompts, prompts)
    joined.view(*shape, *joined.shape[1:])[:, :, :, :end] = earlier
    joined[:, :, end:] = new
    return joined


class Resumed(Earlier):
    """The clean run's keys and values before `start`, for any number of copies."""

    def __init__(self, clean: Clean, start: int):
        super().__init__()
        self.clean, self.start = clean, start

    def before(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.clean.keys[layer], self.clean.values[layer]
        return keys[None, :, :, : self.start], values[None, :, :, : self.start]


class Front(Earlier):
    """Each copy's own keys and values on the positions that all prompts share.

    recorded: what a pass over these positions, of one prompt, has added to a cache.
    """

    def __init__(self, recorded: DynamicCache):
        super().__init__()
        self.recorded = recorded

    def before(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        of_layer: Any = self.recorded.layers[layer]
        return of_layer.keys[:, None], of_layer.values[:, None]


@dataclass(frozen=True)
class Calls:
    """How the model calls each of its blocks on positions from `start` on.

    arguments: per layer all arguments but the residual stream, by name.
    """

    start: int
    arguments: list[dict[str, Any]]

    def block(
        self,
        checkpoint: Checkpoint,
        layer: int,
        stream: torch.Tensor,
        resumed: Cache | None,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Run one block on rows: stream (copies x prompts, positions from `start` on, width).

        resumed: what the attention reads earlier positions from, None if it knows them by other
        means (see attending); mask: what is added to the attention scores.
        """
        named = dict(self.arguments[layer])
        for name, value in named.items():
            if isinstance(value, Cache):
                named[name] = resumed
        if resumed is None:
            named["attention_mask"] = None
        elif mask is not None:
            named["attention_mask"] = both(named["attention_mask"], mask)
        return stream_of(checkpoint.architecture.layers[layer].block(stream, **named))


def stream_of(out: Any) -> torch.Tensor:
    """Return the residual stream from a block's output, which may be a tuple."""
    return out[0] if isinstance(out, tuple) else out


def both(model_mask: torch.Tensor | None, mask: torch.Tensor) -> torch.Tensor:
    """Return a model's own attention mask joined with one that is added to the scores."""
    if model_mask is None:
        return mask
    if model_mask.dtype != torch.bool:
        return mask + model_mask
    # A token sees itself: where that is False, True means hidden.
    if not model_mask[..., -1, -1].any():
        return model_mask | (mask < 0)
    return model_mask & (mask >= 0)


def by_name(block: Any, inputs: tuple, named: dict[str, Any]) -> dict[str, Any]:
    """Return a block's arguments by name, the residual stream first.

    Some models pass the cache or the mask by position.
    """
    names = list(inspect.signature(block.forward).parameters)
    together = {**dict(zip(names, inputs, strict=False)), **named}
    return {names[0]: together.pop(names[0]), **together}


@contextmanager
def masked(block: Any, mask: Any) -> Iterator[None]:
    """Add a mask to the attention scores of a block, within the context, besides its own mask."""

    def hook(block: Any, inputs: tuple, named: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        arguments = by_name(block, inputs, named)
        stream = arguments.pop(next(iter(arguments)))
        arguments["attention_mask"] = both(arguments["attention_mask"], mask)
        return (stream,), arguments

    handle = block.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def record_calls(checkpoint: Checkpoint, tokens: np.ndarray, start: int) -> Calls:
    """Record how the model calls its blocks on one prompt (positions,) from `start` on.

    Masks and positions are the same for all prompts of this length.
    """
    model, cache = checkpoint.model, DynamicCache(config=checkpoint.model.config)
    prompt = torch.from_numpy(tokens)[None].to(model.device)
    recorded: list[dict[str, Any]] = []

    def record(block: Any, inputs: tuple, named: dict[str, Any]) -> None:
        arguments = by_name(block, inputs, named)
        del arguments[next(iter(arguments))]
        recorded.append(arguments)

    if start:
        model(input_ids=prompt[:, :start], past_key_values=cache, use_cache=True, logits_to_keep=1)
    with ExitStack() as hooks:
        for layer in checkpoint.architecture.layers:
            handle = layer.block.register_forward_pre_hook(record, with_kwargs=True)
            hooks.callback(handle.remove)
        model(input_ids=prompt[:, start:], past_key_values=cache, use_cache=True, logits_to_keep=1)
    return Calls(start, recorded)


@torch.no_grad()
def restarted(checkpoint: Checkpoint, tokens: np.ndarray) -> Clean | None:
    """Return the clean run of these prompts (prompts, positions).

    None if a layer, restarted in the middle of them, computes something else.
    """
    start = tokens.shape[1] // 2
    try:
        clean, calls = clean_run(checkpoint, tokens), record_calls(checkpoint, tokens[0], start)
        for layer, (before, after) in enumerate(pairwise(clean.streams)):
            resumed = Resumed(clean, start)
            again = calls.block(checkpoint, layer, before[:, start:], resumed, None)
            if not _same(again, after[:, start:]):
                return None
    except CANNOT:
        return None
    return clean


@torch.no_grad()
def narrows(checkpoint: Checkpoint, clean: Clean, calls: Calls) -> bool:
    """Return whether the last layer's output at the last position needs its MLP only there.

    clean: a run of some prompts; calls: those of the blocks on one of them, from position 0 on.
    """
    layers = checkpoint.architecture.layers
    mlp = layers[-1].mlp
    if mlp is None:
        return False
    try:
        with patched(mlp, lambda x: x[:, -1:].contiguous(), first=True):
            resumed = Resumed(clean, 0)
            out = calls.block(checkpoint, len(layers) - 1, clean.streams[-2], resumed, None)
    except CANNOT:
        return False
    return _same(out[:, -1], clean.streams[-1][:, -1])


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return bool((x.to(y.device) - y).abs().max() <= rounding(y.dtype) * y.abs().max())
