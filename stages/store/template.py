"""Encode one operator's prompts: the token position of each operand, and the one-token answers."""

from collections.abc import Iterable
from datetime import UTC, datetime
from string import Formatter

import numpy as np
from transformers import PreTrainedTokenizerBase

from stages.lib.model.folder import sentence
from stages.lib.model.tokenizer import front, knows

CHECKED = 500  # prompts that are tokenized whole, to verify those composed from their parts
PLACEHOLDERS = {"op1": "{op1}", "operator": "{symbol}", "op2": "{op2}"}
ROLES = {"op1": "op1", "symbol": "operator", "op2": "op2"}  # a placeholder's name -> its role
SMALLER = (
    "lower this subject's largest_operand in params.yaml, or cells.largest_operand in "
    "stages/corpus/params.yaml"
)


class PromptError(SystemExit):
    """A template or tokenizer whose prompts cannot be used; if uncaught, it ends the program."""


class Template:
    """One operator's prompts: a template such as "{op1}{symbol}{op2}=", with or without BOS.

    bos: whether BOS precedes each prompt; None: the tokenizer or its chat template decides.
    chat: whether the prompt is a user's message in the tokenizer's chat template.
    front: the tokens before the text, BOS or none; base: those of the prompt with operands 1 and 1.
    positions: <role>_position -> token position from 0, BOS included, of operands of one token.
    Raises PromptError if the tokenizer cannot encode the template.
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
            raise PromptError(
                "the subject's tokenizer has no BOS token; set bos: false for this subject in "
                "params.yaml"
            )
        own = tokenizer.bos_token
        if own and own in template:
            way_out = "leave it out and set bos: true for this subject"
            raise PromptError(f"the template {template!r} holds the BOS {own!r}; {way_out}")
        self.front = front(tokenizer, bos)
        if chat:
            template, self.front = in_chat(tokenizer, template, bos)
        self.tokenizer, self.template, self.symbol = tokenizer, template, symbol
        text = self.text(1, 1)
        self.base = self.tokens(text)
        if not knows(tokenizer, text):
            raise PromptError(
                f"the subject's tokenizer does not know all of {text!r}; change the subject's "
                "template in params.yaml, or the operator's symbol in stages/corpus/params.yaml"
            )
        self.positions = self._positions()

    def text(self, op1: int, op2: int) -> str:
        return self.template.format(op1=op1, op2=op2, symbol=self.symbol)

    def spans(self, op1: int, op2: int) -> dict[str, tuple[int, int]]:
        """Return each role's characters in the text, first and past the last, in its order."""
        values = {"op1": str(op1), "symbol": self.symbol, "op2": str(op2)}
        end, spans = 0, {}
        for literal, name, _, _ in Formatter().parse(self.template):
            start = end + len(literal)
            end = start
            if name:
                end += len(values[name])
                spans[ROLES[name]] = (start, end)
        return spans

    def tokens(self, text: str) -> list[int]:
        return self.front + self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def square(self, operands: range) -> np.ndarray:
        """Return the tokens of every prompt, (op1, op2, positions).

        Raises PromptError if an operand is not one token.
        """
        first = self._column([self.text(n, 1) for n in operands], "op1_position", operands)
        second = self._column([self.text(1, n) for n in operands], "op2_position", operands)
        prompts = np.tile(np.array(self.base), (len(operands), len(operands), 1))
        prompts[:, :, self.positions["op1_position"]] = first[:, None]
        prompts[:, :, self.positions["op2_position"]] = second[None, :]
        drawn = np.random.default_rng(0).integers(len(operands), size=(CHECKED, 2))
        for i, j in drawn:
            text = self.text(operands[i], operands[j])
            if self.tokens(text) != prompts[i, j].tolist():
                raise PromptError(
                    f"the tokens of {text!r} are not those of its parts; "
                    "set answer_token for this subject in params.yaml"
                )
        return prompts

    def answers(self, largest: int) -> list[int]:
        """Return the tokens of the answers 0, 1, … to `largest`.

        They end before the first number that is not one known token.
        """
        text, base = self.text(1, 1), self.base
        answers: list[int] = []
        for number in range(largest + 1):
            tokens = self.tokens(f"{text}{number}")
            if tokens[: len(base)] != base:
                raise PromptError(
                    f"in {text + str(number)!r} the tokenizer puts the end of the prompt and the "
                    "answer into one token; let the subject's template in params.yaml end in "
                    "another way"
                )
            if tokens[:-1] != base or tokens[-1] == self.tokenizer.unk_token_id:
                break
            if tokens[-1] in answers:
                same = answers.index(tokens[-1])
                problem = f"the tokenizer gives {number} the same token as {same}"
                raise PromptError(f"{problem}, as if it did not know them")
            answers.append(tokens[-1])
        if not answers:
            raise PromptError(f"the tokenizer has no one-token answer to {text!r}")
        return answers

    def _column(self, texts: list[str], role: str, operands: Iterable[int]) -> np.ndarray:
        """Return each operand's token in its text, all other tokens being those of `base`."""
        position, numbers = self.positions[role], list(operands)
        unknown, column = self.tokenizer.unk_token_id, list[int]()
        for number, text in zip(numbers, texts, strict=True):
            tokens = self.tokens(text)
            base = [*self.base]
            base[position : position + 1] = tokens[position : position + 1]
            if tokens != base or tokens[position] == unknown:
                way_out = SMALLER
                if len(tokens) > len(self.base):
                    way_out += ", or, for numbers of several tokens, set its answer_token"
                raise PromptError(f"operand {number} is not one token in {text!r}; {way_out}")
            token = tokens[position]
            if token in column:
                same = numbers[column.index(token)]
                problem = f"in {text!r} operand {number} is the same token as {same}"
                raise PromptError(f"{problem}; {SMALLER}")
            column.append(token)
        return np.array(column)

    def _positions(self) -> dict[str, int]:
        """Find each role's token from the characters that it covers."""
        text = self.text(1, 1)
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        tokens, roles, positions = encoded["offset_mapping"], self.spans(1, 1), {}
        for role, placeholder in PLACEHOLDERS.items():
            if role not in roles:
                raise PromptError(f"the template {self.template!r} lacks {placeholder}; add it")
            start, _ = roles[role]
            covering = [i for i, (low, high) in enumerate(tokens) if low <= start < high]
            if not covering:
                problem = f"the tokenizer has no token for {placeholder} in {text!r}"
                raise PromptError(f"{problem}: it is not the tokenizer of a model that reads text")
            positions[f"{role}_position"] = len(self.front) + covering[0]
        return {**positions, "last_position": len(self.front) + len(tokens) - 1}


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
        raise PromptError(
            "the subject's tokenizer has no chat template; set chat: false for this subject in "
            "params.yaml"
        )
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
        raise PromptError(f"{problem}, which must contain it once, unchanged; set chat: false")
    own = tokenizer.bos_token or ""
    before = [tokenizer.bos_token_id] if own and (bos or whole.startswith(own)) else []
    if own and whole.startswith(own):
        if bos is False:
            way_out = "set bos: true for this subject, or leave bos out"
            raise PromptError(f"the tokenizer's chat template begins with BOS, {own!r}; {way_out}")
        rest = whole.removeprefix(own)
        if before + _plain(tokenizer, rest) == _plain(tokenizer, whole):
            whole = rest
        else:  # the tokenizer encodes a text's start in another way than text after BOS
            before = []
    start, end = (part.replace("{", "{{").replace("}", "}}") for part in whole.split(template))
    return start + template + end, before


def _plain(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
