"""The canary of every run: before the long work starts, a few of its interventions are held against the plain way."""

import copy
from collections.abc import Sequence

import torch

from stages.lib.executor import naive
from stages.lib.executor.blocks import Block
from stages.lib.executor.executor import Executor
from stages.lib.executor.interventions import Intervention, Patch
from stages.lib.executor.values import Values
from stages.lib.model import architecture
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.float64 import widen

TRIED = 6  # interventions held against the plain way, spread over the work
PROMPTS = 2  # on so many pairs each


class CanaryError(RuntimeError):
    """The executor does not do on this model what the plain way does, or what it does has no effect."""


def check(executor: Executor, blocks: Sequence[Block]) -> None:
    """Raises CanaryError where fast and plain logits differ, or where silencing a whole MLP changes nothing."""
    step = max(1, len(blocks) // TRIED)
    for block in blocks[::step]:
        pairs = block.pairs.part(slice(PROMPTS))
        values = Values(executor.checkpoint, pairs, executor.means)
        _same(executor, values, block.interventions[len(block.interventions) // 2])
    if blocks:
        for layer in (0, len(executor.checkpoint.architecture.layers) - 1):
            silenced = Intervention(-1, None, None, (Patch("mlp", layer, None, "last", None, "zero"),))
            changed = _same(executor, values, silenced)
            clean = values.clean.logits
            if (changed - clean).abs().max() <= 64 * torch.finfo(clean.dtype).eps * clean.abs().max():  # nothing but rounding
                raise CanaryError(f"silencing the MLP of layer {layer} at the last position changes no logit")


def _same(executor: Executor, values: Values, one: Intervention) -> torch.Tensor:
    """The logits (prompts, vocabulary) of one intervention, the same by either way."""
    plain = naive.logits(values, one)
    fast = executor.logits(values, one).to(plain.device)
    allowed = max(1e-4, 8 * torch.finfo(plain.dtype).eps) * plain.abs().max()
    difference = (fast - plain).abs().max()
    if not difference <= allowed and not _only_rounding(executor, values, one):
        raise CanaryError(
            f"intervention {one.number}: restarting in the middle gives logits {difference:.2g} off those of whole forward passes "
            f"(allowed {allowed:.2g}); the model does something between its layers that this executor does not know"
        )
    return fast


def _only_rounding(executor: Executor, values: Values, one: Intervention) -> bool:
    """Whether both ways agree on a copy of the model in float64: then its weights magnify rounding, and nothing is wrong."""
    if values.clean.logits.dtype == torch.float64:
        return False
    model = widen(copy.deepcopy(executor.checkpoint.model).double())  # type: ignore[arg-type]
    wide = Checkpoint(model, architecture.find(model))
    exact = Values(wide, values.pairs, executor.means)
    fast = Executor(wide, executor.means, executor.sizes.most_rows, executor.sizes.memory).logits(exact, one)
    plain = naive.logits(exact, one)
    return bool((fast - plain).abs().max() <= 1e-9 * plain.abs().max())
