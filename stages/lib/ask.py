"""Run prompts of any template and length: predictions, and the logit and probability of answers."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from stages.lib.core import progress
from stages.lib.model import prefixes
from stages.lib.model.architecture import patched
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.padding import pad
from stages.lib.model.spread import beside
from stages.lib.model.tokenizer import front as tokens_before

LOGITS = 1 << 28  # bytes of logits that are in memory, or measured, at the same time
VALUES = 1 << 30  # bytes of a layer's values in one forward pass


@dataclass(frozen=True)
class EncodedPrompts:
    """Prompts in tokens, and the token that each should be followed by.

    answers: (prompts,); -1 where an answer has no such token.
    """

    sequences: list[list[int]]
    answers: np.ndarray


@dataclass(frozen=True)
class Predictions:
    """A model's predictions at the last position of each prompt; every array is (prompts,).

    predicted: the token with the largest logit; answer_logit and answer_probability: of the
    correct answer, NaN where its token is unknown. Probabilities are 0 to 1.
    """

    predicted: np.ndarray
    max_logit: np.ndarray
    answer_logit: np.ndarray
    answer_probability: np.ndarray


def encode(
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    answers: list[str],
    bos: bool | None,
    answer_token: int | None = None,
) -> EncodedPrompts:
    """Encode prompts and their answers; a blank separates an answer from its prompt.

    Where the blank is a token of its own (numbers of Llama 3), it becomes the prompt's last token.
    bos: whether BOS precedes each prompt; None: what the tokenizer itself puts there.
    answer_token: which token of an answer is predicted, from 0; the tokens before it become part
    of the prompt. None: an answer must be a single token.
    """
    texts = list(map(" ".join, zip(prompts, answers, strict=True)))
    prompts_only = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    with_answers = tokenizer(texts, add_special_tokens=False)["input_ids"]

    @cache
    def is_blank(token: int) -> bool:
        return not str(tokenizer.decode([token])).strip()

    def split(prompt: list[int], whole: list[int]) -> tuple[list[int], int]:
        """Return the tokens before the answer token, and this token: -1 if there is none."""
        start, answer = whole[: len(prompt)], whole[len(prompt) :]
        if start != prompt or tokenizer.unk_token_id in answer:
            return prompt, -1
        if len(answer) > 1 and is_blank(answer[0]):
            start, answer = start + answer[:1], answer[1:]
        place = answer_token or 0
        if place >= len(answer) or (answer_token is None and len(answer) > 1):
            return prompt, -1
        return start + answer[:place], answer[place]

    front = tokens_before(tokenizer, bos)
    sequences, tokens = [], []
    for prompt, whole in zip(prompts_only, with_answers, strict=True):
        sequence, token = split(prompt, whole)
        sequences.append(front + sequence)
        tokens.append(token)
    return EncodedPrompts(sequences, np.array(tokens))


def read_off(logits: torch.Tensor, answers: torch.Tensor) -> Predictions:
    """Measure last-position logits (prompts, vocabulary) against answer tokens (prompts,).

    It computes in at least float32, and returns float32. Raises FloatingPointError on a NaN or
    infinity.
    """
    rows = max(1, LOGITS // (4 * logits.shape[-1] * logits.itemsize))  # measuring makes copies
    parts = zip(logits.split(rows), answers.split(rows), strict=True)
    return _joined([_read_off(*part) for part in parts])


def _read_off(logits: torch.Tensor, answers: torch.Tensor) -> Predictions:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    answer = logits.gather(1, answers.clamp(min=0)[:, None])[:, 0]
    answer = answer.masked_fill(answers < 0, torch.nan)
    largest, predicted = logits.max(-1)
    total = logits.logsumexp(-1)
    # a NaN or an infinity among the logits ends up in their sum
    if not torch.isfinite(total).all():
        way_out = "try a wider dtype for this subject in params.yaml"
        raise FloatingPointError(f"the model's logits are not finite; {way_out}")
    probability = (answer - total).exp()
    measured = (tensor.float().cpu().numpy() for tensor in (largest, answer, probability))
    return Predictions(predicted.cpu().numpy(), *measured)


def _joined(parts: list[Predictions]) -> Predictions:
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return Predictions(*map(np.concatenate, columns))


def _in_pass(checkpoint: Checkpoint, most: int, tokens: int, positions: int = 1) -> int:
    """Return how many prompts one pass takes: up to `most`, whose values and logits fit in memory.

    tokens: of the longest prompt, without those that all prompts share; positions: at which each
    prompt has logits.
    """
    itemsize, a = checkpoint.model.dtype.itemsize, checkpoint.architecture
    logits = positions * a.vocabulary * itemsize
    values = tokens * 4 * (a.width + a.neurons) * itemsize  # about, in a layer
    return max(1, min(most, LOGITS // logits, VALUES // values))


@torch.no_grad()
def ask(
    checkpoint: Checkpoint,
    prompts: EncodedPrompts,
    prompts_per_pass: int,
    desc: str,
) -> Predictions:
    """Run every prompt; return the predictions in the order of the prompts.

    Prompts of similar length run together. The tokens that all prompts begin with are computed
    once. desc: title of the progress bar.
    """
    lengths = np.array(list(map(len, prompts.sequences)))
    prefix = prefixes.find(checkpoint, prompts.sequences, int(lengths.min()) - 1)
    order = np.argsort(lengths, kind="stable")
    step = _in_pass(checkpoint, prompts_per_pass, int(lengths.max()) - prefix.length)
    parts = []
    for start in progress.bar(range(0, len(order), step), desc=desc, unit="pass"):
        rows = order[start : start + step]
        tokens, sizes = pad([prompts.sequences[row] for row in rows])
        last = torch.arange(len(rows)), torch.from_numpy(sizes - 1 - prefix.length)

        def at_last(hidden: torch.Tensor, last: tuple = last) -> torch.Tensor:
            return hidden[beside(hidden, *last)][:, None]

        with patched(checkpoint.architecture.unembedding, at_last):
            logits = prefix.run(checkpoint.model, tokens).logits[:, 0]
        answers = torch.from_numpy(prompts.answers[rows]).to(checkpoint.model.device)
        parts.append(read_off(logits, answers))
    back = np.argsort(order)
    return Predictions(*(values[back] for values in vars(_joined(parts)).values()))


@torch.no_grad()
def says(
    loaded: Checkpoint,
    pairs: list[tuple[list[int], list[int]]],
    prompts_per_pass: int,
) -> np.ndarray:
    """Return whether greedy decoding gives the whole answer to each prompt: bool (prompts,).

    pairs: the tokens of each prompt and of its answer. One pass over both decides: until greedy
    decoding gives another token, it reads the answer's. The tokens that all prompts begin with are
    computed once.
    """
    if not pairs:
        return np.zeros(0, bool)
    prompts = [prompt for prompt, _ in pairs]
    prefix = prefixes.find(loaded, prompts, min(map(len, prompts)) - 1, fewest=1)
    rows_by_size: dict[tuple[int, int], list[int]] = {}
    for row, (prompt, answer) in enumerate(pairs):
        rows_by_size.setdefault((len(prompt), len(answer)), []).append(row)
    is_right = np.zeros(len(pairs), bool)
    for (_, length), rows in rows_by_size.items():
        unshared = len(pairs[rows[0]][0]) + length - 1 - prefix.length
        step = _in_pass(loaded, prompts_per_pass, unshared, length)
        for first in range(0, len(rows), step):
            some = rows[first : first + step]
            tokens = np.array([pairs[row][0] + pairs[row][1] for row in some])
            out = prefix.run(loaded.model, tokens[:, :-1], logits_to_keep=length)
            greedy = out.logits[:, -length:].argmax(-1).cpu().numpy()
            is_right[some] = (greedy == tokens[:, -length:]).all(1)
    return is_right
