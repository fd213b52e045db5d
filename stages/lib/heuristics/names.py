"""Heuristics: sets of cells that a neuron may stand for, each with a name that reads well and a SQL predicate that means it.

A name is parsed back to its predicate, so that tables need keep the name alone. Types and parameters follow Nikankin et
al. 2025, App. E; `period` (a range within a period) and `digit sum` (of two digits, with or without a carry) are what their
examples need and their catalogue lacks; `carry` and `borrow` are what models that write digits may have (see asked.py).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class HeuristicError(ValueError):
    """A name that is no heuristic."""


@dataclass(frozen=True)
class Heuristic:
    """A set of cells. kind: as in FORMS, or custom; quantity: op1, op2, result, both (op1 and op2), or asked (see asked.py); predicate:
    SQL over a cell."""

    name: str
    kind: str
    quantity: str
    parameters: tuple[str, ...]
    predicate: str


Q = r"(op1|op2|result|asked)"
# kind -> what its names look like, and the predicate that the parts of a name stand for. A pattern is of three digits: 7 has them as 007, a
# number of four matches none. (lpad would cut 1234 to 123.)
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
    "both modulo": (r"op1 mod (\d+) = (\d+) and op2 mod (\d+) = (\d+)", "op1 % {0} = {1} and op2 % {2} = {3}"),
    "digit sum": (
        r"digits (1|10|100) of op1 and op2 sum to (\d+) (with|without) carry",
        "op1 // {0} % 10 + op2 // {0} % 10 = {1} and (op1 % {0} + op2 % {0} >= {0}) = ('{2}' = 'with')",
    ),
    "carry": (r"carry into (10|100)", "op1 % {0} + op2 % {0} >= {0}"),
    "borrow": (r"borrow from (10|100)", "op1 % {0} < op2 % {0}"),
}


def parse(name: str) -> Heuristic:
    """The heuristic of this name. Raises HeuristicError, with what names look like."""
    for kind, (form, predicate) in FORMS.items():
        if found := re.fullmatch(form, name):
            parts = found.groups()
            both = kind in ("identical", "both ranges", "both modulo", "digit sum", "carry", "borrow")
            quantity, parameters = ("both", parts) if both else (parts[0], parts[1:])
            return Heuristic(name, kind, quantity, parameters, predicate.format(*parts))
    raise HeuristicError(f"{name!r} is no heuristic; names look like {', '.join(form for form, _ in FORMS.values())}")


def is_name(text: str) -> bool:
    """Whether this text is the name of a heuristic."""
    return any(re.fullmatch(form, text) for form, _ in FORMS.values())


def ranges(quantity: str, largest: int, lengths: list[int], overlap: bool) -> Iterator[str]:
    """Ranges [start, start + length): starts 0, s, 2s, … with s = max(length // 3, 10), or the length where they do not overlap."""
    for length in lengths:
        step = max(length // 3, 10) if overlap else max(length, 1)
        for start in range(0, largest, step):
            yield f"{quantity} in {start}..{start + length - 1}"


def moduli(quantity: str, divisors: list[int]) -> Iterator[str]:
    for n in divisors:
        for m in range(n):
            yield f"{quantity} mod {n} = {m}"


def patterns(quantity: str, shapes: list[str]) -> Iterator[str]:
    """Three-digit patterns; shapes: where a digit stands, such as ".d." or "d.d"."""
    for shape in shapes:
        count = shape.count("d")
        for number in range(10**count):
            digits = iter(f"{number:0{count}}")
            yield f"{quantity} ~ " + "".join(next(digits) if mark == "d" else "." for mark in shape)


def periods(quantity: str, lengths: list[int]) -> Iterator[str]:
    """Ranges of two fifths of a period, starting at every tenth of it: op2 mod 50 in 5..24."""
    for period in lengths:
        for tenth in range(10):
            start, end = period * tenth // 10, period * tenth // 10 + period * 2 // 5 - 1
            if end < period:
                yield f"{quantity} mod {period} in {start}..{end}"


def digit_sums(places: Sequence[int]) -> Iterator[str]:
    """Sums of two digits of the same place (1, 10 or 100), split by whether the places below carry into it."""
    for place in places:
        for total in range(19):
            for carry in ("with", "without") if place > 1 else ("without",):
                yield f"digits {place} of op1 and op2 sum to {total} {carry} carry"
