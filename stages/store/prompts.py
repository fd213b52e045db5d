"""The square of prompts that a subject is asked, in its own tokens.

The limit, up to which numbers are one token behind the prompt, is found from the tokenizer. The whole square op1 x op2 of every operator
is kept, since mean ablation averages over it: prompts without a one-token answer have none.

Table prompts: the square of prompts, answerable or not
    subject            VARCHAR    the model
    operator           VARCHAR     add, subtract, multiply or divide
    op1                SMALLINT    first operand
    op2                SMALLINT    second operand
    result             INTEGER     the answer, null where there is none of one token
    tokens             INTEGER[]   the prompt, as the subject reads it
    answer_token       INTEGER     the answer's token, null where there is none
    op1_position       SMALLINT    which of the tokens is op1, from 0
    operator_position  SMALLINT    which is the operator
    op2_position       SMALLINT    which is op2
    last_position      SMALLINT    the last one, behind which the answer is predicted

Table numbers: the numbers that are one token of the subject behind a prompt
    subject  VARCHAR  the model
    number   INTEGER  0 to the subject's limit
    token    INTEGER  its token
"""

import sys

import numpy as np
import polars as pl

from stages.corpus.settings import Cells, Tasks
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.core.words import ROLES
from stages.lib.model import tokenizer
from stages.lib.subject import Subject
from stages.store import template as prompting


def main(name: str) -> None:
    subject, grid, tasks = Subject.named(name), load(Cells), load(Tasks)
    chosen = subject.settings
    loaded = tokenizer.load(chosen.source)
    cells = read_table("data/corpus/cells.parquet", columns=["operator", "op1", "op2", "result"])
    operands = range(grid.largest_operand + 1)
    numbers: list[int] = []
    squares = []
    for operator in chosen.operators:
        symbol = tasks.operators[operator].symbol
        template = prompting.Template(loaded, chosen.template, symbol, chosen.bos)
        tokens = template.square(operands)  # (op1, op2, positions)
        answers = template.answers(grid.largest_answer)
        numbers = numbers or answers
        if numbers != answers:
            raise ValueError(f"{name}: the numbers' tokens differ between operators; give each operator a subject of its own")
        op1, op2 = (axis.ravel() for axis in np.indices(tokens.shape[:2]))
        square = pl.DataFrame({"op1": op1, "op2": op2, "tokens": tokens.reshape(-1, tokens.shape[2])}).with_columns(
            pl.lit(operator).alias("operator"),
            pl.col("op1", "op2").cast(pl.Int16),
            pl.col("tokens").cast(pl.List(pl.Int32)),
            *(pl.lit(v, pl.Int16).alias(k) for k, v in template.positions.items()),
        )
        squares.append(square)
    answer = pl.DataFrame({"number": range(len(numbers)), "token": numbers}, schema={"number": pl.Int32, "token": pl.Int32})
    prompts = (
        pl.concat(squares)
        .join(cells, on=["operator", "op1", "op2"], how="left")
        .join(answer.rename({"number": "result", "token": "answer_token"}), on="result", how="left")
        .with_columns(pl.lit(name).alias("subject"), pl.when(pl.col("answer_token").is_not_null()).then("result").alias("result"))
        .sort("operator", "op1", "op2")
    )
    keys = ["subject", "operator", "op1", "op2"]
    positions = [f"{role}_position" for role in ROLES]
    write_table(prompts.select(*keys, "result", "tokens", "answer_token", *positions), subject.path("store/prompts.parquet"))
    write_table(answer.select(pl.lit(name).alias("subject"), "number", "token"), subject.path("store/numbers.parquet"))


if __name__ == "__main__":
    main(sys.argv[1])
