"""Average every head's attention weights over the clean discovery prompts (App. B.2, Fig. 14).

Positions carry the names of their roles; the others are `bos`, or `token N` with N counted from 0. Where prompts differ in length, N
counts slots (stages/lib/core/slots.py): a mean is over the prompts that have the token that looks, a token that some lack gets 0 there.
Of a model whose attention does not say its weights there are no rows.

Table attention_patterns: how much each head looks from one position at another
    subject         VARCHAR   the model
    operator        VARCHAR   add, subtract, multiply or divide
    layer           SMALLINT  decoder layer, from 0
    head            SMALLINT  attention head of the layer, from 0
    query_position  VARCHAR   position that looks: op1, operator, op2, last, bos, or token N
    key_position    VARCHAR   position looked at, the same or an earlier one
    weight          FLOAT     mean attention weight, 0 to 1; the weights of one query sum to 1
    weight_std      FLOAT     standard deviation of the weight over the prompts, to 7 decimals: smaller ones are the processor's rounding
    prompts         BIGINT    prompts
"""

import sys

import numpy as np
import polars as pl

from stages.circuit import streams
from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.core.slots import OPERANDS, first_of, slots
from stages.lib.core.tables import write_table
from stages.lib.core.words import ROLES
from stages.lib.model import checkpoint, tokenizer
from stages.lib.model.architecture import ArchitectureError
from stages.lib.settings import Passes
from stages.lib.subject import Subject

COLUMNS = {
    "subject": pl.String, "operator": pl.String, "layer": pl.Int16, "head": pl.Int16, "query_position": pl.String,
    "key_position": pl.String, "weight": pl.Float32, "weight_std": pl.Float32, "prompts": pl.Int64,
}  # fmt: skip

Form = tuple[dict[str, int], np.ndarray]  # of prompts of one form: where roles stand, and tokens (prompts, positions)


def main(name: str) -> None:
    subject = Subject.named(name)
    passes = subject.settings.passes or load(Passes)
    pairs = subject.table("circuit/pairs.parquet").filter(pl.col("split") == "discovery").sort("pair")
    bos = tokenizer.load(subject.settings.source).bos_token_id
    loaded = checkpoint.of(subject.settings)
    rows: list[tuple] = []
    for operator, prompts in sorted(pairs.partition_by("operator", as_dict=True).items()):
        groups = [
            (group["positions"][0], np.array(group["tokens"].to_list(), np.int64))
            for group in prompts.with_columns(length=pl.col("tokens").list.len()).partition_by("length", "positions", maintain_order=True)
        ]
        try:
            if len(groups) == 1:
                roles, tokens = groups[0]
                mean, std = streams.attention(loaded, tokens, passes.prompts)
                names, counts = position_names(roles, tokens[0].tolist(), bos), np.full(tokens.shape[1], len(tokens))
            else:
                mean, std, counts, names = _by_slot(loaded, groups, bos, passes.prompts)
        except ArchitectureError as error:  # where plain attention is wrong, and so not used
            progress.say(f"{name}: {error}; the table attention_patterns has no rows")
            break
        for layer, head, query, key in np.ndindex(mean.shape):
            if key <= query:
                place = (layer, head, query, key)
                spread = round(float(std[place]), 7)
                rows.append((subject.name, *operator, layer, head, names[query], names[key], mean[place], spread, int(counts[query])))
    write_table(pl.DataFrame(rows, schema=COLUMNS, orient="row"), subject.path("circuit/attention_patterns.parquet"))


def _by_slot(
    loaded: checkpoint.Checkpoint, groups: list[Form], bos: int | None, prompts_per_pass: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Means and deviations (layers, heads, slots, slots), prompts by slot, and the names of slots, of prompts of several forms."""
    widths = {o: max(roles[o] - roles[first_of(o)] + 1 for roles, _ in groups) for o in OPERANDS}
    places = [slots(tokens.shape[1], {role: np.array([at]) for role, at in roles.items()}, widths)[0] for roles, tokens in groups]
    number, found = max(int(place[-1]) for place in places) + 1, loaded.architecture
    shape = (len(found.layers), found.heads, number, number)
    counts, names, moments = np.zeros(number, np.int64), [f"token {slot}" for slot in range(number)], []
    for place, (roles, tokens) in zip(places, groups, strict=True):
        moments.append(np.zeros((2, *shape)))  # mean and deviation, of slots that its prompts lack 0
        moments[-1][..., place[:, None], place] = streams.attention(loaded, tokens, prompts_per_pass)
        counts[place] += len(tokens)
        for slot, name in zip(place, position_names(roles, tokens[0].tolist(), bos), strict=True):
            names[slot] = name if name in (*ROLES, "bos") else names[slot]
    total, squares = np.zeros((2, *shape))
    for (_, tokens), (mean, _) in zip(groups, moments, strict=True):
        total += len(tokens) * mean
    means = total / np.maximum(counts, 1)[:, None]
    for place, (_, tokens), (mean, std) in zip(places, groups, moments, strict=True):
        squares[:, :, place] += len(tokens) * (std**2 + (mean - means) ** 2)[:, :, place]
    return means, np.sqrt(squares / np.maximum(counts, 1)[:, None]), counts, names


def position_names(roles: dict[str, int], tokens: list[int], bos: int | None) -> list[str]:
    """The name of each position of a prompt; roles: role -> position."""
    names = ["bos" if i == 0 and token == bos else f"token {i}" for i, token in enumerate(tokens)]
    for role, position in roles.items():
        if role in ROLES:
            names[position] = role
    return names


if __name__ == "__main__":
    main(sys.argv[1])
