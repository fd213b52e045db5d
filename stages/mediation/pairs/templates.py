"""Texts from templates that remember where each placeholder's words went, so that their tokens have a class.

Knows characters, not tokens: a tokenizer says from where to where each token reaches.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Annotated

from stages.lib.core.templates import holding

ThreeOperands = Annotated[str, holding("x", "y", "z", "first", "second")]


# What a placeholder's tokens are called; {a} and {b}, the things counted, are text like any other; all other names are entities.
CLASSES: dict[str, str | None] = {"x": "op1", "y": "op2", "z": "op3", "q": "query", "a": None, "b": None}
CLASSES |= dict.fromkeys(("symbol", "verb", "noun", "first", "second"), "operator")
ASKED = ("op1", "op2", "op3", "entity")  # what stands in front of these is early, behind them late
Span = tuple[int, int, str]


@dataclass(frozen=True)
class Text:
    """A prompt and its answer. front: solved examples; spans: start, end and class of the query's placeholders, in order."""

    front: str
    query: str
    answer: str
    spans: tuple[Span, ...]

    @property
    def prompt(self) -> str:
        return self.front + self.query


class Wording:
    """A template, taken apart once."""

    def __init__(self, template: str):
        self.parts = [(literal, name) for literal, name, _, _ in Formatter().parse(template)]

    def fill(self, values: Mapping[str, str]) -> tuple[str, tuple[Span, ...]]:
        """The text, and where in it the placeholders are."""
        text, spans = "", []
        for literal, name in self.parts:
            text += literal
            if name is not None:
                start = len(text)
                text += values[name]
                if kind := CLASSES.get(name, "entity"):
                    spans.append((start, len(text), kind))
        return text, tuple(spans)


def classes(text: Text, tokens: Iterable[tuple[int, int]]) -> list[str]:
    """The class of each token of the prompt; tokens: from which character to which.

    A token that reaches into a placeholder is its, whatever else it covers; the last token is `last`, whatever it is.
    """
    shift = len(text.front)
    spans = [(start + shift, end + shift, kind) for start, end, kind in text.spans]
    asked = [span for span in spans if span[2] in ASKED]
    begin, end = (asked[0][0], asked[-1][1]) if asked else (len(text.prompt),) * 2
    named = [_of(low, high, spans) or ("early" if low < begin else "late" if low >= end else "middle") for low, high in tokens]
    return [*named[:-1], "last"]


def _of(low: int, high: int, spans: list[Span]) -> str | None:
    return next((kind for start, end, kind in spans if low < end and high > start), None)
