"""Asks a model prompts of any template and length: what it says next, and how likely the answer was."""

from dataclasses import dataclass, fields

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

LOGITS = 1 << 28  # bytes of logits that are held, or read off, at once


@dataclass(frozen=True)
class Asked:
    """Prompts in tokens, and the token of each answer, or the one of its tokens that is asked for, -1 where there is no such token."""

    sequences: list[list[int]]
    answers: np.ndarray  # (prompts,)


@dataclass(frozen=True)
class Said:
    """What a model says to each prompt, each (prompts,): the likeliest token, and what it thinks of the answer (NaN where unknown)."""

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
) -> Asked:
    """Prompts and answers in a subject's tokens; an answer follows its prompt after a blank.

    Where that blank is a token of its own (numbers of Llama 3), it belongs to the prompt, behind which the answer is asked for.
    bos: whether BOS stands before each prompt; None: what the tokenizer itself puts there.
    answer_token: which of an answer's tokens is asked for, from 0; those before it stand in the prompt. None: answers are one token.
    """
    front = tokens_before(tokenizer, bos)
    parts = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    whole = tokenizer([f"{p} {a}" for p, a in zip(prompts, answers, strict=True)], add_special_tokens=False)["input_ids"]
    blanks = {token for tokens in whole for token in tokens[-2:-1] if not str(tokenizer.decode([token])).strip()}
    sequences, known = [], []
    for prompt, tokens in zip(parts, whole, strict=True):
        if answer_token is not None:
            blank = tokens[: len(prompt)] == prompt and not str(tokenizer.decode(tokens[len(prompt) : len(prompt) + 1])).strip()
            place = len(prompt) + blank + answer_token
            there = tokens[: len(prompt)] == prompt and place < len(tokens) and tokenizer.unk_token_id not in tokens[len(prompt) :]
            sequences.append(front + (tokens[:place] if there else prompt))
            known.append(tokens[place] if there else -1)
            continue
        apart = len(tokens) == len(prompt) + 2 and tokens[-2] in blanks
        sequence = tokens[:-1] if apart else prompt
        follows = tokens[:-1] == sequence and tokens[: len(prompt)] == prompt and tokens[-1] != tokenizer.unk_token_id
        sequences.append(front + (sequence if follows else prompt))
        known.append(tokens[-1] if follows else -1)
    return Asked(sequences, np.array(known))


def read_off(logits: torch.Tensor, answers: torch.Tensor) -> Said:
    """Measures last-position logits (prompts, vocabulary) against answers (prompts,), in at least float32; gives float32.

    Raises FloatingPointError on a NaN or infinity.
    """
    rows = max(1, LOGITS // (4 * logits.shape[-1] * logits.itemsize))  # reading makes copies of them
    parts = zip(logits.split(rows), answers.split(rows), strict=True)
    return _joined([_read_off(*part) for part in parts])


def _read_off(logits: torch.Tensor, answers: torch.Tensor) -> Said:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    answer = logits.gather(1, answers.clamp(min=0)[:, None])[:, 0].masked_fill(answers < 0, torch.nan)
    largest, predicted = logits.max(-1)
    total = logits.logsumexp(-1)
    if not torch.isfinite(total).all():  # a NaN or an infinity among the logits ends up in their sum
        raise FloatingPointError("the model's logits are not finite; try a wider dtype for this subject in params.yaml")
    probability = (answer - total).exp()
    return Said(predicted.cpu().numpy(), *(t.float().cpu().numpy() for t in (largest, answer, probability)))


def _joined(parts: list[Said]) -> Said:
    names = [field.name for field in fields(Said)]
    return Said(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _in_pass(checkpoint: Checkpoint, most: int, positions: int = 1) -> int:
    """Return how many prompts are one pass: at most so many, whose logits, of so many positions, fit into LOGITS."""
    per_prompt = positions * checkpoint.architecture.vocabulary * checkpoint.model.dtype.itemsize
    return max(1, min(most, LOGITS // per_prompt))


@torch.no_grad()
def ask(checkpoint: Checkpoint, asked: Asked, prompts_per_pass: int, desc: str) -> Said:
    """Runs every prompt, prompts of similar length together; the results are in the order of `asked`.

    The tokens that all prompts begin with are computed once.
    """
    prefix = prefixes.of(checkpoint, asked.sequences, min(map(len, asked.sequences)) - 1)
    order = np.argsort([len(s) for s in asked.sequences], kind="stable")
    parts, at_once = [], _in_pass(checkpoint, prompts_per_pass)
    for start in progress.bar(range(0, len(order), at_once), desc=desc, unit="pass"):
        chosen = order[start : start + at_once]
        tokens, lengths = pad([asked.sequences[i] for i in chosen])
        device = checkpoint.model.device
        at = torch.arange(len(chosen)), torch.from_numpy(lengths - 1 - prefix.length)
        with patched(checkpoint.architecture.unembedding, lambda hidden, at=at: hidden[beside(hidden, *at)][:, None]):
            logits = prefix.run(checkpoint.model, tokens).logits[:, 0]
        parts.append(read_off(logits, torch.from_numpy(asked.answers[chosen]).to(device)))
    back = np.argsort(order)
    whole = _joined(parts)
    return Said(*(getattr(whole, field.name)[back] for field in fields(Said)))


@torch.no_grad()
def says(loaded: Checkpoint, asked: list[tuple[list[int], list[int]]], prompts_per_pass: int, title: str) -> np.ndarray:
    """Whether greedy decoding says the whole answer behind each prompt, bool (prompts,); asked: prompts and answers in tokens.

    As long as it says the answer's tokens, it reads what it has said: one pass over both tells. The tokens that all prompts begin with are
    computed once.
    """
    if not asked:
        return np.zeros(0, bool)
    shortest = min(len(prompt) for prompt, _ in asked)
    prefix = prefixes.of(loaded, [prompt for prompt, _ in asked], shortest - 1)
    sizes: dict[tuple[int, int], list[int]] = {}
    for number, (prompt, answer) in enumerate(asked):
        sizes.setdefault((len(prompt), len(answer)), []).append(number)
    said = np.zeros(len(asked), bool)
    with progress.bar(total=len(asked), desc=title, unit="prompt") as bar:
        for (_, length), numbers in sorted(sizes.items()):
            at_once = _in_pass(loaded, prompts_per_pass, length)
            for first in range(0, len(numbers), at_once):
                some = numbers[first : first + at_once]
                tokens = np.array([asked[number][0] + asked[number][1] for number in some])
                out = prefix.run(loaded.model, tokens[:, :-1], logits_to_keep=length)
                greedy = out.logits[:, -length:].argmax(-1).cpu().numpy()
                said[some] = (greedy == tokens[:, -length:]).all(1)
                bar.update(len(some))
    return said
