"""Write the replacements that interventions ask for into the tensors of a forward pass.

Tensors of a pass are (copies, prompts, positions from `start` on, …): each intervention, or each
group of interventions with the same history, has its own copy of the prompts.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy as shallow_copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch.nn.functional import one_hot

from stages.lib.core.slots import OPERANDS, first_of, slots
from stages.lib.executor.clean import Clean, clean_run
from stages.lib.executor.external_values import Given
from stages.lib.executor.interventions import (
    ALL,
    EARLIER,
    MEANS,
    CopyPatches,
    Intervention,
    InterventionError,
    Patch,
)
from stages.lib.executor.pairs import PromptPairs
from stages.lib.executor.rank_one import Moved
from stages.lib.model.architecture import value_vectors
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.spread import beside

# component -> kind of its values
KINDS = {
    "mlp": "neurons",
    "neuron": "neurons",
    "coordinate": "outputs",
    "head": "heads",
    "residual": "residual",
}
ALIKE = ("zero", *MEANS)  # replacements at all positions that depend on positions, not on prompts
UNEVEN = "a counterfactual of another length cannot replace all positions; name a role"
NO_MEAN = "replace by zero or counterfactual"
# Kinds whose change the residual stream receives as a sum, unless the layer normalises it.
LINEAR = ("neurons", "outputs")


def linear(patches: Sequence[Patch]) -> bool:
    """Return whether the residual stream changes by the sum of these patches' own changes.

    Neurons and coordinates together do not add up: a replaced coordinate hides what neurons change.
    """
    kinds = {KINDS.get(p.component) for p in patches}
    return len(kinds) == 1 and kinds <= {*LINEAR}


def check(
    pairs: PromptPairs,
    interventions: Sequence[Intervention],
    positions: int,
    widths: Mapping[str, int] | None,
    given: Given | None,
) -> None:
    """Raise InterventionError if an intervention needs a replacement that these pairs lack.

    pairs: of one length; positions: of the means; widths, given: as in Values.
    """
    first: dict[tuple[str, bool], int] = {}  # the first intervention that needs each replacement
    for intervention in interventions:
        for patch in intervention.patches:
            first.setdefault((patch.replacement, patch.position == ALL), intervention.number)
    length, other_length = pairs.tokens.shape[1], pairs.counterfactual_tokens.shape[1]
    for (replacement, everywhere), number in first.items():
        where = f"intervention {number}, pair {pairs.number[0]}"
        if replacement == "counterfactual" and everywhere and other_length != length:
            raise InterventionError(f"{where}: {UNEVEN}")
        if replacement in MEANS:
            _check_means(where, pairs, positions, widths)
        if replacement == "given" and given is not None:
            given.rows_of(pairs.number)


def _check_means(
    where: str, pairs: PromptPairs, positions: int, widths: Mapping[str, int] | None
) -> None:
    """Raise InterventionError unless means of so many positions fit these pairs."""
    length, aligned = pairs.tokens.shape[1], None
    if widths:
        lacking = sorted({*OPERANDS, *map(first_of, OPERANDS)} - pairs.positions.keys())
        if lacking:
            problem = f"the pairs have no position {', '.join(lacking)}, which aligns the means"
            raise InterventionError(f"{where}: {problem}; {NO_MEAN}")
        aligned = slots(length, pairs.positions, widths)
    if not _fit(positions, length, aligned):
        problem = f"there is no mean for prompts of {length} tokens"
        raise InterventionError(f"{where}: {problem}; {NO_MEAN}")


def _fit(positions: int, length: int, aligned: np.ndarray | torch.Tensor | None) -> bool:
    """Return whether means of so many positions cover prompts of this length.

    aligned: the prompts' slots (see core/slots.py), None if means are by position.
    """
    if aligned is None:
        return positions == length
    return positions > int(aligned.max())


@dataclass(frozen=True)
class UnitSweep:
    """Copies with one replaced unit each, all of one component, position and replacement.

    copies, units: (copies,); patch: the first of the patches.
    """

    copies: torch.Tensor
    units: torch.Tensor
    patch: Patch


class Values:
    """Both clean runs of some pairs, and everything that patches read from them or write.

    means: replacement (see interventions.MEANS) -> neurons (layers, positions, neurons), heads
    (layers, positions, heads, head width), residual (layers, positions, width); needed only if a
    patch asks for a mean. widths: tokens of the longest operands, where positions of means are
    slots (core/slots.py); None where they are token positions. given: external values of the
    table, needed only if a patch asks for them. cached: see clean_run.
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
        self.checkpoint, self.pairs, self.given = checkpoint, pairs, given
        self.architecture, self.cached = checkpoint.architecture, cached
        self.clean = clean_run(checkpoint, pairs.tokens, cached)
        device, dtype = checkpoint.model.device, checkpoint.model.dtype
        self.means: dict[tuple[str, str], torch.Tensor] = {}
        for replacement, arrays in (means or {}).items():
            for kind, array in arrays.items():
                self.means[replacement, kind] = torch.from_numpy(array).to(device, dtype)
        self.positions = _tensors(pairs.positions, device)
        self.others = _tensors(pairs.counterfactual_positions, device)
        self.slots: torch.Tensor | None = None
        if widths:
            aligned = slots(pairs.tokens.shape[1], pairs.positions, widths)
            self.slots = torch.from_numpy(aligned).to(device)
        self.prompts = torch.arange(len(pairs), device=device)
        self.vectors = [value_vectors(layer) for layer in self.architecture.layers]

    @cached_property
    def counterfactual(self) -> Clean:
        return clean_run(self.checkpoint, self.pairs.counterfactual_tokens, self.cached)

    def prepare(self, patches: Sequence[Patch]) -> None:
        """Compute what these patches need from clean runs: now, while no hooks are in place.

        That is the counterfactual run, and the MLPs' outputs in layers with patched coordinates.
        """
        runs = [self.clean]
        if any(p.replacement == "counterfactual" for p in patches):
            runs.append(self.counterfactual)
        for layer in sorted({p.layer for p in patches if p.component == "coordinate"}):
            mlp_out = self.architecture.layers[layer].mlp_out
            for run in runs:
                if layer not in run.outputs:
                    run.outputs[layer] = mlp_out(run.neurons[layer])

    def shared_positions(self, patches: Sequence[Patch]) -> int:
        """Return how many first positions each copy computes alike for all prompts.

        All prompts begin with these tokens, patches at all positions write the same into them, and
        other patches are at later positions.
        """
        everywhere = {p.replacement for p in patches if p.position == ALL}
        if not everywhere or not everywhere <= {*ALIKE}:
            return 0
        tokens = self.pairs.tokens[:, :-1]
        same = (tokens == tokens[:1]).all(0)
        if self.slots is not None:
            slots_of = self.slots[:, :-1].cpu().numpy()
            same &= (slots_of == slots_of[:1]).all(0)
        later = {p.position for p in patches} - {ALL}
        ends = [int(self.positions[position].min()) for position in later]
        return min([int(np.logical_and.accumulate(same).sum()), *ends])

    def front(self, end: int) -> "Values":
        """Return the same of the first prompt alone, and of its positions before `end`."""
        front = shallow_copy(self)
        front.clean, front.prompts = self.clean.front(end), self.prompts[:1]
        front.pairs = replace(self.pairs.part(slice(0, 1)), tokens=self.pairs.tokens[:1, :end])
        if self.slots is None:
            front.means = {key: means[:, :end] for key, means in self.means.items()}
        else:
            front.slots = self.slots[:1, :end]
        return front

    def first_position(self, patches: Sequence[Patch]) -> int:
        """Return the first token position that any of these patches touches in any prompt."""
        named = {patch.position for patch in patches}
        if ALL in named:
            return 0
        return min((int(self.positions[position].min()) for position in named), default=0)

    def replacement(self, patch: Patch) -> torch.Tensor:
        """Return what a patch writes, for all units.

        (prompts, units, …), or (prompts, positions, units, …) for a patch at all positions. Raises
        InterventionError if these prompts have no such replacement.
        """
        return _REPLACEMENTS[patch.replacement](self, patch)

    def _zero(self, patch: Patch) -> torch.Tensor:
        clean = self._values_in(self.clean, patch)
        zero = clean.new_zeros(1)
        if patch.position == ALL:
            return zero.expand(clean.shape)
        return zero.expand(len(clean), *clean.shape[2:])

    def _counterfactual(self, patch: Patch) -> torch.Tensor:
        values = self._values_in(self.counterfactual, patch)
        if patch.position != ALL:
            return values[beside(values, self.prompts, self.others[patch.position])]
        if values.shape != self._values_in(self.clean, patch).shape:
            raise InterventionError(UNEVEN)
        return values

    def _external(self, patch: Patch) -> torch.Tensor:
        if self.given is None:
            raise InterventionError(
                f"external values {patch.given!r} are needed, but there is no store of them; "
                "write <experiment>_given.h5 beside the table of interventions"
            )
        clean = self._values_in(self.clean, patch)
        values = torch.from_numpy(self.given.values(patch, self.pairs.number))
        return values.to(clean.device, clean.dtype)

    def _mean(self, patch: Patch) -> torch.Tensor:
        clean = self._values_in(self.clean, patch)
        all_layers = self.means.get((patch.replacement, KINDS[patch.component]))
        length = clean.shape[1]
        if all_layers is None or not _fit(all_layers.shape[1], length, self.slots):
            raise InterventionError(f"there is no mean for prompts of {length} tokens; {NO_MEAN}")
        means = all_layers[patch.layer].to(clean.device)  # (positions, …)
        if self.slots is not None:
            at = self.slots
            if patch.position != ALL:
                at = at[self.prompts, self.positions[patch.position]]
            return means[beside(means, at)]
        if patch.position == ALL:
            return means.expand(clean.shape)
        return means[beside(means, self.positions[patch.position])]

    def write(self, x: torch.Tensor, patches: CopyPatches, start: int) -> None:
        """Write the patches' replacements into x: (copies, prompts, positions, units, …)."""
        sweep = self._sweep(patches)
        if sweep:
            at = self.positions[sweep.patch.position] - start
            new = self.replacement(sweep.patch)
            written = new[:, beside(new, sweep.units)[0]].transpose(0, 1).to(x.device)
            rows = sweep.copies[:, None], self.prompts[None], at[None], sweep.units[:, None]
            x[beside(x, *rows)] = written
            return
        for copy, patch in patches:
            new, units = self.replacement(patch).to(x.device), _units(patch, x)
            if patch.position == ALL:
                x[copy][:, :, units] = new[:, start:, units]
                continue
            prompts, at = beside(x, self.prompts, self.positions[patch.position] - start)
            if isinstance(units, slice):
                x[copy, prompts, at] = new
            else:
                x[copy, prompts[:, None], at[:, None], units[None]] = new[:, units]

    def moved(self, patches: CopyPatches) -> Moved | None:
        """Return the residual streams after the layer at the one patched position.

        None unless every copy replaces one neuron, or one coordinate, of the same layer, position
        and replacement.
        """
        sweep = self._sweep(patches)
        if not sweep or KINDS[sweep.patch.component] not in LINEAR:
            return None
        patch = sweep.patch
        at = self.prompts, self.positions[patch.position]
        values = self._values_in(self.clean, patch)
        stream = self.clean.streams[patch.layer + 1]
        clean, (units,) = values[beside(values, *at)], beside(values, sweep.units)
        steps = (self.replacement(patch)[:, units] - clean[:, units]).T  # (copies, prompts)
        base = stream[beside(stream, *at)]
        return Moved(base, steps, self._directions(patch, units)).to(stream.device)

    def added(self, x: torch.Tensor, patches: CopyPatches, start: int) -> None:
        """Add the changes by patches of neurons or coordinates to the residual stream, in place.

        x: the stream after the layer, (copies, prompts, positions, width), clean in every copy. A
        patch changes it by (replacement - clean value) x direction.
        """
        if not patches:
            return
        moved = self.moved(patches)
        if moved:
            copies = torch.tensor([copy for copy, _ in patches])[:, None]
            at = self.positions[patches[0][1].position][None] - start
            x[beside(x, copies, self.prompts[None], at)] = moved.stream()[:, :, 0].to(x.device)
            return
        for copy, patch in patches:
            clean = self._values_in(self.clean, patch)
            units = _units(patch, clean)
            directions = self._directions(patch, units)
            new = self.replacement(patch)
            if patch.position == ALL:
                x[copy] += ((new - clean)[:, start:, units] @ directions).to(x.device)
                continue
            at = self.positions[patch.position]
            change = (new - clean[beside(clean, self.prompts, at)])[:, units] @ directions
            x[copy][beside(x, self.prompts, at - start)] += change.to(x.device)

    def mask(self, edges: CopyPatches, copies: int, start: int) -> torch.Tensor | None:
        """Return what attention scores need added so that no weight falls on cut edges.

        It is (copies x prompts, heads, queries, keys); None if no edge is cut.
        """
        if not edges:
            return None
        length, device = self.clean.tokens.shape[1], self.clean.tokens.device
        dtype = self.checkpoint.model.dtype
        keys, queries = (
            torch.arange(length, device=device),
            torch.arange(start, length, device=device),
        )
        heads = torch.arange(self.architecture.heads, device=device)
        causal = keys[None] <= queries[:, None]
        is_open = causal.expand(copies, len(self.prompts), len(heads), -1, -1).clone()
        for copy, edge in edges:
            query = self.positions[edge.position]  # (prompts,)
            if edge.key_position == EARLIER:
                cut = keys[None] < query[:, None]
            else:
                cut = keys[None] == self.positions[str(edge.key_position)][:, None]
            cut_heads = heads[_units(edge, keys)]
            at = (self.prompts[:, None], cut_heads[None], (query - start)[:, None])
            is_open[copy][at] &= ~cut[:, None]
        blocked = torch.zeros(is_open.shape, dtype=dtype, device=device)
        return blocked.masked_fill_(~is_open, torch.finfo(dtype).min).flatten(0, 1)

    def _values_in(self, run: Clean, patch: Patch) -> torch.Tensor:
        """Return the values that a patch replaces in a run: (prompts, positions, units, …)."""
        kind, layer = KINDS[patch.component], patch.layer
        if kind == "heads":
            a = self.architecture
            return run.heads[layer].unflatten(-1, (a.heads, a.head_width))
        if kind == "outputs":
            return run.outputs[layer]
        if kind == "neurons":
            return run.neurons[layer]
        return run.streams[layer]

    def _directions(self, patch: Patch, units: slice | torch.Tensor) -> torch.Tensor:
        """Return the directions in which these neurons or coordinates move the residual stream.

        They are (units, width).
        """
        vectors, width = self.vectors[patch.layer], self.architecture.width
        if patch.component != "coordinate":
            return vectors[units]
        return one_hot(torch.arange(width, device=vectors.device)[units], width).to(vectors.dtype)

    def _sweep(self, patches: CopyPatches) -> UnitSweep | None:
        """Return the patches as a sweep over single units, None if they are anything else."""
        copies, listed = zip(*patches, strict=True)
        first = listed[0]
        units = [patch.units or b"" for patch in listed]
        alike = {(p.component, p.position, p.replacement, p.given) for p in listed}
        single = {*map(len, units)} == {4}  # bytes of one int32
        if len(alike) > 1 or first.position == ALL or not single:
            return None
        if len(set(copies)) < len(copies):
            return None
        device = self.clean.tokens.device
        numbers = np.frombuffer(b"".join(units), np.int32).astype(np.int64)
        return UnitSweep(
            torch.tensor(copies, device=device), torch.from_numpy(numbers).to(device), first
        )


# replacement -> what computes it
_REPLACEMENTS: dict[str, Callable[[Values, Patch], torch.Tensor]] = {
    "zero": Values._zero,
    "counterfactual": Values._counterfactual,
    "given": Values._external,
    **dict.fromkeys(MEANS, Values._mean),
}


def _tensors(arrays: Mapping[str, np.ndarray], device: torch.device) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def _units(patch: Patch, x: torch.Tensor) -> slice | torch.Tensor:
    """Return a patch's units on the device of x, a full slice for all of them."""
    units = patch.unit_numbers()
    if units is None:
        return slice(None)
    return torch.from_numpy(units.astype(np.int64)).to(x.device)
