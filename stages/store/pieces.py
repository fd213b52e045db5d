"""Prompts whose numbers are several tokens, read whole: where each role's tokens stand, and which token of the answer is asked for.

A role is the place of its last token; that of an operand's first one is op1_first or op2_first. The answer's tokens in front of the one
that is asked for stand in the prompt, as many as there are. Whatever a token is taken for, it decodes to, or the prompt is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stages.lib.core import progress
from stages.lib.core.slots import OPERANDS, first_of
from stages.store.template import PromptError, Template

Asked = dict[int, int]  # the number that a token stands for -> the token


@dataclass(frozen=True)
class Pieces:
    """A square of prompts. tokens: of each prompt, in order of op1, then op2; positions: role -> (op1, op2); numbers: (op1, op2), what the
    token that is asked for stands for, -1 where the answer has too few; asked: the token of every such number."""

    tokens: list[list[int]]
    positions: dict[str, np.ndarray]
    numbers: np.ndarray
    asked: Asked


class Reader:
    """Reads one operator's prompts. answer_token: which token of the answer is asked for, from 0."""

    def __init__(self, template: Template, answer_token: int):
        self.template, self.answer_token = template, answer_token
        self.said = lru_cache(None)(self._said)
        self.gaps: tuple[tuple[int, ...], str] | None = None  # tokens between roles, and the first text that has them

    def square(self, operands: Sequence[int], results: np.ndarray, title: str) -> Pieces:
        """Every prompt. results: (op1, op2), -1 where a prompt has no answer. Raises PromptError, with the texts that disagree."""
        tokens: list[list[int]] = []
        positions: list[dict[str, int]] = []
        numbers = np.full(results.shape, -1, np.int64)
        asked, first_text = self.answers(int(results.max(initial=0))), dict[int, tuple[int, str]]()
        for row, op1 in enumerate(progress.bar(operands, desc=title, unit="row")):
            texts = [self.template.text(op1, op2) for op2 in operands]
            answers = ["" if result < 0 else str(result) for result in results[row].tolist()]
            heads = self.template.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
            wholes = self._encode([text + answer for text, answer in zip(texts, answers, strict=True)])
            for column, (op2, text) in enumerate(zip(operands, texts, strict=True)):
                head = heads["input_ids"][column]
                found = self._roles(text, head, heads["offset_mapping"][column], (op1, op2))
                rest = self._rest(text, head, wholes[column], answers[column])
                prompt = self.template.front + head + rest[: self.answer_token]
                tokens.append(prompt)
                positions.append({**found, "last": len(prompt) - 1})
                if len(rest) > self.answer_token:
                    numbers[row, column] = self._known(asked, rest, text + answers[column])
                    same = first_text.setdefault(int(results[row, column]), (rest[self.answer_token], text))
                    if same[0] != rest[self.answer_token]:
                        raise PromptError(f"the answer {answers[column]} has other tokens behind {same[1]!r} than behind {text!r}")
        places = {role: np.array([of[role] for of in positions]).reshape(results.shape) for role in positions[0]}
        return Pieces(tokens, places, numbers, asked)

    def answers(self, largest: int) -> Asked:
        """What is asked for behind the first prompt, of all answers up to the largest."""
        text = self.template.text(1, 1)
        [head], asked = self._encode([text]), Asked()
        for number, whole in enumerate(self._encode([f"{text}{number}" for number in range(largest + 1)])):
            rest = self._rest(text, head, whole, str(number))
            if len(rest) > self.answer_token:
                self._known(asked, rest, f"{text}{number}")
        return asked

    def wholes(self, cells: Sequence[tuple[int, int, int]]) -> list[tuple[list[int], list[int]]]:
        """Prompts, without any of the answer, and whole answers in tokens. cells: (op1, op2, result) of each."""
        texts = [self.template.text(op1, op2) for op1, op2, _ in cells]
        answers = [str(result) for _, _, result in cells]
        heads, wholes = self._encode(texts), self._encode([text + answer for text, answer in zip(texts, answers, strict=True)])
        parts = zip(texts, heads, wholes, answers, strict=True)
        return [(self.template.front + head, self._rest(text, head, whole, answer)) for text, head, whole, answer in parts]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return self.template.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []

    def _known(self, asked: Asked, rest: list[int], text: str) -> int:
        """The number that the asked token stands for; two tokens may not stand for one."""
        token = rest[self.answer_token]
        said = self.said((token,))
        if not (said.isascii() and said.isdigit()):
            raise PromptError(f"token {self.answer_token} of the answer in {text!r} says {said!r}, which is no number")
        number = int(said)
        if asked.setdefault(number, token) != token:
            other = self.said((asked[number],))
            raise PromptError(f"in {text!r} the answer's token {said!r} stands for {number}, as elsewhere {other!r} does")
        return number

    def _rest(self, text: str, head: list[int], whole: list[int], answer: str) -> list[int]:
        """The answer's tokens. Raises PromptError where the prompt's are others in front of an answer, or the answer's say another one."""
        if whole[: len(head)] != head:
            raise PromptError(
                f"{text!r} has other tokens than the beginning of {text + answer!r}: the end of the prompt and the answer are put "
                "together; let the subject's template in params.yaml end in another way"
            )
        rest = whole[len(head) :]
        if answer and self.said(tuple(rest)) != answer:
            raise PromptError(f"the tokens of the answer in {text + answer!r} say {self.said(tuple(rest))!r}")
        return rest

    def _roles(self, text: str, tokens: list[int], reaches: list[tuple[int, int]], operands: tuple[int, int]) -> dict[str, int]:
        """Where each role's tokens are; blanks in front of a role are none of it."""
        found, between, before = dict[str, int](), list[int](), 0
        shift = len(self.template.front)
        for role, (start, end) in self.template.spans(*operands).items():
            here = [i for i, (low, high) in enumerate(reaches) if low < end and high > start]
            while here and not self.said((tokens[here[0]],)):
                here.pop(0)
            said = self.said(tuple(tokens[i] for i in here))
            if said != "".join(text[start:end].split()):
                raise PromptError(f"the tokens of {role} in {text!r} say {said!r}, not {text[start:end]!r}")
            between += [here[0] - before, 0 if role in OPERANDS else len(here)]
            before = here[-1]
            found[role] = shift + before
            if role in OPERANDS:
                found[first_of(role)] = shift + here[0]
        gaps = (*between, len(tokens) - before)
        self.gaps = self.gaps or (gaps, text)
        if gaps != self.gaps[0]:
            raise PromptError(f"what stands between the numbers has other tokens in {text!r} than in {self.gaps[1]!r}")
        return found

    def _said(self, tokens: tuple[int, ...]) -> str:
        """What tokens decode to, without blanks."""
        return "".join(str(self.template.tokenizer.decode(list(tokens))).split())


def numbered(asked: Asked) -> list[int]:
    """The tokens of the numbers 0, 1, … up to the first that none stands for."""
    return [asked[number] for number in range(next(number for number in range(len(asked) + 1) if number not in asked))]
