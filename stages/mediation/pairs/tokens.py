"""Prompts in a subject's tokens, each token with the class of what it says."""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from stages.lib import ask
from stages.lib.model.tokenizer import front as tokens_before
from stages.mediation.pairs.templates import Text, classes
from stages.store.template import PromptError


@dataclass(frozen=True)
class Placed:
    """A prompt's tokens, BOS included, a class for each, and the token of the answer."""

    tokens: list[int]
    classes: list[str]
    answer: int


def known(tokenizer: PreTrainedTokenizerBase, answers: list[str], answer_token: int | None = None) -> set[str]:
    """The answers that are one token behind a sign and a blank, or have the token that is asked for."""
    if not answers:
        return set()
    tokens = ask.encode(tokenizer, ["="] * len(answers), answers, False, answer_token).answers
    return {answer for answer, token in zip(answers, tokens.tolist(), strict=True) if token >= 0}


def place(
    tokenizer: PreTrainedTokenizerBase,
    texts: list[Text],
    bos: bool | None,
    answer_token: int | None = None,
) -> list[Placed | None]:
    """Each text in tokens; None where the tokenizer does not know all of its words, or its answer as one token, or its asked token.

    Raises PromptError where BOS is asked for and there is none.
    """
    if bos and tokenizer.bos_token_id is None:
        raise PromptError("the subject's tokenizer has no BOS token; set bos: false for this subject in params.yaml")
    if not texts:
        return []
    prompts = [text.prompt for text in texts]
    asked = ask.encode(tokenizer, prompts, [text.answer for text in texts], bos, answer_token)
    reaches = tokenizer(prompts, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    front = ["early"] * len(tokens_before(tokenizer, bos))
    placed: list[Placed | None] = []
    for text, tokens, answer, reach in zip(texts, asked.sequences, asked.answers.tolist(), reaches, strict=True):
        own = tokens[len(front) :]  # BOS may be the unknown token, too (GPT-2's)
        blank = [(len(text.prompt), len(text.prompt))] * (len(own) - len(reach))  # tokens in front of the one that is asked for
        known = answer >= 0 and tokenizer.unk_token_id not in own
        placed.append(Placed(tokens, front + classes(text, [*reach, *blank]), answer) if known else None)
    return placed
