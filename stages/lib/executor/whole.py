"""Interventions on a model that cannot be taken up in the midst of a prompt: whole prompts through the whole model, many copies at once."""

from collections.abc import Sequence
from contextlib import ExitStack

import torch

from stages.lib.executor.clean import masked
from stages.lib.executor.inside import patching
from stages.lib.executor.interventions import Intervention
from stages.lib.executor.values import Values
from stages.lib.model.architecture import patched


def logits(values: Values, batch: Sequence[Intervention]) -> torch.Tensor:
    """Last-position logits (interventions, prompts, vocabulary) of whole forward passes, a copy of the prompts for each intervention."""
    a, (prompts, positions) = values.architecture, values.clean.tokens.shape
    rows = torch.Size((len(batch), prompts, positions))
    with ExitStack() as changing:
        for layer, part in enumerate(a.layers):
            listed = [(copy, patch) for copy, one in enumerate(batch) for patch in one.at(layer)]
            changing.enter_context(patching(values, layer, listed, rows, 0))
            residual = [(copy, patch) for copy, patch in listed if patch.component == "residual"]
            edges = [(copy, patch) for copy, patch in listed if patch.component == "edge"]
            if residual:

                def enter(x: torch.Tensor, residual=residual) -> torch.Tensor:
                    entered = x.clone()
                    values.write(entered.view(*rows, a.width), residual, 0)
                    return entered

                changing.enter_context(patched(part.block, enter))
            if edges:
                changing.enter_context(masked(part.block, values.mask(edges, len(batch), 0)))
        tokens = values.clean.tokens.repeat(len(batch), 1)
        last = values.checkpoint.model(input_ids=tokens, use_cache=False, logits_to_keep=1).logits[
            :, -1
        ]
    return last.unflatten(0, (len(batch), prompts))
