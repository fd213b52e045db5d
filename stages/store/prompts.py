"""Write the prompts of the operand grid in a model's tokens, and the numbers that it can answer.

The limit, the largest number that is one token after the prompt, is found from the tokenizer. The
table has the whole grid op1 x op2 of every operator, because mean ablation averages over it.
Prompts without a one-token answer have a null answer.

A model with the setting answer_token predicts that token of the answer, counted from 0. The tokens
of the answer before it are part of the prompt, and prompts whose answer has too few tokens have a
null answer. The model's numbers are what such tokens stand for: digits, or longer numbers. If
operands have several tokens, a position is that of the last one, and the table has two more
columns, op1_first_position and op2_first_position, for the first one.

Table prompts: the grid of prompts, with or without an answer
    subject            VARCHAR    the model
    operator           VARCHAR    add, subtract, multiply or divide
    op1                INTEGER    first operand
    op2                INTEGER    second operand
    result             INTEGER    the answer; null if it has no token that the model can predict
    tokens             INTEGER[]  the prompt in the model's tokens
    answer_token       INTEGER    the answer's token, or the one of its tokens that the model is to
                                  predict; null if there is none
    op1_position       SMALLINT   index of op1's last token in `tokens`, from 0
    operator_position  SMALLINT   index of the operator's last token in `tokens`, from 0
    op2_position       SMALLINT   index of op2's last token in `tokens`, from 0
    last_position      SMALLINT   index of the last token in `tokens`, from 0; the answer is
                                  predicted at this position

Table numbers: the numbers that are one token of the model after a prompt
    subject  VARCHAR  the model
    number   INTEGER  the number, from 0 to the model's limit
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
from stages.lib.core.vocabulary import ROLES, Operator
from stages.lib.model import contents, tokenizer
from stages.lib.subject import Subject
from stages.store.pieces import NumberTokens, Reader, numbered
from stages.store.template import PromptError, Template

CELL = ["operator", "op1", "op2"]
SEPARATE = "give each operator a model of its own in params.yaml"


class OperatorPrompts(NamedTuple):
    """One operator's prompts, and the token of each number.

    table: op1, op2, tokens and a position for each role; with answer_token also `number`, what the
    answer's token stands for.
    """

    table: pl.DataFrame
    number_tokens: NumberTokens


def main(name: str) -> None:
    subject = Subject.named(name)
    answer_token = subject.settings.answer_token
    cells = read_table("data/corpus/cells.parquet", columns=[*CELL, "result"])
    by_operator = _by_operator(subject, cells)
    tokens = _numbers(name, by_operator, one_token=answer_token is None)
    schema = {"number": pl.Int32, "token": pl.Int32}
    numbers = pl.DataFrame({"number": range(len(tokens)), "token": tokens}, schema=schema)
    tables = []
    for operator, own in by_operator.items():
        tables.append(own.table.with_columns(pl.lit(operator).alias("operator")))
    result_if_known = pl.when(pl.col("answer_token").is_not_null()).then("result")
    prompts = (
        pl.concat(tables)
        .join(cells, on=CELL, how="left")
        .with_columns(number="result" if answer_token is None else "number")
        .join(numbers.rename({"token": "answer_token"}), on="number", how="left")
        .with_columns(pl.lit(name).alias("subject"), result_if_known.alias("result"))
        .sort(CELL)
    )
    if answer_token is not None:
        _report_left_out(name, answer_token, prompts, cells)
    positions = [f"{role}_position" for role in _roles(prompts)]
    columns = ["subject", *CELL, "result", "tokens", "answer_token", *positions]
    write_table(prompts.select(columns), subject.path("store/prompts.parquet"))
    numbers = numbers.select(pl.lit(name).alias("subject"), "number", "token")
    write_table(numbers, subject.path("store/numbers.parquet"))


def _by_operator(subject: Subject, cells: pl.DataFrame) -> dict[Operator, OperatorPrompts]:
    settings, grid, words = subject.settings, load(Cells), load(Tasks).operators
    own = tokenizer.load(settings.source)
    limits = contents.limits(settings.source)
    operands = settings.operands(grid.largest_operand)
    prompts = {}
    for operator in settings.operators:
        symbol = words[operator].symbol
        template = Template(own, settings.template, symbol, settings.bos, settings.chat)
        limits.check_length(len(template.tokens(template.text(operands[-1], operands[-1]))))
        if settings.answer_token is None:
            prompts[operator] = _one_token(template, operands, grid.largest_answer)
        else:
            reader = Reader(template, settings.answer_token)
            results = _results(cells.filter(operator=operator), operands)
            title = f"prompts {subject.name} {operator}"
            prompts[operator] = _several_tokens(reader, operands, results, title)
    return prompts


def _one_token(template: Template, operands: range, largest_answer: int) -> OperatorPrompts:
    """Return prompts whose operands and answers are one token each."""
    tokens = template.square(operands)  # (op1, op2, positions)
    shape = tokens.shape[:2]
    positions = {role: np.full(shape, at) for role, at in template.positions.items()}
    table = _table(tokens.reshape(-1, tokens.shape[2]), positions)
    return OperatorPrompts(table, dict(enumerate(template.answers(largest_answer))))


def _several_tokens(
    reader: Reader,
    operands: range,
    results: np.ndarray,
    title: str,
) -> OperatorPrompts:
    """Return prompts whose numbers may be several tokens."""
    pieces = reader.square(operands, results, title)
    positions = {f"{role}_position": at for role, at in pieces.positions.items()}
    number = pl.Series("number", pieces.numbers.ravel(), pl.Int32).replace(-1, None)
    table = _table(pieces.tokens, positions).with_columns(number)
    return OperatorPrompts(table, pieces.number_tokens)


def _table(tokens: np.ndarray | list[list[int]], positions: dict[str, np.ndarray]) -> pl.DataFrame:
    """Return a row per prompt. tokens: in the order of op1, then op2; positions: (op1, op2)."""
    op1, op2 = np.indices(next(iter(positions.values())).shape)
    frame = pl.DataFrame({"op1": op1.ravel(), "op2": op2.ravel(), "tokens": tokens})
    return frame.with_columns(
        pl.col("op1", "op2").cast(pl.Int32),
        pl.col("tokens").cast(pl.List(pl.Int32)),
        *(pl.Series(name, at.ravel(), pl.Int16) for name, at in positions.items()),
    )


def _results(cells: pl.DataFrame, operands: range) -> np.ndarray:
    """Return the answers to an operator's prompts, (op1, op2), -1 where there is none."""
    inside = cells.filter(pl.col("op1") <= operands[-1], pl.col("op2") <= operands[-1])
    results = np.full((len(operands), len(operands)), -1, np.int64)
    results[inside["op1"], inside["op2"]] = inside["result"]
    return results


def _roles(prompts: pl.DataFrame) -> list[str]:
    """Return the roles whose positions the table has: first tokens only if an operand has more."""
    firsts = list(map(first_of, OPERANDS))
    for operand, first in zip(OPERANDS, firsts, strict=True):
        first_position = prompts.get_column(f"{first}_position", default=None)
        if first_position is None:
            continue
        if (prompts[f"{operand}_position"] != first_position).any():
            return [*ROLES, *firsts]
    return [*ROLES]


def _numbers(
    name: str,
    prompts: dict[Operator, OperatorPrompts],
    *,
    one_token: bool,
) -> list[int]:
    """Return the tokens of the numbers 0, 1, …, which all operators share.

    Raises PromptError if they differ, or if the operands are at other positions.
    """
    first_positions = pl.col("^op.*_position$").first()
    shapes = {}
    for operator, own in prompts.items():
        shapes[operator] = own.table.select(first_positions).row(0)
    if len(set(shapes.values())) > 1:
        problem = f"the tokens' positions differ between operators, {shapes}"
        raise PromptError(f"{name}: {problem}; {SEPARATE}")
    merged: NumberTokens = {}
    for own in prompts.values():
        tokens = own.number_tokens
        two_tokens_of_a_number = merged | tokens != tokens | merged
        if two_tokens_of_a_number or (one_token and merged and merged != tokens):
            raise PromptError(f"{name}: the numbers' tokens differ between operators; {SEPARATE}")
        merged |= tokens
    numbers = numbered(merged)
    if not numbers:
        problem = "no answer has a token that stands for 0"
        way_out = "set another answer_token for this model in params.yaml"
        raise PromptError(f"{name}: {problem}; {way_out}")
    return numbers


def _report_left_out(
    name: str,
    answer_token: int,
    prompts: pl.DataFrame,
    cells: pl.DataFrame,
) -> None:
    """Print a line for each operator some of whose answers have too few tokens."""
    answered = prompts.select(*CELL, known="result").join(cells, on=CELL)
    counts = answered.group_by("operator").agg(pl.col("known").is_null().sum(), pl.len())
    for operator, missing, answers in counts.sort("operator").iter_rows():
        if missing:
            problem = f"have no token {answer_token}, counted from 0"
            progress.say(
                f"{name}: {missing:,} of {answers:,} answers of {operator} {problem}; "
                "their prompts are not cells"
            )


if __name__ == "__main__":
    main(sys.argv[1])
