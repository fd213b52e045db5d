"""Finds a model's parts by watching one forward pass: which modules are called, in which order, and with what shapes.

No table of architectures. The decoder layers are the longest list of modules through each of which the hidden state goes once. What
mixes tokens in a layer is the part that asks for a mask, a cache or positions; what is left is the MLP. The output projection of either
is the linear map that it calls last. Works on the meta device, too.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from stages.lib.model.architecture import LINEAR, Architecture, ArchitectureError, DecoderLayer, in_features
from stages.lib.model.experts import mixture_of
from stages.lib.model.reshaped import of_one_shape

TOKENS = 2  # of the prompt that is watched
MIXES = ("mask", "past", "cache", "position", "alibi", "rotary", "freqs")  # in the names of what a part asks for that mixes tokens
ATTENDS = ("attention", "attn")  # in the class names of those of them that attend


@dataclass
class Call:
    """One call of a module: when it started and ended, the sizes of what it was given and of what it returned, and these tensors."""

    module: nn.Module
    start: int
    end: int = 0
    given: tuple[int, ...] = ()
    returned: tuple[int, ...] = ()
    taken: Any = None  # the tensor itself
    made: Any = None


def find(model: PreTrainedModel) -> Architecture:
    """The architecture of a Hugging Face causal language model. Raises ArchitectureError, saying what is missing."""
    name = type(model).__name__
    unembedding = model.get_output_embeddings()
    if not isinstance(unembedding, LINEAR):
        raise ArchitectureError(f"{name} has no linear map that makes logits of its last hidden state")
    width = in_features(unembedding)
    calls = _watch(model)
    blocks = _blocks(model, calls, width)
    order = [call.module for call in sorted(calls, key=lambda call: call.end)]
    layers = [_with_norm(_layer(block, order, i), calls) for i, block in enumerate(blocks)]
    if not any(layer.attention_out for layer in layers):
        raise ArchitectureError(
            f"{name} has no attention: its layers mix tokens by {type(layers[0].mixer).__name__}, which is not studied here"
        )
    layers = of_one_shape(layers, flat={id(call.module) for call in calls if len(call.given) == 2})
    neurons = in_features(layers[0].mlp_out)
    inner = {in_features(layer.attention_out) for layer in layers if layer.attention_out}
    heads = model.config.get_text_config(decoder=True).num_attention_heads
    if len(inner) > 1 or not isinstance(heads, int) or min(inner) % heads:
        raise ArchitectureError(f"{name}: the outputs of attention, {sorted(inner)} wide, are not those of {heads} heads in every layer")
    norm = _norm(calls, blocks[-1], unembedding, width)
    if norm is None:
        raise ArchitectureError(f"{name} has no normalisation behind its layers")
    return Architecture(layers, norm, unembedding, width, neurons, heads, inner.pop() // heads, len(unembedding.weight))


def _blocks(model: PreTrainedModel, calls: list[Call], width: int) -> list[nn.Module]:
    of: dict[int, list[Call]] = {}
    for call in calls:
        of.setdefault(id(call.module), []).append(call)
    hidden = (1, TOKENS, width)
    found: list[nn.Module] = []
    for group in (m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m)):
        called = [[call for call in of.get(id(member), []) if call.given == call.returned == hidden] for member in group]
        if not all(called) or not all(any(p.ndim > 1 for p in member.parameters()) for member in group):
            continue
        if max(map(len, called)) > 1:
            raise ArchitectureError(
                f"{type(model).__name__} calls the same layer several times in one forward pass, which is not studied here"
            )
        found = max(found, list(group), key=len)
    if not found:
        raise ArchitectureError(f"{type(model).__name__} holds no list of decoder layers through which the hidden state goes")
    return found


def _layer(block: nn.Module, order: list[nn.Module], index: int) -> DecoderLayer:
    called = {id(m) for m in order}
    parts = [
        child for child in block.children()
        if any(p.ndim > 1 for p in child.parameters()) and any(id(m) in called for m in child.modules())
    ]  # fmt: skip
    mixers = [part for part in parts if _mixes(part)]
    rest = [part for part in parts if part not in mixers]
    bare = all(isinstance(part, LINEAR) for part in rest)  # an MLP that is no module of its own
    names = ", ".join(type(part).__name__ for part in parts)
    if not rest:
        raise ArchitectureError(f"layer {index}, {type(block).__name__}, has no MLP" + (f", only {names}" if names else ""))
    if len(mixers) != 1 or (len(rest) > 1 and not bare):
        raise ArchitectureError(f"layer {index}: expected one part that mixes tokens and one MLP, found {names}")
    mixer = mixers[0]
    mlp_out = _mlp_out(rest, order, index)
    mixer_out = _last_linear([mixer], order)
    if mixer_out is None or mlp_out is None:
        part = mixer if mixer_out is None else rest[0]
        raise ArchitectureError(f"layer {index}: {type(part).__name__} calls no linear map")
    attends = any(word in type(mixer).__name__.lower() for word in ATTENDS)
    return DecoderLayer(block, None if bare else rest[0], mixer, mlp_out, mixer_out, mixer_out if attends else None)


def _with_norm(layer: DecoderLayer, calls: list[Call]) -> DecoderLayer:
    """The layer, and the norm that is given what its MLP puts out."""
    inside = {id(m) for m in layer.block.modules()}
    put_out = [call.made for call in calls if call.module in (layer.mlp_out, layer.mlp) and call.made is not None]
    for call in calls:
        if id(call.module) not in inside or call.given != call.returned:
            continue
        gains = [p for p in call.module.parameters(recurse=False) if p.ndim == 1]
        if gains and any(call.taken is made for made in put_out):
            return replace(layer, post_norm=call.module)
    return layer


def _mlp_out(rest: list[nn.Module], order: list[nn.Module], index: int) -> Any:
    linears = [m for part in rest for m in part.modules() if isinstance(m, LINEAR)]
    name = type(rest[0]).__name__
    if mixture := mixture_of(rest[0]):
        return mixture
    matrices = sum(p.ndim > 1 for part in rest for p in part.parameters())
    if len(linears) > 3 or matrices > len(linears):
        raise ArchitectureError(
            f"layer {index}: {name} holds {matrices} matrices, which are not those of one MLP or of a mixture of experts that is known here"
        )
    return _last_linear(rest, order)


def _mixes(part: nn.Module) -> bool:
    """Whether a part of a layer mixes tokens, by what it asks for."""
    if isinstance(part, LINEAR):
        return False
    asked = inspect.signature(part.forward).parameters
    return any(word in name for name in asked for word in MIXES)


def _last_linear(parts: list[nn.Module], order: list[nn.Module]) -> Any:
    members = {id(m) for part in parts for m in part.modules() if isinstance(m, LINEAR)}
    return next((m for m in reversed(order) if id(m) in members), None)


def _norm(calls: list[Call], last: nn.Module, unembedding: nn.Module, width: int) -> Any:
    """What is called last between the layers and the unembedding, and gives a hidden state for a hidden state."""
    behind = max(call.end for call in calls if call.module is last)
    before = max(call.start for call in calls if call.module is unembedding)
    between = [
        call for call in calls
        if behind < call.start and call.end < before and call.given and call.given == call.returned and call.given[-1] == width
        and not isinstance(call.module, (nn.Dropout, nn.Identity))
    ]  # fmt: skip
    return max(between, key=lambda call: (call.end, -call.start)).module if between else None


@torch.no_grad()
def _watch(model: PreTrainedModel) -> list[Call]:
    """Every call of every module in one forward pass, in the order in which they start."""
    calls: list[Call] = []
    under_way: list[Call] = []
    time = iter(range(1 << 40))

    def starts(module: nn.Module, inputs: tuple, named: dict[str, Any]) -> None:
        taken = _first((*inputs, *named.values()))
        call = Call(module, next(time), given=_shape(taken), taken=taken)
        calls.append(call)
        under_way.append(call)

    def ends(module: nn.Module, _: tuple, out: Any) -> None:
        call = under_way.pop()
        call.end = next(time)
        call.made = _first(out if isinstance(out, (tuple, list)) else (out,))
        call.returned = _shape(call.made)

    with _hooked(model, starts, ends):
        tokens = torch.zeros((1, TOKENS), dtype=torch.long, device=model.device)
        model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)  # without a mask, one is asked of the tokens
    return calls


@contextmanager
def _hooked(model: PreTrainedModel, starts: Any, ends: Any) -> Iterator[None]:
    handles = [m.register_forward_pre_hook(starts, with_kwargs=True) for m in model.modules()]
    handles += [m.register_forward_hook(ends, always_call=False) for m in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first(values: Any) -> torch.Tensor | None:
    return next((value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()), None)


def _shape(tensor: torch.Tensor | None) -> tuple[int, ...]:
    return () if tensor is None else tuple(tensor.shape)
