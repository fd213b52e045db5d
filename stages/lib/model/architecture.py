"""Where a causal language model keeps its layers, neurons and heads, found from the model itself.

No table of architectures: a decoder layer is found as a member of the longest list of modules, its MLP as the child
that takes the hidden state alone, its attention as the child that takes more; the output projection of either is the
linear map it calls last. Layers whose MLP is not one such block (mixtures of experts) are refused by name.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

LINEAR = (nn.Linear, Conv1D)


class ArchitectureError(ValueError):
    """A model whose parts are not where every supported decoder has them, or whose canary failed."""


@dataclass(frozen=True)
class DecoderLayer:
    """One decoder layer: its two output projections, whose inputs are the neurons' activations and the heads' outputs."""

    block: nn.Module
    mlp: nn.Module
    attention: nn.Module
    mlp_out: nn.Linear | Conv1D
    attention_out: nn.Linear | Conv1D


@dataclass(frozen=True)
class Architecture:
    """A model's layers and sizes. neurons: per MLP; heads x head_width: input of the attention's output projection."""

    layers: list[DecoderLayer]
    final_norm: Any  # a module; norms of all architectures share no class
    unembedding: nn.Linear
    width: int
    neurons: int
    heads: int
    head_width: int


def find(model: PreTrainedModel) -> Architecture:
    """The architecture of a Hugging Face causal language model. Raises ArchitectureError, saying what is missing."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len({type(child) for child in m}) == 1]
    if not lists:
        raise ArchitectureError(f"{type(model).__name__} holds no list of decoder layers")
    blocks = max(lists, key=len)
    order = _call_order(model)
    layers = [_layer(block, order, i) for i, block in enumerate(blocks)]
    width = int(model.get_input_embeddings().weight.shape[1])  # type: ignore[index, arg-type]
    inside = {id(m) for block in blocks for m in block.modules()}
    norms = [m for m in order if id(m) not in inside and _is_norm(m, width)]
    if not norms:
        raise ArchitectureError(f"{type(model).__name__} has no normalisation behind its layers")
    shapes = {(in_features(layer.mlp_out), in_features(layer.attention_out)) for layer in layers}
    if len(shapes) != 1:
        raise ArchitectureError(f"the layers differ in size: {sorted(shapes)}")
    neurons, inner = shapes.pop()
    heads = model.config.num_attention_heads
    return Architecture(layers, norms[-1], model.get_output_embeddings(), width, neurons, heads, inner // heads)


def _layer(block: nn.Module, order: list[nn.Module], index: int) -> DecoderLayer:
    parts = [child for child in block.children() if any(isinstance(m, LINEAR) for m in child.modules())]
    mlps = [part for part in parts if len(inspect.signature(part.forward).parameters) == 1]
    attentions = [part for part in parts if part not in mlps]
    if len(mlps) != 1 or len(attentions) != 1:
        names = [type(part).__name__ for part in parts]
        raise ArchitectureError(f"layer {index}: expected one attention and one MLP, found {names}")
    mlp_linears = [m for m in mlps[0].modules() if isinstance(m, LINEAR)]
    if len(mlp_linears) > 3:
        raise ArchitectureError(
            f"layer {index}: {type(mlps[0]).__name__} holds {len(mlp_linears)} linear maps; mixtures of experts are not supported"
        )
    return DecoderLayer(block, mlps[0], attentions[0], _last_linear(mlps[0], order), _last_linear(attentions[0], order))


def _last_linear(part: nn.Module, order: list[nn.Module]) -> nn.Linear | Conv1D:
    members = {id(m) for m in part.modules() if isinstance(m, LINEAR)}
    called = [m for m in order if isinstance(m, LINEAR) and id(m) in members]
    if not called:
        raise ArchitectureError(f"{type(part).__name__} calls none of its linear maps")
    return called[-1]


def _is_norm(module: nn.Module, width: int) -> bool:
    weight = getattr(module, "weight", None)
    return weight is not None and weight.shape == (width,)


@torch.no_grad()
def _call_order(model: PreTrainedModel) -> list[nn.Module]:
    """Every module with weights of its own, in the order in which a forward pass calls them."""
    order: list[nn.Module] = []
    leaves = [m for m in model.modules() if not list(m.children())]
    handles = [m.register_forward_hook(lambda module, *_: order.append(module)) for m in leaves]
    try:
        tokens = torch.zeros((1, 2), dtype=torch.long, device=model.device)
        model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)  # without a mask, one is asked of the tokens
    finally:
        for handle in handles:
            handle.remove()
    return order


def in_features(linear: nn.Linear | Conv1D) -> int:
    return linear.weight.shape[0] if isinstance(linear, Conv1D) else linear.weight.shape[1]


def value_vectors(layer: DecoderLayer) -> torch.Tensor:
    """What each neuron writes into the residual stream: (neurons, width)."""
    weight = layer.mlp_out.weight
    return weight if isinstance(layer.mlp_out, Conv1D) else weight.T


@contextmanager
def patched(module: Any, change) -> Iterator[None]:
    """Within the context, the module's input x is replaced by change(x); a change that returns None only looks."""

    def hook(_: nn.Module, inputs: tuple, named: dict) -> tuple | None:
        if inputs:
            changed = change(inputs[0])
            return None if changed is None else ((changed, *inputs[1:]), named)
        changed = change(named["hidden_states"])
        return None if changed is None else (inputs, {**named, "hidden_states": changed})

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def rewritten(module: Any, change) -> Iterator[None]:
    """Within the context, the module's output y is replaced by change(y)."""
    handle = module.register_forward_hook(lambda _, __, out: change(out))
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def check(model: PreTrainedModel, architecture: Architecture) -> None:
    """The canary: in every layer, activations replaced by themselves change no logit, replaced by zeros change some."""
    vocabulary = model.config.vocab_size
    tokens = torch.arange(1, 5, device=model.device).remainder(vocabulary)[None]
    clean = model(input_ids=tokens, use_cache=False).logits
    if not torch.isfinite(clean).all():
        raise ArchitectureError("the model's logits are not finite")
    for i, layer in enumerate(architecture.layers):
        parts = (
            ("MLP", layer.mlp_out, architecture.neurons),
            ("attention", layer.attention_out, architecture.heads * architecture.head_width),
        )
        for name, module, width in parts:
            widths: set[int] = set()
            with patched(module, lambda x, widths=widths: (widths.add(x.shape[-1]), x.clone())[1]):
                same = model(input_ids=tokens, use_cache=False).logits
            if widths - {width}:
                raise ArchitectureError(
                    f"layer {i}: the {name}'s output projection is given {min(widths)} values of {width}: a model that is cut through its "
                    "layers (tensor parallelism) cannot be studied; lay whole layers on the devices instead"
                )
            with patched(module, torch.zeros_like):
                zeroed = model(input_ids=tokens, use_cache=False).logits
            if not torch.equal(same, clean):
                raise ArchitectureError(f"layer {i}: replacing the {name}'s activations by themselves changes the logits")
            if torch.equal(zeroed, clean):
                raise ArchitectureError(f"layer {i}: replacing the {name}'s activations by zeros changes nothing")
