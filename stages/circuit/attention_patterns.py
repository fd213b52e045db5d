"""Average every head's attention weights over the clean discovery prompts (App. B.2, Fig. 14).

Positions have the names of their roles. An operand of several tokens has its name at the last of
them; the others are `op1, last but N`. All other positions are `bos`, or `token N` with N counted
from 0. If prompts differ in length, N counts slots (stages/lib/core/slots.py). A mean is then over
the prompts that have the query token; a key token that some of these prompts lack has weight 0 in
them.
If a model's attention does not return its weights, the table has no rows.

Table attention_patterns: mean attention weight of each head between each two positions
    subject         VARCHAR   the model
    operator        VARCHAR   add, subtract, multiply or divide
    layer           SMALLINT  decoder layer, from 0
    head            SMALLINT  attention head of the layer, from 0
    query_position  VARCHAR   position that attends: op1, operator, op2, last, bos, token N, or
                              op1, last but N and op2, last but N
    key_position    VARCHAR   position attended to: the query position itself or an earlier one
    weight          FLOAT     mean attention weight, 0 to 1; the weights of one query sum to 1
    weight_std      FLOAT     standard deviation of the weight over prompts, rounded to 7 decimals
                              because smaller ones are the processor's rounding errors
    prompts         BIGINT    number of prompts that have the query position
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import polars as pl

from stages.circuit import recording
from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.core.slots import OPERANDS, first_of, slots
from stages.lib.core.tables import write_table
from stages.lib.core.vocabulary import ROLES
from stages.lib.model import checkpoint, tokenizer
from stages.lib.model.architecture import ArchitectureError
from stages.lib.settings import Passes
from stages.lib.subject import Subject

COLUMNS = {
    "subject": pl.String,
    "operator": pl.String,
    "layer": pl.Int16,
    "head": pl.Int16,
    "query_position": pl.String,
    "key_position": pl.String,
    "weight": pl.Float32,
    "weight_std": pl.Float32,
    "prompts": pl.Int64,
}


@dataclass(frozen=True)
class PromptGroup:
    """Hold prompts of equal length whose roles are at the same positions.

    roles: role -> position; tokens: (prompts, positions).
    """

    roles: dict[str, int]
    tokens: np.ndarray

    def names(self, bos: int | None) -> list[str]:
        return position_names(self.roles, self.tokens[0].tolist(), bos)

    def width(self, operand: str) -> int:
        """Return the number of tokens of an operand."""
        return self.roles[operand] - self.roles[first_of(operand)] + 1

    def slots(self, widths: dict[str, int]) -> np.ndarray:
        """Return the slot of each position; widths: operand -> most tokens in any group."""
        positions = {role: np.array([position]) for role, position in self.roles.items()}
        return slots(self.tokens.shape[1], positions, widths)[0]


@dataclass(frozen=True)
class Pattern:
    """Hold the attention weights of one operator's prompts.

    mean, std: (layers, heads, query positions, key positions); names, prompts: (positions,).
    """

    mean: np.ndarray
    std: np.ndarray
    names: list[str]
    prompts: np.ndarray

    def rows(self, *keys: str) -> Iterator[tuple]:
        """Yield a row for each pair of positions of each head, after the keys."""
        for layer, head, query, key in np.ndindex(self.mean.shape):
            if key <= query:
                weight = self.mean[layer, head, query, key]
                std = round(float(self.std[layer, head, query, key]), 7)
                names = self.names[query], self.names[key]
                yield *keys, layer, head, *names, weight, std, int(self.prompts[query])


def main(name: str) -> None:
    subject = Subject.named(name)
    passes = subject.settings.passes or load(Passes)
    pairs = subject.table("circuit/pairs.parquet").filter(split="discovery").sort("pair")
    bos = tokenizer.load(subject.settings.source).bos_token_id
    loaded = checkpoint.from_settings(subject.settings)
    bar = progress.bar(total=len(pairs), desc=f"attention {name}", unit="prompt")

    def attention(group: PromptGroup) -> tuple[np.ndarray, np.ndarray]:
        weights = recording.attention(loaded, group.tokens, passes.prompts)
        bar.update(len(group.tokens))
        return weights

    rows: list[tuple] = []
    with bar:
        for (operator,), prompts in sorted(pairs.partition_by("operator", as_dict=True).items()):
            groups = _groups(prompts)
            try:
                weights = list(map(attention, groups))
            except ArchitectureError as error:  # the model runs with an attention without weights
                progress.say(f"{name}: {error}; the table attention_patterns has no rows")
                break
            rows += pattern(groups, weights, bos).rows(subject.name, operator)
    table = pl.DataFrame(rows, schema=COLUMNS, orient="row")
    write_table(table, subject.path("circuit/attention_patterns.parquet"))


def _groups(prompts: pl.DataFrame) -> list[PromptGroup]:
    """Return prompts by length and positions of their roles, in order of first appearance."""
    prompts = prompts.with_columns(length=pl.col("tokens").list.len())
    parts = prompts.partition_by("length", "positions", maintain_order=True)
    return [
        PromptGroup(p["positions"][0], np.array(p["tokens"].to_list(), np.int64)) for p in parts
    ]


def pattern(
    groups: list[PromptGroup], weights: list[tuple[np.ndarray, np.ndarray]], bos: int | None
) -> Pattern:
    """Return the pattern of all groups together.

    weights: for each group the mean and the standard deviation, from `recording.attention`.
    """
    if len(groups) == 1:
        [group], [(mean, std)] = groups, weights
        prompts, positions = group.tokens.shape
        return Pattern(mean, std, group.names(bos), np.full(positions, prompts))
    widths = dict.fromkeys(OPERANDS, 0)
    for group, operand in product(groups, OPERANDS):
        widths[operand] = max(widths[operand], group.width(operand))
    slots_of = [group.slots(widths) for group in groups]
    count = 1 + max(int(slot[-1]) for slot in slots_of)
    names = [f"token {slot}" for slot in range(count)]
    prompts = np.zeros(count, np.int64)
    for group, slot in zip(groups, slots_of, strict=True):
        prompts[slot] += len(group.tokens)
        for number, name in zip(slot, group.names(bos), strict=True):
            if not name.startswith("token "):
                names[number] = name
    sizes = [len(group.tokens) for group in groups]
    means, stds = zip(*weights, strict=True)
    mean, std = _pooled(sizes, slots_of, means, stds, prompts)
    return Pattern(mean, std, names, prompts)


def _pooled(
    sizes: list[int],
    slots_of: list[np.ndarray],
    means: tuple[np.ndarray, ...],
    stds: tuple[np.ndarray, ...],
    prompts: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation over the prompts of all groups, by slot.

    sizes, slots_of, means, stds: for each group its prompts, the slots of its positions and its
    moments by position; prompts: (slots,) how many have each slot.
    """
    shape = (*means[0].shape[:2], len(prompts), len(prompts))
    in_slots = list(map(partial(_in_slots, shape=shape), means, slots_of))
    total, squares = np.zeros(shape), np.zeros(shape)
    for size, mean in zip(sizes, in_slots, strict=True):
        total += size * mean
    divisor = np.maximum(prompts, 1)[:, None]
    pooled = total / divisor
    for size, slot, mean, std in zip(sizes, slots_of, in_slots, stds, strict=True):
        moment = _in_slots(std, slot, shape=shape) ** 2 + (mean - pooled) ** 2
        squares[:, :, slot] += size * moment[:, :, slot]  # only queries that the prompts have
    return pooled, np.sqrt(squares / divisor)


def _in_slots(weights: np.ndarray, slot: np.ndarray, *, shape: tuple[int, ...]) -> np.ndarray:
    """Return weights by slot instead of position; 0 in slots that the prompts lack."""
    result = np.zeros(shape)
    result[..., slot[:, None], slot] = weights
    return result


def position_names(roles: dict[str, int], tokens: list[int], bos: int | None) -> list[str]:
    """Return the name of each position of a prompt; roles: role -> position."""
    names = [f"token {i}" for i in range(len(tokens))]
    if tokens and tokens[0] == bos:
        names[0] = "bos"
    for operand in OPERANDS:
        last = roles[operand]
        for position in range(roles.get(first_of(operand), last), last):
            names[position] = f"{operand}, last but {last - position}"
    for role, position in roles.items():
        if role in ROLES:
            names[position] = role
    return names


if __name__ == "__main__":
    main(sys.argv[1])
