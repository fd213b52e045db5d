"""The plain way to run one intervention: the whole prompts through the whole model, values replaced by hooks.

Slow and obvious. The executor is held against it: by tests, and on a few interventions at the start of every run.
"""

from contextlib import ExitStack

import torch

from stages.lib.executor.interventions import EARLIER, Intervention, Patch
from stages.lib.executor.values import KINDS, Values
from stages.lib.model.architecture import patched, rewritten


@torch.no_grad()
def logits(values: Values, intervention: Intervention) -> torch.Tensor:
    """Logits at the last position (prompts, vocabulary) of values.pairs under one intervention."""
    a, model = values.architecture, values.checkpoint.model
    tokens = values.clean.tokens
    values.prepare(intervention.patches)
    put_in = [None if patch.component == "edge" else values.new(patch) for patch in intervention.patches]
    with ExitStack() as hooks:
        for patch, new in zip(intervention.patches, put_in, strict=True):
            layer = a.layers[patch.layer]
            if patch.component == "edge":
                handle = layer.block.register_forward_pre_hook(_cutting(values, patch), with_kwargs=True)
                hooks.callback(handle.remove)
            else:
                module = {"neurons": layer.mlp_out, "outputs": layer.mlp_out, "heads": layer.attention_out}.get(
                    kind := KINDS[patch.component]
                )
                hooked = rewritten if kind == "outputs" else patched
                hooks.enter_context(hooked(module or layer.block, lambda x, patch=patch, new=new: _replaced(values, x, patch, new)))
        return model(input_ids=tokens, use_cache=False, logits_to_keep=1).logits[:, -1]


def _replaced(values: Values, x: torch.Tensor, patch: Patch, new: torch.Tensor) -> torch.Tensor:
    """x (prompts, positions, features) with the patched prompt positions and units overwritten, one prompt after another."""
    x = x.clone()
    width = values.architecture.head_width if patch.component == "head" else 1
    units = patch.chosen()
    for prompt in range(len(x)):
        value = new[prompt].reshape(-1, x.shape[-1])  # (positions or 1, features)
        at = range(x.shape[1]) if patch.position == "all" else [int(values.positions[patch.position][prompt])]
        for i, position in enumerate(at):
            for unit in range(x.shape[-1] // width) if units is None else units:
                part = slice(unit * width, (unit + 1) * width)
                x[prompt, position, part] = value[i, part]
    return x


def _cutting(values: Values, edge: Patch):
    """A hook on a block that forbids attention along one edge, on top of whatever mask the block is given."""

    def hook(_: torch.nn.Module, inputs: tuple, named: dict) -> tuple[tuple, dict]:
        prompts, length = values.clean.tokens.shape
        given = named["attention_mask"]
        mask = torch.zeros(prompts, values.architecture.heads, length, length, dtype=values.checkpoint.model.dtype)
        mask = mask.to(values.clean.tokens.device) + (0 if given is None else given)
        units = edge.chosen()
        for prompt in range(prompts):
            query = int(values.positions[edge.position][prompt])
            keys = range(query) if edge.key_position == EARLIER else [int(values.positions[str(edge.key_position)][prompt])]
            for head in range(values.architecture.heads) if units is None else units:
                for key in keys:
                    mask[prompt, head, query, key] = torch.finfo(mask.dtype).min
        return inputs, {**named, "attention_mask": mask}

    return hook
