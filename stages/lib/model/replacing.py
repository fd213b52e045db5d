"""Puts replaced values where a table of interventions wants them, in the tensors of a run under way.

Tensors of a run under way are (copies, prompts, positions from `start` on, …): one copy of the prompts per intervention.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch

from stages.lib.model.architecture import value_vectors
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.clean import Clean, clean_run
from stages.lib.model.interventions import ALL, EARLIER, InterventionError, Patch
from stages.lib.model.pairs import Pairs
from stages.lib.model.rank_one import Moved

NEURONS = ("mlp", "neuron")  # components whose values are neurons' activations


class Values:
    """Everything that patches of some pairs can put in or take out: both clean runs, and the means of every component.

    means: neurons (layers, positions, neurons), heads (layers, positions, heads, head width), residual (layers, positions,
    width); needed only where a patch asks for a mean.
    """

    def __init__(self, checkpoint: Checkpoint, pairs: Pairs, means: Mapping[str, np.ndarray] | None):
        self.checkpoint, self.pairs, self.architecture = checkpoint, pairs, checkpoint.architecture
        device, dtype = checkpoint.model.device, checkpoint.model.dtype
        self.clean = clean_run(checkpoint, pairs.tokens)
        self.means = {name: torch.from_numpy(array).to(device, dtype) for name, array in (means or {}).items()}
        self.positions = {role: torch.from_numpy(at).to(device) for role, at in pairs.positions.items()}
        self.others = {role: torch.from_numpy(at).to(device) for role, at in pairs.counterfactual_positions.items()}
        self.prompts = torch.arange(len(pairs), device=device)
        self.vectors = [value_vectors(layer) for layer in self.architecture.layers]

    @cached_property
    def counterfactual(self) -> Clean:
        return clean_run(self.checkpoint, self.pairs.counterfactual_tokens)

    def prepare(self, patches: Iterable[Patch]) -> None:
        """Runs the counterfactuals if any of these patches needs them: now, while no hooks are in place."""
        if any(p.replacement == "counterfactual" for p in patches):
            _ = self.counterfactual

    def first_position(self, patches: Sequence[Patch]) -> int:
        """The first token position that any of these patches touches in any prompt."""
        return min((0 if p.position == ALL else int(self.positions[p.position].min()) for p in patches), default=0)

    def new(self, patch: Patch) -> torch.Tensor:
        """What a patch puts in, for all units: (prompts, units, …), or (prompts, positions, units, …) where it is for all positions."""
        kind = "neurons" if patch.component in NEURONS else {"head": "heads", "residual": "residual"}[patch.component]
        clean = self._of(self.clean, kind, patch.layer)
        if patch.replacement == "counterfactual":
            values = self._of(self.counterfactual, kind, patch.layer)
            if patch.position != ALL:
                return values[self.prompts, self.others[patch.position]]
            if values.shape != clean.shape:
                raise InterventionError("a counterfactual of another length cannot replace all positions; name a role")
            return values
        if patch.replacement == "zero":
            zero = clean.new_zeros(1)
            return zero.expand(clean.shape if patch.position == ALL else (len(clean), *clean.shape[2:]))
        if kind not in self.means or self.means[kind].shape[1] != clean.shape[1]:
            raise InterventionError(f"there is no mean for prompts of {clean.shape[1]} tokens; replace by zero or counterfactual")
        means = self.means[kind][patch.layer]
        return means.expand(clean.shape) if patch.position == ALL else means[self.positions[patch.position]]

    def write(self, x: torch.Tensor, patches: list[tuple[int, Patch]], start: int) -> None:
        """Carries out patches, each on one copy, in x: (copies, prompts, positions, units, …), in place."""
        if single := self._single(patches):
            copies, units, first = single
            at = self.positions[first.position] - start
            x[copies[:, None], self.prompts[None], at[None], units[:, None]] = self.new(first)[:, units].transpose(0, 1)
            return
        for copy, patch in patches:
            new, chosen = self.new(patch), self._chosen(patch)
            if patch.position == ALL:
                part: slice | torch.Tensor = slice(None) if chosen is None else chosen
                x[copy][:, :, part] = new[:, :, part]
                continue
            at = self.positions[patch.position] - start
            if chosen is None:
                x[copy, self.prompts, at] = new
            else:
                x[copy, self.prompts[:, None], at[:, None], chosen[None]] = new[:, chosen]

    def moved(self, patches: list[tuple[int, Patch]]) -> Moved | None:
        """The streams behind the layer at the one patched position, where in every copy one neuron is patched there; else None."""
        single = self._single(patches)
        if not single or single[2].component != "neuron":
            return None
        _, units, first = single
        at = self.positions[first.position]
        clean = self.clean.neurons[first.layer][self.prompts, at]
        steps = (self.new(first)[:, units] - clean[:, units]).T  # (copies, prompts)
        return Moved(self.clean.streams[first.layer + 1][self.prompts, at], steps, self.vectors[first.layer][units])

    def added(self, x: torch.Tensor, patches: list[tuple[int, Patch]], start: int) -> None:
        """Adds to x, the stream behind the layer, what patches of its neurons change there: (copies, prompts, positions, width).

        Every patch is on a copy that is clean up to this layer; what it changes is (new - clean activation) · value vector.
        """
        layer = patches[0][1].layer
        clean, vectors = self.clean.neurons[layer], self.vectors[layer]
        if moved := self.moved(patches):
            copies = torch.tensor([copy for copy, _ in patches], device=x.device)
            x[copies[:, None], self.prompts[None], self.positions[patches[0][1].position][None] - start] = moved.stream()[:, :, 0]
            return
        for copy, patch in patches:
            units = self._chosen(patch)
            chosen: slice | torch.Tensor = slice(None) if units is None else units
            if patch.position == ALL:
                x[copy] += (self.new(patch) - clean)[:, :, chosen] @ vectors[chosen]
            else:
                at = self.positions[patch.position]
                x[copy, self.prompts, at - start] += (self.new(patch) - clean[self.prompts, at])[:, chosen] @ vectors[chosen]

    def mask(self, edges: list[tuple[int, Patch]], copies: int, start: int) -> torch.Tensor | None:
        """Added to the attention scores so that no weight falls on cut edges: (rows, heads, queries, keys); None if none is cut."""
        if not edges:
            return None
        length, device = self.clean.tokens.shape[1], self.clean.tokens.device
        least = torch.finfo(self.checkpoint.model.dtype).min
        keys, queries = torch.arange(length, device=device), torch.arange(start, length, device=device)
        open_ = (keys[None] <= queries[:, None]).expand(copies, len(self.prompts), self.architecture.heads, -1, -1).clone()
        for copy, edge in edges:
            query = self.positions[edge.position]  # (prompts,)
            cut = (
                keys[None] < query[:, None]
                if edge.key_position == EARLIER
                else keys[None] == self.positions[str(edge.key_position)][:, None]
            )
            chosen = self._chosen(edge)
            heads = torch.arange(self.architecture.heads, device=device) if chosen is None else chosen
            at = (self.prompts[:, None], heads[None], (query - start)[:, None])
            open_[copy][at] &= ~cut[:, None]
        blocked = torch.zeros(open_.shape, dtype=self.checkpoint.model.dtype, device=device).masked_fill_(~open_, least)
        return blocked.flatten(0, 1)

    def _of(self, run: Clean, kind: str, layer: int) -> torch.Tensor:
        if kind == "heads":
            return run.heads[layer].unflatten(-1, (self.architecture.heads, self.architecture.head_width))
        return run.neurons[layer] if kind == "neurons" else run.streams[layer]

    def _single(self, patches: list[tuple[int, Patch]]) -> tuple[torch.Tensor, torch.Tensor, Patch] | None:
        """Copies and units, where each copy has one unit of one and the same component replaced at one and the same position."""
        first = patches[0][1]
        same = {(p.component, p.position, p.replacement, len(p.units or b"")) for _, p in patches}
        if len(same) > 1 or first.position == ALL or len(first.units or b"") != 4 or len({c for c, _ in patches}) < len(patches):
            return None
        device = self.clean.tokens.device
        units = torch.from_numpy(np.frombuffer(b"".join(p.units or b"" for _, p in patches), np.int32).astype(np.int64)).to(device)
        return torch.tensor([c for c, _ in patches], device=device), units, first

    def _chosen(self, patch: Patch) -> torch.Tensor | None:
        units = patch.chosen()
        return None if units is None else torch.from_numpy(units.astype(np.int64)).to(self.clean.tokens.device)
