"""Check the templates of prompts in settings: text with placeholders such as {op1}."""

from string import Formatter

from pydantic import AfterValidator


def placeholders(template: str) -> list[str]:
    """Return the names of a template's placeholders, in order.

    Raises ValueError on an unpaired brace, on a placeholder that is more than a name, and on
    control characters.
    """
    for letter in template:
        if ord(letter) < 32:
            raise ValueError(f"it holds the control character {letter!r}")
    names = []
    for _, name, form, conversion in Formatter().parse(template):
        if name is None:
            continue
        if form or conversion or not name or set(name) & set(".[]"):
            raise ValueError("a placeholder is a name in braces and nothing else, such as {op1}")
        names.append(name)
    return names


def holding(*needed: str, any_of: tuple[str, ...] = ()) -> AfterValidator:
    """Return a check that a template has the placeholders `needed` and no unknown ones.

    any_of: placeholders of which it must have one or more, if there are any.
    """

    def check(template: str) -> str:
        known = _listed(needed + any_of)
        try:
            names = set(placeholders(template))
        except ValueError as error:
            raise ValueError(f"{error}; it needs {known}") from None
        for name in needed:
            if name not in names:
                raise ValueError(f"it lacks the placeholder {{{name}}}; it needs {known}")
        if any_of and names.isdisjoint(any_of):
            problem = "it lacks a placeholder for the operator"
            raise ValueError(f"{problem}: one or more of {_listed(any_of)}")
        for name in sorted(names.difference(needed, any_of)):
            raise ValueError(f"{{{name}}} is no placeholder here; there are {known}")
        return template

    return AfterValidator(check)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)
