"""Attribution patching: estimate what patching a neuron would do, from one gradient per prompt."""

from collections.abc import Callable, Collection
from contextlib import ExitStack

import torch

from stages.lib.executor.values import Values
from stages.lib.model.architecture import patched
from stages.lib.model.spread import beside

Site = tuple[int, str]  # layer and role


def attributions(values: Values, sites: Collection[Site]) -> dict[Site, torch.Tensor]:
    """Return attributions (prompts, neurons) for each site, in logits.

    An attribution is gradient x (counterfactual - clean activation) of half the logit difference,
    1/2 [L(r') - L(r)]. To first order, the effect on probabilities (Nikankin et al. 2025, Eq. 1)
    is the same, because the normaliser of both probabilities cancels.
    """
    gradients = _gradients(values, {layer for layer, _ in sites})
    estimates = {}
    for layer, role in sites:
        clean, other = values.clean.neurons[layer], values.counterfactual.neurons[layer]
        at = beside(clean, values.prompts, values.positions[role])
        other_at = beside(other, values.prompts, values.others[role])
        estimates[layer, role] = gradients[layer][at] * (other[other_at] - clean[at])
    return estimates


def _gradients(values: Values, layers: set[int]) -> dict[int, torch.Tensor]:
    """Return the gradient of half the logit difference for the neurons of each layer."""
    architecture, pairs = values.architecture, values.pairs
    inputs: dict[int, torch.Tensor] = {}
    with torch.enable_grad(), ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(patched(architecture.layers[layer].mlp_out, _watch(inputs, layer)))
        output = values.checkpoint.model(
            input_ids=values.clean.tokens, use_cache=False, logits_to_keep=1
        )
        logits = output.logits[:, -1]
        answers = torch.from_numpy(pairs.answers).to(logits.device)[:, None]
        others = torch.from_numpy(pairs.counterfactual_answers).to(logits.device)[:, None]
        effect = (logits.gather(1, others) - logits.gather(1, answers)).sum() / 2
        gradients = torch.autograd.grad(effect, list(inputs.values()))
    return dict(zip(inputs, gradients, strict=True))


def _watch(inputs: dict[int, torch.Tensor], layer: int) -> Callable[[torch.Tensor], None]:
    """Return a hook that keeps a layer's neurons and makes them require a gradient."""

    def look(x: torch.Tensor) -> None:
        inputs[layer] = x if x.requires_grad else x.requires_grad_()

    return look
