"""Holds what was found of a model against what the model does: nothing else may write into the stream, or make the logits."""

import copy
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from transformers import PreTrainedModel

from stages.lib.core import progress
from stages.lib.model import search, spread
from stages.lib.model.architecture import Architecture, ArchitectureError, patched, rewritten

FEW_DIGITS = (torch.float16, torch.bfloat16)
CANNOT = (TypeError, RuntimeError, AttributeError, KeyError, ValueError, IndexError)  # what code raises that was not made for a shortcut


@torch.no_grad()
def check(model: PreTrainedModel, found: Architecture) -> Architecture:
    """Return the architecture with the model's head, once the model is what the architecture says.

    Replacing a layer's activations by themselves changes nothing that the layer puts out; replacing
    them by zeros changes some of it. A layer whose two output projections write nothing hands the
    residual stream on as it is. The last residual stream, normed and unembedded, gives the logits.

    Each layer is run by itself on what enters it in one forward pass: as long as what it puts out
    stays the same, so do the logits. All of this costs about as much as eight forward passes,
    however many layers there are.

    Raises ArchitectureError, naming the part that differs.
    """
    logits, layers = _layers(model, found)
    if not torch.isfinite(logits).all():
        raise ArchitectureError("the model's logits are not finite")
    for i, (layer, again) in enumerate(zip(found.layers, layers, strict=True)):
        _check_part(again, i, "MLP", layer.mlp_out, found.neurons)
        if layer.attention_out:
            inputs = found.heads * found.head_width
            _check_part(again, i, "attention", layer.attention_out, inputs)
    _adds_nothing_else(model, found)
    return with_head(model, found)


@dataclass(frozen=True)
class Again:
    """A part of a forward pass that can be run again on the same input. clean: what it puts out."""

    run: Callable[[], torch.Tensor]
    clean: torch.Tensor

    def repeats(self) -> bool:
        """Return whether it puts out the same again."""
        try:
            return torch.equal(self.run(), self.clean)
        except CANNOT:
            return False


def _layers(model: PreTrainedModel, found: Architecture) -> tuple[torch.Tensor, list[Again]]:
    """Return the logits of one forward pass, and each of its layers.

    A layer that does not put out the same by itself, such as one that reads what an earlier layer
    left for it, is run with the whole model, and the logits stand for what it puts out.
    """
    layers: list[Again] = []

    def record(block: Any, inputs: tuple, named: dict[str, Any], out: Any) -> None:
        layers.append(Again(lambda: _stream(block(*inputs, **named)), _stream(out)))

    with ExitStack() as hooks:
        for layer in found.layers:
            handle = layer.block.register_forward_hook(record, with_kwargs=True)
            hooks.callback(handle.remove)
        logits = _logits(model, found)
    whole = Again(lambda: _logits(model, found), logits)
    return logits, [layer if layer.repeats() else whole for layer in layers]


def _stream(out: Any) -> torch.Tensor:
    """Return the residual stream among what a block returns."""
    return out[0] if isinstance(out, tuple) else out


def _check_part(layer: Again, i: int, name: str, module: Any, width: int) -> None:
    """Check that an output projection of layer i is given a part's `width` activations.

    Raises ArchitectureError where it is given fewer, or where they are not what the layer uses.
    """
    widths: set[int] = set()

    def itself(x: torch.Tensor) -> torch.Tensor:
        widths.add(x.shape[-1])
        return x.clone()

    with patched(module, itself):
        same = layer.run()
    if widths - {width}:
        raise ArchitectureError(
            f"layer {i}: the {name}'s output projection is given {min(widths)} values of {width}: "
            "a model that is cut through its layers (tensor parallelism) cannot be studied; "
            "lay whole layers on the devices instead"
        )
    with patched(module, torch.zeros_like):
        zeroed = layer.run()
    if not torch.equal(same, layer.clean):
        problem = f"replacing the {name}'s activations by themselves changes the logits"
        raise ArchitectureError(f"layer {i}: {problem}")
    if torch.equal(zeroed, layer.clean):
        problem = f"replacing the {name}'s activations by zeros changes nothing"
        raise ArchitectureError(f"layer {i}: {problem}")


def _adds_nothing_else(model: PreTrainedModel, found: Architecture) -> None:
    streams: list[torch.Tensor] = []
    with ExitStack() as hooks:
        for layer in found.layers:
            hooks.enter_context(rewritten(layer.mlp_out, torch.zeros_like))
            hooks.enter_context(rewritten(layer.mixer_out, torch.zeros_like))
            hooks.enter_context(patched(layer.block, streams.append))
        hooks.enter_context(patched(found.final_norm, streams.append))
        _logits(model, found)
    for i, (before, behind) in enumerate(pairwise(streams)):
        written = (behind.to(before.device) - before).flatten(0, -2)  # what biases and norms of nothing write is the same for all tokens
        if not (written - written[:1]).abs().max() <= rounding(before.dtype) * before.abs().max():
            block = type(found.layers[i].block).__name__
            why = f"what {block} puts out is not the sum of the stream and of what its attention and its MLP's neurons write"
            raise ArchitectureError(f"layer {i}: {why}")


@torch.no_grad()
def with_head(model: PreTrainedModel, found: Architecture) -> Architecture:
    """The architecture, with what the model does behind its unembedding. Raises ArchitectureError where logits are not its stream's."""
    streams: list[torch.Tensor] = []
    raw: list[torch.Tensor] = []
    with patched(found.final_norm, streams.append), rewritten(found.unembedding, raw.append):
        logits = _logits(model, found)
    explained = found.unembedding(found.final_norm(streams[0]))
    if not (explained.to(raw[0].device) - raw[0]).abs().max() <= rounding(raw[0].dtype) * raw[0].abs().max():
        raise ArchitectureError(f"the logits of {type(model).__name__} are not those of its last hidden state, normed and unembedded")
    if torch.equal(raw[0].to(logits.device), logits):
        return found
    head = Head(model, found)
    if not torch.equal(head(raw[0]).to(logits.device), logits):
        raise ArchitectureError(f"{type(model).__name__} does something behind its unembedding that is not done to each logit alone")
    return replace(found, head=head)


class Head:
    """What a model does behind its unembedding, such as scaling or capping logits: done by the model's own code, its layers left out."""

    def __init__(self, model: PreTrainedModel, found: Architecture):
        self.model, self.unembedding = model, found.unembedding
        self.base = model.base_model
        outputs: list[Any] = []
        with rewritten(self.base, outputs.append):
            _logits(model, found)
        self.output = outputs[0]

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        """Logits of what the unembedding puts out, of any shape (…, vocabulary)."""
        with _instead(self.base, self.output), _instead(self.unembedding, raw):
            return self.model(input_ids=torch.zeros((1, 1), dtype=torch.long, device=self.model.device), use_cache=False).logits


class _instead:
    """A context in which a module returns a value instead of computing."""

    def __init__(self, module: Any, value: Any):
        self.module, self.value = module, value

    def __enter__(self) -> None:
        self.kept = self.module.forward
        self.module.forward = lambda *_, **__: self.value

    def __exit__(self, *_: Any) -> None:
        self.module.forward = self.kept


@torch.no_grad()
def with_attention(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model with plain attention, or with the library's usual one where that differs.

    Plain attention is read and patched where it is computed; some families compute something else
    with it (Falcon adds ALiBi twice).
    """
    if (usual := _with_usual(model)) is None:
        return model
    vocabulary = model.get_input_embeddings().weight.shape[0]  # type: ignore[union-attr, index]
    tokens = some_tokens(model.device, vocabulary)  # type: ignore[arg-type]
    runs = (either(input_ids=tokens, use_cache=False).logits for either in (model, usual))
    plain, expected = runs
    if (plain - expected).abs().max() <= _allowed(plain.dtype) * expected.abs().max():
        return model
    if plain.dtype in FEW_DIGITS and _heads_agree(model, usual, tokens):
        return model
    name = type(model).__name__
    problem = f"plain attention of {name} gives other logits than its usual one"
    progress.say(f"{problem}, which is used instead")
    return usual


def _allowed(dtype: torch.dtype) -> float:
    """The share of the largest number by which plain attention may differ."""
    return max(1e-4, rounding(dtype))


def _heads_agree(model: PreTrainedModel, usual: PreTrainedModel, tokens: torch.Tensor) -> bool:
    """Whether the heads of every layer give the same from the same stream.

    In few digits, rounding grows through many layers until the logits differ by more than one.
    """
    try:
        layers = search.find(model).layers
    except ArchitectureError:  # experts, say, are put side by side later
        return False
    names = {part: name for name, part in model.named_modules()}
    attending = [layer for layer in layers if layer.attention_out is not None]
    streams: list[torch.Tensor] = []
    heads: tuple[list[torch.Tensor], ...] = ([], [])
    with ExitStack() as hooks:
        for layer in attending:
            hooks.enter_context(patched(layer.block, streams.append))
            hooks.enter_context(patched(layer.attention_out, heads[0].append))
        model(input_ids=tokens, use_cache=False)
    with ExitStack() as hooks:
        for layer, stream in zip(attending, streams, strict=True):
            block, out = (usual.get_submodule(names[m]) for m in (layer.block, layer.attention_out))
            hooks.enter_context(patched(block, lambda _, kept=stream: kept))
            hooks.enter_context(patched(out, heads[1].append))
        usual(input_ids=tokens, use_cache=False)
    pairs = zip(*heads, strict=True)
    return all((x - y).abs().max() <= _allowed(x.dtype) * y.abs().max() for x, y in pairs)


def _with_usual(model: PreTrainedModel) -> PreTrainedModel | None:
    """The same weights in a model with fused attention, what transformers takes unasked; None where the family has none."""
    try:
        with torch.device("meta"):
            usual = type(model)._from_config(copy.deepcopy(model.config), dtype=model.dtype, attn_implementation="sdpa")
    except (ValueError, ImportError):
        return None
    for name, part in model.named_modules():
        twin = usual.get_submodule(name)
        twin._parameters, twin._buffers = part._parameters, part._buffers
    spread.follow(model, usual)
    return usual.eval()


def some_tokens(device: torch.device, vocabulary: int) -> torch.Tensor:
    """Two prompts of four tokens."""
    return torch.arange(1, 9, device=device).remainder(vocabulary).view(2, 4)


def rounding(dtype: torch.dtype) -> float:
    """The share of the largest number by which two ways to compute the same may differ."""
    return 1e-9 if dtype == torch.float64 else max(1e-4, 4 * torch.finfo(dtype).eps)


def exact(module: Any) -> Any:
    """A module whose rounding hides nothing: itself, or a copy in float32 where its numbers have fewer digits."""
    weight = next(module.parameters(), None)
    return module if weight is None or weight.dtype in (torch.float32, torch.float64) else copy.deepcopy(module).float()


def _logits(model: PreTrainedModel, found: Architecture) -> torch.Tensor:
    return model(input_ids=some_tokens(model.device, found.vocabulary), use_cache=False).logits
