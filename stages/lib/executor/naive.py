"""The plain way to run one intervention: the whole prompts through the whole model, values replaced by hooks.

Slow and obvious. The executor is held against it: by tests, and on a few interventions at the start of every run.
"""

from contextlib import ExitStack

import torch

from stages.lib.executor.clean import masked
from stages.lib.executor.interventions import EARLIER, Intervention, Patch
from stages.lib.executor.values import KINDS, Values
from stages.lib.model.architecture import patched, rewritten


@torch.no_grad()
def logits(values: Values, intervention: Intervention) -> torch.Tensor:
    """Logits at the last position (prompts, vocabulary) of values.pairs under one intervention."""
    a, model = values.architecture, values.checkpoint.model
    tokens = values.clean.tokens
    values.prepare(intervention.patches)
    put_in = [
        None if patch.component == "edge" else values.new(patch) for patch in intervention.patches
    ]
    with ExitStack() as hooks:
        for patch, new in zip(intervention.patches, put_in, strict=True):
            layer = a.layers[patch.layer]
            if patch.component == "edge":
                hooks.enter_context(masked(layer.block, _cut(values, patch)))
            else:
                module = {
                    "neurons": layer.mlp_out,
                    "outputs": layer.mlp_out,
                    "heads": layer.attention_out,
                }.get(kind := KINDS[patch.component])
                hooked = rewritten if kind == "outputs" else patched
                hooks.enter_context(
                    hooked(
                        module or layer.block,
                        lambda x, patch=patch, new=new: _replaced(values, x, patch, new),
                    )
                )
        return model(input_ids=tokens, use_cache=False, logits_to_keep=1).logits[:, -1]


def _replaced(values: Values, x: torch.Tensor, patch: Patch, new: torch.Tensor) -> torch.Tensor:
    """x (prompts, positions, features) with the patched prompt positions and units overwritten, one prompt after another."""
    x = x.clone()
    width = values.architecture.head_width if patch.component == "head" else 1
    units = patch.chosen()
    for prompt in range(len(x)):
        value = new[prompt].reshape(-1, x.shape[-1])  # (positions or 1, features)
        at = (
            range(x.shape[1])
            if patch.position == "all"
            else [int(values.positions[patch.position][prompt])]
        )
        for i, position in enumerate(at):
            for unit in range(x.shape[-1] // width) if units is None else units:
                part = slice(unit * width, (unit + 1) * width)
                x[prompt, position, part] = value[i, part]
    return x


def _cut(values: Values, edge: Patch) -> torch.Tensor:
    """What forbids attention along one edge when it is added to the scores: (prompts, heads, queries, keys)."""
    prompts, length = values.clean.tokens.shape
    mask = torch.zeros(
        prompts, values.architecture.heads, length, length, dtype=values.checkpoint.model.dtype
    )
    units = edge.chosen()
    for prompt in range(prompts):
        query = int(values.positions[edge.position][prompt])
        keys = (
            range(query)
            if edge.key_position == EARLIER
            else [int(values.positions[str(edge.key_position)][prompt])]
        )
        for head in range(values.architecture.heads) if units is None else units:
            for key in keys:
                mask[prompt, head, query, key] = torch.finfo(mask.dtype).min
    causal = torch.ones(length, length, dtype=torch.bool).triu(1)
    return mask.masked_fill(causal, torch.finfo(mask.dtype).min).to(values.clean.tokens.device)
