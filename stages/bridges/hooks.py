"""Name a neuron, a head or another part of a model as TransformerLens does, and read such names.

    name, index = to_hook("neuron", 3, 17)    # "blocks.3.mlp.hook_post", (..., 17)
    activations = cache[name][index]          # (prompts, positions)
    from_hook("blocks.1.attn.hook_z[:, :, 2]")  # ModelPart("head", 1, 2)

Names are those of a HookedTransformer, and of a TransformerBridge in compatibility mode. Components
are those of a table of interventions, and two more: `attention` and `residual_after`.
"""

import re
from collections.abc import Mapping
from types import EllipsisType
from typing import NamedTuple

LAST: tuple[EllipsisType] = (...,)  # a unit is on the last axis of (prompts, positions, units)
THIRD = (slice(None), slice(None))  # a head is on the third of (prompts, positions, heads, width)
# ways to write the index of a unit, with # for its number
ON_LAST = ("...,#", ":,:,#")
ON_THIRD = (":,:,#", ":,:,#,:", "...,#,:")
NAME = re.compile(r"blocks\.(0|[1-9][0-9]*)\.([\w.]+)(?:\[([^\]]*)\])?")


class HookError(ValueError):
    """A part of a model that TransformerLens's hooks do not have, or a hook of no such part."""


class Kind(NamedTuple):
    """How a component is hooked.

    hook: its name within a layer; size: the column of `architecture` that counts its units, None if
    it has none; before: the index of all axes before the unit's; forms: ways to write the index.
    """

    hook: str
    size: str | None = None
    before: tuple[slice, slice] | tuple[EllipsisType] = LAST
    forms: tuple[str, ...] = ON_LAST


KINDS = {
    "neuron": Kind("mlp.hook_post", "neurons"),
    "head": Kind("attn.hook_z", "heads", THIRD, ON_THIRD),
    "mlp": Kind("hook_mlp_out"),
    "coordinate": Kind("hook_mlp_out", "width"),
    "attention": Kind("hook_attn_out"),
    "residual": Kind("hook_resid_pre"),
    "residual_after": Kind("hook_resid_post"),
}


class ModelPart(NamedTuple):
    """A part of a model.

    component: a name in KINDS. `residual` is the residual stream that enters a layer, as in a table
    of interventions; `residual_after` is the stream after the layer, as in the table `probes`.
    layer: decoder layer, from 0. unit: neuron, head or coordinate, from 0, else None.
    """

    component: str
    layer: int
    unit: int | None = None


class Hook(NamedTuple):
    """A hook point, and the index of a part of its tensor, which is (prompts, positions, …).

    `str()` writes both as in Python: blocks.3.mlp.hook_post[..., 17].
    """

    name: str
    part: tuple[int | slice | EllipsisType, ...] = LAST

    def __str__(self) -> str:
        if self.part == LAST:
            return self.name
        return f"{self.name}[{', '.join(map(_text, self.part))}]"


def to_hook(
    component: str,
    layer: int,
    unit: int | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Hook:
    """Return the hook point of a part of a model and the part's index in the hook's tensor.

    component, layer, unit: see ModelPart; without a unit, the index takes all units. sizes: the
    model's row of the table `architecture`, to check the numbers against the model.

    Raises HookError for an unknown component, or a number out of range.
    """
    if component not in KINDS:
        raise HookError(f"unknown component {component!r}; components: {', '.join(KINDS)}")
    kind = KINDS[component]
    _check(component, "layer", layer, (sizes or {}).get("layers"))
    name = f"blocks.{layer}.{kind.hook}"
    if unit is None:
        return Hook(name)
    if kind.size is None:
        raise HookError(f"{component} has no units, got unit {unit}; leave out the unit")
    _check(component, "unit", unit, (sizes or {}).get(kind.size))
    return Hook(name, (*kind.before, unit))


def from_hook(hook: Hook | str, sizes: Mapping[str, int] | None = None) -> ModelPart:
    """Return the part of a model that a hook and its index stand for.

    hook: what `to_hook` returns, or its text, with or without an index. sizes: see to_hook.

    Raises HookError for a text or a hook that stands for no such part, or a number out of range.
    """
    text = str(hook)
    match = NAME.fullmatch(text)
    if match is None:
        way_out = "write it as blocks.3.mlp.hook_post[..., 17]"
        raise HookError(f"{text!r} is not a hook of a layer; {way_out}")
    layer, name, index = int(match[1]), match[2], match[3]
    component = _component(name, index is not None)
    unit = None if index is None else _unit(text, component, index)
    to_hook(component, layer, unit, sizes)  # checks the numbers
    return ModelPart(component, layer, unit)


def _unit(text: str, component: str, index: str) -> int:
    """Return the unit that an index takes. text: the hook with its index."""
    parts = [part.strip() for part in index.split(",")]
    numbers = [part for part in parts if part.isdecimal()]
    form = ",".join("#" if part.isdecimal() else part for part in parts)
    if form not in KINDS[component].forms:
        example = to_hook(component, 3, 17)
        raise HookError(f"{text!r} does not index one {component}; write it as {example}")
    return int(numbers[0])


def _component(name: str, has_unit: bool) -> str:
    """Return the component of a hook. Without a unit, hook_mlp_out is the MLP, not a coordinate."""
    named = [component for component, kind in KINDS.items() if kind.hook == name]
    if not named:
        known = ", ".join(dict.fromkeys(kind.hook for kind in KINDS.values()))
        raise HookError(f"hook {name!r} stands for no component; known hooks: {known}")
    with_units = [component for component in named if KINDS[component].size]
    if has_unit and not with_units:
        raise HookError(f"{named[0]} has no units, but {name} has an index; leave out the index")
    return with_units[0] if has_unit else named[0]


def _check(component: str, kind: str, number: int, size: int | None) -> None:
    """Raise HookError unless a layer or unit is a number from 0, and below size if it is known."""
    allowed = "0 or more" if size is None else f"0 to {size - 1}"
    is_whole = isinstance(number, int) and not isinstance(number, bool)
    if not is_whole or number < 0 or (size is not None and number >= size):
        raise HookError(f"{kind} of {component} is {number!r}; allowed: whole numbers, {allowed}")


def _text(index: int | slice | EllipsisType) -> str:
    if index is ...:
        return "..."
    return ":" if isinstance(index, slice) else str(index)
