"""Read the solved examples before the question of a model's own template.

The template of a pretrained model often has such examples: "5+3=8\\n24-8=16\\n{op1}{symbol}{op2}=".
Once read, they can be shown in the words of any other template.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from string import Formatter

from stages.corpus.settings import Words
from stages.lib.core.vocabulary import Operator
from stages.mediation.pairs.templates import Wording

# besides those of the settings
OTHER_SYMBOLS: dict[str, Operator] = {"×": "multiply", "÷": "divide", "−": "subtract"}


@dataclass(frozen=True)
class SolvedExample:
    """A solved example: its operator, operands and answer."""

    operator: Operator
    op1: int
    op2: int
    answer: int


@dataclass(frozen=True)
class Shown:
    """Examples in a template's words. text: one line each; answers: the answers they give away."""

    text: str = ""
    answers: frozenset[int] = frozenset()
    count: int = 0


def solved(template: str, words: Mapping[Operator, Words]) -> list[SolvedExample]:
    """Return the examples before a template's question: texts like it, each followed by a number.

    The question begins at the first placeholder. Blanks may differ, and an example may have the
    symbol × for *. words: has the operators' symbols.
    """
    operators = OTHER_SYMBOLS | {word.symbol: operator for operator, word in words.items()}
    number, symbol = r"\d+", "|".join(map(re.escape, operators))
    patterns = {"op1": number, "symbol": symbol, "op2": number}
    parts = [(literal, name) for literal, name, _, _ in Formatter().parse(template.rstrip())]
    before, first = parts[0]
    pattern: list[str] = []
    for literal, name in [("", first), *parts[1:]]:
        pattern += map(re.escape, literal.split())
        if name:
            pattern.append(f"(?P<{name}>{patterns[name]})")
    examples = []
    for match in re.finditer(r"\s*".join([*pattern, r"(?P<answer>\d+)"]), before):
        numbers = map(int, match.group("op1", "op2", "answer"))
        examples.append(SolvedExample(operators[match["symbol"]], *numbers))
    return examples


def unread(template: str, examples: Collection[SolvedExample]) -> bool:
    """Return whether numbers stand before a template's question, but no example was read."""
    [(before, *_), *_] = Formatter().parse(template)
    return not examples and any(map(str.isdigit, before))


def shown(
    examples: Collection[SolvedExample],
    wording: Wording,
    words: Mapping[Operator, Words],
    write: Callable[[int], str],
) -> Shown:
    """Return examples in a template's words. write: words a number."""
    text = ""
    for example in examples:
        numbers = {"x": write(example.op1), "y": write(example.op2)}
        question, _ = wording.fill(words[example.operator].model_dump() | numbers)
        text += f"{question} {write(example.answer)}\n"
    answers = frozenset(example.answer for example in examples)
    return Shown(text, answers, len(examples))
