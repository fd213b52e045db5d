"""Define heuristics: sets of cells that a neuron may implement, each with a name and a predicate.

A name such as `op1 mod 2 = 0` reads well, and `parse` turns it back into its SQL predicate. So
tables store the name alone. Types and parameters follow Nikankin et al. 2025, App. E. Four types
are ours: `period` (a range within a period) and `digit sum` (of two digits, with or without a
carry) are in the study's examples but not in its catalogue, `carry` and `borrow` are for models
that predict digits (see answer_tokens.py).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class HeuristicError(ValueError):
    """Raised for a name that stands for no heuristic."""


@dataclass(frozen=True)
class Heuristic:
    """A set of cells.

    kind: as in FORMS, or custom; quantity: op1, op2, result, both (op1 and op2), asked (see
    answer_tokens.py) or custom; parameters: the numbers and patterns in its name; predicate: SQL
    over a cell's columns.
    """

    name: str
    kind: str
    quantity: str
    parameters: tuple[str, ...]
    predicate: str


Q = r"(op1|op2|result|asked)"
BOTH = ("identical", "both ranges", "both modulo", "digit sum", "carry", "borrow")  # about op1, op2
# kind -> the form of its names, and the predicate, which takes the groups of the form. A pattern
# has three digits: 7 counts as 007, and a number of four digits matches none (lpad would cut 1234
# to 123).
FORMS: dict[str, tuple[str, str]] = {
    "range": (rf"{Q} in (\d+)\.\.(\d+)", "{0} between {1} and {2}"),
    "modulo": (rf"{Q} mod (\d+) = (\d+)", "{0} % {1} = {2}"),
    "pattern": (rf"{Q} ~ ([.\d]{{3}})", "regexp_full_match(format('{{:03}}', {0}), '{1}')"),
    "value": (rf"{Q} = (\d+)", "{0} = {1}"),
    "identical": (r"op1 = op2", "op1 = op2"),
    "multi-result": (rf"{Q} in \{{(\d+(?:, \d+)+)\}}", "{0} in ({1})"),
    "period": (rf"{Q} mod (\d+) in (\d+)\.\.(\d+)", "{0} % {1} between {2} and {3}"),
    "both ranges": (
        r"op1 in (\d+)\.\.(\d+) and op2 in (\d+)\.\.(\d+)",
        "op1 between {0} and {1} and op2 between {2} and {3}",
    ),
    "both modulo": (
        r"op1 mod (\d+) = (\d+) and op2 mod (\d+) = (\d+)",
        "op1 % {0} = {1} and op2 % {2} = {3}",
    ),
    "digit sum": (
        r"digits (1|10|100) of op1 and op2 sum to (\d+) (with|without) carry",
        "op1 // {0} % 10 + op2 // {0} % 10 = {1} "
        "and (op1 % {0} + op2 % {0} >= {0}) = ('{2}' = 'with')",
    ),
    "carry": (r"carry into (10|100)", "op1 % {0} + op2 % {0} >= {0}"),
    "borrow": (r"borrow from (10|100)", "op1 % {0} < op2 % {0}"),
}


def parse(name: str) -> Heuristic:
    """Return the heuristic of this name. Raises HeuristicError, which lists the forms of names."""
    for kind, (form, predicate) in FORMS.items():
        match = re.fullmatch(form, name)
        if match is None:
            continue
        parts = match.groups()
        text = predicate.format(*parts)
        if kind in BOTH:
            return Heuristic(name, kind, "both", parts, text)
        return Heuristic(name, kind, parts[0], parts[1:], text)
    forms = ", ".join(form for form, _ in FORMS.values())
    raise HeuristicError(f"{name!r} is not a heuristic; names look like {forms}")


def is_name(text: str) -> bool:
    """Check whether this text is the name of a heuristic."""
    return any(re.fullmatch(form, text) for form, _ in FORMS.values())


def ranges(quantity: str, largest: int, lengths: list[int], overlap: bool) -> Iterator[str]:
    """Yield ranges [start, start + length) below `largest`.

    Starts are 0, s, 2s, … with s = max(length // 3, 10), or s = length if ranges do not overlap.
    """
    for length in lengths:
        step = max(length // 3, 10) if overlap else max(length, 1)
        for start in range(0, largest, step):
            yield f"{quantity} in {start}..{start + length - 1}"


def moduli(quantity: str, divisors: list[int]) -> Iterator[str]:
    """Yield every remainder of every divisor."""
    for divisor in divisors:
        for remainder in range(divisor):
            yield f"{quantity} mod {divisor} = {remainder}"


def patterns(quantity: str, shapes: list[str]) -> Iterator[str]:
    """Yield patterns of three digits; shapes: which digits are fixed, such as ".d." or "d.d"."""
    for shape in shapes:
        count = shape.count("d")
        for number in range(10**count):
            pattern = shape
            for digit in f"{number:0{count}}":
                pattern = pattern.replace("d", digit, 1)
            yield f"{quantity} ~ {pattern}"


def periods(quantity: str, lengths: list[int]) -> Iterator[str]:
    """Yield ranges of two fifths of a period, at every tenth of it, such as op2 mod 50 in 5..24."""
    for period in lengths:
        for tenth in range(10):
            start = period * tenth // 10
            end = start + period * 2 // 5 - 1
            if end < period:
                yield f"{quantity} mod {period} in {start}..{end}"


def digit_sums(places: Sequence[int]) -> Iterator[str]:
    """Yield sums of two digits at the same place (1, 10 or 100), with and without a carry in."""
    for place in places:
        carries = ("with", "without") if place > 1 else ("without",)
        for total in range(19):
            for carry in carries:
                yield f"digits {place} of op1 and op2 sum to {total} {carry} carry"
