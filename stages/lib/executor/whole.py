"""Run interventions on a model that cannot be restarted in the middle of a prompt.

Whole prompts go through the whole model, many copies at once.
"""

from collections.abc import Sequence
from contextlib import ExitStack

import torch

from stages.lib.executor.clean import masked
from stages.lib.executor.inside import patching
from stages.lib.executor.interventions import CopyPatches, Intervention, on_component
from stages.lib.executor.values import Values
from stages.lib.model.architecture import patched


def logits(values: Values, batch: Sequence[Intervention]) -> torch.Tensor:
    """Return last-position logits (interventions, prompts, vocabulary) of whole forward passes.

    Each intervention has its own copy of the prompts.
    """
    tokens = values.clean.tokens
    rows = torch.Size((len(batch), *tokens.shape))
    with ExitStack() as context:
        for layer in range(len(values.architecture.layers)):
            _patch_layer(values, layer, batch, rows, context)
        copies = tokens.repeat(len(batch), 1)
        out = values.checkpoint.model(input_ids=copies, use_cache=False, logits_to_keep=1)
    return out.logits[:, -1].unflatten(0, rows[:2])


def _patch_layer(
    values: Values, layer: int, batch: Sequence[Intervention], rows: torch.Size, context: ExitStack
) -> None:
    """Let the batch's patches in one layer apply within a context."""
    block = values.architecture.layers[layer].block
    patches: CopyPatches = [(copy, p) for copy, i in enumerate(batch) for p in i.at(layer)]
    context.enter_context(patching(values, layer, patches, rows, 0))
    residual = on_component(patches, "residual")
    if residual:

        def enter(x: torch.Tensor) -> torch.Tensor:
            entered = x.clone()
            values.write(entered.view(*rows, -1), residual, 0)
            return entered

        context.enter_context(patched(block, enter))
    edges = on_component(patches, "edge")
    if edges:
        context.enter_context(masked(block, values.mask(edges, len(batch), 0)))
