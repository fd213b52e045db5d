"""Measures where every head looks (the study's Fig. 14): its mean attention weights over the clean prompts for discovery.

Positions carry the names of their roles; the others are `bos`, or `token N` with N counted from 0. Of a model whose attention does not say
its weights there are no rows.

Table attention_patterns: how much each head looks from one position at another
    subject         VARCHAR   the model
    operator        VARCHAR   add, subtract, multiply or divide
    layer           SMALLINT  decoder layer, from 0
    head            SMALLINT  attention head of the layer, from 0
    query_position  VARCHAR   position that looks: op1, operator, op2, last, bos, or token N
    key_position    VARCHAR   position looked at, the same or an earlier one
    weight          FLOAT     mean attention weight, 0 to 1; the weights of one query sum to 1
    weight_std      FLOAT     standard deviation of the weight over the prompts
    prompts         BIGINT    prompts
"""

import sys

import numpy as np
import polars as pl

from stages.circuit import streams
from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.model import checkpoint, tokenizer
from stages.lib.model.architecture import ArchitectureError
from stages.lib.settings import Passes
from stages.lib.subject import Subject

COLUMNS = {
    "subject": pl.String, "operator": pl.String, "layer": pl.Int16, "head": pl.Int16, "query_position": pl.String,
    "key_position": pl.String, "weight": pl.Float32, "weight_std": pl.Float32, "prompts": pl.Int64,
}  # fmt: skip


def main(name: str) -> None:
    subject = Subject.named(name)
    passes = subject.settings.passes or load(Passes)
    pairs = subject.table("circuit/pairs.parquet").filter(pl.col("split") == "discovery").sort("pair")
    bos = tokenizer.load(subject.settings.source).bos_token_id
    loaded = checkpoint.of(subject.settings)
    rows: list[tuple] = []
    for operator, prompts in sorted(pairs.partition_by("operator", as_dict=True).items()):
        tokens = np.array(prompts["tokens"].to_list(), np.int64)  # the prompts of an operator have one length
        names = position_names(prompts["positions"][0], tokens[0].tolist(), bos)
        try:
            mean, std = streams.attention(loaded, tokens, passes.prompts)
        except ArchitectureError as error:  # where plain attention is wrong, and so not used
            progress.say(f"{name}: {error}; the table attention_patterns has no rows")
            break
        for layer, head, query, key in np.ndindex(mean.shape):
            if key <= query:
                place = (layer, head, query, key)
                rows.append((subject.name, *operator, layer, head, names[query], names[key], mean[place], std[place], len(tokens)))
    write_table(pl.DataFrame(rows, schema=COLUMNS, orient="row"), subject.path("circuit/attention_patterns.parquet"))


def position_names(roles: dict[str, int], tokens: list[int], bos: int | None) -> list[str]:
    """The name of each position of a prompt; roles: role -> position."""
    names = ["bos" if i == 0 and token == bos else f"token {i}" for i, token in enumerate(tokens)]
    for role, position in roles.items():
        names[position] = role
    return names


if __name__ == "__main__":
    main(sys.argv[1])
