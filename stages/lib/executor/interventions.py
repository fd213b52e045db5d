"""Read interventions from tables and check them against the model that they are meant for.

A table of interventions has one row per patch. Rows with the same number are applied together. This
module knows what rows mean, but runs nothing.

A position is a role, whose token has another location in each prompt, or a location: the number of
a token, from 0, in digits. An intervention at a location applies to the pairs whose two prompts
both have it. A coordinate is one component of the output vector of an MLP's output projection,
before any norm that follows. Neurons of the same layer are replaced before coordinates.
"""

import gc
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeGuard

import numpy as np
import polars as pl

from stages.lib.core.vocabulary import OPERATORS
from stages.lib.executor.columns import INTEGER, INTEGERS, TEXT, InterventionError, typed
from stages.lib.model.architecture import Architecture

COMPONENTS = ("none", "mlp", "head", "neuron", "coordinate", "residual", "edge")
# replacement -> operator of the mean; None: the mean over operators, weighted equally
MEANS: dict[str, str | None] = {"mean": None}
MEANS |= {f"mean_{operator}": operator for operator in OPERATORS}
REPLACEMENTS = ("zero", *MEANS, "counterfactual", "given")
# component -> its replacements; every other component takes all of them
REPLACEABLE = {
    "edge": ("zero",),
    "coordinate": ("zero", "counterfactual"),
    "head": REPLACEMENTS[:-1],
}
COLUMNS = {
    "intervention": INTEGER,
    "operator": TEXT,
    "split": TEXT,
    "component": TEXT,
    "layer": INTEGER,
    "units": INTEGERS,
    "position": TEXT,
    "key_position": TEXT,
    "replacement": TEXT,
}
OPTIONAL = {"pair": INTEGER, "given": TEXT}  # a table may lack these columns
SPLITS = ("discovery", "evaluation")
EARLIER = "earlier"  # every position before an edge's query
ALL = "all"  # every position of the prompt
PLACE = re.compile("0|[1-9][0-9]*")
Prompts = tuple[str | None, str | None, int | None]  # operator, split, pair; None for any


@dataclass(frozen=True)
class Patch:
    """One replaced value.

    units: heads, neurons or coordinates as int32 bytes (hashable, small), None for all of them;
    position: a role, a location in digits, or "all"; key_position: of an edge, else None; given:
    name of the external values that replace it (external_values.py), None for other replacements.
    """

    component: str
    layer: int
    units: bytes | None
    position: str
    key_position: str | None
    replacement: str
    given: str | None = None

    def unit_numbers(self) -> np.ndarray | None:
        return None if self.units is None else np.frombuffer(self.units, np.int32)


CopyPatches = Sequence[tuple[int, Patch]]  # patches, each with the number of the copy it changes


def on_component(patches: CopyPatches, component: str) -> CopyPatches:
    """Return the patches of one component."""
    return [(copy, patch) for copy, patch in patches if patch.component == component]


@dataclass(frozen=True)
class Intervention:
    """Patches that are applied together.

    operator, split: of the prompts they apply to, None for any; pair: the only pair they apply to,
    None for any. Without patches it is the clean run.
    """

    number: int
    operator: str | None
    split: str | None
    patches: tuple[Patch, ...]
    pair: int | None = None

    def at(self, layer: int) -> tuple[Patch, ...]:
        """Return the patches in one layer."""
        return tuple(p for p in self.patches if p.layer == layer)

    def prompts(self) -> Prompts:
        return self.operator, self.split, self.pair


def read(
    table: pl.DataFrame, architecture: Architecture, roles: Sequence[str]
) -> list[Intervention]:
    """Return the interventions of a table, in order of their number.

    The columns in OPTIONAL may be missing. Raises InterventionError for the first row that cannot
    be run.
    """
    collecting = gc.isenabled()
    gc.disable()  # it would look through a million small objects, none of them garbage, repeatedly
    try:
        return _read(table, architecture, roles)
    finally:
        if collecting:
            gc.enable()


class Row(NamedTuple):
    """One row of a table of interventions, without its units."""

    intervention: int
    operator: str | None
    split: str | None
    pair: int | None
    component: str
    layer: int
    position: str
    key_position: str | None
    replacement: str
    given: str | None

    def prompts(self) -> Prompts:
        return self.operator, self.split, self.pair


def _read(
    table: pl.DataFrame, architecture: Architecture, roles: Sequence[str]
) -> list[Intervention]:
    table = typed(table, "interventions", "intervention", COLUMNS, OPTIONAL)
    prompts: dict[int, Prompts] = {}
    patches: dict[int, list[Patch]] = {}
    for row, patch in _checked(table, architecture, roles):
        number = row.intervention
        if number not in prompts:
            _among(number, "operator", row.operator, [None, *OPERATORS])
            _among(number, "split", row.split, [None, *SPLITS])
            prompts[number], patches[number] = row.prompts(), []
        elif prompts[number] != row.prompts():
            raise InterventionError(f"intervention {number}: its rows name different prompts")
        if patch:
            patches[number].append(patch)
    for number, together in patches.items():
        if len(together) > 1:
            check_apart(number, together)
    interventions = []
    for number, (operator, split, pair) in sorted(prompts.items()):
        ordered = tuple(sorted(patches[number], key=_order))
        interventions.append(Intervention(number, operator, split, ordered, pair))
    return interventions


def _checked(
    table: pl.DataFrame, architecture: Architecture, roles: Sequence[str]
) -> Iterator[tuple[Row, Patch | None]]:
    """Yield each row and its patch, None for the component `none`. Raises InterventionError."""
    units = Units(table["units"])
    doubtful = units.doubtful(table["component"], architecture)
    checked: set[tuple] = set()  # what rows of large tables have in common is checked once
    for index, row in enumerate(map(Row._make, table.select(Row._fields).iter_rows())):
        if row.component == "none":
            yield row, None
            continue
        packed = units.packed(index)
        what, where = (row.component, row.layer), (row.position, row.key_position)
        patch = Patch(*what, packed, *where, row.replacement, row.given)
        shared = what, packed is None, where, row.replacement, row.given
        if shared not in checked or doubtful[index]:
            _check(row.intervention, patch, architecture, roles)
            checked.add(shared)
        yield row, patch


def _order(patch: Patch) -> tuple:
    return patch.layer, patch.component, patch.position, patch.units or b""


class Units:
    """A column of lists as one array: tables may have 10^5 rows with hundreds of units each."""

    def __init__(self, column: pl.Series):
        self.missing = column.is_null().to_list()
        self.flat = column.drop_nulls().to_arrow().flatten().to_numpy()
        self.ends = column.list.len().fill_null(0).cum_sum().to_list()

    def packed(self, row: int) -> bytes | None:
        """Return a row's units in rising order as int32, None if it has no list."""
        if self.missing[row]:
            return None
        start = self.ends[row - 1] if row else 0
        units = self.flat[start : self.ends[row]]
        if row in self.unordered:
            units = np.sort(units)
        return units.astype(np.int32).tobytes()

    @cached_property
    def unordered(self) -> set[int]:
        """Rows whose units do not rise strictly: in another order, or with a repeated unit."""
        falls = np.flatnonzero(np.diff(self.flat) <= 0) + 1  # units not above the one before
        rows = np.searchsorted(self.ends, falls, side="right")
        starts = np.array([0, *self.ends])[rows]
        return set(rows[falls > starts].tolist())

    def doubtful(self, component: pl.Series, architecture: Architecture) -> list[bool]:
        """Return for each row whether a unit may be repeated or may not exist."""
        ends = np.array(self.ends, dtype=int)
        lengths = np.diff(ends, prepend=0)
        some = lengths > 0
        first = np.zeros(len(ends), self.flat.dtype)
        last = first.copy()
        first[some] = self.flat[(ends - lengths)[some]]
        last[some] = self.flat[ends[some] - 1]
        counts = component.replace_strict(
            _counts(architecture), default=0, return_dtype=pl.Int64
        ).to_numpy()
        doubtful = some & ((first < 0) | (last >= counts))
        doubtful[list(self.unordered)] = True
        return doubtful.tolist()


def _counts(a: Architecture) -> dict[str, int]:
    """Return how many units each component has."""
    return {"neuron": a.neurons, "coordinate": a.width, "head": a.heads, "edge": a.heads}


def is_place(position: str | None) -> TypeGuard[str]:
    """Return whether a position is a location, in digits, rather than a role."""
    return position is not None and PLACE.fullmatch(position) is not None


def _among(number: int, what: str, value: object, allowed: Sequence, more: str = "") -> None:
    if value not in allowed:
        known = ", ".join(map(str, allowed))
        raise InterventionError(
            f"intervention {number}: {what} {value!r} does not exist; there are {known}{more}"
        )


def _position(number: int, what: str, value: str | None, named: Sequence[str]) -> None:
    if not is_place(value):
        _among(number, what, value, named, ", or the index of a token, from 0")


def _check(number: int, patch: Patch, architecture: Architecture, roles: Sequence[str]) -> None:
    """Raise InterventionError if a patch names what does not exist."""
    _among(number, "component", patch.component, COMPONENTS)
    layers = len(architecture.layers)
    if patch.layer is None or not 0 <= patch.layer < layers:
        raise InterventionError(
            f"intervention {number}: layer {patch.layer} does not exist; "
            f"the subject has the layers 0..{layers - 1}"
        )
    if patch.component == "edge":
        _position(number, "position", patch.position, roles)
        _position(number, "key position", patch.key_position, [*roles, EARLIER])
    else:
        _position(number, "position", patch.position, [*roles, ALL])
        _among(number, "key position", patch.key_position, [None])
    allowed = REPLACEABLE.get(patch.component, REPLACEMENTS)
    _among(number, "replacement", patch.replacement, allowed)
    is_external, is_named = patch.replacement == "given", patch.given is not None
    if is_external != is_named or (is_named and patch.position == ALL):
        raise InterventionError(
            f"intervention {number}: the replacement given needs a name in the column given, "
            "and one position"
        )
    _check_units(number, patch, architecture)


def _check_units(number: int, patch: Patch, architecture: Architecture) -> None:
    """Raise InterventionError if a patch repeats a unit or names one that does not exist."""
    units = patch.unit_numbers()
    counts = _counts(architecture)
    if units is None:
        return
    name = patch.component
    if name not in counts:
        raise InterventionError(
            f"intervention {number}: {name} has no units; leave the column null"
        )
    if len(units) != len(np.unique(units)):
        raise InterventionError(f"intervention {number}: its {name}s name one unit twice")
    wrong = units[(units < 0) | (units >= counts[name])]
    if len(wrong):
        unit = "head" if name == "edge" else name
        raise InterventionError(
            f"intervention {number}: {unit} {wrong[0]} does not exist; "
            f"there are 0..{counts[name] - 1}"
        )


def check_apart(
    number: int, patches: Sequence[Patch], together: Collection[frozenset[str]] = ()
) -> None:
    """Raise InterventionError if two patches of one intervention replace the same value.

    A role and a location count as the same position, since in some prompt they may be. together:
    pairs of roles that are the same token.
    """
    by_layer: dict[tuple[str, int], list[Patch]] = {}
    for patch in patches:
        kind = "neuron" if patch.component == "mlp" else patch.component
        earlier = by_layer.setdefault((kind, patch.layer), [])
        for other in earlier:
            if kind == "edge" or not _overlap(patch, other, together):
                continue
            at = " and ".join(sorted({patch.position, other.position}))
            values = f"{kind} values of layer {patch.layer} at {at}"
            raise InterventionError(f"intervention {number} replaces {values} twice")
        earlier.append(patch)


def _overlap(patch: Patch, other: Patch, together: Collection[frozenset[str]]) -> bool:
    """Return whether two patches of one layer may share a position and share a unit."""
    both = frozenset({patch.position, other.position})
    same_kind = is_place(patch.position) == is_place(other.position)
    if len(both) == 2 and ALL not in both and same_kind and both not in together:
        return False
    mine, theirs = patch.unit_numbers(), other.unit_numbers()
    return mine is None or theirs is None or len(np.intersect1d(mine, theirs)) > 0
