"""Mixtures of experts as MLPs of many neurons: those of all experts, numbered through, behind those of experts that are always there.

A neuron's activation is the weight that its expert gets times what the neuron says, 0 where the token does not go to that expert. The
bias of what a routed expert writes is one more neuron of it, which always says 1. So one
linear map, the experts' output projections side by side, makes of all activations what the mixture writes. It is made here, as a
module, so that everything that reads or changes neurons works on mixtures as on any MLP.

What a mixture does with what its experts say is left to its own code: that is run on two stand-ins, unit vectors in place of what the
routed experts and the constant ones write, and their lengths behind it are the two weights. Whoever adds anything else is refused.
"""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from stages.lib.model.architecture import LINEAR, ArchitectureError, out_of

NAME = "neurons"


class Mixture(nn.Linear):
    """The output projections of all experts side by side, a linear map like any other: (width, neurons of all experts).

    It hangs below the part of a layer that holds the experts, and makes that part's output.
    """

    def __init__(self, experts: Any, constant: list[Any]):
        super().__init__(1, 1, bias=False, device="meta")
        down = experts.down_proj.data
        routed = down.permute(2, 0, 1) if experts.is_transposed else down.permute(1, 0, 2)  # (width, experts, neurons of each)
        if experts.has_bias:
            routed = torch.cat([routed, experts.down_proj_bias.data.T[:, :, None]], 2)
        weights = torch.cat([*(out_of(one) for one in constant), routed.flatten(1)], 1)
        self.weight = nn.Parameter(weights, requires_grad=False)
        self.out_features, self.in_features = weights.shape
        self.constant: list[torch.Tensor] = []  # what neurons say while a forward pass is under way
        self.routed = torch.empty(0)

    def instead(self, _: nn.Module, __: Any, out: Any) -> Any:
        """What the part of the layer returns in place of the sum of its stand-ins."""
        sums = _first(out)
        if not sums.is_meta and sums[..., 2:].any():
            raise ArchitectureError("a mixture of experts writes what its experts do not say, which is not studied here")
        neurons = [x.reshape(*sums.shape[:-1], -1) * sums[..., 1:2] for x in self.constant]
        neurons.append(self.routed.view(*sums.shape[:-1], -1) * sums[..., :1])
        self.constant, self.routed = [], torch.empty(0)
        written = self(torch.cat(neurons, -1))
        return (written, *out[1:]) if isinstance(out, tuple) else written


class Constant(nn.Module):
    """Stands for the output projection of an expert that is always there."""

    def __init__(self, mixture: Mixture):
        super().__init__()
        self.of = [mixture]  # in a list, as it is no part of this module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.of[0].constant.append(x)
        return _unit(x, self.of[0].out_features, 1)


def merge(model: PreTrainedModel) -> PreTrainedModel:
    """Gives each mixture of the model one output projection. Those of unknown form stay as they are, and are refused by the search."""
    found = mixtures(model)
    if not found:
        return model
    model.set_experts_implementation(NAME)
    written = _writers(model)
    for part, experts in found:
        apart = [child for child in part.children() if child is not experts and not isinstance(child, LINEAR)]
        last = [[m for m in written if id(m) in {id(x) for x in child.modules()}][-1:] for child in apart]
        constant = [m for of in last for m in of]
        mixture = Mixture(experts, constant)
        for one in constant:
            replace(part, one, Constant(mixture))
        part.mixture, experts.of = mixture, [mixture]
        experts.experts, experts.down_proj = experts.down_proj.shape[0], None  # its weights are in the mixture
        part.register_forward_hook(mixture.instead)
    return model


def mixtures(model: PreTrainedModel) -> list[tuple[Any, Any]]:
    """The experts of each mixture of known form, with the part of a layer that holds them."""
    return [(part, child) for part in model.modules() for child in part.children() if _known(child)]


def mixture_of(part: nn.Module) -> Mixture | None:
    """The output projection of the mixture that a part of a layer holds, None where it holds none of a form that is known."""
    return next((m for m in part.modules() if isinstance(m, Mixture)), None)


def replace(whole: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Puts a module in the place of another one, wherever that hangs below a whole."""
    for parent in list(whole.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)


def _known(module: Any) -> bool:
    facts = ("has_gate", "has_bias", "is_transposed", "is_concatenated", "_apply_gate")
    if not all(hasattr(module, fact) for fact in facts) or getattr(module, "down_proj", None) is None:
        return False
    return not getattr(module, "has_post_expert_norm", False)


@torch.no_grad()
def _writers(model: PreTrainedModel) -> list[Any]:
    """Linear maps without bias that put out a hidden state, in the order in which a forward pass calls them."""
    called: list[Any] = []
    width = model.get_input_embeddings().weight.shape[1]  # type: ignore[index, union-attr]
    linears = [m for m in model.modules() if isinstance(m, LINEAR) and m.bias is None]
    handles = [m.register_forward_hook(lambda m, _, out: called.append(m) if _first(out).shape[-1] == width else None) for m in linears]
    try:
        tokens = torch.zeros((1, 2), dtype=torch.long, device=model.device)
        model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return called


def _first(out: Any) -> torch.Tensor:
    return out[0] if isinstance(out, tuple) else out


def _unit(x: torch.Tensor, width: int, place: int) -> torch.Tensor:
    unit = x.new_zeros(*x.shape[:-1], width)
    unit[..., place] = 1
    return unit


def _neurons(self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
    """hidden_states (tokens, width), top_k_index and top_k_weights (tokens, experts of each token). What it returns is a stand-in."""
    if self.down_proj is not None:  # not merged yet
        return torch.zeros_like(hidden_states)
    first = self.gate_up_proj if self.has_gate else self.up_proj
    size = first.shape[2 if self.is_transposed else 1] // (2 if self.has_gate else 1) + self.has_bias
    neurons = hidden_states.new_zeros(len(hidden_states), self.experts, size)
    for expert in range(0 if hidden_states.is_meta else self.experts):
        token, place = torch.where(top_k_index == expert)
        if len(token):
            through = hidden_states[token] @ (first[expert] if self.is_transposed else first[expert].T)
            through = through + self.gate_up_proj_bias[expert] if self.has_bias else through
            active = self._apply_gate(through) if self.has_gate else self.act_fn(through)
            active = nn.functional.pad(active, (0, 1), value=1.0) if self.has_bias else active
            neurons[token, expert] = active * top_k_weights[token, place, None].to(active.dtype)
    self.of[0].routed = neurons.flatten(1)
    return _unit(hidden_states, hidden_states.shape[-1], 0)


ALL_EXPERTS_FUNCTIONS.register(NAME, _neurons)
