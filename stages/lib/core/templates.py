"""Templates of prompts, as settings hold them: text with placeholders such as {op1}, checked before anything is asked with them."""

from string import Formatter

from pydantic import AfterValidator


def placeholders(template: str) -> list[str]:
    """The names of a template's placeholders, in order.

    Raises ValueError on a brace without its other half, on a placeholder that is more than a name, and on control characters.
    """
    if control := next((letter for letter in template if ord(letter) < 32), None):
        raise ValueError(f"it holds the control character {control!r}")
    names = []
    for _, name, form, conversion in Formatter().parse(template):
        if name is None:
            continue
        if form or conversion or not name or set(name) & set(".[]"):
            raise ValueError("a placeholder is a name in braces and nothing else, such as {op1}")
        names.append(name)
    return names


def holding(*needed: str, any_of: tuple[str, ...] = ()) -> AfterValidator:
    """Accepts templates with all the placeholders `needed`, one or more of `any_of` where it names any, and no others."""
    known = ", ".join(f"{{{name}}}" for name in (*needed, *any_of))

    def check(template: str) -> str:
        try:
            found = set(placeholders(template))
        except ValueError as error:
            raise ValueError(f"{error}; it needs {known}") from None
        for name in needed:
            if name not in found:
                raise ValueError(f"it lacks the placeholder {{{name}}}; it needs {known}")
        if any_of and not found & set(any_of):
            raise ValueError(
                f"it lacks a placeholder for the operator: one or more of {', '.join(f'{{{name}}}' for name in any_of)}"
            )
        if unknown := sorted(found - {*needed, *any_of}):
            raise ValueError(f"{{{unknown[0]}}} is no placeholder here; there are {known}")
        return template

    return AfterValidator(check)
