"""Find a model's parts by watching one forward pass: which modules are called, in which order, and
with what shapes.

There is no table of architectures.

* The decoder layers are the longest list of modules of which each is called once, takes the hidden
  state and returns it.
* A layer's mixer is the part whose `forward` takes a mask, a cache or positions. The MLP is the
  other part.
* The output projection of either part is the linear map that it calls last.

The search also works on the meta device.
"""

import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from stages.lib.model.architecture import (
    LINEAR,
    Architecture,
    ArchitectureError,
    DecoderLayer,
    in_features,
)
from stages.lib.model.experts import mixture_of
from stages.lib.model.reshaped import of_one_shape

TOKENS = 2  # of the prompt that is watched
# in the names of the parameters by which a part that mixes tokens is recognised
MIXES = ("mask", "past", "cache", "position", "alibi", "rotary", "freqs")
ATTENDS = ("attention", "attn")  # in the class names of mixers that are attention
NOT_NORMS = (nn.Dropout, nn.Identity)
MLP_LINEARS = 3  # at most: two of a gated MLP, and the output projection


@dataclass
class Call:
    """One call of a module: when it started and ended, its first input tensor and first output
    tensor, and their shapes (empty without a tensor)."""

    module: nn.Module
    start: int
    input: torch.Tensor | None
    input_shape: tuple[int, ...]
    end: int = 0
    output: torch.Tensor | None = None
    output_shape: tuple[int, ...] = ()


def find(model: PreTrainedModel) -> Architecture:
    """Return the architecture of a causal language model of transformers.

    Raises ArchitectureError, which names the missing part.
    """
    name = type(model).__name__
    unembedding = model.get_output_embeddings()
    if not isinstance(unembedding, LINEAR):
        problem = "has no linear map from its last hidden state to its logits"
        raise ArchitectureError(f"{name} {problem}; such models are not supported")
    width = in_features(unembedding)
    calls = _watch(model)
    blocks = _blocks(model, calls, width)
    order = [call.module for call in sorted(calls, key=lambda call: call.end)]
    layers = [_with_norm(_layer(block, order, i), calls) for i, block in enumerate(blocks)]
    if not any(layer.attention_out for layer in layers):
        mixer = type(layers[0].mixer).__name__
        raise ArchitectureError(
            f"{name} has no attention: its layers mix tokens by {mixer}; "
            "such models are not supported"
        )
    layers = of_one_shape(layers, {id(c.module) for c in calls if len(c.input_shape) == 2})
    heads, head_width = _heads(model, layers)
    norm = _norm(calls, blocks[-1], unembedding, width)
    if norm is None:
        raise ArchitectureError(f"{name} has no normalisation after its layers")
    return Architecture(
        layers=layers,
        final_norm=norm,
        unembedding=unembedding,
        width=width,
        neurons=in_features(layers[0].mlp_out),
        heads=heads,
        head_width=head_width,
        vocabulary=len(unembedding.weight),
    )


def _blocks(model: PreTrainedModel, calls: list[Call], width: int) -> list[nn.Module]:
    """Return the longest list of modules through each of which the hidden state passes once."""
    name, hidden = type(model).__name__, (1, TOKENS, width)
    through = (call for call in calls if call.input_shape == call.output_shape == hidden)
    passes = Counter(id(call.module) for call in through)
    blocks: list[nn.Module] = []
    for group in model.modules():
        if not isinstance(group, nn.ModuleList) or not len(group):
            continue
        counts = [passes[id(member)] for member in group]
        if not all(counts) or not all(map(_has_matrix, group)):
            continue
        if max(counts) > 1:
            raise ArchitectureError(
                f"{name} calls the same layer several times in one forward pass; "
                "such models are not supported"
            )
        blocks = max(blocks, list(group), key=len)
    if not blocks:
        raise ArchitectureError(f"{name} has no list of decoder layers that pass on a hidden state")
    return blocks


def _layer(block: nn.Module, order: list[nn.Module], index: int) -> DecoderLayer:
    """Return the parts of decoder layer `index`. order: all modules, by the end of their calls."""
    mixer, mlp = _split(block, order, index)
    mlp_out = _mlp_out(mlp, order, index)
    mixer_out = _last_linear([mixer], order)
    for part, output_projection in ((mixer, mixer_out), (mlp[0], mlp_out)):
        if output_projection is None:
            name = type(part).__name__
            raise ArchitectureError(f"layer {index}: {name} calls no linear map")
    is_attention = any(word in type(mixer).__name__.lower() for word in ATTENDS)
    return DecoderLayer(
        block=block,
        mlp=None if isinstance(mlp[0], LINEAR) else mlp[0],
        mixer=mixer,
        mlp_out=mlp_out,
        mixer_out=mixer_out,
        attention_out=mixer_out if is_attention else None,
    )


def _split(
    block: nn.Module, order: list[nn.Module], index: int
) -> tuple[nn.Module, list[nn.Module]]:
    """Return a layer's mixer, and its MLP: a single module, or linear maps without a module."""
    called = set(map(id, order))
    computing = filter(_has_matrix, block.children())
    parts = [part for part in computing if not called.isdisjoint(map(id, part.modules()))]
    mixers = list(filter(_mixes, parts))
    mlp = [part for part in parts if part not in mixers]
    names = ", ".join(type(part).__name__ for part in parts)
    if not mlp:
        only = names and f", only {names}"
        raise ArchitectureError(f"layer {index}, {type(block).__name__}, has no MLP{only}")
    is_mlp = len(mlp) == 1 or all(isinstance(part, LINEAR) for part in mlp)
    if len(mixers) != 1 or not is_mlp:
        expected = "expected one part that mixes tokens and one MLP"
        raise ArchitectureError(f"layer {index}: {expected}, found {names}")
    return mixers[0], mlp


def _mlp_out(mlp: list[nn.Module], order: list[nn.Module], index: int) -> Any:
    """Return the output projection of an MLP or of a merged mixture of experts."""
    mixture = mixture_of(mlp[0])
    if mixture is not None:
        return mixture
    modules = [module for part in mlp for module in part.modules()]
    linears = sum(isinstance(module, LINEAR) for module in modules)
    matrices = sum(p.ndim > 1 for part in mlp for p in part.parameters())
    if linears > MLP_LINEARS or matrices > linears:
        raise ArchitectureError(
            f"layer {index}: {type(mlp[0]).__name__} holds {matrices} matrices; "
            "expected one MLP or a supported mixture of experts"
        )
    return _last_linear(mlp, order)


def _has_matrix(part: nn.Module) -> bool:
    return any(parameter.ndim > 1 for parameter in part.parameters())


def _mixes(part: nn.Module) -> bool:
    """Return whether a part of a layer mixes tokens, by the parameters of its `forward`."""
    if isinstance(part, LINEAR):
        return False
    names = " ".join(inspect.signature(part.forward).parameters)
    return any(word in names for word in MIXES)


def _last_linear(parts: list[nn.Module], order: list[nn.Module]) -> Any:
    """Return the linear map that these parts call last, None if they call none."""
    members = {id(module) for part in parts for module in part.modules()}
    for module in reversed(order):
        if id(module) in members and isinstance(module, LINEAR):
            return module
    return None


def _with_norm(layer: DecoderLayer, calls: list[Call]) -> DecoderLayer:
    """Return the layer with the norm that is applied to the output of its MLP, if it has one."""
    members = {id(module) for module in layer.block.modules()}
    mlp = (layer.mlp_out, layer.mlp)
    outputs = {id(call.output) for call in calls if call.module in mlp} - {id(None)}
    for call in calls:
        if id(call.module) not in members or call.input_shape != call.output_shape:
            continue
        has_gain = any(p.ndim == 1 for p in call.module.parameters(recurse=False))
        if has_gain and id(call.input) in outputs:
            return replace(layer, post_norm=call.module)
    return layer


def _heads(model: PreTrainedModel, layers: list[DecoderLayer]) -> tuple[int, int]:
    """Return the number of heads of a layer, and the width of a head's output."""
    widths = {in_features(layer.attention_out) for layer in layers if layer.attention_out}
    heads = model.config.get_text_config(decoder=True).num_attention_heads
    if len(widths) > 1 or not isinstance(heads, int) or min(widths) % heads:
        raise ArchitectureError(
            f"{type(model).__name__}: the outputs of attention are {sorted(widths)} wide; "
            f"expected one width for all layers, divisible by the {heads} heads"
        )
    return heads, widths.pop() // heads


def _norm(calls: list[Call], last: nn.Module, unembedding: nn.Module, width: int) -> Any:
    """Return the module that is called last between the layers and the unembedding, and turns a
    hidden state into a hidden state; None if there is none."""
    layers_end = max(call.end for call in calls if call.module is last)
    unembedding_start = max(call.start for call in calls if call.module is unembedding)

    def is_norm(call: Call) -> bool:
        if call.start <= layers_end or call.end >= unembedding_start:
            return False
        keeps_shape = call.input_shape == call.output_shape and call.input_shape[-1:] == (width,)
        return keeps_shape and not isinstance(call.module, NOT_NORMS)

    norms = filter(is_norm, calls)
    outermost_last = max(norms, key=lambda call: (call.end, -call.start), default=None)
    return getattr(outermost_last, "module", None)


@torch.no_grad()
def _watch(model: PreTrainedModel) -> list[Call]:
    """Return every call of every module in one forward pass, in the order of their starts."""
    calls: list[Call] = []
    under_way: list[Call] = []
    clock = count()

    def start(module: nn.Module, inputs: tuple, named: dict[str, Any]) -> None:
        tensor = _first((*inputs, *named.values()))
        call = Call(module, next(clock), tensor, _shape(tensor))
        calls.append(call)
        under_way.append(call)

    def end(module: nn.Module, _: tuple, out: Any) -> None:
        call = under_way.pop()
        call.end = next(clock)
        call.output = _first(out if isinstance(out, (tuple, list)) else (out,))
        call.output_shape = _shape(call.output)

    with _hooked(model, start, end):
        tokens = torch.zeros((1, TOKENS), dtype=torch.long, device=model.device)
        # without a mask, transformers would look at the tokens for one
        model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    return calls


@contextmanager
def _hooked(model: PreTrainedModel, start: Any, end: Any) -> Iterator[None]:
    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(start, with_kwargs=True))
        handles.append(module.register_forward_hook(end, always_call=False))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first(values: Any) -> torch.Tensor | None:
    """Return the first tensor of floating-point numbers among some values."""
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return next(filter(torch.is_floating_point, tensors), None)


def _shape(tensor: torch.Tensor | None) -> tuple[int, ...]:
    return () if tensor is None else tuple(tensor.shape)
