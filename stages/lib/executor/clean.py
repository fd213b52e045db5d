"""What prompts do when left alone, kept layer by layer, and how any part of that run is taken up again from the middle.

A decoder's layers below a change, and its positions in front of it, are as in the clean run: so a changed run starts at
the changed layer, on the changed and later positions, with the keys and values of the earlier ones. Blocks are called
just as the model itself calls them; how it does is recorded once per length and first position.
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

    streams: per layer, and for the final norm, what enters it: (prompts, positions, width); neurons: per layer the MLP's
    activations (prompts, positions, neurons); heads: per layer the input of the attention's output projection (prompts,
    positions, heads x head width); outputs: layer -> what the MLP's output projection puts out (prompts, positions, width), of
    layers where it is asked for; keys, values: per layer (prompts, key heads, positions, head width); logits: at the
    last position (prompts, vocabulary).
    """

    tokens: torch.Tensor
    streams: list[torch.Tensor] = field(default_factory=list)
    neurons: list[torch.Tensor] = field(default_factory=list)
    heads: list[torch.Tensor] = field(default_factory=list)
    outputs: dict[int, torch.Tensor] = field(default_factory=dict)
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    logits: torch.Tensor = field(default_factory=lambda: torch.empty(0))


@torch.no_grad()
def clean_run(checkpoint: Checkpoint, tokens: np.ndarray, cached: bool = True) -> Clean:
    """Runs prompts (prompts, positions) and keeps everything. cached: keys and values, too, from which a run is taken up again.

    Raises FloatingPointError where the logits are not finite.
    """
    a = checkpoint.architecture
    run = Clean(torch.from_numpy(tokens).to(checkpoint.model.device))
    cache = DynamicCache(config=checkpoint.model.config) if cached else None
    with ExitStack() as watching:
        for layer in a.layers:
            for module, kept in (
                (layer.block, run.streams),
                (layer.mlp_out, run.neurons),
                (layer.mixer_out, run.heads),
            ):
                watching.enter_context(patched(module, kept.append))
        watching.enter_context(patched(a.final_norm, run.streams.append))
        run.logits = checkpoint.last_logits(run.tokens, past_key_values=cache, use_cache=cached)
    if not torch.isfinite(run.logits).all():
        raise FloatingPointError(
            "the model's logits are not finite; try a wider dtype for this subject in params.yaml"
        )
    layers: list[Any] = cache.layers if cache else []
    run.keys, run.values = [x.keys for x in layers], [x.values for x in layers]
    return run


class Resumed(Cache):
    """Stands for the clean run's keys and values of the positions before `start`, for any number of copies of its prompts.

    Forward passes of rows (copies x prompts) see those in front of their own; nothing is kept between passes.
    """

    def __init__(self, clean: Clean, start: int):
        super().__init__(layers=[])
        self.clean, self.start = clean, start

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._behind(self.clean.keys[layer_idx], key_states), self._behind(
            self.clean.values[layer_idx], value_states
        )

    def _behind(self, clean: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        rows, heads, positions, width = new.shape
        joined = new.new_empty(rows, heads, self.start + positions, width)
        joined.view(-1, len(clean), *joined.shape[1:])[:, :, :, : self.start] = clean[
            None, :, :, : self.start
        ]
        joined[:, :, self.start :] = new
        return joined


@dataclass(frozen=True)
class Calls:
    """How the model calls each of its blocks on the positions from `start` on: its arguments but for the stream, by name."""

    start: int
    arguments: list[dict[str, Any]]

    def block(
        self,
        checkpoint: Checkpoint,
        layer: int,
        stream: torch.Tensor,
        resumed: Resumed | None,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """One block on rows (copies x prompts, positions from `start` on, width). mask: added to the attention scores.

        resumed: None where the attention knows the earlier positions by other means (see attending).
        """
        arguments = self.arguments[layer].items()
        named: dict[str, Any] = {
            name: resumed if isinstance(value, Cache) else value for name, value in arguments
        }
        if resumed is None:
            named["attention_mask"] = None
        elif mask is not None:
            named["attention_mask"] = both(named["attention_mask"], mask)
        out = checkpoint.architecture.layers[layer].block(stream, **named)
        return out[0] if isinstance(out, tuple) else out


def both(given: torch.Tensor | None, mask: torch.Tensor) -> torch.Tensor:
    """A model's own mask, and what is added to its attention scores besides."""
    if given is None or given.dtype != torch.bool:
        return mask if given is None else mask + given
    hides = not given[
        ..., -1, -1
    ].any()  # a token sees itself: where that is False, True says what is hidden
    return given | (mask < 0) if hides else given & (mask >= 0)


def by_name(block: Any, inputs: tuple, named: dict[str, Any]) -> dict[str, Any]:
    """A block's arguments by name, the stream first: some models pass the cache or the mask by position."""
    names = list(inspect.signature(block.forward).parameters)
    together = {**dict(zip(names, inputs, strict=False)), **named}
    return {names[0]: together.pop(names[0]), **together}


@contextmanager
def masked(block: Any, mask: Any) -> Iterator[None]:
    """Within the context this is added to the attention scores of a block, on top of whatever mask it is given."""

    def hook(block: Any, inputs: tuple, named: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        (_, stream), *more = by_name(block, inputs, named).items()
        others = dict(more)
        return (stream,), {**others, "attention_mask": both(others["attention_mask"], mask)}

    handle = block.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def record_calls(checkpoint: Checkpoint, tokens: np.ndarray, start: int) -> Calls:
    """Watches the model take up one prompt (positions,) at position `start`; masks and positions are the same for all of that length."""
    model, cache = checkpoint.model, DynamicCache(config=checkpoint.model.config)
    one = torch.from_numpy(tokens)[None].to(model.device)
    arguments: list[dict[str, Any]] = []

    def record(block: Any, inputs: tuple, named: dict[str, Any]) -> None:
        _, *more = by_name(block, inputs, named).items()
        arguments.append(dict(more))

    if start:
        model(input_ids=one[:, :start], past_key_values=cache, use_cache=True, logits_to_keep=1)
    handles = [
        layer.block.register_forward_pre_hook(record, with_kwargs=True)
        for layer in checkpoint.architecture.layers
    ]
    try:
        model(input_ids=one[:, start:], past_key_values=cache, use_cache=True, logits_to_keep=1)
    finally:
        for handle in handles:
            handle.remove()
    return Calls(start, arguments)


@torch.no_grad()
def restarts(checkpoint: Checkpoint, tokens: np.ndarray) -> bool:
    """Whether every layer of this model, taken up in the midst of these prompts (prompts, positions), computes what it did before."""
    start = tokens.shape[1] // 2
    try:
        clean, calls = clean_run(checkpoint, tokens), record_calls(checkpoint, tokens[0], start)
        for layer, (before, behind) in enumerate(pairwise(clean.streams)):
            again = calls.block(checkpoint, layer, before[:, start:], Resumed(clean, start), None)
            if not _same(again, behind[:, start:]):
                return False
    except CANNOT:
        return False
    return True


@torch.no_grad()
def narrows(checkpoint: Checkpoint, clean: Clean, calls: Calls) -> bool:
    """Whether the last layer gives the same at the last position where its MLP is given nothing else.

    clean: a run of some prompts; calls: those of the blocks on one of them, from position 0 on.
    """
    last = checkpoint.architecture.layers[-1]
    if last.mlp is None:
        return False
    try:
        with patched(last.mlp, lambda x: x[:, -1:].contiguous(), first=True):
            out = calls.block(
                checkpoint,
                len(checkpoint.architecture.layers) - 1,
                clean.streams[-2],
                Resumed(clean, 0),
                None,
            )
    except CANNOT:
        return False
    return _same(out[:, -1], clean.streams[-1][:, -1])


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return bool((x.to(y.device) - y).abs().max() <= rounding(y.dtype) * y.abs().max())
