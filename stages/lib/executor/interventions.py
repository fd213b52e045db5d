"""Interventions as rows: which component is replaced by what, in which prompts; checked against the model they are meant for.

A table of interventions has one row per patch; rows with the same number are applied together. This module knows their
meaning but runs nothing. A position is a role, whose token stands elsewhere in each prompt, or a token's place, counted from 0
and written in digits; an intervention at a place is meant for the pairs whose prompts both have it. A coordinate is one number of what
an MLP's output projection puts out, before a norm that may follow: of that, neurons of the same layer are replaced first.
"""

import gc
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeGuard

import numpy as np
import polars as pl

from stages.lib.core.words import OPERATORS
from stages.lib.executor.columns import INTEGER, INTEGERS, TEXT, InterventionError, typed
from stages.lib.model.architecture import Architecture

COMPONENTS = ("none", "mlp", "head", "neuron", "coordinate", "residual", "edge")
# replacement -> operator whose mean it is; None: the mean over operators, weighted equally
MEANS: dict[str, str | None] = {
    "mean": None, **{f"mean_{operator}": operator for operator in OPERATORS}
}  # fmt: skip
REPLACEMENTS = ("zero", *MEANS, "counterfactual", "given")
# kind of patch -> its replacements; every other kind takes all of them
REPLACEABLE = {
    "edge": ("zero",),
    "coordinate": ("zero", "counterfactual"),
    "head": REPLACEMENTS[:-1],
}
COLUMNS = {
    "intervention": INTEGER, "operator": TEXT, "split": TEXT, "component": TEXT, "layer": INTEGER, "units": INTEGERS, "position": TEXT,
    "key_position": TEXT, "replacement": TEXT,
}  # fmt: skip
OPTIONAL = {"pair": INTEGER, "given": TEXT}  # columns that a table may have besides
SPLITS = ("discovery", "evaluation")
EARLIER = "earlier"  # every position in front of an edge's query
ALL = "all"  # every position of the prompt
PLACE = re.compile("0|[1-9][0-9]*")


@dataclass(frozen=True)
class Patch:
    """One replaced value. units: heads, neurons or coordinates as int32 bytes (hashable, small), None for all of them; given: the name of
    what is put in, of a replacement that the table brings along (see given.py)."""

    component: str
    layer: int
    units: bytes | None
    position: str
    key_position: str | None
    replacement: str
    given: str | None = None

    def chosen(self) -> np.ndarray | None:
        return None if self.units is None else np.frombuffer(self.units, np.int32)


@dataclass(frozen=True)
class Intervention:
    """Patches applied together, to the prompts of one operator and split (None: of any), or to one pair's. No patch: the clean run."""

    number: int
    operator: str | None
    split: str | None
    patches: tuple[Patch, ...]
    pair: int | None = None

    def at(self, layer: int) -> tuple[Patch, ...]:
        return tuple(p for p in self.patches if p.layer == layer)


def read(
    table: pl.DataFrame, architecture: Architecture, roles: Sequence[str]
) -> list[Intervention]:
    """The interventions of a table, in order of their number. Raises InterventionError on the first row that cannot be run.

    A column `pair` is optional: a number there says that the row is meant for this pair alone; so is `given`, the name of what a row
    whose replacement is `given` puts in.
    """
    collecting = gc.isenabled()
    gc.disable()  # a million small objects, none of them garbage, would be looked through again and again
    try:
        return _read(table, architecture, roles)
    finally:
        if collecting:
            gc.enable()


def _read(
    table: pl.DataFrame, architecture: Architecture, roles: Sequence[str]
) -> list[Intervention]:
    table = typed(table, "interventions", "intervention", COLUMNS, OPTIONAL)
    units = Units(table["units"])
    doubtful = units.doubtful(table["component"], architecture)
    found: dict[int, Intervention] = {}
    patches: dict[int, list[Patch]] = {}
    seen: set[tuple] = set()  # what rows of large tables have in common is checked once
    rows = table.drop("units").iter_rows()
    for place, (
        number,
        operator,
        split,
        component,
        layer,
        position,
        key_position,
        replacement,
        pair,
        given,
    ) in enumerate(rows):
        if number not in found:
            _among(number, "operator", operator, [None, *OPERATORS])
            _among(number, "split", split, [None, *SPLITS])
            found[number], patches[number] = Intervention(number, operator, split, (), pair), []
        one = found[number]
        if (one.operator, one.split, one.pair) != (operator, split, pair):
            raise InterventionError(f"intervention {number}: its rows name different prompts")
        if component != "none":
            patch = Patch(
                component, layer, units.packed(place), position, key_position, replacement, given
            )
            kind = component, layer, patch.units is None, position, key_position, replacement, given
            if kind not in seen or doubtful[place]:
                _check(number, patch, architecture, roles)
                seen.add(kind)
            patches[number].append(patch)
    for number, several in patches.items():
        if len(several) > 1:
            check_apart(number, several)
    key = lambda p: (p.layer, p.component, p.position, p.units or b"")  # noqa: E731
    return [
        Intervention(
            number, one.operator, one.split, tuple(sorted(patches[number], key=key)), one.pair
        )
        for number, one in sorted(found.items())
    ]


class Units:
    """A column of lists, read as one array: tables may have hundreds of thousands of rows with hundreds of units."""

    def __init__(self, column: pl.Series):
        self.missing = column.is_null().to_list()
        self.flat = column.drop_nulls().to_arrow().flatten().to_numpy()
        self.ends = column.list.len().fill_null(0).cum_sum().to_list()

    def packed(self, row: int) -> bytes | None:
        """A row's units in their order as int32, None where it has no list."""
        if self.missing[row]:
            return None
        chosen = self.flat[self.ends[row - 1] if row else 0 : self.ends[row]]
        return (chosen if row not in self.unordered else np.sort(chosen)).astype(np.int32).tobytes()

    @cached_property
    def unordered(self) -> set[int]:
        """Rows whose units do not rise strictly: in another order, or one of them twice."""
        falls = (
            np.flatnonzero(np.diff(self.flat) <= 0) + 1
        )  # places that are not above the one before
        rows = np.searchsorted(self.ends, falls, side="right")
        starts = np.array([0, *self.ends])[rows]
        return set(rows[falls > starts].tolist())

    def doubtful(self, component: pl.Series, architecture: Architecture) -> list[bool]:
        """Whether each row's units may name one twice, or one that does not exist."""
        counts, ends = _counts(architecture), np.array(self.ends, dtype=int)
        chosen = np.diff(ends, prepend=0) > 0
        first, last = np.zeros(len(ends), self.flat.dtype), np.zeros(len(ends), self.flat.dtype)
        first[chosen], last[chosen] = (
            self.flat[(ends - np.diff(ends, prepend=0))[chosen]],
            self.flat[ends[chosen] - 1],
        )
        most = component.replace_strict(counts, default=0, return_dtype=pl.Int64).to_numpy()
        wrong = chosen & ((first < 0) | (last >= most))
        return [bad or row in self.unordered for row, bad in enumerate(wrong.tolist())]


def _counts(a: Architecture) -> dict[str, int]:
    """How many units a component has."""
    return {"neuron": a.neurons, "coordinate": a.width, "head": a.heads, "edge": a.heads}


def is_place(position: str | None) -> TypeGuard[str]:
    """Whether a position is a token's place, in digits, and no role."""
    return position is not None and PLACE.fullmatch(position) is not None


def _among(number: int, what: str, value: object, allowed: Sequence, more: str = "") -> None:
    if value not in allowed:
        raise InterventionError(
            f"intervention {number}: {what} {value!r} does not exist; there are {', '.join(map(str, allowed))}{more}"
        )


def _position(number: int, what: str, value: str | None, named: Sequence[str]) -> None:
    if not is_place(value):
        _among(number, what, value, named, ", or a token's place from 0")


def _check(number: int, patch: Patch, architecture: Architecture, roles: Sequence[str]) -> None:
    _among(number, "component", patch.component, COMPONENTS)
    layers = len(architecture.layers)
    if patch.layer is None or not 0 <= patch.layer < layers:
        raise InterventionError(
            f"intervention {number}: layer {patch.layer} does not exist; the subject has the layers 0..{layers - 1}"
        )
    edge = patch.component == "edge"
    _position(number, "position", patch.position, roles if edge else [*roles, ALL])
    if edge:
        _position(number, "key position", patch.key_position, [*roles, EARLIER])
    else:
        _among(number, "key position", patch.key_position, [None])
    _among(number, "replacement", patch.replacement, REPLACEABLE.get(patch.component, REPLACEMENTS))
    if (patch.replacement == "given") != (patch.given is not None) or (
        patch.given is not None and patch.position == ALL
    ):
        raise InterventionError(
            f"intervention {number}: what is given needs a name in the column given, and one position"
        )
    units = patch.chosen()
    counts = _counts(architecture)
    if units is None:
        return
    if patch.component not in counts:
        raise InterventionError(
            f"intervention {number}: {patch.component} has no units; leave the column null"
        )
    if len(units) != len(np.unique(units)):
        raise InterventionError(
            f"intervention {number}: its {patch.component}s name one unit twice"
        )
    if len(units) and not 0 <= units[0] <= units[-1] < counts[patch.component]:
        wrong = units[0] if units[0] < 0 else units[-1]
        name = "head" if edge else patch.component
        raise InterventionError(
            f"intervention {number}: {name} {wrong} does not exist; there are 0..{counts[patch.component] - 1}"
        )


def check_apart(
    number: int, patches: Sequence[Patch], together: Collection[frozenset[str]] = ()
) -> None:
    """Raises InterventionError where two patches of one intervention replace the same value, so that it is not clear by what.

    A role and a place count as the same position: in some prompt they may be. together: roles that are, two and two.
    """
    places: dict[tuple[str, int], list[Patch]] = {}
    for patch in patches:
        kind = "neuron" if patch.component == "mlp" else patch.component
        for other in places.setdefault((kind, patch.layer), []):
            both = {patch.position, other.position}
            same_position = (
                len(both) == 1
                or ALL in both
                or len({is_place(position) for position in both}) == 2
                or both in together
            )
            mine, theirs = patch.chosen(), other.chosen()
            if (
                kind != "edge"
                and same_position
                and (mine is None or theirs is None or len(np.intersect1d(mine, theirs)))
            ):
                at = " and ".join(sorted(both))
                raise InterventionError(
                    f"intervention {number} replaces {kind} values of layer {patch.layer} at {at} twice"
                )
        places[kind, patch.layer].append(patch)
