"""Attribution patching: what replacing a neuron's activation would do, estimated from one gradient."""

from collections.abc import Collection
from contextlib import ExitStack

import torch

from stages.lib.executor.values import Values
from stages.lib.model.architecture import patched
from stages.lib.model.spread import beside

Site = tuple[int, str]  # layer and role


def attributions(values: Values, sites: Collection[Site]) -> dict[Site, torch.Tensor]:
    """Per site (prompts, neurons): gradient x (counterfactual - clean activation) of the logit effect, 1/2 [L(r') - L(r)].

    To first order the effect on probabilities (Nikankin et al. 2025, Eq. 1) is the same: its logarithms' normaliser cancels.
    """
    a, pairs = values.architecture, values.pairs
    kept: dict[int, torch.Tensor] = {}

    def keep(layer: int):
        def look(x: torch.Tensor) -> None:
            kept[layer] = x if x.requires_grad else x.requires_grad_()

        return look

    with torch.enable_grad(), ExitStack() as hooks:
        for layer in {layer for layer, _ in sites}:
            hooks.enter_context(patched(a.layers[layer].mlp_out, keep(layer)))
        logits = values.checkpoint.model(input_ids=values.clean.tokens, use_cache=False, logits_to_keep=1).logits[:, -1]
        answers, others = (torch.from_numpy(t).to(logits.device)[:, None] for t in (pairs.answers, pairs.counterfactual_answers))
        effect = (logits.gather(1, others) - logits.gather(1, answers)).sum() / 2
        gradients = dict(zip(kept, torch.autograd.grad(effect, list(kept.values())), strict=True))
    found = {}
    for layer, role in sites:
        clean, other, gradient = values.clean.neurons[layer], values.counterfactual.neurons[layer], gradients[layer]
        at = beside(clean, values.prompts, values.positions[role])
        found[layer, role] = gradient[at] * (other[beside(other, values.prompts, values.others[role])] - clean[at])
    return found
