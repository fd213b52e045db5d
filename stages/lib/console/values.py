"""Values of `$NAME` in queries, as people type them."""

import re

from stages.lib.sql.database import QueryError

WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]*)")
REAL = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


def parameters(given: list[str]) -> dict[str, object]:
    """Return the values of NAME=VALUE pairs (see value_of)."""
    values: dict[str, object] = {}
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator:
            way_out = "Write -p layer=1 for the value of $layer, say."
            raise QueryError(f"expected NAME=VALUE after -p, found {pair!r}. {way_out}")
        values[name] = value_of(value)
    return values


def value_of(text: str) -> object:
    """Return the number that a text is written as, else the text itself: 007 and nan are text."""
    if WHOLE.fullmatch(text):
        return int(text)
    return float(text) if REAL.fullmatch(text) else text
