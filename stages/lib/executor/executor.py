"""Run any table of interventions on any pairs of prompts, without repeating work.

Interventions that start at the same position run together, each on its own copy of the prompts.
Four rules save work, and none changes a result:

* A copy leaves the clean run at its first patched layer. If it patches only neurons or coordinates,
  and the layer adds its MLP's output to the residual stream unchanged, the copy leaves after that
  layer: the change is added to the clean residual stream.
* Copies with the same patches so far are one copy.
* Positions before the first patched position are never computed again.
* Copies with means or zeros at all positions compute the tokens that all prompts begin with, such
  as solved examples, once for all prompts.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from transformers import Cache, DynamicCache

from stages.lib.core import progress
from stages.lib.executor import shortcuts, whole
from stages.lib.executor.blocks import Block, PassSizes
from stages.lib.executor.clean import (
    Calls,
    Front,
    Resumed,
    record_calls,
)
from stages.lib.executor.external_values import Given
from stages.lib.executor.inside import patching
from stages.lib.executor.interventions import (
    ALL,
    CopyPatches,
    Intervention,
    Patch,
    on_component,
)
from stages.lib.executor.measuring import Measured, joined, measure
from stages.lib.executor.pairs import PromptPairs
from stages.lib.executor.prefix import attending
from stages.lib.executor.rank_one import Moved, entrances, full_stream
from stages.lib.executor.values import KINDS, LINEAR, Values, linear
from stages.lib.model.architecture import ArchitectureError, patched
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.norms import quick_norms, quicker
from stages.lib.model.prefixes import FEWEST
from stages.lib.model.spread import refuse_offloaded


class Copy(NamedTuple):
    """One copy of the prompts in one layer, shared by all interventions with the same history.

    parent: the copy in the layer before that this one continues, None for the clean run;
    patches: its patches in this layer; enters: whether the layer runs on this copy. Otherwise the
    change is added to the clean residual stream after the layer.
    """

    parent: int | None
    patches: tuple[Patch, ...]
    enters: bool


class Executor:
    """Run interventions on one model.

    means, widths: for mean ablation (see Values); rows: token positions x prompts x copies in one
    pass; memory: bytes to stay within; given: external values that tables bring along; remembered:
    file of the model's shortcuts (shortcuts.kept), which are found if it does not exist.

    Raises ModelError for weights that no device holds, ArchitectureError for layers without heads.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        means: Mapping[str, Mapping[str, np.ndarray]] | None,
        rows: int,
        memory: int,
        *,
        widths: Mapping[str, int] | None = None,
        given: Given | None = None,
        remembered: Path | None = None,
    ):
        _refuse_unsupported(checkpoint)
        self._values: Values | None = None
        self._calls: dict[tuple[int, int], Calls] = {}
        self.checkpoint, self.means = checkpoint, means
        self.sizes = PassSizes(checkpoint, rows, memory)
        self.widths, self.given = widths, given
        known = shortcuts.read(remembered) if remembered else None
        # then this model has passed the parity check before
        self.remembered, self.is_known = remembered, known is not None
        self.shortcuts = known or shortcuts.find(checkpoint)
        self.restarts = self.shortcuts.restarts
        if not self.restarts:
            self.run_whole()
            return
        self.entrances = entrances(checkpoint)
        self.norms = quick_norms(checkpoint)

    def remember(self) -> None:
        """Write the shortcuts of this model, which has passed its checks, for later processes."""
        if self.remembered:
            holding = replace(self.shortcuts, restarts=self.restarts)
            shortcuts.write(holding, self.remembered)

    def run_whole(self) -> None:
        """Use no shortcut from now on: run whole prompts through the whole model."""
        name = type(self.checkpoint.model).__name__
        problem = f"{name} cannot be restarted in the middle of a prompt"
        progress.say(f"{problem}: the executor runs whole prompts, which is slower")
        self.restarts, self._values = False, None

    def plan(
        self, table: pl.DataFrame, interventions: Sequence[Intervention], most: int = 1 << 30
    ) -> list[Block]:
        """Return blocks of at most about `most` runs, or as many as fit in memory (blocks.plan)."""
        return self.sizes.plan(table, interventions, most)

    @torch.no_grad()
    def run(self, block: Block) -> Iterator[tuple[Sequence[Intervention], Measured]]:
        """Measure a block, one batch of interventions after another.

        Raises FloatingPointError, naming the batch's first and last intervention, if a logit is not
        finite.
        """
        values = self.values(block.pairs)
        patches = list(chain.from_iterable(i.patches for i in block.interventions))
        values.prepare(patches)
        start = self._start(values, patches)
        size = self._copies(block.pairs, patches, max(start, self._shared(values, patches)))
        for first in range(0, len(block.interventions), size):
            batch = block.interventions[first : first + size]
            try:
                yield batch, self._batch(values, batch, start)
            except FloatingPointError as error:
                numbers = f"interventions {batch[0].number} to {batch[-1].number}"
                raise FloatingPointError(f"{numbers}: {error}") from None

    def _start(self, values: Values, patches: Sequence[Patch]) -> int:
        """Return the first position that a pass with these patches computes."""
        return values.first_position(patches) if self.restarts else 0

    def _shared(self, values: Values, patches: Sequence[Patch]) -> int:
        """Return how many first positions a pass of their own computes once for all prompts."""
        if not self.restarts or len(values.pairs) == 1:
            return 0
        shared = values.shared_positions(patches)
        return shared if shared >= FEWEST else 0

    def _copies(self, pairs: PromptPairs, patches: Sequence[Patch], start: int) -> int:
        """Return how many copies of the pairs go through one pass."""
        if not self.restarts:  # the model itself makes the logits of a pass, all at once
            return min(self.sizes.copies(pairs, 0), self._measured_at_once(pairs))
        last = start == pairs.tokens.shape[1] - 1
        shared = last and not any(p.component == "edge" for p in patches)
        return self.sizes.copies(pairs, start, shared and self.shortcuts.attends)

    def _measured_at_once(self, pairs: PromptPairs) -> int:
        return max(1, self.sizes.logits() // len(pairs))

    def values(self, pairs: PromptPairs) -> Values:
        """Return both clean runs of these pairs; they are kept until other pairs are needed."""
        if self._values is None or not self._values.pairs.same(pairs):
            self._values = None  # frees the runs of other pairs first
            self._values = self.fresh(pairs)
        return self._values

    def fresh(self, pairs: PromptPairs) -> Values:
        """Return both clean runs of these pairs without keeping them."""
        return Values(
            self.checkpoint,
            pairs,
            self.means,
            self.restarts,
            widths=self.widths,
            given=self.given,
        )

    @torch.no_grad()
    def logits(self, values: Values, intervention: Intervention) -> torch.Tensor:
        """Return last-position logits (prompts, vocabulary) of a single intervention."""
        start = self._start(values, intervention.patches)
        values.prepare(intervention.patches)
        pieces, copies = self._logits(values, [intervention], start)
        return torch.cat(list(pieces))[int(copies[0])]

    def _batch(self, values: Values, batch: Sequence[Intervention], start: int) -> Measured:
        pieces, copies = self._logits(values, batch, start)
        parts = (measure(logits, values.pairs) for logits in pieces)
        measured = joined(parts, int(copies.max()) + 1)
        return measured.part(copies)

    def _logits(
        self, values: Values, batch: Sequence[Intervention], start: int
    ) -> tuple[Iterator[torch.Tensor], np.ndarray]:
        """Return logits (copies, prompts, vocabulary) in pieces, and each intervention's copy."""
        if not self.restarts:
            together = whole.logits(values, batch)
            pieces = iter(together.split(self._measured_at_once(values.pairs)))
            return pieces, np.arange(len(batch))
        patches = list(chain.from_iterable(i.patches for i in batch))
        end = self._shared(values, patches)
        front = None
        with quicker(self.norms):
            if end:
                recorded = DynamicCache()
                self._descend(values.front(end), batch, 0, recorded)
                front = Front(recorded)
            stream, copies = self._descend(values, batch, max(start, end), front)
            at_once = self._measured_at_once(values.pairs)
            pieces = iter(()) if stream is None else self._unembedded(stream, at_once)
        if None not in copies:
            return pieces, np.array(copies)
        return chain([values.clean.logits[None]], pieces), _after_clean(copies)

    def _unembedded(self, stream: torch.Tensor | Moved, copies: int) -> Iterator[torch.Tensor]:
        """Yield the last position's logits of that many copies at a time.

        stream: what leaves the last layer.
        """
        a, entrance = self.checkpoint.architecture, self.entrances[-1]
        if isinstance(stream, Moved) and entrance:
            pieces = entrance.pieces(stream, copies)
        else:
            last = full_stream(stream)[:, :, -1]
            pieces = map(a.unembedding, a.final_norm(last).split(copies))
        return map(a.head, pieces) if a.head else pieces

    def _descend(
        self,
        values: Values,
        batch: Sequence[Intervention],
        start: int,
        front: Cache | None,
    ) -> tuple[torch.Tensor | Moved | None, list[int | None]]:
        """Run the layers on a batch, each copy from where it leaves the clean run.

        front: keys and values of the copies before `start`, a DynamicCache that records them, or
        None if those of the clean run serve.
        Returns the residual stream after the last layer, (copies, prompts, positions, width), or
        None if no copy left the clean run; and each intervention's copy, None for the clean run.
        """
        stream: torch.Tensor | Moved | None = None
        numbers: list[int | None] = [None] * len(batch)
        for layer in range(len(self.checkpoint.architecture.layers)):
            copies, numbers = self._group(batch, numbers, layer)
            if copies:
                stream = self._after(values, layer, stream, copies, start, front)
        return stream, numbers

    def _group(
        self, batch: Sequence[Intervention], before: Sequence[int | None], layer: int
    ) -> tuple[list[Copy], list[int | None]]:
        """Group a batch by history: interventions with the same patches up to this layer.

        before: each intervention's copy in the layer before, None for the clean run. Returns the
        copies in this layer, those that enter it first, and each intervention's copy.
        """
        wanted: list[Copy | None] = []
        for intervention, parent in zip(batch, before, strict=True):
            patches = intervention.at(layer)
            if parent is None and not patches:
                wanted.append(None)
                continue
            added = parent is None and self.shortcuts.additive[layer] and linear(patches)
            wanted.append(Copy(parent, patches, not added))
        distinct = dict.fromkeys(filter(None, wanted))
        copies = sorted(distinct, key=lambda copy: not copy.enters)
        numbers: dict[Copy | None, int] = {copy: number for number, copy in enumerate(copies)}
        return copies, list(map(numbers.get, wanted))

    def _after(
        self,
        values: Values,
        layer: int,
        stream: torch.Tensor | Moved | None,
        copies: list[Copy],
        start: int,
        front: Cache | None,
    ) -> torch.Tensor | Moved:
        """Return the residual stream of these copies after a layer; stream: before the layer."""
        entering = [copy for copy in copies if copy.enters]
        leaving = copies[len(entering) :]
        if not entering:
            only_last = start == values.clean.tokens.shape[1] - 1
            moved = values.moved(_numbered(leaving)) if only_last else None
            return moved or self._add_changes(values, layer, leaving, start, front)
        before = self._enter(values, layer, stream, entering, start)
        after = self._run_block(values, layer, before, entering, start, front)
        if not leaving:
            return after
        return torch.cat([after, self._add_changes(values, layer, leaving, start, front)])

    def _add_changes(
        self,
        values: Values,
        layer: int,
        leaving: list[Copy],
        start: int,
        front: Cache | None,
    ) -> torch.Tensor:
        """Return the residual stream of copies that leave the clean run after a layer."""
        clean = values.clean.streams[layer + 1][None, :, start:]
        after = clean.repeat(len(leaving), 1, 1, 1)
        values.added(after, _numbered(leaving, front), start)
        return after

    def _enter(
        self,
        values: Values,
        layer: int,
        stream: torch.Tensor | Moved | None,
        copies: list[Copy],
        start: int,
    ) -> torch.Tensor | Moved:
        """Return what enters a layer in each copy: its parent's residual stream."""
        parents = [copy.parent for copy in copies]
        if stream is not None and parents == list(range(len(stream))):
            return stream
        clean = values.clean.streams[layer][None, :, start:]
        if stream is None:
            return clean.repeat(len(copies), 1, 1, 1)
        full = full_stream(stream)
        rows = torch.from_numpy(_after_clean(parents)).to(full.device)
        return torch.cat([clean, full])[rows]

    def _run_block(
        self,
        values: Values,
        layer: int,
        stream: torch.Tensor | Moved,
        copies: list[Copy],
        start: int,
        front: Cache | None,
    ) -> torch.Tensor:
        """Run one block on all copies with their patches; stream: what enters it."""
        calls = self._calls_at(values, start)  # recorded before any hook is in place
        patches = _numbered(copies, front)
        entered = full_stream(stream)
        number, prompts, positions, _ = entered.shape
        with ExitStack() as context:
            if isinstance(stream, Moved) and not patches:
                self._skip_projections(layer, stream, context)
            residual = on_component(patches, "residual")
            if residual:
                entered = entered.clone()
                values.write(entered, residual, start)
            context.enter_context(patching(values, layer, patches, entered.shape[:3], start))
            if self._needs_last_only(layer, patches):
                mlp = self.checkpoint.architecture.layers[layer].mlp
                context.enter_context(patched(mlp, _last_position, first=True))
            mask = values.mask(on_component(patches, "edge"), number, start)
            resumed: Cache | None = front
            if front is None:
                resumed = Resumed(values.clean, start)
            alone = positions == 1 and start and mask is None and front is None
            if alone and self.shortcuts.attends:
                prefix = values.clean.prefix(start)
                context.enter_context(attending(self.checkpoint.model, *prefix))
                resumed = None
            out = calls.block(self.checkpoint, layer, entered.flatten(0, 1), resumed, mask)
        return out.unflatten(0, (number, prompts))

    def _skip_projections(self, layer: int, moved: Moved, context: ExitStack) -> None:
        """Replace the outputs of the layer's first projections, known without a product."""
        entrance = self.entrances[layer]
        if entrance:
            outputs = entrance.outputs(moved)
            context.enter_context(entrance.replaced(outputs.flatten(0, 1)[:, None]))

    def _needs_last_only(self, layer: int, patches: CopyPatches) -> bool:
        """Return whether the MLP may skip all but the last position: nothing reads the others."""
        if layer < len(self.checkpoint.architecture.layers) - 1 or not self.shortcuts.narrows:
            return False
        return not any(KINDS.get(patch.component) in LINEAR for _, patch in patches)

    def _calls_at(self, values: Values, start: int) -> Calls:
        key = (values.pairs.tokens.shape[1], start)
        if key not in self._calls:
            self._calls[key] = record_calls(self.checkpoint, values.pairs.tokens[0], start)
        return self._calls[key]


def _refuse_unsupported(checkpoint: Checkpoint) -> None:
    """Raise ModelError for offloaded weights, ArchitectureError for layers without heads."""
    name = type(checkpoint.model).__name__
    refuse_offloaded(name, getattr(checkpoint.model, "hf_device_map", None))
    layers = enumerate(checkpoint.architecture.layers)
    without = [str(number) for number, layer in layers if layer.attention_out is None]
    if without:
        problem = f"layers {', '.join(without)} of {name} have no attention heads"
        raise ArchitectureError(
            f"{problem}: the store can keep its activations, but no interventions run on it"
        )


def _numbered(copies: Sequence[Copy], front: Cache | None = None) -> CopyPatches:
    """Return the patches of these copies, each with the number of its copy, from 0.

    front: of the pass; while it is recorded, only those at all positions apply.
    """
    patches = [(number, patch) for number, copy in enumerate(copies) for patch in copy.patches]
    if not isinstance(front, DynamicCache):
        return patches
    return [(number, patch) for number, patch in patches if patch.position == ALL]


def _after_clean(copies: Sequence[int | None]) -> np.ndarray:
    """Return the rows of copies, None for the clean run, in tensors whose first row is clean."""
    return np.array([0 if copy is None else copy + 1 for copy in copies])


def _last_position(x: torch.Tensor) -> torch.Tensor:
    return x[:, -1:].contiguous()
