"""Patch values inside a layer: inputs of heads' and neurons' projections, outputs of the MLP."""

from contextlib import ExitStack

import torch

from stages.lib.executor.interventions import CopyPatches
from stages.lib.executor.values import KINDS, Values
from stages.lib.model.architecture import patched, rewritten


def patching(
    values: Values, layer: int, patches: CopyPatches, rows: torch.Size, start: int
) -> ExitStack:
    """Return a context in which these patches of heads, neurons and coordinates apply.

    rows: (copies, prompts, positions from `start` on) of the pass.
    """
    a, context = values.architecture, ExitStack()
    part = a.layers[layer]
    for hooked, module, kind, shape in (
        (patched, part.attention_out, "heads", (a.heads, a.head_width)),
        (patched, part.mlp_out, "neurons", (a.neurons,)),
        (rewritten, part.mlp_out, "outputs", (a.width,)),
    ):
        of_kind = [(copy, p) for copy, p in patches if KINDS.get(p.component) == kind]
        if of_kind:

            def change(x: torch.Tensor, of_kind=of_kind, shape=shape) -> torch.Tensor:
                x = x.contiguous()
                values.write(x.view(*rows, *shape), of_kind, start)
                return x

            context.enter_context(hooked(module, change))
    return context
