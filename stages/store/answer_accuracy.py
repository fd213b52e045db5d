"""Measures how often a model predicts the token that is asked for, and the whole answer.

Greedy decoding must give the whole answer, token by token. One pass over prompt and answer tells:
at each place of the answer, its token is the most likely one.

Table answer_accuracy: how often a model predicts the token that is asked for, and the whole answer
    subject                  VARCHAR  the model
    operator                 VARCHAR  add, subtract, multiply or divide
    split                    VARCHAR  train or held-out: whether the model was trained on these
                                      cells; all, for a model that was not trained here
    accuracy                 DOUBLE   share of cells whose most likely next token is the one that is
                                      asked for, 0 to 1; as in accuracy
    whole_accuracy           DOUBLE   share of the same cells whose whole answer is decoded, 0 to 1;
                                      equal to accuracy where answers are one token
    cells                    BIGINT   how many cells these are shares of
    majority_accuracy        DOUBLE   accuracy of always predicting the most frequent token that is
                                      asked for, 0 to 1
    majority_whole_accuracy  DOUBLE   accuracy of always predicting the most frequent whole answer,
                                      0 to 1
"""

import sys

import numpy as np
import polars as pl

from stages.corpus.settings import Tasks
from stages.lib import ask
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.model import checkpoint, tokenizer
from stages.lib.origins import trained_here
from stages.lib.settings import Passes
from stages.lib.subject import Subject
from stages.store.pieces import Reader
from stages.store.template import Template

CELL = ["operator", "op1", "op2"]


def main(name: str) -> None:
    subject = Subject.named(name)
    cells = read_table("data/corpus/cells.parquet")
    asked = subject.table("store/predictions.parquet", [*CELL, "correct"])
    tokens = subject.table("store/prompts.parquet", [*CELL, "answer_token"])
    known = asked.join(cells, on=CELL, maintain_order="left")
    known = known.join(tokens, on=CELL, maintain_order="left")
    if not trained_here(name):
        known = known.with_columns(split=pl.lit("all"))
    whole = (
        known["correct"]
        if subject.settings.answer_token is None
        else pl.Series(_whole(subject, known), dtype=pl.Boolean)
    )
    table = known.with_columns(whole.alias("whole")).group_by("operator", "split").agg(
        accuracy=pl.col("correct").mean(), whole_accuracy=pl.col("whole").mean(),
        cells=pl.len().cast(pl.Int64),
        majority_accuracy=_majority("answer_token"), majority_whole_accuracy=_majority("result"),
    )  # fmt: skip
    write_table(
        table.select(pl.lit(name).alias("subject"), pl.all()).sort("operator", "split"),
        subject.path("store/answer_accuracy.parquet"),
    )


def _majority(answers: str) -> pl.Expr:
    """Return the accuracy of always predicting the most frequent of these answers, a column."""
    return pl.col(answers).unique_counts().max() / pl.len()


def _whole(subject: Subject, cells: pl.DataFrame) -> np.ndarray:
    """Whether each cell's whole answer is said, (cells,)."""
    chosen, loaded = subject.settings, checkpoint.of(subject.settings)
    own, words = tokenizer.load(chosen.source), load(Tasks).operators
    said, passes = np.zeros(len(cells), bool), chosen.passes or load(Passes)
    for operator in chosen.operators:
        reader = Reader(
            Template(own, chosen.template, words[operator].symbol, chosen.bos, chosen.chat),
            chosen.answer_token or 0,
        )
        here = np.flatnonzero(cells["operator"] == operator)
        if not len(here):  # no answer has a token of that place
            continue
        asked = reader.wholes(cells[here].select("op1", "op2", "result").rows())
        said[here] = ask.says(
            loaded, asked, passes.prompts, f"whole answers {subject.name} {operator}"
        )
    return said


if __name__ == "__main__":
    main(sys.argv[1])
