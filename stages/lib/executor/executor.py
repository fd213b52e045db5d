"""Runs any table of interventions on any pairs of prompts, exactly, and does no work twice.

Interventions that start at the same position go together, in copies of the prompts. Each copy leaves the clean run at its
first patched layer (behind it, where only neurons, or coordinates, are patched and the layer adds what the MLP puts out to the
stream as it is); copies that are patched alike so far are one copy; positions in front of the first patched one are never computed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain

import numpy as np
import polars as pl
import torch

from stages.lib.core import progress
from stages.lib.executor import whole
from stages.lib.executor.blocks import Block, PassSizes
from stages.lib.executor.clean import Calls, Resumed, clean_run, narrows, record_calls, restarts
from stages.lib.executor.given import Given
from stages.lib.executor.inside import patching
from stages.lib.executor.interventions import Intervention, Patch
from stages.lib.executor.measuring import Measured, joined, measure
from stages.lib.executor.memory import keep_freed
from stages.lib.executor.pairs import PromptPairs
from stages.lib.executor.prefix import attending, shares_prefix
from stages.lib.executor.rank_one import Moved, adds_value_vectors, entrances
from stages.lib.executor.values import KINDS, LINEAR, Values, linear
from stages.lib.model.architecture import ArchitectureError, patched
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.norms import quick_norms, quicker
from stages.lib.model.spread import refuse_offloaded


class Executor:
    """Runs interventions on one model. rows: token positions x prompts x copies in one pass; memory: bytes it may take.

    means, widths: what mean ablation puts in a component's place (see values.Values); given: what tables bring along.
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
    ):
        keep_freed()
        name = type(checkpoint.model).__name__
        refuse_offloaded(name, getattr(checkpoint.model, "hf_device_map", None))
        if without := [
            str(i)
            for i, layer in enumerate(checkpoint.architecture.layers)
            if layer.attention_out is None
        ]:
            what = "its activations are dumped, and interventions on it are not carried out"
            raise ArchitectureError(
                f"layers {', '.join(without)} of {name} have no attention heads: {what}"
            )
        self._values: Values | None = None
        self._calls: dict[tuple[int, int], Calls] = {}
        self.checkpoint, self.means, self.sizes = (
            checkpoint,
            means,
            PassSizes(checkpoint, rows, memory),
        )
        self.widths, self.given = widths, given
        tokens = (np.arange(8).reshape(2, 4) + 1) % checkpoint.architecture.vocabulary
        self.restarts = restarts(checkpoint, tokens)
        if not self.restarts:
            self.run_whole()
            return
        clean, calls = clean_run(checkpoint, tokens), record_calls(checkpoint, tokens[0], 0)
        entering = enumerate(clean.streams[:-1])
        self.additive = [
            adds_value_vectors(checkpoint, layer, calls, x[:1]) for layer, x in entering
        ]
        self.entrances = entrances(checkpoint)
        self.attends = shares_prefix(checkpoint)
        self.norms = quick_norms(checkpoint)
        self.narrows = narrows(checkpoint, clean, calls)

    def run_whole(self) -> None:
        """Leaves out every shortcut: whole prompts go through the whole model."""
        progress.say(
            f"{type(self.checkpoint.model).__name__} cannot be taken up in the midst of a prompt: whole prompts are run, which is slower"
        )
        self.restarts, self._values = False, None

    def plan(
        self, table: pl.DataFrame, interventions: Sequence[Intervention], most: int = 1 << 30
    ) -> list[Block]:
        """The blocks of work, of at most about so many runs, or as many as fit into memory (see blocks.plan)."""
        return self.sizes.plan(table, interventions, most)

    @torch.no_grad()
    def run(self, block: Block) -> Iterator[tuple[Sequence[Intervention], Measured]]:
        """Measures a block, a batch of its interventions after another. Raises FloatingPointError, naming the first of the batch."""
        values = self.values(block.pairs)
        patches = [p for one in block.interventions for p in one.patches]
        values.prepare(patches)
        start = values.first_position(patches) if self.restarts else 0
        size = self._copies(block.pairs, patches, start)
        for first in range(0, len(block.interventions), size):
            batch = block.interventions[first : first + size]
            try:
                yield batch, self._batch(values, batch, start)
            except FloatingPointError as error:
                raise FloatingPointError(
                    f"interventions {batch[0].number} to {batch[-1].number}: {error}"
                ) from None

    def _copies(self, pairs: PromptPairs, patches: Sequence[Patch], start: int) -> int:
        """Return how many copies of the pairs go through one pass."""
        if not self.restarts:  # the model itself makes the logits of a pass, all at once
            return min(self.sizes.copies(pairs, 0), self._measured_at_once(pairs))
        last = start == pairs.tokens.shape[1] - 1
        shared = self.attends and last and not any(p.component == "edge" for p in patches)
        return self.sizes.copies(pairs, start, shared)

    def _measured_at_once(self, pairs: PromptPairs) -> int:
        return max(1, self.sizes.logits() // len(pairs))

    def values(self, pairs: PromptPairs) -> Values:
        """Both clean runs of these pairs, kept until others are asked for."""
        if self._values is None or not self._values.pairs.same(pairs):
            self._values = None  # frees the last ones first
            self._values = self.fresh(pairs)
        return self._values

    def fresh(self, pairs: PromptPairs) -> Values:
        """Both clean runs of these pairs, which are not kept."""
        return Values(
            self.checkpoint, pairs, self.means, self.restarts, widths=self.widths, given=self.given
        )

    @torch.no_grad()
    def logits(self, values: Values, one: Intervention) -> torch.Tensor:
        """Last-position logits (prompts, vocabulary) of a single intervention."""
        start = values.first_position(one.patches) if self.restarts else 0
        values.prepare(one.patches)
        pieces, owner = self._logits(values, [one], start)
        return torch.cat(list(pieces))[int(owner[0])]

    def _batch(self, values: Values, batch: Sequence[Intervention], start: int) -> Measured:
        pieces, owner = self._logits(values, batch, start)
        parts = (measure(logits, values.pairs) for logits in pieces)
        measured = joined(parts, int(owner.max()) + 1)
        return measured.part(owner)

    def _logits(
        self,
        values: Values,
        batch: Sequence[Intervention],
        start: int,
    ) -> tuple[Iterator[torch.Tensor], np.ndarray]:
        """Return logits (copies, prompts, vocabulary) in pieces, and each intervention's copy."""
        if not self.restarts:
            together = whole.logits(values, batch)
            return iter(together.split(self._measured_at_once(values.pairs))), np.arange(len(batch))
        with quicker(self.norms):
            stream, owner = self._descend(values, batch, start)
            copies = self._measured_at_once(values.pairs)
            pieces = iter(()) if stream is None else self._unembedded(stream, copies)
        if owner.min() >= 0:
            return pieces, owner
        return chain([values.clean.logits[None]], pieces), owner + 1

    def _unembedded(self, stream: torch.Tensor | Moved, copies: int) -> Iterator[torch.Tensor]:
        """Yield the last position's logits behind the last layer, for so many copies at once."""
        a = self.checkpoint.architecture
        if isinstance(stream, Moved) and (entrance := self.entrances[-1]):
            pieces = entrance.pieces(stream, copies)
        else:
            stream = stream.stream() if isinstance(stream, Moved) else stream
            pieces = map(a.unembedding, a.final_norm(stream[:, :, -1]).split(copies))
        return map(a.head, pieces) if a.head else pieces

    def _descend(
        self, values: Values, batch: Sequence[Intervention], start: int
    ) -> tuple[torch.Tensor | Moved | None, np.ndarray]:
        """The stream behind the last layer (copies, prompts, positions, width), and which copy is each intervention's, -1 for clean."""
        owner = np.full(len(batch), -1)
        stream: torch.Tensor | Moved | None = None
        for layer in range(len(self.checkpoint.architecture.layers)):
            through: dict[
                tuple[int, tuple[Patch, ...]], int
            ] = {}  # (copy it comes from, patches here) -> copy behind the block
            behind: dict[
                tuple[Patch, ...], int
            ] = {}  # as before, for those that leave the clean run behind the block
            new = np.full(len(batch), -1)
            for i, one in enumerate(batch):
                here = one.at(layer)
                if owner[i] < 0 and here and self.additive[layer] and linear(here):
                    new[i] = -2 - behind.setdefault(here, len(behind))
                elif owner[i] >= 0 or here:
                    new[i] = through.setdefault((int(owner[i]), here), len(through))
            parts = []
            if through:
                parts.append(
                    self._block(
                        values,
                        layer,
                        self._enter(values, layer, stream, [k[0] for k in through], start),
                        [k[1] for k in through],
                        start,
                    )
                )
            listed = [(copy, p) for here, copy in behind.items() for p in here]
            if (
                behind
                and not through
                and start == values.clean.tokens.shape[1] - 1
                and (moved := values.moved(listed))
            ):
                stream, owner = moved, -2 - new
                continue
            if behind:
                after = values.clean.streams[layer + 1][None, :, start:].repeat(
                    len(behind), 1, 1, 1
                )
                values.added(after, listed, start)
                parts.append(after)
            stream = torch.cat(parts) if len(parts) > 1 else parts[0] if parts else None
            owner = np.where(new <= -2, len(through) - 2 - new, new)
        return stream, owner

    def _enter(
        self,
        values: Values,
        layer: int,
        stream: torch.Tensor | Moved | None,
        parents: list[int],
        start: int,
    ) -> torch.Tensor | Moved:
        """What enters the layer in each copy, from the copy it comes from or, where that is -1, from the clean run."""
        if stream is not None and parents == list(range(len(stream))):
            return stream
        stream = stream.stream() if isinstance(stream, Moved) else stream
        clean = values.clean.streams[layer][None, :, start:]
        if stream is None:
            return clean.repeat(len(parents), 1, 1, 1)
        return torch.cat([clean, stream])[torch.tensor(parents, device=stream.device) + 1]

    def _block(
        self,
        values: Values,
        layer: int,
        stream: torch.Tensor | Moved,
        patches: list[tuple[Patch, ...]],
        start: int,
    ) -> torch.Tensor:
        """Runs one block on all copies, patching on the way."""
        a, calls = (
            self.checkpoint.architecture,
            self._calls_at(values, start),
        )  # before any hook is in place
        listed = [(copy, patch) for copy, here in enumerate(patches) for patch in here]
        entered = stream.stream() if isinstance(stream, Moved) else stream
        copies, prompts, positions, _ = entered.shape
        with ExitStack() as changing:
            if isinstance(stream, Moved) and not listed and (entrance := self.entrances[layer]):
                outputs = entrance.outputs(stream)
                changing.enter_context(entrance.replaced(outputs.flatten(0, 1)[:, None]))
            if residual := [
                (copy, patch) for copy, patch in listed if patch.component == "residual"
            ]:
                entered = entered.clone()
                values.write(entered, residual, start)
            changing.enter_context(patching(values, layer, listed, entered.shape[:3], start))
            mlp = a.layers[layer].mlp
            if (
                layer == len(a.layers) - 1
                and self.narrows
                and not any(KINDS.get(patch.component) in LINEAR for _, patch in listed)
            ):
                last = patched(
                    mlp, lambda x: x[:, -1:].contiguous(), first=True
                )  # nobody reads what it says elsewhere
                changing.enter_context(last)
            mask = values.mask(
                [(copy, patch) for copy, patch in listed if patch.component == "edge"],
                copies,
                start,
            )
            resumed: Resumed | None = Resumed(values.clean, start)
            if self.attends and positions == 1 and start and mask is None:
                keys, past = (
                    [x[:, :, :start] for x in kept]
                    for kept in (values.clean.keys, values.clean.values)
                )
                changing.enter_context(attending(self.checkpoint.model, keys, past))
                resumed = None
            out = calls.block(self.checkpoint, layer, entered.flatten(0, 1), resumed, mask)
        return out.unflatten(0, (copies, prompts))

    def _calls_at(self, values: Values, start: int) -> Calls:
        key = (values.pairs.tokens.shape[1], start)
        if key not in self._calls:
            self._calls[key] = record_calls(self.checkpoint, values.pairs.tokens[0], start)
        return self._calls[key]
