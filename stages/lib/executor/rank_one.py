"""Avoid matrix products after a change along one direction.

A replaced neuron moves the residual stream x of a prompt to x + t v, where v is its value vector. A
replaced coordinate of the MLP's output does so with a basis vector v. A norm followed by a linear
map W turns that into (L(x) + t L(v)) / s + c with L(x) = W (gain * x), where x is centred first if
the norm centres. L is computed once per prompt and once per v; s is a number. The first projections
of the next layer use this and, after the last layer, the unembedding.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import Cache

from stages.lib.executor.clean import Calls, stream_of
from stages.lib.model.agreement import FEW_DIGITS, exact
from stages.lib.model.architecture import LINEAR, out_of, patched
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.norms import epsilon
from stages.lib.model.value_logits import centres, gain


@dataclass(frozen=True)
class Moved:
    """Residual streams x + t v at one position.

    base: x (prompts, width); steps: t (copies, prompts); directions: v (copies, width).
    """

    base: torch.Tensor
    steps: torch.Tensor
    directions: torch.Tensor

    def __len__(self) -> int:
        return len(self.steps)

    def to(self, device: torch.device) -> "Moved":
        return Moved(self.base.to(device), self.steps.to(device), self.directions.to(device))

    def stream(self) -> torch.Tensor:
        """Return x + t v: (copies, prompts, 1, width)."""
        return torch.addcmul(self.base[None], self.steps[:, :, None], self.directions[:, None])[
            :, :, None
        ]


def full_stream(stream: torch.Tensor | Moved) -> torch.Tensor:
    """Return residual streams as a tensor (copies, prompts, positions, width)."""
    return stream.stream() if isinstance(stream, Moved) else stream


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
        # The gain is measured on a mean square of 1.
        scale = gain(norm, norm.weight) * (1 + self.epsilon) ** 0.5
        # On the maps' device: an unembedding may be on another device than its norm.
        self.gain = scale.to(self.bias.device, norm.weight.dtype)

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """Return L(x) for x (…, width): (…, outputs of all maps)."""
        scaled = self._centred(x) * self.gain
        return torch.cat([scaled @ out_of(m).T for m in self.maps], -1)

    def outputs(self, moved: Moved) -> torch.Tensor:
        """Return the maps' outputs for moved streams: (copies, prompts, outputs)."""
        return next(self.pieces(moved, len(moved)))

    def pieces(self, moved: Moved, copies: int) -> Iterator[torch.Tensor]:
        """Yield the maps' outputs for that many copies at a time."""
        moved = moved.to(self.gain.device)
        base = self.linear(moved.base)[None]
        parts = moved.steps.split(copies), moved.directions.split(copies)
        for steps, directions in zip(*parts, strict=True):
            out = torch.addcmul(base, steps[:, :, None], self.linear(directions)[:, None])
            out *= self._inverse_scale(Moved(moved.base, steps, directions))[:, :, None]
            if self.bias.any():
                out.add_(self.bias)
            yield out

    def _inverse_scale(self, moved: Moved) -> torch.Tensor:
        x, v = self._centred(moved.base.double()), self._centred(moved.directions.double())
        t = moved.steps.double()
        square = (x * x).sum(-1)[None] + 2 * t * (v @ x.T) + t * t * (v * v).sum(-1)[:, None]
        return (square.clamp(min=0) / x.shape[-1] + self.epsilon).rsqrt().to(moved.base.dtype)

    def _centred(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(-1, keepdim=True) if self.centres else x

    @contextmanager
    def replaced(self, outputs: torch.Tensor) -> Iterator[None]:
        """Let the maps return these outputs (rows, 1, outputs), and the norm do nothing.

        This holds within the context, for any input.
        """
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
    """Return the entrance of every layer, and that of the unembedding after them.

    It is None where a layer has none, or where its outputs differ from the model's.
    """
    a = checkpoint.architecture
    candidates = [*map(_entrance, _watched(checkpoint)), None]
    if getattr(a.final_norm, "weight", None) is not None:
        candidates[-1] = Entrance(a.final_norm, [a.unembedding])
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
            watched = Watched()
            layers.append(watched)
            entered = layer.block.register_forward_pre_hook(watched.enter, with_kwargs=True)
            hooks.callback(entered.remove)
            for module in layer.block.modules():
                if not list(module.children()) and getattr(module, "weight", None) is not None:
                    hooks.callback(module.register_forward_hook(watched.call).remove)
        tokens = torch.zeros((1, 2), dtype=torch.long, device=checkpoint.model.device)
        checkpoint.model(input_ids=tokens, use_cache=False, logits_to_keep=1)
    return layers


def _entrance(layer: Watched) -> Entrance | None:
    """Find the norm that reads what enters a layer, and the linear maps that read its output."""
    reads = (
        (module, output)
        for module, x, output in layer.calls
        if not isinstance(module, LINEAR) and _same(x, layer.entering[0])
    )
    norm, normed = next(reads, (None, None))
    if normed is None:
        return None
    readers = [m for m, x, _ in layer.calls if x.data_ptr() == normed.data_ptr()]
    if not readers or not all(isinstance(m, LINEAR) for m in readers):
        return None
    return Entrance(norm, readers)


def _same(x: torch.Tensor, entering: torch.Tensor) -> bool:
    """Return whether a part's input is what enters the layer.

    Values are compared, since the input may have come from another device.
    """
    return x.shape == entering.shape and torch.equal(x, entering.to(x.device))


def _holds(entrance: Entrance, width: int) -> bool:
    """Return whether the identity holds for this norm, to the precision of the model's numbers."""
    if entrance.norm.weight.dtype in FEW_DIGITS:
        entrance = Entrance(exact(entrance.norm), [exact(m) for m in entrance.maps])
    weight = entrance.norm.weight
    random = torch.Generator().manual_seed(0)
    base = torch.randn((3, width), generator=random).to(weight)
    directions = torch.randn((4, width), generator=random).to(weight)
    steps = torch.randn((4, 3), generator=random).to(weight)
    moved = Moved(base, steps, directions)
    normed = entrance.norm(moved.stream()[:, :, 0])
    plain = torch.cat([m(normed) for m in entrance.maps], -1)
    difference = (entrance.outputs(moved) - plain).abs().max()
    return bool(difference <= 64 * torch.finfo(weight.dtype).eps * plain.abs().max())


@torch.no_grad()
def adds_value_vectors(
    checkpoint: Checkpoint, layer: int, calls: Calls, entering: torch.Tensor
) -> bool:
    """Return whether the layer adds activation x value vector to the residual stream unchanged.

    Some layers scale or normalise the MLP's output. calls: how the model calls its blocks on a
    prompt's positions from 0 on; entering: the residual stream that enters this layer.
    """
    part = checkpoint.architecture.layers[layer]
    block = exact(part.block)
    [path] = [name for name, module in part.block.named_modules() if module is part.mlp_out]
    mlp_out: Any = block.get_submodule(path)
    vectors = out_of(exact(part.mlp_out)).T
    arguments = calls.arguments[layer].items()
    named = {name: _exact(value) for name, value in arguments if not isinstance(value, Cache)}
    seen, outs = [], []
    for factor in (1.0, 0.5):

        def change(x: torch.Tensor, factor=factor) -> torch.Tensor:
            seen.append(x)
            return x * factor

        with patched(mlp_out, change):
            out = block(_exact(entering), **named)
        outs.append(stream_of(out))
    expected = outs[0] - 0.5 * seen[0] @ vectors
    tolerance = 50 * torch.finfo(expected.dtype).eps * outs[0].abs().max()
    return bool((outs[1] - expected).abs().max() <= tolerance)


def _exact(value: Any) -> Any:
    """Return a call's argument in float32 if it has fewer digits."""
    if isinstance(value, tuple):
        return tuple(map(_exact, value))
    if isinstance(value, torch.Tensor) and value.dtype in FEW_DIGITS:
        return value.float()
    return value
