"""Prompts in a subject's tokens: which token is which operand, and which answers are one token."""

from collections.abc import Iterable
from datetime import UTC, datetime
from string import Formatter

import numpy as np
from transformers import PreTrainedTokenizerBase

from stages.lib.model.folder import sentence
from stages.lib.model.tokenizer import front, knows

CHECKED = 500  # prompts that are tokenised whole, to prove that putting them together from parts is right


class PromptError(SystemExit):
    """A template or tokenizer whose prompts do not say what they should, or not in tokens of their own; uncaught, it ends the program."""


class Template:
    """One operator's prompts: a template such as "{op1}{symbol}{op2}=", with or without BOS.

    bos: whether BOS stands before each prompt; None: as the tokenizer or its chat template does.
    chat: whether the prompt is a user's message in the tokenizer's chat template.
    positions: role -> token position, counted from 0 (BOS included), of operands of one token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: str,
        symbol: str,
        bos: bool | None,
        chat: bool = False,
    ):
        if bos and tokenizer.bos_token_id is None:
            raise PromptError("the subject's tokenizer has no BOS token; set bos: false for this subject in params.yaml")
        own = tokenizer.bos_token
        if own and own in template:
            raise PromptError(f"the template {template!r} holds the BOS {own!r}; leave it out and set bos: true for this subject")
        self.front = front(tokenizer, bos)
        if chat:
            template, self.front = in_chat(tokenizer, template, bos)
        self.tokenizer, self.template, self.symbol = tokenizer, template, symbol
        self.base = self.tokens(self.text(1, 1))
        if not knows(tokenizer, self.text(1, 1)):
            raise PromptError(
                f"the subject's tokenizer does not know all of {self.text(1, 1)!r}; change the subject's template in params.yaml, or the "
                "operator's symbol in stages/corpus/params.yaml"
            )
        self.positions = self._positions()

    def text(self, op1: int, op2: int) -> str:
        return self.template.format(op1=op1, op2=op2, symbol=self.symbol)

    def spans(self, op1: int, op2: int) -> dict[str, tuple[int, int]]:
        """From which character of the text to which each role stands, in the text's order."""
        named, at, found = {"op1": str(op1), "symbol": self.symbol, "op2": str(op2)}, 0, {}
        for literal, name, _, _ in Formatter().parse(self.template):
            at += len(literal)
            if name:
                found["operator" if name == "symbol" else name] = (at, at + len(named[name]))
                at += len(named[name])
        return found

    def tokens(self, text: str) -> list[int]:
        return self.front + self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def square(self, operands: range) -> np.ndarray:
        """Tokens of every prompt: (op1, op2, positions). Raises PromptError where an operand is not one token."""
        first = self._column([self.text(n, 1) for n in operands], "op1_position", operands)
        second = self._column([self.text(1, n) for n in operands], "op2_position", operands)
        square = np.tile(np.array(self.base), (len(operands), len(operands), 1))
        square[:, :, self.positions["op1_position"]] = first[:, None]
        square[:, :, self.positions["op2_position"]] = second[None, :]
        drawn = np.random.default_rng(0).integers(len(operands), size=(CHECKED, 2))
        for i, j in drawn:
            if self.tokens(self.text(operands[i], operands[j])) != square[i, j].tolist():
                raise PromptError(f"the tokens of {self.text(operands[i], operands[j])!r} are not those of its parts")
        return square

    def answers(self, largest: int) -> list[int]:
        """The tokens of the answers 0, 1, …, up to the first number, or `largest`, that is not one known token."""
        found: list[int] = []
        unknown = self.tokenizer.unk_token_id
        for number in range(largest + 1):
            tokens = self.tokens(f"{self.text(1, 1)}{number}")
            if tokens[: len(self.base)] != self.base:
                raise PromptError(
                    f"in {self.text(1, 1) + str(number)!r} the tokenizer puts the end of the prompt and the answer into one token; let the "
                    "subject's template in params.yaml end in another way"
                )
            if tokens[:-1] != self.base or tokens[-1] == unknown:
                break
            if tokens[-1] in found:
                raise PromptError(f"the tokenizer gives {number} the same token as {found.index(tokens[-1])}, as if it did not know them")
            found.append(tokens[-1])
        if not found:
            raise PromptError(f"the tokenizer has no one-token answer to {self.text(1, 1)!r}")
        return found

    def _column(self, texts: list[str], role: str, operands: Iterable[int]) -> np.ndarray:
        position, column, numbers = self.positions[role], list[int](), list(operands)
        way_out = "lower this subject's largest_operand in params.yaml, or cells.largest_operand in stages/corpus/params.yaml"
        for number, text in zip(numbers, texts, strict=True):
            tokens = self.tokens(text)
            others = [t for i, t in enumerate(tokens) if i != position]
            if others != [t for i, t in enumerate(self.base) if i != position] or tokens[position] == self.tokenizer.unk_token_id:
                several = ", or, for numbers of several tokens, set its answer_token" if len(tokens) > len(self.base) else ""
                raise PromptError(f"operand {number} is not one token in {text!r}; {way_out}{several}")
            if tokens[position] in column:
                same = numbers[column.index(tokens[position])]
                raise PromptError(f"in {text!r} operand {number} is the same token as {same}; {way_out}")
            column.append(tokens[position])
        return np.array(column)

    def _positions(self) -> dict[str, int]:
        """Finds each role's token from the characters it covers."""
        text = self.text(1, 1)
        spans = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        marks = {"op1_position": "{op1}", "operator_position": "{symbol}", "op2_position": "{op2}"}
        positions = {}
        for role, mark in marks.items():
            if mark not in self.template:
                raise PromptError(f"the template {self.template!r} lacks {mark}")
            start = len(self.template[: self.template.index(mark)].format(op1=1, op2=1, symbol=self.symbol))
            place = next((i for i, (low, high) in enumerate(spans) if low <= start < high), None)
            if place is None:
                raise PromptError(f"the tokenizer has no token for {mark} in {text!r}: it is not the tokenizer of a model that reads text")
            positions[role] = len(self.front) + place
        return {**positions, "last_position": len(self.front) + len(spans) - 1}


def in_chat(
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    bos: bool | None,
) -> tuple[str, list[int]]:
    """Return a template as a user's message in the tokenizer's chat template, and its first tokens.

    The message ends where the model's answer begins. The first tokens, those before the text, are
    BOS or none. Chat templates that print the date always get the same date.
    Raises PromptError if there is no chat template, if it fails or changes the message, or if it
    begins with BOS though `bos` is false.
    """
    if not tokenizer.chat_template:
        raise PromptError("the subject's tokenizer has no chat template; set chat: false for this subject in params.yaml")
    message = [{"role": "user", "content": template}]
    today = datetime(2024, 7, 26, tzinfo=UTC).strftime
    try:
        rendered = tokenizer.apply_chat_template(
            message,
            tokenize=False,
            add_generation_prompt=True,
            strftime_now=today,
        )
        whole = str(rendered)
    except Exception as error:  # a template is a program, which may raise anything
        problem = "the tokenizer's chat template fails on a user's message"
        raise PromptError(f"{problem}: {sentence(error)}; set chat: false") from None
    if whole.count(template) != 1:
        problem = f"the tokenizer's chat template makes {whole!r} of {template!r}"
        raise PromptError(f"{problem}, which does not hold it once, as it is")
    own = tokenizer.bos_token or ""
    before = [tokenizer.bos_token_id] if own and (bos or whole.startswith(own)) else []
    if own and whole.startswith(own):
        if bos is False:
            way_out = "set bos: true for this subject, or leave bos out"
            raise PromptError(f"the tokenizer's chat template begins with BOS, {own!r}; {way_out}")
        rest = whole.removeprefix(own)
        if before + _plain(tokenizer, rest) == _plain(tokenizer, whole):
            whole = rest
        else:  # the tokenizer reads the start of a text otherwise than what follows BOS
            before = []
    start, end = (part.replace("{", "{{").replace("}", "}}") for part in whole.split(template))
    return start + template + end, before


def _plain(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
