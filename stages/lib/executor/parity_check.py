"""Check parity before a run: compare some of its interventions with plain forward passes."""

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

TRIED = 6  # interventions that are compared at most, spread over the work
PROMPTS = 2  # pairs for each of them
COPIED = 2_000_000_000  # parameters of the largest model that is copied to float64 (8 bytes each)


class ParityError(ModelError):
    """The executor differs from plain forward passes on this model, or a patch has no effect."""


def check(executor: Executor, blocks: Sequence[Block]) -> None:
    """Compare a few interventions of these blocks with plain forward passes.

    Raises ParityError if logits differ, or if zeroing a whole MLP changes no logit.
    """
    step = max(1, -(-len(blocks) // TRIED))
    for block in blocks[::step]:
        pairs = block.pairs.part(slice(PROMPTS))
        _same(executor, pairs, block.interventions[len(block.interventions) // 2])
    if not blocks:
        return
    for layer in (0, len(executor.checkpoint.architecture.layers) - 1):
        patch = Patch("mlp", layer, None, "last", None, "zero")
        ablated = Intervention(-1, None, None, (patch,))
        changed = _same(executor, pairs, ablated)
        clean = naive.logits(executor.fresh(pairs), replace(ablated, patches=()))
        if torch.equal(changed, clean):
            what = f"zeroing the MLP of layer {layer} at the last position"
            raise ParityError(f"{what} changes no logit; interventions have no effect here")


def _same(executor: Executor, pairs: PromptPairs, intervention: Intervention) -> torch.Tensor:
    """Return plain logits (prompts, vocabulary) once the executor's logits agree with them.

    An executor that disagrees is told to run whole prompts. Raises ParityError if that does not
    help.
    """
    while True:
        values = executor.fresh(pairs)
        try:
            plain = naive.logits(values, intervention)
            fast = executor.logits(values, intervention).to(plain.device)
        except CANNOT as error:
            problem = f"cannot be carried out on this model: {sentence(error)}"
        else:
            allowed = max(1e-4, 8 * torch.finfo(plain.dtype).eps) * plain.abs().max()
            difference = (fast - plain).abs().max()
            if difference <= allowed or _only_rounding(executor, values, intervention):
                return plain
            off = f"logits are {difference:.2g} off those of plain forward passes"
            problem = f"{off} (allowed {allowed:.2g})"
        if not executor.restarts:
            raise ParityError(f"intervention {intervention.number}: {problem}")
        executor.run_whole()


def _only_rounding(executor: Executor, values: Values, intervention: Intervention) -> bool:
    """Return whether both ways agree on a copy of the model in float64.

    Then the model's weights only magnify rounding. False for a model too large to copy.
    """
    original = executor.checkpoint.model
    if values.clean.logits.dtype == torch.float64 or original.num_parameters() > COPIED:
        return False
    model = widen(copy.deepcopy(original).double())  # type: ignore[arg-type]
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
    plain = naive.logits(exact, intervention)
    fast = twin.logits(exact, intervention).to(plain.device)
    return bool((fast - plain).abs().max() <= 1e-9 * plain.abs().max())
