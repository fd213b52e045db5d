"""Puts replaced values where a table of interventions wants them, in the tensors of a run under way.

Tensors of a run under way are (copies, prompts, positions from `start` on, …): one copy of the prompts per intervention.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch.nn.functional import one_hot

from stages.lib.core.slots import OPERANDS, first_of, slots
from stages.lib.executor.clean import Clean, clean_run
from stages.lib.executor.given import Given
from stages.lib.executor.interventions import (
    ALL,
    EARLIER,
    MEANS,
    Intervention,
    InterventionError,
    Patch,
)
from stages.lib.executor.pairs import PromptPairs
from stages.lib.executor.rank_one import Moved
from stages.lib.model.architecture import value_vectors
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.spread import beside

KINDS = {
    "mlp": "neurons",
    "neuron": "neurons",
    "coordinate": "outputs",
    "head": "heads",
    "residual": "residual",
}  # component -> its values
UNEVEN = "a counterfactual of another length cannot replace all positions; name a role"
NO_MEAN = "replace by zero or counterfactual"
LINEAR = (
    "neurons",
    "outputs",
)  # kinds of values that add to the stream what is linear in them, unless the layer normalises it


def linear(patches: Sequence[Patch]) -> bool:
    """Whether what these patches add to the stream is a sum; replaced coordinates hide what neurons replaced beside them do."""
    kinds = {KINDS.get(p.component) for p in patches}
    return len(kinds) == 1 and kinds <= {*LINEAR}


def check(
    pairs: PromptPairs,
    several: Sequence[Intervention],
    positions: int,
    widths: Mapping[str, int] | None,
    given: Given | None,
) -> None:
    """Raises InterventionError on an intervention that puts in what these pairs, of one length, do not have.

    positions: of the means; widths, given: as of Values.
    """
    asked: dict[tuple[str, bool], int] = {}
    for one in several:
        for patch in one.patches:
            asked.setdefault((patch.replacement, patch.position == ALL), one.number)
    length, first = pairs.tokens.shape[1], pairs.number[0]
    for (replacement, everywhere), number in asked.items():
        if (
            replacement == "counterfactual"
            and everywhere
            and pairs.counterfactual_tokens.shape[1] != length
        ):
            raise InterventionError(f"intervention {number}, pair {first}: {UNEVEN}")
        if replacement in MEANS:
            if (
                lacking := sorted({*OPERANDS, *map(first_of, OPERANDS)} - pairs.positions.keys())
                if widths
                else []
            ):
                raise InterventionError(
                    f"intervention {number}: pairs have no position {', '.join(lacking)}, by which means are; {NO_MEAN}"
                )
            needed = int(slots(length, pairs.positions, widths).max()) + 1 if widths else length
            if positions < needed or (not widths and positions > needed):
                raise InterventionError(
                    f"intervention {number}, pair {first}: there is no mean for prompts of {length} tokens; {NO_MEAN}"
                )
        if replacement == "given" and given is not None:
            given.rows_of(pairs.number)


class Values:
    """Everything that patches of some pairs can put in or take out: both clean runs, and the means of every component.

    means: replacement (see interventions.MEANS) -> neurons (layers, positions, neurons), heads
    (layers, positions, heads, head width), residual (layers, positions, width); needed only where a
    patch asks for a mean. widths: tokens of the longest operands, where positions of means are
    slots (core/slots.py), None where they are those of the prompts. given: what tables bring along,
    needed only where a patch asks for it. cached: see clean_run.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        pairs: PromptPairs,
        means: Mapping[str, Mapping[str, np.ndarray]] | None,
        cached: bool = True,
        *,
        widths: Mapping[str, int] | None = None,
        given: Given | None = None,
    ):
        self.checkpoint, self.pairs, self.architecture, self.given = (
            checkpoint,
            pairs,
            checkpoint.architecture,
            given,
        )
        device, dtype = checkpoint.model.device, checkpoint.model.dtype
        self.cached, self.clean = cached, clean_run(checkpoint, pairs.tokens, cached)
        self.means = {
            (replacement, kind): torch.from_numpy(array).to(device, dtype)
            for replacement, arrays in (means or {}).items() for kind, array in arrays.items()
        }  # fmt: skip
        self.positions = {
            role: torch.from_numpy(at).to(device) for role, at in pairs.positions.items()
        }
        self.others = {
            role: torch.from_numpy(at).to(device)
            for role, at in pairs.counterfactual_positions.items()
        }
        self.slots = (
            torch.from_numpy(slots(pairs.tokens.shape[1], pairs.positions, widths)).to(device)
            if widths
            else None
        )
        self.prompts = torch.arange(len(pairs), device=device)
        self.vectors = [value_vectors(layer) for layer in self.architecture.layers]

    @cached_property
    def counterfactual(self) -> Clean:
        return clean_run(self.checkpoint, self.pairs.counterfactual_tokens, self.cached)

    def prepare(self, patches: Sequence[Patch]) -> None:
        """Runs the counterfactuals, and MLPs' output projections, if any of these patches needs them: now, while no hooks are in place."""
        runs = [self.clean]
        if any(p.replacement == "counterfactual" for p in patches):
            runs.append(self.counterfactual)
        for layer in sorted({p.layer for p in patches if p.component == "coordinate"}):
            for run in runs:
                if layer not in run.outputs:
                    run.outputs[layer] = self.architecture.layers[layer].mlp_out(run.neurons[layer])

    def first_position(self, patches: Sequence[Patch]) -> int:
        """The first token position that any of these patches touches in any prompt."""
        return min(
            (0 if p.position == ALL else int(self.positions[p.position].min()) for p in patches),
            default=0,
        )

    def new(self, patch: Patch) -> torch.Tensor:
        """What a patch puts in, for all units: (prompts, units, …), or (prompts, positions, units, …) where it is for all positions."""
        kind = KINDS[patch.component]
        clean = self._of(self.clean, kind, patch.layer)
        if patch.replacement == "counterfactual":
            values = self._of(self.counterfactual, kind, patch.layer)
            if patch.position != ALL:
                return values[beside(values, self.prompts, self.others[patch.position])]
            if values.shape != clean.shape:
                raise InterventionError(UNEVEN)
            return values
        if patch.replacement == "zero":
            zero = clean.new_zeros(1)
            return zero.expand(
                clean.shape if patch.position == ALL else (len(clean), *clean.shape[2:])
            )
        if patch.replacement == "given":
            if self.given is None:
                raise InterventionError("nothing is given: the store of given values is missing")
            return torch.from_numpy(self.given.values(patch, self.pairs.number)).to(
                clean.device, clean.dtype
            )
        longest = clean.shape[1] if self.slots is None else int(self.slots.max()) + 1
        every = self.means.get((patch.replacement, kind))  # (layers, positions, …)
        tokens = 0 if every is None else every.shape[1]
        fits = tokens == longest if self.slots is None else tokens >= longest
        if every is None or not fits:
            raise InterventionError(
                f"there is no mean for prompts of {clean.shape[1]} tokens; {NO_MEAN}"
            )
        means = every[patch.layer].to(clean.device)
        if self.slots is not None:
            chosen = (
                self.slots
                if patch.position == ALL
                else self.slots[self.prompts, self.positions[patch.position]]
            )
            return means[beside(means, chosen)]
        return (
            means.expand(clean.shape)
            if patch.position == ALL
            else means[beside(means, self.positions[patch.position])]
        )

    def write(self, x: torch.Tensor, patches: list[tuple[int, Patch]], start: int) -> None:
        """Carries out patches, each on one copy, in x: (copies, prompts, positions, units, …), in place."""
        if single := self._single(patches):
            copies, units, first = single
            at = self.positions[first.position] - start
            new = self.new(first)
            put_in = new[:, beside(new, units)[0]].transpose(0, 1).to(x.device)
            x[beside(x, copies[:, None], self.prompts[None], at[None], units[:, None])] = put_in
            return
        for copy, patch in patches:
            new, chosen = self.new(patch).to(x.device), self._chosen(patch, x)
            if patch.position == ALL:
                part: slice | torch.Tensor = slice(None) if chosen is None else chosen
                x[copy][:, :, part] = new[:, :, part]
                continue
            prompts, at = beside(x, self.prompts, self.positions[patch.position] - start)
            if chosen is None:
                x[copy, prompts, at] = new
            else:
                x[copy, prompts[:, None], at[:, None], chosen[None]] = new[:, chosen]

    def moved(self, patches: list[tuple[int, Patch]]) -> Moved | None:
        """The streams behind the layer at the one patched position, where in every copy one neuron (coordinate) is patched; else None."""
        single = self._single(patches)
        if not single or KINDS[single[2].component] not in LINEAR:
            return None
        _, units, first = single
        at = self.prompts, self.positions[first.position]
        whole, stream = (
            self._of(self.clean, KINDS[first.component], first.layer),
            self.clean.streams[first.layer + 1],
        )
        clean, (units,) = whole[beside(whole, *at)], beside(whole, units)
        steps = (self.new(first)[:, units] - clean[:, units]).T  # (copies, prompts)
        return Moved(stream[beside(stream, *at)], steps, self._directions(first, units)).to(
            stream.device
        )

    def added(self, x: torch.Tensor, patches: list[tuple[int, Patch]], start: int) -> None:
        """Adds to x, the stream behind the layer, what patches of its neurons or coordinates change there: (copies, prompts, positions,
        width).

        Every patch is on a copy that is clean up to this layer; what it changes is (new - clean value) · direction.
        """
        if moved := self.moved(patches):
            copies = torch.tensor([copy for copy, _ in patches])[:, None]
            at = self.positions[patches[0][1].position][None] - start
            x[beside(x, copies, self.prompts[None], at)] = moved.stream()[:, :, 0].to(x.device)
            return
        for copy, patch in patches:
            clean = self._of(self.clean, KINDS[patch.component], patch.layer)
            units = self._chosen(patch, clean)
            chosen: slice | torch.Tensor = slice(None) if units is None else units
            directions = self._directions(patch, chosen)
            if patch.position == ALL:
                x[copy] += ((self.new(patch) - clean)[:, :, chosen] @ directions).to(x.device)
            else:
                at = self.positions[patch.position]
                change = (self.new(patch) - clean[beside(clean, self.prompts, at)])[
                    :, chosen
                ] @ directions
                x[copy][beside(x, self.prompts, at - start)] += change.to(x.device)

    def mask(self, edges: list[tuple[int, Patch]], copies: int, start: int) -> torch.Tensor | None:
        """Added to the attention scores so that no weight falls on cut edges: (rows, heads, queries, keys); None if none is cut."""
        if not edges:
            return None
        length, device = self.clean.tokens.shape[1], self.clean.tokens.device
        least = torch.finfo(self.checkpoint.model.dtype).min
        keys, queries = (
            torch.arange(length, device=device),
            torch.arange(start, length, device=device),
        )
        open_ = (
            (keys[None] <= queries[:, None])
            .expand(copies, len(self.prompts), self.architecture.heads, -1, -1)
            .clone()
        )
        for copy, edge in edges:
            query = self.positions[edge.position]  # (prompts,)
            cut = (
                keys[None] < query[:, None]
                if edge.key_position == EARLIER
                else keys[None] == self.positions[str(edge.key_position)][:, None]
            )
            chosen = self._chosen(edge, keys)
            heads = (
                torch.arange(self.architecture.heads, device=device) if chosen is None else chosen
            )
            at = (self.prompts[:, None], heads[None], (query - start)[:, None])
            open_[copy][at] &= ~cut[:, None]
        blocked = torch.zeros(
            open_.shape, dtype=self.checkpoint.model.dtype, device=device
        ).masked_fill_(~open_, least)
        return blocked.flatten(0, 1)

    def _of(self, run: Clean, kind: str, layer: int) -> torch.Tensor:
        if kind == "heads":
            return run.heads[layer].unflatten(
                -1, (self.architecture.heads, self.architecture.head_width)
            )
        if kind == "outputs":
            return run.outputs[layer]
        return run.neurons[layer] if kind == "neurons" else run.streams[layer]

    def _directions(self, patch: Patch, units: slice | torch.Tensor) -> torch.Tensor:
        """What the stream moves along where these neurons or coordinates change: (units, width)."""
        if patch.component != "coordinate":
            return self.vectors[patch.layer][units]
        vectors, width = self.vectors[patch.layer], self.architecture.width
        return one_hot(torch.arange(width, device=vectors.device)[units], width).to(vectors.dtype)

    def _single(
        self, patches: list[tuple[int, Patch]]
    ) -> tuple[torch.Tensor, torch.Tensor, Patch] | None:
        """Copies and units, where each copy has one unit of one and the same component replaced at one and the same position."""
        first = patches[0][1]
        same = {
            (p.component, p.position, p.replacement, p.given, len(p.units or b""))
            for _, p in patches
        }
        if (
            len(same) > 1
            or first.position == ALL
            or len(first.units or b"") != 4
            or len({c for c, _ in patches}) < len(patches)
        ):
            return None
        device = self.clean.tokens.device
        units = torch.from_numpy(
            np.frombuffer(b"".join(p.units or b"" for _, p in patches), np.int32).astype(np.int64)
        ).to(device)
        return torch.tensor([c for c, _ in patches], device=device), units, first

    @staticmethod
    def _chosen(patch: Patch, x: torch.Tensor) -> torch.Tensor | None:
        """The units of a patch, where x is; None for all."""
        units = patch.chosen()
        return None if units is None else torch.from_numpy(units.astype(np.int64)).to(x.device)
