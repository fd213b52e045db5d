"""What is asked, as the address of the page has it: each field is text, and what it may be is said where it is read."""

import math
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from stages.explorer.project import ExplorerError, Project
from stages.lib.core.words import OPERATORS

LONGEST = 20_000  # characters of an address
SIGNS = {"−": "-", "–": "-", "×": "*", "x": "*", "·": "*", ":": "/", "÷": "/"}  # what people type
PROMPT = re.compile(r"\s*(\d{1,6})\s*(\S)\s*(\d{1,6})\s*=?\s*")
UNIT = re.compile(r"\s*(\d{1,6})\s*[:./]\s*(\d{1,9})\s*")


class Question(Mapping[str, str]):
    """The fields of a view by name; those left empty are not there."""

    def __init__(self, fields: Mapping[str, object]):
        self._fields = {name: str(value) for name, value in fields.items() if value not in (None, "")}

    @classmethod
    def of(cls, search: str | None) -> "Question":
        """From the part of an address behind its question mark."""
        return cls(dict(parse_qsl((search or "").removeprefix("?")[:LONGEST])))

    def search(self) -> str:
        """That part of the address."""
        return "?" + urlencode(self._fields) if self._fields else ""

    def __getitem__(self, name: str) -> str:
        return self._fields[name]

    def __iter__(self):
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def but(self, **changes: object) -> "Question":
        """The same with other values."""
        return Question({**self._fields, **changes})

    def whole(self, name: str, default: int) -> int:
        """A field that is a whole number from 0."""
        text = self.get(name, str(default)).strip()
        if not re.fullmatch(r"\d{1,9}", text):
            raise ExplorerError(f"{name} is {text!r}; it is a whole number from 0 on, such as {default}.")
        return int(text)

    def number(self, name: str) -> float | None:
        """A field that is a number, None where it is empty."""
        text = self.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?\s*", text):
            raise ExplorerError(f"{name} is {text!r}; it is a number, such as 0.25, or left empty.")
        if math.isinf(value := float(text)):
            allowed = "a number has at most 308 digits before the point"
            raise ExplorerError(f"{name} is {text!r}; {allowed}.")
        return value

    def one_of(self, name: str, allowed: list[str], default: str | None = None) -> str:
        """A field with a few values."""
        text = self.get(name, default if default in allowed else allowed[0])
        if text not in allowed:
            raise ExplorerError(f"{name} is {text!r}; it is one of {', '.join(allowed)}.")
        return text

    def subject(self, project: Project, name: str = "subject", default: int = 0) -> str:
        """A subject that is there."""
        return self.one_of(name, project.subjects, project.subjects[min(default, len(project.subjects) - 1)])

    def operator(self) -> str:
        return self.one_of("operator", list(OPERATORS))


def prompt(text: str, symbols: Mapping[str, str]) -> tuple[str, int, int]:
    """Operator, op1 and op2 of a prompt such as 226-68. Raises ExplorerError on anything else."""
    found = PROMPT.fullmatch(text)
    known = {symbol: operator for operator, symbol in symbols.items()}
    sign = found and (known.get(found[2]) or known.get(SIGNS.get(found[2], "")))
    if not found or not sign:
        raise ExplorerError(f"{text!r} is no prompt; it is two numbers with {' '.join(known)} between them, such as 226-68.")
    return sign, int(found[1]), int(found[3])


def neurons(text: str) -> list[tuple[int, int]]:
    """Layer and neuron of each of a list such as 2:489, 1:17, in order. Raises ExplorerError on anything else."""
    parts = [part for part in re.split(r"[,;\n]", text) if part.strip()]
    found = [UNIT.fullmatch(part) for part in parts]
    for part, one in zip(parts, found, strict=True):
        if not one:
            raise ExplorerError(f"{part.strip()!r} is no neuron; write layer:neuron, separated by commas, such as 2:489, 1:17.")
    return sorted({(int(one[1]), int(one[2])) for one in found if one})
