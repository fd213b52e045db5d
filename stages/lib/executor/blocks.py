"""Split the work of a table of interventions into blocks.

The interventions of a block start at one position. They start at one layer, too, unless several
layers of a large model fit into one pass: a pass reads all weights, however little it computes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, filterfalse, groupby
from operator import itemgetter

import polars as pl

from stages.lib.executor.interventions import (
    ALL,
    EARLIER,
    Intervention,
    InterventionError,
    Patch,
    Prompts,
    check_apart,
    is_place,
)
from stages.lib.executor.pairs import PromptPairs, by_length
from stages.lib.model.checkpoint import Checkpoint

Groups = Callable[[pl.DataFrame], list[PromptPairs]]
Copies = Callable[[PromptPairs, int], int]  # of pairs, from a position on, that are one pass
# component -> when a layer computes its values
TURNS = {"residual": 0, "edge": 1, "head": 2, "mlp": 3, "neuron": 3, "coordinate": 4}
CACHED = 64 << 20  # bytes of weights that a processor's cache may hold from one pass to the next
FIXED = 64 << 20  # bytes that torch's buffers, its threads and Python's objects always take


def alone(pairs: PromptPairs, start: int) -> int:
    """Return 1: each layer is a pass of its own."""
    return 1


@dataclass(frozen=True)
class Block:
    """Some interventions on some pairs of one length: one piece of work."""

    pairs: PromptPairs
    interventions: tuple[Intervention, ...]

    @property
    def runs(self) -> int:
        """How many rows of the table `runs` it makes."""
        return len(self.pairs) * len(self.interventions)


@dataclass(frozen=True)
class PassSizes:
    """How much one pass computes.

    most_rows: token positions x prompts x copies in one pass; memory: bytes to stay within.
    """

    checkpoint: Checkpoint
    most_rows: int
    memory: int

    def copies(self, pairs: PromptPairs, start: int, shared: bool = False) -> int:
        """Return how many copies of these pairs, from position `start` on, are one pass.

        That is as many as the settings ask for, or fewer if half of the memory holds no more.
        shared: whether copies share the keys and values before `start` (see attending).
        """
        length = pairs.tokens.shape[1]
        fitting = self._half() // self._per_prompt(length, start, shared)
        return max(1, min(self.most_rows // (length - start), fitting) // len(pairs))

    def logits(self) -> int:
        """Return how many prompts' logits are made and measured at once.

        They take a quarter of the memory, since the last residual stream needs room as well. Each
        prompt needs its logits, a copy in at least float32, and what `measure` computes from it.
        """
        size = self.checkpoint.model.dtype.itemsize
        per_prompt = self.checkpoint.architecture.vocabulary * (size + 2 * max(4, size))
        return max(1, self._half() // 2 // per_prompt)

    def pairs(self, table: pl.DataFrame) -> int:
        """Return how many pairs are one group.

        One copy of them fits into a pass, and both their clean runs into half of the memory.
        """
        a = self.checkpoint.architecture
        longest = int(table["tokens"].list.len().max() or 1)  # type: ignore[arg-type]
        per_position = len(a.layers) * (a.neurons + 3 * a.heads * a.head_width + a.width)
        numbers = 2 * (longest * per_position + a.vocabulary)
        clean_runs = numbers * self.checkpoint.model.dtype.itemsize
        in_pass = min(self.most_rows // longest, self._half() // self._per_prompt(longest, 0))
        return max(1, min(in_pass, self.logits(), self._half() // clean_runs))

    def _per_prompt(self, length: int, start: int, shared: bool = False) -> int:
        """Return the bytes that one copy of a prompt takes in a layer, from position `start` on."""
        a = self.checkpoint.architecture
        attended = 4 * a.heads * length  # scores and weights of attention
        per_position = 8 * a.width + 4 * a.neurons + 4 * a.heads * a.head_width + attended
        # keys and values, joined to those of the copy itself, then repeated for every head
        earlier = 0 if shared else 4 * a.heads * a.head_width * start
        return ((length - start) * per_position + earlier) * self.checkpoint.model.dtype.itemsize

    def groups(self, table: pl.DataFrame) -> list[PromptPairs]:
        """Return a table's pairs, in groups of one length that fit into a pass and into memory."""
        return by_length(table, self.pairs(table))

    def plan(
        self, table: pl.DataFrame, interventions: Sequence[Intervention], most: int = 1 << 30
    ) -> list[Block]:
        """Return blocks of at most about `most` runs, or as many as fit in memory (see `plan`)."""
        last_layer = len(self.checkpoint.architecture.layers) - 1
        most = min(most, self.results())
        copies = self.copies if self._reads_much() else alone
        return plan(table, interventions, self.groups, most, last_layer, copies)

    def _reads_much(self) -> bool:
        """Return whether the weights are too large to stay in a processor's cache."""
        model = self.checkpoint.model
        return sum(x.numel() for x in model.parameters()) * model.dtype.itemsize > CACHED

    def _half(self) -> int:
        return max(0, self.memory - FIXED) // 2

    def results(self) -> int:
        """Return how many results may wait to be written: each takes less than a kilobyte."""
        return max(1, self.memory // 1024)


def plan(
    table: pl.DataFrame,
    interventions: Sequence[Intervention],
    groups: Groups,
    most_results: int,
    last_layer: int,
    copies: Copies,
) -> list[Block]:
    """Return the work of some interventions on the pairs that they name, in blocks.

    table: of pairs; groups: splits pairs into groups that run together; most_results: about how
    many rows of results a block may have; copies: how many interventions are one pass. An
    intervention at a location skips groups whose prompts
    are too short. Patches that cannot change any prediction are left out.

    Raises InterventionError if an intervention names a pair that is not in `table`, or one of
    another operator or split, and if it replaces a value twice because two roles are one token.
    """
    by_prompts: dict[Prompts, list[Intervention]] = {}
    for intervention in interventions:
        by_prompts.setdefault(intervention.prompts(), []).append(intervention)
    _check_named(table, by_prompts)
    named_pairs = _finder(table, groups)
    blocks = []
    for prompts, members in by_prompts.items():
        for pairs in named_pairs(*prompts):
            blocks += _blocks(_Layout.read(pairs, last_layer), members, most_results, copies)
    return blocks


def _blocks(
    layout: "_Layout", interventions: Sequence[Intervention], most_results: int, copies: Copies
) -> list[Block]:
    """Return the blocks of one group of pairs, one or more for each first position.

    Layers, in order, share a block as long as they fit into one pass together.
    """
    entries: dict[tuple[int, int], list[Intervention]] = {}
    for intervention in filter(layout.has_positions, interventions):
        layout.check_roles(intervention)
        moving = layout.moving(intervention)
        entries.setdefault(layout.entry(moving), []).append(moving)
    pairs, last = layout.pairs, layout.pairs.tokens.shape[1] - 1
    size = max(1, most_results // len(pairs))
    blocks = []
    for position, layers in groupby(sorted(entries), key=itemgetter(0)):
        in_pass = min(size, copies(pairs, min(position, last)))
        for members in _together([entries[layer] for layer in layers], in_pass):
            for start in range(0, len(members), size):
                blocks.append(Block(pairs, tuple(members[start : start + size])))
    return blocks


def _together(layers: Iterable[list[Intervention]], most: int) -> list[list[Intervention]]:
    """Join consecutive layers that have at most `most` interventions together."""
    joined: list[list[Intervention]] = [[]]
    for members in layers:
        if len(joined[-1]) + len(members) > most:
            joined.append([])
        joined[-1] += sorted(members, key=_sharing)
    return list(filter(None, joined))


def _check_named(table: pl.DataFrame, by_prompts: Mapping[Prompts, Sequence[Intervention]]) -> None:
    """Raise InterventionError if a named pair, operator or split does not fit the table."""
    columns = [name for name in ("pair", "operator", "split") if name in table.columns]
    known = table.select(columns).rows_by_key("pair", named=True, unique=True)
    for (operator, split, pair), interventions in by_prompts.items():
        first = f"intervention {interventions[0].number}"
        if pair is not None and pair not in known:
            what = f"pair {pair} does not exist"
            raise InterventionError(f"{first}: {what}; take one of the table `pairs`, or none")
        for name, wanted in (("operator", operator), ("split", split)):
            if wanted is None:
                continue
            if name not in columns:
                what = f"the table of pairs has no column {name}, of which it wants {wanted!r}"
                raise InterventionError(f"{first}: {what}; null is any")
            if pair is not None and known[pair][name] != wanted:
                what = f"pair {pair} is of the {name} {known[pair][name]!r}, not {wanted!r}"
                raise InterventionError(f"{first}: {what}; name its own, or null for any")


def _finder(table: pl.DataFrame, groups: Groups) -> Callable[..., list[PromptPairs]]:
    """Return a function that finds the pairs of an operator, a split and a number.

    None means any. A single pair is cut out of its group, since many tables name thousands of
    single pairs.
    """

    @cache
    def grouped(operator: str | None, split: str | None) -> list[PromptPairs]:
        rows = table
        for name, value in (("operator", operator), ("split", split)):
            if value is not None:
                rows = rows.filter(pl.col(name) == value)
        return groups(rows)

    @cache
    def single(operator: str | None, split: str | None) -> dict[int, PromptPairs]:
        pairs: dict[int, PromptPairs] = {}
        for group in grouped(operator, split):
            pairs.update(group.alone())
        return pairs

    def find(operator: str | None, split: str | None, pair: int | None) -> list[PromptPairs]:
        if pair is None:
            return grouped(operator, split)
        known = single(operator, split)
        return [known[pair]] if pair in known else []

    return find


@dataclass(frozen=True)
class _Layout:
    """Where the named positions of a group of pairs are.

    first: position -> its first token in any of the prompts; differs: the first token at which any
    clean prompt differs from its counterfactual one; together: pairs of roles that are the same
    token in a prompt.
    """

    pairs: PromptPairs
    last_layer: int
    first: Mapping[str | None, int]
    differs: int
    together: set[frozenset[str]]

    @classmethod
    def read(cls, pairs: PromptPairs, last_layer: int) -> "_Layout":
        first: dict[str | None, int] = {None: 0, ALL: 0, EARLIER: 0}
        for position, at in pairs.positions.items():
            first[position] = int(at.min())
        roles = filterfalse(is_place, pairs.positions)
        together = {
            frozenset((role, other))
            for role, other in combinations(roles, 2)
            if (pairs.positions[role] == pairs.positions[other]).any()
        }
        return cls(pairs, last_layer, first, _first_difference(pairs), together)

    def has_positions(self, intervention: Intervention) -> bool:
        """Return whether all prompts have the positions that an intervention names."""
        known = self.first
        return all(p.position in known and p.key_position in known for p in intervention.patches)

    def check_roles(self, intervention: Intervention) -> None:
        """Raise InterventionError if two roles are one token and its value is replaced twice."""
        named = {p.position for p in intervention.patches}
        if any(roles <= named for roles in self.together):
            check_apart(intervention.number, intervention.patches, self.together)

    def entry(self, intervention: Intervention) -> tuple[int, int]:
        """Return the first position and the first layer at which it leaves the clean run."""
        length = self.pairs.tokens.shape[1]
        patches = intervention.patches
        position = min((self.first[p.position] for p in patches), default=length)
        return position, min((p.layer for p in patches), default=0)

    def moving(self, intervention: Intervention) -> Intervention:
        """Leave out patches that change no prediction.

        These are patches at a location whose value no later token reads, and patches that write
        what the clean run has there already (see `_is_clean`). Exception: a clean value is written
        on purpose if another patch changes one of its inputs. It then blocks that path (path
        patching). Patches at roles stay: they are few, and all of them matter.
        """
        read = [p for p in intervention.patches if not self._is_unread(p)]
        clean = set(filter(self._is_clean, read))
        if clean:
            changes = [self._when(p) for p in read if p not in clean]
            read = [p for p in read if p not in clean or self._undoes(p, changes)]
        if len(read) == len(intervention.patches):
            return intervention
        return replace(intervention, patches=tuple(read))

    def _is_unread(self, patch: Patch) -> bool:
        """Return whether no later token reads what a patch at a location writes."""
        if patch.layer < self.last_layer or patch.component in ("residual", "edge"):
            return False
        last = self.pairs.tokens.shape[1] - 1
        return is_place(patch.position) and int(patch.position) < last

    def _is_clean(self, patch: Patch) -> bool:
        """Return whether a patch writes a counterfactual value from before both prompts differ."""
        is_counterfactual = patch.replacement == "counterfactual"
        return is_counterfactual and is_place(patch.position) and int(patch.position) < self.differs

    def _undoes(self, patch: Patch, changes: Iterable[tuple[int, tuple[int, int]]]) -> bool:
        """Return whether any of these changes may reach the value that a patch writes."""
        position, turn = self._when(patch)
        return any(earlier <= position and before < turn for earlier, before in changes)

    def _when(self, patch: Patch) -> tuple[int, tuple[int, int]]:
        """Return a value's first position and when it is computed: layer, and turn within it.

        Values of a later turn, at the same or a later position, may be computed from it.
        """
        return self.first[patch.position], (patch.layer, TURNS[patch.component])


def _first_difference(pairs: PromptPairs) -> int:
    """Return the first token at which any clean prompt differs from its counterfactual one."""
    common = min(pairs.tokens.shape[1], pairs.counterfactual_tokens.shape[1])
    differs = (pairs.tokens[:, :common] != pairs.counterfactual_tokens[:, :common]).any(0)
    return int(differs.argmax()) if differs.any() else common


def _sharing(intervention: Intervention) -> list[tuple]:
    """Return a key that sorts interventions with the same patches in the first layers together."""
    keys = []
    for p in intervention.patches:
        external, units = p.given or "", p.units or b""
        where = p.position, p.key_position or ""
        keys.append((p.layer, p.component, *where, p.replacement, external, units))
    return keys
