"""Fill templates, and remember where each placeholder's words are, so that tokens have a class.

This module knows characters, not tokens: a tokenizer tells which characters each token covers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Annotated, NamedTuple

from stages.lib.core.templates import holding

ThreeOperands = Annotated[str, holding("x", "y", "z", "first", "second")]


# Placeholder -> class of its tokens. The things counted, {a} and {b}, are ordinary text. All
# placeholders with other names are entities.
CLASSES: dict[str, str | None] = {
    "x": "op1",
    "y": "op2",
    "z": "op3",
    "q": "query",
    "a": None,
    "b": None,
}
CLASSES |= dict.fromkeys(("symbol", "verb", "noun", "first", "second"), "operator")
# Text before the first token of these classes is early; text after the last one is late.
OPERANDS = ("op1", "op2", "op3", "entity")


class Span(NamedTuple):
    """The characters of a placeholder's words, from start to before end, and their class."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True)
class Text:
    """A prompt and its answer. front: solved examples; spans: of the query, in order."""

    front: str
    query: str
    answer: str
    spans: tuple[Span, ...]

    @property
    def prompt(self) -> str:
        """The whole prompt."""
        return self.front + self.query


class Wording:
    """A parsed template."""

    def __init__(self, template: str):
        self.parts = [(literal, name) for literal, name, _, _ in Formatter().parse(template)]

    def fill(self, values: Mapping[str, str]) -> tuple[str, tuple[Span, ...]]:
        """Return the text, and the spans of its placeholders."""
        text, spans = "", []
        for literal, name in self.parts:
            text += literal
            if name is None:
                continue
            start = len(text)
            text += values[name]
            kind = CLASSES.get(name, "entity")
            if kind:
                spans.append(Span(start, len(text), kind))
        return text, tuple(spans)


def classes(text: Text, tokens: Iterable[tuple[int, int]]) -> list[str]:
    """Return the class of each token of the prompt. tokens: first character, and the end.

    A token that covers a character of a placeholder has the placeholder's class. The last token
    always has the class `last`.
    """
    shift = len(text.front)
    spans = [Span(start + shift, end + shift, kind) for start, end, kind in text.spans]
    operands = [span for span in spans if span.kind in OPERANDS]
    if operands:
        first, last = operands[0].start, operands[-1].end
    else:
        first = last = len(text.prompt)
    named = []
    for start, end in tokens:
        named.append(_placeholder_class(start, end, spans) or _text_class(start, first, last))
    return [*named[:-1], "last"]


def _placeholder_class(start: int, end: int, spans: list[Span]) -> str | None:
    for span in spans:
        if start < span.end and end > span.start:
            return span.kind
    return None


def _text_class(start: int, first: int, last: int) -> str:
    if start < first:
        return "early"
    return "late" if start >= last else "middle"
