"""Templates in params.yaml: text with {placeholders}, checked for those that it needs."""

from string import Formatter
from typing import Annotated

from pydantic import AfterValidator


def placeholders(template: str) -> list[str]:
    """The names of a template's placeholders, in order. Raises ValueError on a brace without its other half."""
    return [name for _, name, _, _ in Formatter().parse(template) if name is not None]


def holding(*needed: str, any_of: tuple[str, ...] = ()) -> AfterValidator:
    """Accepts templates with all the placeholders `needed`, one or more of `any_of` where it names any, and no others."""

    def check(template: str) -> str:
        found = set(placeholders(template))
        known = ", ".join(f"{{{name}}}" for name in (*needed, *any_of))
        for name in needed:
            if name not in found:
                raise ValueError(f"it lacks the placeholder {{{name}}}; it needs {known}")
        if any_of and not found & set(any_of):
            raise ValueError(f"it lacks a placeholder for the operator: one or more of {', '.join(f'{{{name}}}' for name in any_of)}")
        if unknown := sorted(found - {*needed, *any_of}):
            raise ValueError(f"{{{unknown[0]}}} is no placeholder here; there are {known}")
        return template

    return AfterValidator(check)


TwoOperands = Annotated[str, holding("x", "y", any_of=("symbol", "verb", "noun"))]
ThreeOperands = Annotated[str, holding("x", "y", "z", "first", "second")]
Retrieval = Annotated[str, holding("x", "y", "a", "b", "q")]
Fact = Annotated[str, holding("entity")]
