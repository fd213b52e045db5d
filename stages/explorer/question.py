"""Read a question, the fields in the address of a page: each is text, checked when it is read."""

import math
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from stages.explorer.project import ExplorerError, Project
from stages.lib.core.vocabulary import OPERATORS

LONGEST = 20_000  # characters of an address
# what people type for an operator
SIGNS = {"−": "-", "–": "-", "×": "*", "x": "*", "·": "*", ":": "/", "÷": "/"}
NUMBER = re.compile(r"\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?\s*")
PROMPT = re.compile(r"\s*(\d{1,6})\s*(\S)\s*(\d{1,6})\s*=?\s*")
NEURON = re.compile(r"\s*(\d{1,6})\s*[:./]\s*(\d{1,9})\s*")


class Question(Mapping[str, str]):
    """The fields of a view by name, without the empty ones."""

    def __init__(self, fields: Mapping[str, object]):
        filled = filter(lambda item: item[1] not in (None, ""), fields.items())
        self._fields = {name: str(value) for name, value in filled}

    @classmethod
    def parse(cls, search: str | None) -> "Question":
        """Read the part of an address after its question mark.

        Raises ExplorerError if it is too long: without its end it would be another question.
        """
        text = (search or "").removeprefix("?")
        if len(text) > LONGEST:
            problem = f"the address has {len(text):,} characters, at most {LONGEST:,} are allowed"
            fix = (
                "ask for fewer neurons, or use `stages.ablate` and `bag` for long lists and queries"
            )
            raise ExplorerError(f"{problem}; {fix}.")
        return cls(dict(parse_qsl(text)))

    def search(self) -> str:
        """Return the part of an address from its question mark; empty without fields."""
        return "?" + urlencode(self._fields) if self._fields else ""

    def __getitem__(self, name: str) -> str:
        return self._fields[name]

    def __iter__(self):
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def changed(self, **changes: object) -> "Question":
        """Return the question with other values."""
        return Question({**self._fields, **changes})

    def listed(self, name: str) -> list[str]:
        """Return the values of a field that has several, separated by |."""
        return list(filter(None, self.get(name, "").split("|")))

    def whole(self, name: str, default: int) -> int:
        """Return a field that is a whole number from 0."""
        text = self.get(name, str(default)).strip()
        if not re.fullmatch(r"\d{1,9}", text):
            fix = f"it must be a whole number from 0, such as {default}."
            raise ExplorerError(f"{name} is {text!r}; {fix}")
        return int(text)

    def number(self, name: str) -> float | None:
        """Return a field that is a number, None if it is empty."""
        text = self.get(name)
        if text is None:
            return None
        if not NUMBER.fullmatch(text):
            raise ExplorerError(f"{name} is {text!r}; it must be a number, such as 0.25, or empty.")
        value = float(text)
        if math.isinf(value):
            allowed = "it must be a number with at most 308 digits before the point."
            raise ExplorerError(f"{name} is {text!r}; {allowed}")
        return value

    def choice(self, name: str, allowed: list[str], default: str | None = None) -> str:
        """Return a field with a few allowed values, by default the first of them."""
        text = self.get(name, default if default in allowed else allowed[0])
        if text not in allowed:
            raise ExplorerError(f"{name} is {text!r}; choose one of {', '.join(allowed)}.")
        return text

    def subject(self, project: Project) -> str:
        """Return the model, by default the first of the project."""
        return self.choice("subject", project.subjects)

    def operator(self) -> str:
        """Return the operator, by default the first."""
        return self.choice("operator", list(OPERATORS))


def parse_prompt(text: str, symbols: Mapping[str, str]) -> tuple[str, int, int]:
    """Return operator, op1 and op2 of a prompt such as 226-68. Raises ExplorerError otherwise.

    symbols: operator -> its symbol.
    """
    operators = {symbol: operator for operator, symbol in symbols.items()}
    parts = PROMPT.fullmatch(text)
    if parts:
        op1, sign, op2 = parts.groups()
        operator = operators.get(sign) or operators.get(SIGNS.get(sign, ""))
        if operator:
            return operator, int(op1), int(op2)
    allowed = " ".join(operators)
    fix = f"write two numbers with one of {allowed} between them, such as 226-68."
    raise ExplorerError(f"{text!r} is not a prompt; {fix}")


def parse_neurons(text: str) -> list[tuple[int, int]]:
    """Return the sorted layers and neurons of a list such as 2:489, 1:17.

    Raises ExplorerError if it is anything else.
    """
    listed = set()
    for part in filter(str.strip, re.split(r"[,;\n]", text)):
        match = NEURON.fullmatch(part)
        if not match:
            fix = "write layer:neuron, separated by commas, such as 2:489, 1:17."
            raise ExplorerError(f"{part.strip()!r} is not a neuron; {fix}")
        layer, neuron = match.groups()
        listed.add((int(layer), int(neuron)))
    return sorted(listed)
