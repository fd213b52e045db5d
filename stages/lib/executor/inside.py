"""Patches inside a layer: of what its heads and its neurons say, and of what its MLP puts out."""

from contextlib import ExitStack

import torch

from stages.lib.executor.interventions import Patch
from stages.lib.executor.values import KINDS, Values
from stages.lib.model.architecture import patched, rewritten


def patching(
    values: Values, layer: int, listed: list[tuple[int, Patch]], rows: torch.Size, start: int
) -> ExitStack:
    """A context with patches of heads and neurons hooked onto the projections that read them, of coordinates onto what puts them out.

    listed: patches, each with the copy it is for; rows: (copies, prompts, positions from `start` on).
    """
    a, changing = values.architecture, ExitStack()
    part = a.layers[layer]
    for hooked, module, kind, shape in (
        (patched, part.attention_out, "heads", (a.heads, a.head_width)),
        (patched, part.mlp_out, "neurons", (a.neurons,)),
        (rewritten, part.mlp_out, "outputs", (a.width,)),
    ):
        if chosen := [
            (copy, patch) for copy, patch in listed if KINDS.get(patch.component) == kind
        ]:

            def change(x: torch.Tensor, chosen=chosen, shape=shape) -> torch.Tensor:
                x = x if x.is_contiguous() else x.contiguous()
                values.write(x.view(*rows, *shape), chosen, start)
                return x

            changing.enter_context(hooked(module, change))
    return changing
