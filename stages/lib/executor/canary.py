"""The canary of every run: before the long work starts, a few of its interventions are held against the plain way."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch

from stages.lib.executor import naive
from stages.lib.executor.blocks import Block
from stages.lib.executor.executor import Executor
from stages.lib.executor.interventions import Intervention, Patch
from stages.lib.executor.pairs import PromptPairs
from stages.lib.executor.values import Values
from stages.lib.model import agreement, search
from stages.lib.model.agreement import CANNOT
from stages.lib.model.architecture import ArchitectureError
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.float64 import widen
from stages.lib.model.folder import ModelError, sentence

TRIED = 6  # interventions held against the plain way, spread over the work
PROMPTS = 2  # on so many pairs each
COPIED = 2_000_000_000  # parameters of the largest model that is copied in float64, which takes 8 bytes each


class CanaryError(ModelError):
    """The executor does not do on this model what the plain way does, or what it does has no effect."""


def check(executor: Executor, blocks: Sequence[Block]) -> None:
    """Raises CanaryError where fast and plain logits differ, or where silencing a whole MLP changes nothing."""
    step = max(1, len(blocks) // TRIED)
    for block in blocks[::step]:
        pairs = block.pairs.part(slice(PROMPTS))
        _same(executor, pairs, block.interventions[len(block.interventions) // 2])
    if blocks:
        for layer in (0, len(executor.checkpoint.architecture.layers) - 1):
            silenced = Intervention(
                -1, None, None, (Patch("mlp", layer, None, "last", None, "zero"),)
            )
            changed = _same(executor, pairs, silenced)
            if torch.equal(
                changed, naive.logits(executor.fresh(pairs), replace(silenced, patches=()))
            ):
                raise CanaryError(
                    f"silencing the MLP of layer {layer} at the last position changes no logit"
                )


def _same(executor: Executor, pairs: PromptPairs, one: Intervention) -> torch.Tensor:
    """The logits (prompts, vocabulary) of one intervention by the plain way, once those of the executor are the same."""
    while True:
        values = executor.fresh(pairs)
        try:
            plain = naive.logits(values, one)
            fast = executor.logits(values, one).to(plain.device)
        except CANNOT as error:
            if not executor.restarts:
                raise CanaryError(
                    f"intervention {one.number} cannot be carried out on this model: {sentence(error)}"
                ) from None
            executor.run_whole()
            continue
        allowed = max(1e-4, 8 * torch.finfo(plain.dtype).eps) * plain.abs().max()
        difference = (fast - plain).abs().max()
        if difference <= allowed or _only_rounding(executor, values, one):
            return plain
        if not executor.restarts:
            raise CanaryError(
                f"intervention {one.number}: logits are {difference:.2g} off those of plain forward passes (allowed {allowed:.2g})"
            )
        executor.run_whole()


def _only_rounding(executor: Executor, values: Values, one: Intervention) -> bool:
    """Whether both ways agree on a copy of the model in float64: then its weights magnify rounding, and nothing is wrong.

    Of a large model, which has no room for a copy, it is not known: False.
    """
    if (
        values.clean.logits.dtype == torch.float64
        or executor.checkpoint.model.num_parameters() > COPIED
    ):
        return False
    model = widen(copy.deepcopy(executor.checkpoint.model).double())  # type: ignore[arg-type]
    try:
        wide = Checkpoint(model, agreement.with_head(model, search.find(model)))
    except ArchitectureError:
        return False
    twin = Executor(
        wide,
        executor.means,
        executor.sizes.most_rows,
        executor.sizes.memory,
        widths=executor.widths,
        given=executor.given,
    )
    if twin.restarts and not executor.restarts:
        twin.run_whole()
    if twin.restarts != executor.restarts:
        return False
    exact = twin.fresh(values.pairs)
    plain = naive.logits(exact, one)
    fast = twin.logits(exact, one).to(plain.device)
    return bool((fast - plain).abs().max() <= 1e-9 * plain.abs().max())
