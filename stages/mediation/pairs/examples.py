"""Solved examples that a model's own template holds before its question.

A pretrained model is often asked as in "5+3=8\\n24-8=16\\n{op1}{symbol}{op2}=". This module reads such
examples, so that any other template can show the same ones in its own words.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from string import Formatter

from stages.corpus.settings import Words
from stages.lib.core.words import Operator
from stages.mediation.pairs.templates import Wording


@dataclass(frozen=True)
class SolvedExample:
    """A solved example: its operator, operands and answer."""

    operator: Operator
    op1: int
    op2: int
    answer: int


@dataclass(frozen=True)
class Shown:
    """Examples in the words of a template. text: a line for each; answers: what they give away."""

    text: str = ""
    answers: frozenset[int] = frozenset()
    count: int = 0


def solved(template: str, words: Mapping[Operator, Words]) -> list[SolvedExample]:
    """Return the examples before a template's question: texts like it, each with a number after it.

    The question is what follows from the first placeholder on. `words` has the operators' symbols.
    """
    operators = {word.symbol: operator for operator, word in words.items()}
    number, symbol = r"\d+", "|".join(map(re.escape, operators))
    patterns = {"op1": number, "symbol": symbol, "op2": number}
    (before, first), *rest = ((literal, name) for literal, name, _, _ in Formatter().parse(template.rstrip()))
    pattern = ""
    for literal, name in [("", first), *rest]:
        pattern += re.escape(literal) + (f"(?P<{name}>{patterns[name]})" if name else "")
    examples = []
    for match in re.finditer(rf"{pattern}\s*(?P<answer>\d+)", before):
        numbers = (int(match[name]) for name in ("op1", "op2", "answer"))
        examples.append(SolvedExample(operators[match["symbol"]], *numbers))
    return examples


def shown(
    examples: Collection[SolvedExample],
    wording: Wording,
    words: Mapping[Operator, Words],
    write: Callable[[int], str],
) -> Shown:
    """Return examples as a template words them. write: a number in the template's words."""
    text = ""
    for example in examples:
        numbers = {"x": write(example.op1), "y": write(example.op2)}
        question, _ = wording.fill(words[example.operator].model_dump() | numbers)
        text += f"{question} {write(example.answer)}\n"
    return Shown(text, frozenset(example.answer for example in examples), len(examples))
