"""Check parity before a run: compare some of its interventions with plain forward passes."""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from stages.lib.executor import naive
from stages.lib.executor.blocks import Block
from stages.lib.executor.executor import Executor
from stages.lib.executor.interventions import ALL, Intervention, Patch
from stages.lib.executor.pairs import PromptPairs
from stages.lib.executor.values import Values
from stages.lib.model import agreement, search
from stages.lib.model.agreement import CANNOT
from stages.lib.model.architecture import ArchitectureError
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.float64 import widen
from stages.lib.model.folder import ModelError, sentence

TRIED = 4  # interventions that are compared at most, spread over the work
PROMPTS = 2  # pairs for the first of each kind; the others have one pair each
COPIED = 2_000_000_000  # parameters of the largest model that is copied to float64 (8 bytes each)


class ParityError(ModelError):
    """The executor differs from plain forward passes on this model, or a patch has no effect."""


def check(executor: Executor, blocks: Sequence[Block], notes: Path | None = None) -> None:
    """Compare a few interventions of these blocks with plain forward passes.

    notes: folder of processes that compute the same numbers, which share the comparisons and do not
    repeat those of an interrupted run. Raises ParityError if logits differ, or if zeroing a whole
    MLP changes no logit.
    """
    tried = list(_tried(blocks))
    if not tried:
        return
    comparisons: list[Callable[[], object]] = [partial(_same, executor, *each) for each in tried]
    one_pair = tried[-1][0].part(slice(1))
    comparisons.insert(0, partial(_check_effect, executor, one_pair))
    if notes is None:
        for compare in comparisons:
            compare()
        return
    notes.mkdir(exist_ok=True)
    restarted, whole = executor.restarts, notes / "whole"
    for number in _unfinished(notes, len(comparisons)):
        comparisons[number]()
        if restarted and not executor.restarts:
            whole.touch()
        _done(notes, number).touch()
    if executor.restarts and whole.exists():
        executor.run_whole()


def _tried(blocks: Sequence[Block]) -> Iterator[tuple[PromptPairs, Intervention]]:
    """Yield interventions of several blocks, each with a few pairs.

    Only runs of several prompts show whether these share what they may share; so the first
    intervention with patches at all positions, and the first without, have several pairs.
    """
    kinds = set()
    for block in blocks[:: max(1, -(-len(blocks) // TRIED))]:
        intervention = block.interventions[len(block.interventions) // 2]
        kind = any(patch.position == ALL for patch in intervention.patches)
        yield block.pairs.part(slice(1 if kind in kinds else PROMPTS)), intervention
        kinds.add(kind)


def _unfinished(notes: Path, count: int) -> Iterator[int]:
    """Yield comparisons that no process has begun, then those that none has finished so far.

    No process waits for another, which may have been stopped.
    """
    begun = []
    for number in range(count):
        try:
            (notes / f"{number} begun").touch(exist_ok=False)
        except FileExistsError:
            begun.append(number)
        else:
            yield number
    for number in begun:
        if not _done(notes, number).exists():
            yield number


def _done(notes: Path, number: int) -> Path:
    return notes / f"{number} done"


def _check_effect(executor: Executor, pairs: PromptPairs) -> None:
    """Raise ParityError unless zeroing the first and the last MLP changes logits.

    Another process may have seen that before, on the same model.
    """
    if executor.is_known:
        return
    clean = naive.logits(executor.values(pairs), Intervention(-1, None, None, ()))
    for layer in (0, len(executor.checkpoint.architecture.layers) - 1):
        patch = Patch("mlp", layer, None, "last", None, "zero")
        changed = _same(executor, pairs, Intervention(-1, None, None, (patch,)))
        if torch.equal(changed, clean):
            what = f"zeroing the MLP of layer {layer} at the last position"
            raise ParityError(f"{what} changes no logit; interventions have no effect here")
    executor.remember()


def _same(executor: Executor, pairs: PromptPairs, intervention: Intervention) -> torch.Tensor:
    """Return plain logits (prompts, vocabulary) once the executor's logits agree with them.

    An executor that disagrees is told to run whole prompts. Raises ParityError if that does not
    help.
    """
    while True:
        values = executor.values(pairs)
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
    twin.shortcuts = executor.shortcuts  # those under test, which may not be the twin's own
    exact = twin.fresh(values.pairs)
    plain = naive.logits(exact, intervention)
    fast = twin.logits(exact, intervention).to(plain.device)
    return bool((fast - plain).abs().max() <= 1e-9 * plain.abs().max())
