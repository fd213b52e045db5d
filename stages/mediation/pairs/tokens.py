"""Encode prompts in a model's tokens, each token with its class."""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from stages.lib import ask
from stages.lib.model.tokenizer import front as tokens_before
from stages.mediation.pairs.templates import Text, classes
from stages.store.template import PromptError


@dataclass(frozen=True)
class Placed:
    """A prompt's tokens, BOS included, the class of each, and the answer's token."""

    tokens: list[int]
    classes: list[str]
    answer: int


def known(
    tokenizer: PreTrainedTokenizerBase, answers: list[str], answer_token: int | None = None
) -> set[str]:
    """Return the answers that are one token after a sign and a blank.

    answer_token: which of an answer's tokens is predicted, from 0. Then the result is the answers
    that have this token.
    """
    if not answers:
        return set()
    signs = ["="] * len(answers)
    tokens = ask.encode(tokenizer, signs, answers, False, answer_token).answers
    return {answer for answer, token in zip(answers, tokens.tolist(), strict=True) if token >= 0}


def place(
    tokenizer: PreTrainedTokenizerBase,
    texts: list[Text],
    bos: bool | None,
    answer_token: int | None = None,
) -> list[Placed | None]:
    """Encode texts; the result is None where the tokenizer lacks a word or the answer's token.

    Raises PromptError if the tokenizer has no BOS token and `bos` is true.
    """
    if bos and tokenizer.bos_token_id is None:
        problem = "the model's tokenizer has no BOS token"
        raise PromptError(f"{problem}; set bos: false for this model in params.yaml")
    if not texts:
        return []
    prompts = [text.prompt for text in texts]
    answers = [text.answer for text in texts]
    encoded = ask.encode(tokenizer, prompts, answers, bos, answer_token)
    covered = tokenizer(prompts, add_special_tokens=False, return_offsets_mapping=True)
    front = ["early"] * len(tokens_before(tokenizer, bos))
    placed: list[Placed | None] = []
    for text, tokens, answer, offsets in zip(
        texts,
        encoded.sequences,
        encoded.answers.tolist(),
        covered["offset_mapping"],
        strict=True,
    ):
        own = tokens[len(front) :]  # BOS may be the unknown token, too (GPT-2's)
        if answer < 0 or tokenizer.unk_token_id in own:
            placed.append(None)
            continue
        # Tokens of the answer before the predicted one follow the text.
        end = len(text.prompt)
        given = [(end, end)] * (len(own) - len(offsets))
        placed.append(Placed(tokens, front + classes(text, [*offsets, *given]), answer))
    return placed
