"""Splits the work of a table of interventions into blocks that start at one place and share what they can."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import polars as pl

from stages.lib.executor.interventions import (
    ALL,
    EARLIER,
    Intervention,
    InterventionError,
    Patch,
    check_apart,
    is_place,
)
from stages.lib.executor.pairs import PromptPairs, by_length
from stages.lib.model.checkpoint import Checkpoint

TURNS = {
    "residual": 0,
    "edge": 1,
    "head": 2,
    "mlp": 3,
    "neuron": 3,
    "coordinate": 4,
}  # in which a layer computes its components' values
FIXED = (
    64 << 20
)  # bytes that torch's buffers, its threads and Python's objects take, whatever is run


@dataclass(frozen=True)
class Block:
    """Some interventions on some pairs of one length: what is computed, and can be kept, in one piece."""

    pairs: PromptPairs
    interventions: tuple[Intervention, ...]

    @property
    def runs(self) -> int:
        return len(self.pairs) * len(self.interventions)


@dataclass(frozen=True)
class PassSizes:
    """How much is done at once. most_rows: token positions x prompts x copies in one pass; memory: bytes to stay within."""

    checkpoint: Checkpoint
    most_rows: int
    memory: int

    def copies(self, pairs: PromptPairs, start: int, shared: bool = False) -> int:
        """Return how many copies of these pairs, from position `start` on, are one pass.

        That is as many as the settings ask for, or fewer where half of the memory holds no more.
        shared: all copies read the keys and values before `start` where they are (see attending).
        """
        length = pairs.tokens.shape[1]
        fitting = self._half() // self._per_prompt(length, start, shared)
        return max(1, min(self.most_rows // (length - start), fitting) // len(pairs))

    def logits(self) -> int:
        """Return how many prompts' logits are made and measured at once.

        They take a quarter of the memory, the last residual stream being held beside them: the
        logits, the same in at least float32, and what `measure` makes of those.
        """
        size = self.checkpoint.model.dtype.itemsize
        per_prompt = self.checkpoint.architecture.vocabulary * (size + 2 * max(4, size))
        return max(1, self._half() // 2 // per_prompt)

    def pairs(self, table: pl.DataFrame) -> int:
        """Return how many pairs are one group.

        One copy of them fits into a pass, and both their clean runs into the other half of the memory.
        """
        a, longest = self.checkpoint.architecture, int(table["tokens"].list.len().max() or 1)  # type: ignore[arg-type]
        per_position = len(a.layers) * (a.neurons + 3 * a.heads * a.head_width + a.width)
        clean_runs = (
            2 * (longest * per_position + a.vocabulary) * self.checkpoint.model.dtype.itemsize
        )
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
        """A table's pairs, in groups of one length that fit into a pass and into memory."""
        return by_length(table, self.pairs(table))

    def plan(
        self, table: pl.DataFrame, interventions: Sequence[Intervention], most: int = 1 << 30
    ) -> list[Block]:
        """The blocks of work, of at most about so many runs, or as many as fit into memory (see `plan`)."""
        return plan(
            table,
            interventions,
            self.groups,
            min(most, self.results()),
            len(self.checkpoint.architecture.layers) - 1,
        )

    def _half(self) -> int:
        return max(0, self.memory - FIXED) // 2

    def results(self) -> int:
        """Results kept until they are written: a kilobyte each is more than they take."""
        return max(1, self.memory // 1024)


def plan(
    table: pl.DataFrame,
    interventions: Sequence[Intervention],
    groups: Callable[[pl.DataFrame], list[PromptPairs]],
    most_results: int,
    last_layer: int,
) -> list[Block]:
    """The work of running `interventions` on the pairs of `table` that they name, in blocks of at most about `most_results` rows.

    groups: splits pairs into groups that are run together; one whose prompts are too short for a place that an intervention names
    goes without it. Patches that cannot change any answer are left out of the blocks' interventions. Raises InterventionError where
    an intervention names a pair that is not in `table`, or is of another operator or split than it names, and where it replaces a value
    twice because two roles are one token in a prompt.
    """
    _check_named(table, interventions)
    chosen: dict[tuple[str | None, str | None, int | None], list[Intervention]] = {}
    for one in interventions:
        chosen.setdefault((one.operator, one.split, one.pair), []).append(one)
    blocks = []
    prompts = _prompts(table, groups)
    for named, members in chosen.items():
        for pairs in prompts(*named):
            first = {None: 0, ALL: 0, EARLIER: 0} | {
                position: int(at.min()) for position, at in pairs.positions.items()
            }
            apart, together = _apart(pairs), _together(pairs)
            entries: dict[tuple[int, int], list[Intervention]] = {}
            for one in members:
                if not all(p.position in first and p.key_position in first for p in one.patches):
                    continue
                if any(both <= {p.position for p in one.patches} for both in together):
                    check_apart(one.number, one.patches, together)
                patches = _moving(one.patches, first, apart, pairs.tokens.shape[1], last_layer)
                moving = one if len(patches) == len(one.patches) else replace(one, patches=patches)
                entries.setdefault(_entry(moving, first, pairs.tokens.shape[1]), []).append(moving)
            size = max(1, most_results // len(pairs))
            for _, group in sorted(entries.items()):
                ordered = sorted(group, key=_sharing)
                blocks += [
                    Block(pairs, tuple(ordered[i : i + size])) for i in range(0, len(ordered), size)
                ]
    return blocks


def _check_named(table: pl.DataFrame, interventions: Sequence[Intervention]) -> None:
    """Raises InterventionError on the first intervention whose pair, operator or split is not that of any row of the table."""
    nothing = pl.Series([None] * len(table), dtype=pl.String)
    pairs, *facts = (
        table.get_column(name, default=nothing).to_list() for name in ("pair", "operator", "split")
    )
    known = dict(zip(pairs, zip(*facts, strict=True), strict=True))
    for one in interventions:
        if one.pair is not None and one.pair not in known:
            raise InterventionError(
                f"intervention {one.number}: pair {one.pair} does not exist; take one of the table `pairs`, or none"
            )
        for place, (name, wanted) in enumerate((("operator", one.operator), ("split", one.split))):
            if wanted is None:
                continue
            if name not in table.columns:
                raise InterventionError(
                    f"intervention {one.number}: the table of pairs has no column {name}, of which it wants {wanted!r}; null is any"
                )
            if one.pair is not None and known[one.pair][place] != wanted:
                its = known[one.pair][place]
                raise InterventionError(
                    f"intervention {one.number}: pair {one.pair} is of the {name} {its!r}, not {wanted!r}; name its own, or null for any"
                )


def _prompts(
    table: pl.DataFrame, groups: Callable[[pl.DataFrame], list[PromptPairs]]
) -> Callable[[str | None, str | None, int | None], list[PromptPairs]]:
    """Finds the pairs of an operator, a split and a number, each None for any. One pair is cut out of its group: many tables name
    thousands of pairs, one by one."""

    @cache
    def several(operator: str | None, split: str | None) -> list[PromptPairs]:
        wanted = [
            pl.col(name) == value
            for name, value in (("operator", operator), ("split", split))
            if value is not None
        ]
        return groups(table.filter(wanted) if wanted else table)

    @cache
    def alone(operator: str | None, split: str | None) -> dict[int, list[PromptPairs]]:
        return {
            number: [one] for group in several(operator, split) for number, one in group.alone()
        }

    return lambda operator, split, pair: (
        several(operator, split) if pair is None else alone(operator, split).get(pair, [])
    )


def _apart(pairs: PromptPairs) -> int:
    """The first place at which any clean prompt differs from its counterfactual one; in front of it all values are the same."""
    common = min(pairs.tokens.shape[1], pairs.counterfactual_tokens.shape[1])
    differs = (pairs.tokens[:, :common] != pairs.counterfactual_tokens[:, :common]).any(0)
    return int(differs.argmax()) if differs.any() else common


def _together(pairs: PromptPairs) -> set[frozenset[str]]:
    """The roles, two and two, that the same token has in any of the prompts."""
    roles = {name: at for name, at in pairs.positions.items() if not is_place(name)}
    return {
        frozenset(both)
        for both in combinations(roles, 2)
        if (roles[both[0]] == roles[both[1]]).any()
    }


def _moving(
    patches: tuple[Patch, ...],
    first: Mapping[str | None, int],
    apart: int,
    length: int,
    last_layer: int,
) -> tuple[Patch, ...]:
    """The patches of one intervention that may change something, together.

    One at a token's place does not where no later token reads what it puts in, or where that is there already: the counterfactual prompt's
    value in front of the first token that differs. It is not there any more where another patch changes what it is computed from: then
    putting it in takes a change back, which is how all paths but one are closed. first: as in _entry. Roles are left alone: a handful of
    positions, all of which matter.
    """
    read = tuple(p for p in patches if not _unread(p, length, last_layer))
    moves = [
        not (is_place(p.position) and p.replacement == "counterfactual" and int(p.position) < apart)
        for p in read
    ]
    if all(moves):
        return read
    changes = [(first[p.position], _turn(p)) for p, moved in zip(read, moves, strict=True) if moved]
    return tuple(
        p
        for p, moved in zip(read, moves, strict=True)
        if moved or any(at <= first[p.position] and turn < _turn(p) for at, turn in changes)
    )


def _unread(patch: Patch, length: int, last_layer: int) -> bool:
    """Whether no later token reads what a patch at a token's place puts in."""
    within = patch.layer == last_layer and patch.component not in ("residual", "edge")
    return within and is_place(patch.position) and int(patch.position) < length - 1


def _turn(patch: Patch) -> tuple[int, int]:
    """When a patched value is computed; values at the same or a later position with a later turn may be computed from it."""
    return patch.layer, TURNS[patch.component]


def _entry(one: Intervention, first: Mapping[str | None, int], length: int) -> tuple[int, int]:
    """Where an intervention leaves the clean run: first position and first layer; interventions that share both go together.

    first: the first token that each position is in any of the prompts.
    """
    return min((first[p.position] for p in one.patches), default=length), min(
        (p.layer for p in one.patches), default=0
    )


def _sharing(one: Intervention) -> list[tuple]:
    """Sorts interventions so that those that are patched alike in the first layers are neighbours."""
    return [
        (
            p.layer,
            p.component,
            p.position,
            p.key_position or "",
            p.replacement,
            p.given or "",
            p.units or b"",
        )
        for p in one.patches
    ]
