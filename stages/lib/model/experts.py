"""Turn mixtures of experts into MLPs of many neurons.

The neurons of the shared experts come first, then those of each routed expert.

The activation of a routed expert's neuron is its value times the expert's weight for the token: 0
where the token is not routed to the expert. The bias of a routed expert's output projection is one
more neuron, whose value is always 1. So one linear map, the experts' output projections side by
side, turns all activations into the mixture's output. `merge` makes this map a module, so that
code that reads or changes neurons treats a mixture like any other MLP.

How a mixture combines its experts is left to its own code. That code runs on two stand-ins: the
routed experts together write unit vector 0, the shared ones unit vector 1. The two coordinates of
the sum are the two weights. A mixture that adds anything else is refused.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from stages.lib.model.architecture import LINEAR, ArchitectureError, out_of

NAME = "neurons"
ROUTED, SHARED = 0, 1  # the unit vectors that stand for the output of routed and shared experts
FACTS = ("has_gate", "has_bias", "is_transposed", "is_concatenated", "_apply_gate")


class Mixture(nn.Linear):
    """The output projections of all experts side by side: a linear map (width, all neurons).

    It is a child of the layer's part that holds the experts, and computes that part's output.
    """

    def __init__(self, experts: Any, shared: list[Any]):
        super().__init__(1, 1, bias=False, device="meta")
        axes = (2, 0, 1) if experts.is_transposed else (1, 0, 2)
        routed = experts.down_proj.data.permute(axes)  # (width, experts, neurons of each)
        if experts.has_bias:
            routed = torch.cat([routed, experts.down_proj_bias.data.T[:, :, None]], 2)
        weights = torch.cat([*map(out_of, shared), routed.flatten(1)], 1)
        self.weight = nn.Parameter(weights, requires_grad=False)
        self.out_features, self.in_features = weights.shape
        # neurons' values while a forward pass is under way
        self.shared: list[torch.Tensor] = []
        self.routed = torch.empty(0)

    def replace_output(self, _: nn.Module, __: Any, out: Any) -> Any:
        """Return the mixture's output in place of the sum of its stand-ins (a forward hook)."""
        sums = _first(out)
        if not sums.is_meta and sums[..., 2:].any():
            problem = "a mixture of experts writes more than the weighted outputs of its experts"
            raise ArchitectureError(f"{problem}; such models are not supported")
        shape = sums.shape[:-1]
        shared = [values.reshape(*shape, -1) * sums[..., SHARED, None] for values in self.shared]
        routed = self.routed.view(*shape, -1) * sums[..., ROUTED, None]
        self.shared, self.routed = [], torch.empty(0)
        written = self(torch.cat([*shared, routed], -1))
        return (written, *out[1:]) if isinstance(out, tuple) else written


class SharedStandIn(nn.Module):
    """Stand for a shared expert's output projection: pass its input to the mixture."""

    def __init__(self, mixture: Mixture):
        super().__init__()
        self.holder = [mixture]  # in a list, because the mixture must not become a submodule

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        [mixture] = self.holder
        mixture.shared.append(x)
        return _unit(x, mixture.out_features, SHARED)


def merge(model: PreTrainedModel) -> PreTrainedModel:
    """Give each mixture of the model one output projection.

    Mixtures of an unknown form stay as they are; search.find refuses them.
    """
    pairs = mixtures(model)
    if not pairs:
        return model
    model.set_experts_implementation(NAME)
    writers = _writers(model)
    for part, experts in pairs:
        shared = list(_shared_projections(part, experts, writers))
        mixture = Mixture(experts, shared)
        for projection in shared:
            replace(part, projection, SharedStandIn(mixture))
        part.mixture, experts.holder = mixture, [mixture]
        # the weights are in the mixture now
        experts.experts, experts.down_proj = len(experts.down_proj), None
        part.register_forward_hook(mixture.replace_output)
    return model


def mixtures(model: PreTrainedModel) -> list[tuple[Any, Any]]:
    """Return each mixture of a known form: the part of a layer that holds it, and its experts."""
    pairs = ((part, child) for part in model.modules() for child in part.children())
    return [pair for pair in pairs if _is_known(pair[1])]


def mixture_of(part: nn.Module) -> Mixture | None:
    """Return the merged mixture that a part of a layer holds, None if there is none."""
    return next((module for module in part.modules() if isinstance(module, Mixture)), None)


def replace(whole: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace a module by another one wherever it is below a whole."""
    for parent in list(whole.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)


def _is_known(module: Any) -> bool:
    """Return whether a module holds routed experts of a form that Mixture can hold."""
    if not all(hasattr(module, fact) for fact in FACTS):
        return False
    if getattr(module, "down_proj", None) is None:
        return False
    return not getattr(module, "has_post_expert_norm", False)


def _shared_projections(part: nn.Module, experts: nn.Module, writers: list[Any]) -> Iterator[Any]:
    """Yield the output projection of each shared expert: the last writer that it calls."""
    for child in part.children():
        if child is experts or isinstance(child, LINEAR):
            continue
        members = {id(module) for module in child.modules()}
        last = next((writer for writer in reversed(writers) if id(writer) in members), None)
        if last is not None:
            yield last


@torch.no_grad()
def _writers(model: PreTrainedModel) -> list[Any]:
    """Return the linear maps without bias that write a hidden state, in order of their calls."""
    called: list[Any] = []
    width = model.get_input_embeddings().weight.shape[1]  # type: ignore[index, union-attr]

    def note(module: nn.Module, _: Any, out: Any) -> None:
        if _first(out).shape[-1] == width:
            called.append(module)

    linears = [m for m in model.modules() if isinstance(m, LINEAR) and m.bias is None]
    handles = [linear.register_forward_hook(note) for linear in linears]
    try:
        tokens = torch.zeros((1, 2), dtype=torch.long, device=model.device)
        model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return called


def _first(out: Any) -> torch.Tensor:
    return out[0] if isinstance(out, tuple) else out


def _unit(like: torch.Tensor, width: int, coordinate: int) -> torch.Tensor:
    """Return unit vectors (…, width), for all but the last axis of a tensor."""
    unit = like.new_zeros(*like.shape[:-1], width)
    unit[..., coordinate] = 1
    return unit


def _neurons(
    self: Any,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """Pass the routed neurons' weighted values to the mixture; return their stand-in.

    self: the module that holds the experts; hidden_states: (tokens, width); top_k_index and
    top_k_weights: (tokens, experts of each token).
    """
    if self.down_proj is not None:  # not merged yet
        return torch.zeros_like(hidden_states)
    weights = self.gate_up_proj if self.has_gate else self.up_proj
    if not self.is_transposed:
        weights = weights.transpose(1, 2)  # (experts, width, gates and neurons)
    size = weights.shape[2] // (1 + self.has_gate) + self.has_bias
    neurons = hidden_states.new_zeros(len(hidden_states), self.experts, size)
    for expert in range(self.experts):
        if hidden_states.is_meta:
            break
        token, rank = torch.where(top_k_index == expert)
        if len(token):
            values = _values(self, hidden_states[token] @ weights[expert], expert)
            neurons[token, expert] = values * top_k_weights[token, rank, None].to(values.dtype)
    [mixture] = self.holder
    mixture.routed = neurons.flatten(1)
    return _unit(hidden_states, hidden_states.shape[-1], ROUTED)


def _values(self: Any, projected: torch.Tensor, expert: int) -> torch.Tensor:
    """Return the values of one expert's neurons, and the 1 of its bias if it has one."""
    activation: Callable = self._apply_gate if self.has_gate else self.act_fn
    if not self.has_bias:
        return activation(projected)
    values = activation(projected + self.gate_up_proj_bias[expert])
    return nn.functional.pad(values, (0, 1), value=1.0)


ALL_EXPERTS_FUNCTIONS.register(NAME, _neurons)
