"""Verify a model's architecture against forward passes: only its layers write into the residual
stream, and only its norm, unembedding and head make the logits."""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from transformers import PreTrainedModel

from stages.lib.core import progress
from stages.lib.model import search, spread
from stages.lib.model.architecture import Architecture, ArchitectureError, patched, rewritten

FEW_DIGITS = (torch.float16, torch.bfloat16)
WIDE = (torch.float32, torch.float64)
# what a model's code raises if it is called in a way that it was not made for
CANNOT = (TypeError, RuntimeError, AttributeError, KeyError, ValueError, IndexError)


@torch.no_grad()
def check(model: PreTrainedModel, architecture: Architecture) -> Architecture:
    """Return the architecture with the model's head, after verifying it against the model.

    * Replacing a layer's activations by themselves does not change the layer's output; replacing
      them by zeros changes some of it.
    * A layer whose two output projections write nothing returns its input.
    * The last residual stream, normalised and unembedded, gives the logits.

    Each layer runs by itself on its input from one forward pass: if its output stays the same, so
    do the logits. The cost is about eight forward passes, for any number of layers.

    Raises ArchitectureError, which names the part that differs.
    """
    logits, runs = _layers(model, architecture)
    if not torch.isfinite(logits).all():
        raise ArchitectureError("the model's logits are not finite")
    for i, (layer, run) in enumerate(zip(architecture.layers, runs, strict=True)):
        _check_part(run, i, "MLP", layer.mlp_out, architecture.neurons)
        if layer.attention_out:
            inputs = architecture.heads * architecture.head_width
            _check_part(run, i, "attention", layer.attention_out, inputs)
    _check_sum(model, architecture)
    return with_head(model, architecture)


@dataclass(frozen=True)
class Rerun:
    """A part of a forward pass that can be run again on the same input. clean: its output."""

    run: Callable[[], torch.Tensor]
    clean: torch.Tensor

    def repeats(self) -> bool:
        """Return whether the part gives the same output again."""
        try:
            return torch.equal(self.run(), self.clean)
        except CANNOT:
            return False


def _layers(model: PreTrainedModel, architecture: Architecture) -> tuple[torch.Tensor, list[Rerun]]:
    """Return the logits of one forward pass, and the run of each layer.

    A layer that does not repeat its output by itself, for example because it reads a value that an
    earlier layer stored, is run with the whole model, and the logits are its output.
    """
    layers: list[Rerun] = []

    def record(block: Any, inputs: tuple, named: dict[str, Any], out: Any) -> None:
        layers.append(Rerun(lambda: _stream(block(*inputs, **named)), _stream(out)))

    with ExitStack() as hooks:
        for layer in architecture.layers:
            handle = layer.block.register_forward_hook(record, with_kwargs=True)
            hooks.callback(handle.remove)
        logits = _logits(model, architecture)
    whole = Rerun(lambda: _logits(model, architecture), logits)
    return logits, [layer if layer.repeats() else whole for layer in layers]


def _stream(out: Any) -> torch.Tensor:
    """Return the residual stream among the values that a block returns."""
    return out[0] if isinstance(out, tuple) else out


def _check_part(layer: Rerun, i: int, name: str, module: Any, width: int) -> None:
    """Check that the inputs of an output projection are a part's `width` activations.

    i: the layer; name: of the part. Raises ArchitectureError if the projection has fewer inputs, or
    if the layer's output does not depend on them.
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


def _check_sum(model: PreTrainedModel, architecture: Architecture) -> None:
    """Raise ArchitectureError if a layer adds more than its attention and its MLP write."""
    streams: list[torch.Tensor] = []
    with ExitStack() as hooks:
        for layer in architecture.layers:
            hooks.enter_context(rewritten(layer.mlp_out, torch.zeros_like))
            hooks.enter_context(rewritten(layer.mixer_out, torch.zeros_like))
            hooks.enter_context(patched(layer.block, streams.append))
        hooks.enter_context(patched(architecture.final_norm, streams.append))
        _logits(model, architecture)
    for i, (before, after) in enumerate(pairwise(streams)):
        written = (after.to(before.device) - before).flatten(0, -2)
        # biases, and norms of zeros, write the same for every token
        excess = (written - written[:1]).abs().max()
        if not excess <= rounding(before.dtype) * before.abs().max():
            block = type(architecture.layers[i].block).__name__
            raise ArchitectureError(
                f"layer {i}: the output of {block} is not the sum of the residual stream, its "
                "attention's output and its MLP's output"
            )


@torch.no_grad()
def with_head(model: PreTrainedModel, architecture: Architecture) -> Architecture:
    """Return the architecture with the function that the model applies after its unembedding.

    Raises ArchitectureError if the logits do not follow from the last residual stream.
    """
    name = type(model).__name__
    norm, unembedding = architecture.final_norm, architecture.unembedding
    streams: list[torch.Tensor] = []
    unembedded: list[torch.Tensor] = []
    with patched(norm, streams.append), rewritten(unembedding, unembedded.append):
        logits = _logits(model, architecture)
    raw = unembedded[0]
    explained = unembedding(norm(streams[0])).to(raw.device)
    if not near(explained, raw, rounding(raw.dtype)):
        problem = "are not its last hidden state, normalised and unembedded"
        raise ArchitectureError(f"the logits of {name} {problem}")
    if torch.equal(raw.to(logits.device), logits):
        return architecture
    head = Head(model, architecture)
    if not torch.equal(head(raw).to(logits.device), logits):
        problem = "does something after its unembedding that it does not do to each logit alone"
        raise ArchitectureError(f"{name} {problem}")
    return replace(architecture, head=head)


class Head:
    """Apply what a model does after its unembedding, such as scaling or capping logits.

    This runs the model's own code without its layers.
    """

    def __init__(self, model: PreTrainedModel, architecture: Architecture):
        self.model, self.unembedding = model, architecture.unembedding
        self.base = model.base_model
        outputs: list[Any] = []
        with rewritten(self.base, outputs.append):
            _logits(model, architecture)
        self.output = outputs[0]

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        """Return the logits of the unembedding's output, both (…, vocabulary)."""
        token = torch.zeros((1, 1), dtype=torch.long, device=self.model.device)
        with _returning(self.base, self.output), _returning(self.unembedding, raw):
            return self.model(input_ids=token, use_cache=False).logits


@contextmanager
def _returning(module: Any, value: Any) -> Iterator[None]:
    """Within the context, a module returns a value instead of computing."""
    forward = module.forward
    module.forward = lambda *_, **__: value
    try:
        yield
    finally:
        module.forward = forward


@torch.no_grad()
def with_attention(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model with plain attention, or with its usual attention where that differs.

    Plain attention is read and patched where it is computed. In some families it computes something
    else (Falcon adds ALiBi twice).
    """
    usual = _with_usual(model)
    if usual is None:
        return model
    vocabulary = model.get_input_embeddings().weight.shape[0]  # type: ignore[union-attr, index]
    tokens = some_tokens(model.device, vocabulary)  # type: ignore[arg-type]
    plain = model(input_ids=tokens, use_cache=False).logits
    expected = usual(input_ids=tokens, use_cache=False).logits
    if near(plain, expected, _allowed(plain.dtype)):
        return model
    if plain.dtype in FEW_DIGITS and _heads_agree(model, usual, tokens):
        return model
    name = type(model).__name__
    problem = f"plain attention of {name} gives other logits than its usual attention"
    progress.say(f"{problem}; the usual attention is used")
    return usual


def _allowed(dtype: torch.dtype) -> float:
    """Return by what fraction of the largest number plain attention may differ."""
    return max(1e-4, rounding(dtype))


def _heads_agree(model: PreTrainedModel, usual: PreTrainedModel, tokens: torch.Tensor) -> bool:
    """Return whether the heads of every layer give the same output for the same residual stream.

    With few digits, rounding grows through many layers until the logits differ by more than 1.
    """
    try:
        layers = search.find(model).layers
    except ArchitectureError:  # such as mixtures of experts, which are merged later
        return False
    names = {part: name for name, part in model.named_modules()}
    attending = [layer for layer in layers if layer.attention_out is not None]
    streams: list[torch.Tensor] = []
    plain: list[torch.Tensor] = []
    expected: list[torch.Tensor] = []
    with ExitStack() as hooks:
        for layer in attending:
            hooks.enter_context(patched(layer.block, streams.append))
            hooks.enter_context(patched(layer.attention_out, plain.append))
        model(input_ids=tokens, use_cache=False)
    with ExitStack() as hooks:
        for layer, stream in zip(attending, streams, strict=True):
            block = usual.get_submodule(names[layer.block])
            out = usual.get_submodule(names[layer.attention_out])  # type: ignore[index]
            hooks.enter_context(patched(block, lambda _, stream=stream: stream))
            hooks.enter_context(patched(out, expected.append))
        usual(input_ids=tokens, use_cache=False)
    return all(near(x, y, _allowed(x.dtype)) for x, y in zip(plain, expected, strict=True))


def _with_usual(model: PreTrainedModel) -> PreTrainedModel | None:
    """Return a model that shares the weights and has fused attention, transformers' default.

    Returns None if the family has no fused attention.
    """
    config = copy.deepcopy(model.config)
    try:
        with torch.device("meta"):
            usual = type(model)._from_config(
                config,
                dtype=model.dtype,
                attn_implementation="sdpa",
            )
    except (ValueError, ImportError):
        return None
    for name, part in model.named_modules():
        twin = usual.get_submodule(name)
        twin._parameters, twin._buffers = part._parameters, part._buffers
    spread.follow(model, usual)
    return usual.eval()


def some_tokens(device: torch.device, vocabulary: int) -> torch.Tensor:
    """Return the tokens of two prompts of four tokens: (2, 4)."""
    return torch.arange(1, 9, device=device).remainder(vocabulary).view(2, 4)


def near(x: torch.Tensor, expected: torch.Tensor, fraction: float) -> bool:
    """Return whether x is off by at most a fraction of the largest expected number."""
    return bool((x - expected).abs().max() <= fraction * expected.abs().max())


def rounding(dtype: torch.dtype) -> float:
    """Return by what fraction of the largest number two computations of the same may differ."""
    if dtype == torch.float64:
        return 1e-9
    return max(1e-4, 4 * torch.finfo(dtype).eps)


def exact(module: Any) -> Any:
    """Return a module whose rounding hides no difference: itself, or a copy in float32 where its
    numbers have fewer digits."""
    weight = next(module.parameters(), None)
    if weight is None or weight.dtype in WIDE:
        return module
    return copy.deepcopy(module).float()


def _logits(model: PreTrainedModel, architecture: Architecture) -> torch.Tensor:
    tokens = some_tokens(model.device, architecture.vocabulary)
    return model(input_ids=tokens, use_cache=False).logits
