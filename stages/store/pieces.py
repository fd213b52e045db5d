"""Find the tokens of each number in prompts whose numbers may have several tokens.

The position of a role (op1, operator, op2) is that of its last token; op1_first and op2_first are
the positions of the operands' first tokens. If the model predicts a later token of the answer, the
tokens of the answer before it are part of the prompt.

Every token that stands for a number is verified: it must decode to that number. Otherwise the
prompts are refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, takewhile

import numpy as np

from stages.lib.core import progress
from stages.lib.core.slots import OPERANDS, first_of
from stages.store.template import PromptError, Template

NumberTokens = dict[int, int]  # a number -> the token that stands for it
ANOTHER_END = "let the subject's template in params.yaml end in another way"


@dataclass(frozen=True)
class Pieces:
    """A grid of prompts in tokens.

    tokens: of each prompt, in the order of op1, then op2.
    positions: role -> (op1, op2).
    numbers: (op1, op2), the number that the predicted token stands for, -1 if the answer has too
    few tokens.
    number_tokens: the token of every such number.
    """

    tokens: list[list[int]]
    positions: dict[str, np.ndarray]
    numbers: np.ndarray
    number_tokens: NumberTokens


@dataclass(frozen=True)
class Encoded:
    """A prompt's text and its answer, in tokens.

    head: tokens of the text; spans: each token's first character in the text, and the one after its
    last; rest: tokens of the answer.
    """

    text: str
    answer: str
    head: list[int]
    spans: list[tuple[int, int]]
    rest: list[int]


class Reader:
    """Read one operator's prompts. answer_token: index of the answer's predicted token, from 0."""

    def __init__(self, template: Template, answer_token: int):
        self.template, self.answer_token = template, answer_token
        self.decoded = lru_cache(None)(self._decoded)
        # How many tokens are between the roles, and the first text in which that was counted.
        self.gaps: tuple[tuple[int, ...], str] | None = None

    def square(self, operands: Sequence[int], results: np.ndarray, title: str) -> Pieces:
        """Return every prompt of a grid.

        results: (op1, op2), -1 where a prompt has no answer; title: of the progress bar.
        Raises PromptError, naming the texts that disagree.
        """
        tokens: list[list[int]] = []
        roles: list[dict[str, int]] = []
        numbers = np.full(results.shape, -1, np.int64)
        number_tokens = self.answers(int(results.max(initial=0)))
        first_text: dict[int, tuple[int, str]] = {}  # result -> predicted token, in which text
        for row, op1 in enumerate(progress.bar(operands, desc=title, unit="row")):
            for column, prompt in enumerate(self._row(op1, operands, results[row].tolist())):
                positions = self._roles(prompt, (op1, operands[column]))
                in_prompt = prompt.rest[: self.answer_token]
                tokens.append(self.template.front + prompt.head + in_prompt)
                roles.append(positions | {"last": len(tokens[-1]) - 1})
                if len(prompt.rest) <= self.answer_token:
                    continue
                whole = prompt.text + prompt.answer
                numbers[row, column] = self._number(number_tokens, prompt.rest, whole)
                token = prompt.rest[self.answer_token]
                result = int(results[row, column])
                other, text = first_text.setdefault(result, (token, prompt.text))
                if token != other:
                    problem = f"the answer {prompt.answer} has other tokens after {text!r}"
                    raise PromptError(f"{problem} than after {prompt.text!r}")
        places = {}
        for role in roles[0]:
            values = [positions[role] for positions in roles]
            places[role] = np.array(values).reshape(results.shape)
        return Pieces(tokens, places, numbers, number_tokens)

    def _row(self, op1: int, operands: Sequence[int], results: list[int]) -> list[Encoded]:
        """Encode the prompts of one row of the grid, each with its answer."""
        texts = [self.template.text(op1, op2) for op2 in operands]
        answers = ["" if result < 0 else str(result) for result in results]
        heads = self.template.tokenizer(
            texts,
            add_special_tokens=False,
            return_offsets_mapping=True,
        )
        tokens, spans = heads["input_ids"], heads["offset_mapping"]
        rests = self._rests(texts, tokens, answers)
        return list(map(Encoded, texts, answers, tokens, spans, rests))

    def answers(self, largest: int) -> NumberTokens:
        """Return the numbers that the predicted tokens of the answers 0 to `largest` stand for.

        The answers follow the prompt with the operands 1 and 1.
        """
        text = self.template.text(1, 1)
        answers = list(map(str, range(largest + 1)))
        texts = [text] * len(answers)
        heads = self._encode([text]) * len(answers)
        number_tokens = NumberTokens()
        for answer, rest in zip(answers, self._rests(texts, heads, answers), strict=True):
            if len(rest) > self.answer_token:
                self._number(number_tokens, rest, text + answer)
        return number_tokens

    def wholes(self, cells: Sequence[tuple[int, int, int]]) -> list[tuple[list[int], list[int]]]:
        """Return the tokens of each prompt, without any of the answer, and of its whole answer.

        cells: (op1, op2, result) of each prompt.
        """
        texts = [self.template.text(op1, op2) for op1, op2, _ in cells]
        answers = [str(result) for _, _, result in cells]
        heads = self._encode(texts)
        rests = self._rests(texts, heads, answers)
        return list(zip([self.template.front + head for head in heads], rests, strict=True))

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        return self.template.tokenizer(texts, add_special_tokens=False)["input_ids"]

    def _number(self, number_tokens: NumberTokens, rest: list[int], text: str) -> int:
        """Return the number that the predicted token of an answer stands for, and add it.

        Raises PromptError if it is no number, or if another token stands for the same number.
        """
        token = rest[self.answer_token]
        decoded = self.decoded((token,))
        if not (decoded.isascii() and decoded.isdigit()):
            problem = f"token {self.answer_token} of the answer in {text!r} decodes to {decoded!r}"
            raise PromptError(f"{problem}, which is not a number")
        number = int(decoded)
        if number_tokens.setdefault(number, token) != token:
            other = self.decoded((number_tokens[number],))
            problem = f"in {text!r} the answer's token {decoded!r} stands for {number}"
            raise PromptError(f"{problem}, as elsewhere {other!r} does")
        return number

    def _rests(
        self,
        texts: list[str],
        heads: list[list[int]],
        answers: list[str],
    ) -> list[list[int]]:
        """Return the tokens of each answer after its text. heads: the tokens of each text alone.

        Raises PromptError if a prompt's tokens change when the answer follows, or if the tokens of
        the answer decode to another answer.
        """
        wholes = self._encode(list(map(str.__add__, texts, answers)))
        return list(map(self._rest, texts, heads, wholes, answers))

    def _rest(self, text: str, head: list[int], whole: list[int], answer: str) -> list[int]:
        if whole[: len(head)] != head:
            raise PromptError(
                f"{text!r} has other tokens than the beginning of {text + answer!r}: the tokenizer "
                f"puts the end of the prompt and the answer into one token; {ANOTHER_END}"
            )
        rest = whole[len(head) :]
        if answer and self.decoded(tuple(rest)) != answer:
            decoded = self.decoded(tuple(rest))
            raise PromptError(
                f"the tokens of the answer in {text + answer!r} decode to {decoded!r}"
            )
        return rest

    def _roles(self, prompt: Encoded, operands: tuple[int, int]) -> dict[str, int]:
        """Return the position of each role's tokens. Blanks before a role do not belong to it."""
        positions: dict[str, int] = {}
        gaps: list[int] = []
        before, front = 0, len(self.template.front)
        for role, span in self.template.spans(*operands).items():
            first, last = self._tokens_of(role, prompt, span)
            gaps += [first - before, 0 if role in OPERANDS else last + 1 - first]
            before = last
            positions[role] = front + last
            if role in OPERANDS:
                positions[first_of(role)] = front + first
        gaps.append(len(prompt.head) - before)
        if self.gaps is None:
            self.gaps = tuple(gaps), prompt.text
        expected, text = self.gaps
        if tuple(gaps) != expected:
            problem = f"what is between the numbers has other tokens in {prompt.text!r}"
            raise PromptError(f"{problem} than in {text!r}")
        return positions

    def _tokens_of(self, role: str, prompt: Encoded, span: tuple[int, int]) -> tuple[int, int]:
        """Return the first and last token of a role. span: its characters, first and past the last.

        Raises PromptError if these tokens do not decode to the role's text.
        """
        start, end = span
        tokens: list[int] = []
        for i, (low, high) in enumerate(prompt.spans):
            inside = low < end and high > start
            if inside and (tokens or self.decoded((prompt.head[i],))):
                tokens.append(i)
        decoded = self.decoded(tuple(prompt.head[i] for i in tokens))
        text = prompt.text[start:end]
        if decoded != "".join(text.split()):
            raise PromptError(
                f"the tokens of {role} in {prompt.text!r} decode to {decoded!r}, not {text!r}"
            )
        return tokens[0], tokens[-1]

    def _decoded(self, tokens: tuple[int, ...]) -> str:
        """Return what tokens decode to, without blanks."""
        return "".join(str(self.template.tokenizer.decode(list(tokens))).split())


def numbered(number_tokens: NumberTokens) -> list[int]:
    """Return the tokens of the numbers 0, 1, … up to the first number without a token."""
    return [number_tokens[number] for number in takewhile(number_tokens.__contains__, count())]
