"""Avoids matrix products behind a change along one direction.

A single neuron moves the stream x of a prompt to x + t v, v being its value vector; a single coordinate of what the MLP puts
out, v being a basis vector. What a norm and a linear map W behind it make of that is (L(x) + t L(v)) / s + c with L(x) = W
(gain * x), centred first where the norm centres: L is computed once per prompt and once per v, and s is a number. This serves
the first projections of the next layer and, behind the last layer, the unembedding.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import nn
from transformers import Cache
from transformers.pytorch_utils import Conv1D

from stages.lib.executor.clean import Calls
from stages.lib.model.agreement import exact
from stages.lib.model.architecture import LINEAR, patched
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.norms import epsilon
from stages.lib.model.value_logits import centres, gain


@dataclass(frozen=True)
class Moved:
    """Streams x + t v at one position: base x (prompts, width), steps t (copies, prompts), directions v (copies, width)."""

    base: torch.Tensor
    steps: torch.Tensor
    directions: torch.Tensor

    def __len__(self) -> int:
        return len(self.steps)

    def to(self, device: torch.device) -> "Moved":
        return Moved(*(getattr(self, part.name).to(device) for part in fields(self)))

    def stream(self) -> torch.Tensor:
        """(copies, prompts, 1, width)."""
        return torch.addcmul(self.base[None], self.steps[:, :, None], self.directions[:, None])[
            :, :, None
        ]


class Entrance:
    """A norm and the linear maps that read its output and nothing else."""

    def __init__(self, norm: Any, maps: list[Any]):
        self.norm, self.maps = norm, maps
        self.centres = centres(norm, norm.weight)
        self.epsilon = epsilon(norm) or 0.0
        offset = norm(torch.zeros_like(norm.weight))  # the norm's bias
        biases = [m(offset) for m in maps]
        self.sizes = [len(bias) for bias in biases]
        self.bias = torch.cat(biases)
        scale = (
            gain(norm, norm.weight) * (1 + self.epsilon) ** 0.5
        )  # measured on a mean square of 1
        self.gain = scale.to(
            self.bias.device, norm.weight.dtype
        )  # where the maps are: embeddings that unembed may be far from the norm

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """L(x): (…, width) to (…, outputs of all maps)."""
        scaled = self._centred(x) * self.gain
        return torch.cat(
            [scaled @ (m.weight.T if isinstance(m, nn.Linear) else m.weight) for m in self.maps], -1
        )

    def outputs(self, moved: Moved) -> torch.Tensor:
        """What the maps put out for moved streams: (copies, prompts, outputs)."""
        return next(self.pieces(moved, len(moved)))

    def pieces(self, moved: Moved, copies: int) -> Iterator[torch.Tensor]:
        """The same, so many copies after another."""
        moved = moved.to(self.gain.device)
        base = self.linear(moved.base)[None]
        for steps, directions in zip(
            moved.steps.split(copies), moved.directions.split(copies), strict=True
        ):
            out = torch.addcmul(base, steps[:, :, None], self.linear(directions)[:, None])
            out *= self._inverse_scale(Moved(moved.base, steps, directions))[:, :, None]
            yield out.add_(self.bias) if bool(self.bias.any()) else out

    def _inverse_scale(self, moved: Moved) -> torch.Tensor:
        x, v, t = (
            self._centred(part.double()) if part is not moved.steps else part.double()
            for part in (moved.base, moved.directions, moved.steps)
        )
        square = (x * x).sum(-1)[None] + 2 * t * (v @ x.T) + t * t * (v * v).sum(-1)[:, None]
        return (square.clamp(min=0) / x.shape[-1] + self.epsilon).rsqrt().to(moved.base.dtype)

    def _centred(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(-1, keepdim=True) if self.centres else x

    @contextmanager
    def replaced(self, outputs: torch.Tensor) -> Iterator[None]:
        """Within the context the maps return these outputs (rows, 1, outputs) whatever they are given, and the norm does nothing."""
        parts = outputs.split(self.sizes, -1)
        kept = [(module, module.forward) for module in (self.norm, *self.maps)]
        self.norm.forward = lambda x: x
        for module, part in zip(self.maps, parts, strict=True):
            module.forward = lambda _, part=part: part
        try:
            yield
        finally:
            for module, forward in kept:
                module.forward = forward


@torch.no_grad()
def entrances(checkpoint: Checkpoint) -> list[Entrance | None]:
    """The entrance of every layer, and the unembedding's behind them; None where there is none or it does not compute as it should."""
    a = checkpoint.architecture
    last = (
        Entrance(a.final_norm, [a.unembedding])
        if getattr(a.final_norm, "weight", None) is not None
        else None
    )
    candidates = [*map(_entrance, _watched(checkpoint)), last]
    return [entrance if entrance and _holds(entrance, a.width) else None for entrance in candidates]


@dataclass
class Watched:
    """One layer at work in a forward pass.

    entering: the residual stream that enters it; calls: of each of its leaves module, input and
    output, which are kept so that no two outputs have the same address.
    """

    entering: list[torch.Tensor] = field(default_factory=list)
    calls: list[tuple[nn.Module, torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def enter(self, _: nn.Module, inputs: tuple, named: dict[str, Any]) -> None:
        self.entering.append((*inputs, *named.values())[0])

    def call(self, module: nn.Module, inputs: tuple, out: torch.Tensor) -> None:
        self.calls.append((module, inputs[0], out))


def _watched(checkpoint: Checkpoint) -> list[Watched]:
    """Watch all layers in one forward pass."""
    layers = []
    with ExitStack() as hooks:
        for layer in checkpoint.architecture.layers:
            layers.append(watched := Watched())
            entered = layer.block.register_forward_pre_hook(watched.enter, with_kwargs=True)
            hooks.callback(entered.remove)
            for module in layer.block.modules():
                if not list(module.children()) and getattr(module, "weight", None) is not None:
                    hooks.callback(module.register_forward_hook(watched.call).remove)
        tokens = torch.zeros((1, 2), dtype=torch.long, device=checkpoint.model.device)
        checkpoint.model(input_ids=tokens, use_cache=False, logits_to_keep=1)
    return layers


def _entrance(layer: Watched) -> Entrance | None:
    """Find which norm is given what enters a layer, and which linear maps read that norm's output."""
    norms = [
        (m, out)
        for m, x, out in layer.calls
        if not isinstance(m, LINEAR) and _same(x, layer.entering[0])
    ]
    if not norms:
        return None
    norm, output = norms[0]
    readers = [m for m, x, _ in layer.calls if x.data_ptr() == output.data_ptr()]
    if not readers or not all(isinstance(m, LINEAR) for m in readers):
        return None
    return Entrance(norm, readers)


def _same(x: torch.Tensor, entering: torch.Tensor) -> bool:
    """Whether a part of the layer is given what enters it: by value, since it may have come from another device."""
    return x.shape == entering.shape and torch.equal(x, entering.to(x.device))


def _holds(entrance: Entrance, width: int) -> bool:
    """Whether the identity holds for this norm, to the precision of the model's numbers; other norms, or other precisions, fail."""
    if entrance.norm.weight.dtype in (torch.bfloat16, torch.float16):
        entrance = Entrance(exact(entrance.norm), [exact(m) for m in entrance.maps])
    weight = entrance.norm.weight
    random = torch.Generator().manual_seed(0)
    base, directions, steps = (
        torch.randn(shape, generator=random).to(weight)
        for shape in ((3, width), (4, width), (4, 3))
    )
    moved = Moved(base, steps, directions)
    normed = entrance.norm(moved.stream()[:, :, 0])
    plain = torch.cat([m(normed) for m in entrance.maps], -1)
    difference = (entrance.outputs(moved) - plain).abs().max()
    return bool(difference <= 64 * torch.finfo(weight.dtype).eps * plain.abs().max())


@torch.no_grad()
def adds_value_vectors(
    checkpoint: Checkpoint, layer: int, calls: Calls, entering: torch.Tensor
) -> bool:
    """Whether the layer adds activation x value vector to the stream as it is; some scale or normalise what the MLP writes.

    calls: how the model calls its blocks on a prompt's positions from 0 on; entering: the stream that enters this layer there.
    """
    part = checkpoint.architecture.layers[layer]
    block = exact(part.block)
    mlp_out: Any = block.get_submodule(
        next(name for name, m in part.block.named_modules() if m is part.mlp_out)
    )
    vectors = (
        exact(part.mlp_out).weight if isinstance(mlp_out, Conv1D) else exact(part.mlp_out).weight.T
    )
    named = {
        name: _exact(value)
        for name, value in calls.arguments[layer].items()
        if not isinstance(value, Cache)
    }
    seen, outs = [], []
    for factor in (1.0, 0.5):

        def change(x: torch.Tensor, factor=factor) -> torch.Tensor:
            seen.append(x)
            return x * factor

        with patched(mlp_out, change):
            out = block(_exact(entering), **named)
        outs.append(out[0] if isinstance(out, tuple) else out)
    expected = outs[0] - 0.5 * seen[0] @ vectors
    tolerance = 50 * torch.finfo(expected.dtype).eps * outs[0].abs().max()
    return bool((outs[1] - expected).abs().max() <= tolerance)


def _exact(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_exact, value))
    few = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if few else value
