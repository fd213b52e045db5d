"""The square of prompts that a subject is asked, in its own tokens.

The limit, up to which numbers are one token behind the prompt, is found from the tokenizer. The whole square op1 x op2 of every operator
is kept, since mean ablation averages over it: prompts without a one-token answer have none.

A subject with the setting answer_token is asked for that token of the answer, from 0; those before it stand in the prompt, as many as there
are, and answers of fewer tokens are none. Its numbers are what such tokens stand for: digits, or more. Where its operands have several
tokens, a position is that of the last one, and op1_first_position and op2_first_position, two more columns, are those of the first.

Table prompts: the square of prompts, answerable or not
    subject            VARCHAR    the model
    operator           VARCHAR     add, subtract, multiply or divide
    op1                INTEGER     first operand
    op2                INTEGER     second operand
    result             INTEGER     the answer, null where there is none of one token
    tokens             INTEGER[]   the prompt, as the subject reads it
    answer_token       INTEGER     the answer's token, or the one of its tokens that is asked for, null where there is none
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
from typing import NamedTuple

import numpy as np
import polars as pl

from stages.corpus.settings import Cells, Tasks
from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.core.slots import OPERANDS, first_of
from stages.lib.core.tables import read_table, write_table
from stages.lib.core.words import ROLES, Operator
from stages.lib.model import contents, tokenizer
from stages.lib.subject import Subject
from stages.store.pieces import Reader, numbered
from stages.store.template import PromptError, Template


class OperatorPrompts(NamedTuple):
    """An operator's prompts: op1, op2, tokens, result, answer_token and positions by role; which numbers there are, and their tokens."""

    prompts: pl.DataFrame
    numbers: dict[int, int]


def main(name: str) -> None:
    subject, grid, words = Subject.named(name), load(Cells), load(Tasks).operators
    chosen = subject.settings
    loaded, limits = tokenizer.load(chosen.source), contents.limits(chosen.source)
    cells = read_table("data/corpus/cells.parquet", columns=["operator", "op1", "op2", "result"])
    operands = chosen.operands(grid.largest_operand)
    squares = {}
    for operator in chosen.operators:
        template = Template(loaded, chosen.template, words[operator].symbol, chosen.bos, chosen.chat)
        limits.check_length(len(template.tokens(template.text(operands[-1], operands[-1]))))
        if chosen.answer_token is None:
            squares[operator] = _one_token(template, operands, grid.largest_answer)
        else:
            results = _results(cells.filter(operator=operator), operands)
            squares[operator] = _several(Reader(template, chosen.answer_token), operands, results, f"prompts {name} {operator}")
    numbers = _numbers(name, squares, one_token=chosen.answer_token is None)
    answer = pl.DataFrame({"number": range(len(numbers)), "token": numbers}, schema={"number": pl.Int32, "token": pl.Int32})
    prompts = (
        pl.concat(of.prompts.with_columns(pl.lit(operator).alias("operator")) for operator, of in squares.items())
        .join(cells, on=["operator", "op1", "op2"], how="left")
        .with_columns(asked="asked" if chosen.answer_token is not None else "result")
        .join(answer.rename({"number": "asked", "token": "answer_token"}), on="asked", how="left")
        .with_columns(pl.lit(name).alias("subject"), pl.when(pl.col("answer_token").is_not_null()).then("result").alias("result"))
        .sort("operator", "op1", "op2")
    )
    if chosen.answer_token is not None:
        _say_left_out(name, chosen.answer_token, prompts, cells)
    firsts = [o for o in OPERANDS if f"{first_of(o)}_position" in prompts.columns]
    several = any((prompts[f"{o}_position"] != prompts[f"{first_of(o)}_position"]).any() for o in firsts)
    roles = (*ROLES, *map(first_of, OPERANDS)) if several else ROLES
    keys = ["subject", "operator", "op1", "op2"]
    positions = [f"{role}_position" for role in roles]
    write_table(prompts.select(*keys, "result", "tokens", "answer_token", *positions), subject.path("store/prompts.parquet"))
    write_table(answer.select(pl.lit(name).alias("subject"), "number", "token"), subject.path("store/numbers.parquet"))


def _one_token(template: Template, operands: range, largest_answer: int) -> OperatorPrompts:
    """Prompts whose operands and answers are one token each."""
    tokens = template.square(operands)  # (op1, op2, positions)
    positions = {role: np.full(tokens.shape[:2], at) for role, at in template.positions.items()}
    return OperatorPrompts(_frame(tokens.reshape(-1, tokens.shape[2]), positions), dict(enumerate(template.answers(largest_answer))))


def _several(reader: Reader, operands: range, results: np.ndarray, title: str) -> OperatorPrompts:
    """Prompts whose numbers may be several tokens; column asked: what the asked one stands for."""
    read = reader.square(operands, results, title)
    positions = {f"{role}_position": at for role, at in read.positions.items()}
    asked = pl.Series("asked", read.numbers.ravel(), pl.Int32)
    return OperatorPrompts(_frame(read.tokens, positions).with_columns(asked.replace(-1, None)), read.asked)


def _frame(tokens: np.ndarray | list[list[int]], positions: dict[str, np.ndarray]) -> pl.DataFrame:
    op1, op2 = (axis.ravel() for axis in np.indices(next(iter(positions.values())).shape))
    return pl.DataFrame({"op1": op1, "op2": op2, "tokens": tokens}).with_columns(
        pl.col("op1", "op2").cast(pl.Int32),
        pl.col("tokens").cast(pl.List(pl.Int32)),
        *(pl.Series(role, at.ravel(), pl.Int16) for role, at in positions.items()),
    )


def _results(cells: pl.DataFrame, operands: range) -> np.ndarray:
    """The answers of an operator's prompts (op1, op2), -1 where there is none."""
    inside = cells.filter(pl.col("op1") <= operands[-1], pl.col("op2") <= operands[-1])
    results = np.full((len(operands), len(operands)), -1, np.int64)
    results[inside["op1"], inside["op2"]] = inside["result"]
    return results


def _numbers(name: str, squares: dict[Operator, OperatorPrompts], *, one_token: bool) -> list[int]:
    """The tokens of the numbers 0, 1, …, which all operators share. Raises PromptError where they do not, or stand elsewhere."""
    apart = "give each operator a subject of its own"
    shapes = {operator: of.prompts.select(pl.col("^op.*_position$").first()).row(0) for operator, of in squares.items()}
    if len(set(shapes.values())) > 1:
        raise PromptError(f"{name}: tokens stand at other places for other operators, {shapes}; {apart}")
    together: dict[int, int] = {}
    for of in squares.values():
        clash = any(together.get(number, token) != token for number, token in of.numbers.items())
        if clash or (one_token and together and together != of.numbers):
            raise PromptError(f"{name}: the numbers' tokens differ between operators; {apart}")
        together |= of.numbers
    if not (found := numbered(together)):
        raise PromptError(f"{name}: no answer has a token that stands for 0; set another answer_token for this subject in params.yaml")
    return found


def _say_left_out(name: str, answer_token: int, prompts: pl.DataFrame, cells: pl.DataFrame) -> None:
    """A line for each operator that has answers of too few tokens."""
    answered = prompts.select("operator", "op1", "op2", asked="result").join(cells, on=["operator", "op1", "op2"])
    for operator, few, of in (
        answered.group_by("operator").agg(pl.col("asked").is_null().sum(), pl.len().alias("of")).sort("operator").iter_rows()
    ):
        if few:
            progress.say(f"{name}: {few:,} of {of:,} answers of {operator} have no token {answer_token}, from 0: they are no cells")


if __name__ == "__main__":
    main(sys.argv[1])
