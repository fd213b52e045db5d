"""What prompts do when left alone, kept layer by layer, and how any part of that run is taken up again from the middle.

A decoder's layers below a change, and its positions in front of it, are as in the clean run: so a changed run starts at
the changed layer, on the changed and later positions, with the keys and values of the earlier ones. Blocks are called
just as the model itself calls them; how it does is recorded once per length and first position.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import Cache, DynamicCache

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
def clean_run(checkpoint: Checkpoint, tokens: np.ndarray) -> Clean:
    """Runs prompts (prompts, positions) and keeps everything. Raises FloatingPointError where the logits are not finite."""
    a = checkpoint.architecture
    run = Clean(torch.from_numpy(tokens).to(checkpoint.model.device))
    cache = DynamicCache(config=checkpoint.model.config)
    with ExitStack() as watching:
        for layer in a.layers:
            for module, kept in ((layer.block, run.streams), (layer.mlp_out, run.neurons), (layer.attention_out, run.heads)):
                watching.enter_context(patched(module, kept.append))
        watching.enter_context(patched(a.final_norm, run.streams.append))
        run.logits = checkpoint.model(input_ids=run.tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
    if not torch.isfinite(run.logits).all():
        raise FloatingPointError("the model's logits are not finite; try a wider dtype for this subject in params.yaml")
    cached: list[Any] = cache.layers
    run.keys, run.values = [x.keys for x in cached], [x.values for x in cached]
    return run


class Resumed(Cache):
    """Stands for the clean run's keys and values of the positions before `start`, for any number of copies of its prompts.

    Forward passes of rows (copies x prompts) see those in front of their own; nothing is kept between passes.
    """

    def __init__(self, clean: Clean, start: int):
        super().__init__(layers=[])
        self.clean, self.start = clean, start

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._behind(self.clean.keys[layer_idx], key_states), self._behind(self.clean.values[layer_idx], value_states)

    def _behind(self, clean: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        rows, heads, positions, width = new.shape
        joined = new.new_empty(rows, heads, self.start + positions, width)
        joined.view(-1, len(clean), *joined.shape[1:])[:, :, :, : self.start] = clean[None, :, :, : self.start]
        joined[:, :, self.start :] = new
        return joined


@dataclass(frozen=True)
class Calls:
    """How the model calls each of its blocks on the positions from `start` on: further arguments, by position and by name."""

    start: int
    arguments: list[tuple[tuple, dict[str, Any]]]

    def block(
        self, checkpoint: Checkpoint, layer: int, stream: torch.Tensor, resumed: Resumed | None, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """One block on rows (copies x prompts, positions from `start` on, width). mask: added to the attention scores.

        resumed: None where the attention knows the earlier positions by other means (see attending).
        """
        inputs, named = self.arguments[layer]
        named = {name: resumed if isinstance(value, Cache) else value for name, value in named.items()}
        if resumed is None:
            named["attention_mask"] = None
        elif mask is not None:
            given = named["attention_mask"]
            named["attention_mask"] = mask if given is None else mask + given
        out = checkpoint.architecture.layers[layer].block(stream, *inputs, **named)
        return out[0] if isinstance(out, tuple) else out


@torch.no_grad()
def record_calls(checkpoint: Checkpoint, tokens: np.ndarray, start: int) -> Calls:
    """Watches the model take up one prompt (positions,) at position `start`; masks and positions are the same for all of that length."""
    model, cache = checkpoint.model, DynamicCache(config=checkpoint.model.config)
    one = torch.from_numpy(tokens)[None].to(model.device)
    arguments: list[tuple[tuple, dict[str, Any]]] = []

    def record(_: Any, inputs: tuple, named: dict[str, Any]) -> None:
        arguments.append((inputs[1:], {k: v for k, v in named.items() if k != "hidden_states"}))

    if start:
        model(input_ids=one[:, :start], past_key_values=cache, use_cache=True, logits_to_keep=1)
    handles = [layer.block.register_forward_pre_hook(record, with_kwargs=True) for layer in checkpoint.architecture.layers]
    try:
        model(input_ids=one[:, start:], past_key_values=cache, use_cache=True, logits_to_keep=1)
    finally:
        for handle in handles:
            handle.remove()
    return Calls(start, arguments)
