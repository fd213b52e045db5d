"""Measure how often a model predicts the required token of the answer, and the whole answer.

The whole answer counts as predicted if greedy decoding gives it, token by token. One forward pass
over prompt and answer is enough: at each position of the answer, its token must be the most likely.

Table answer_accuracy: accuracy for the predicted token of the answer, and for whole answers
    subject                  VARCHAR  the model
    operator                 VARCHAR  add, subtract, multiply or divide
    split                    VARCHAR  train or held-out: whether the model was trained on these
                                      cells; all, for a model that was not trained here
    accuracy                 DOUBLE   share of cells whose most likely next token is the required
                                      token of the answer, 0 to 1; as in the table accuracy
    whole_accuracy           DOUBLE   share of cells whose whole answer is predicted, 0 to 1; equal
                                      to accuracy if answers are one token
    cells                    BIGINT   number of cells of the operator and split
    majority_accuracy        DOUBLE   accuracy of always predicting the most frequent required
                                      token, 0 to 1
    majority_whole_accuracy  DOUBLE   accuracy of always predicting the most frequent whole answer,
                                      0 to 1
"""

import sys

import numpy as np
import polars as pl

from stages.corpus.settings import Tasks
from stages.lib import ask
from stages.lib.core import progress
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
    corpus = read_table("data/corpus/cells.parquet")
    tokens = subject.table("store/prompts.parquet", [*CELL, "answer_token"])
    cells = subject.table("store/predictions.parquet", [*CELL, "correct"])
    cells = cells.join(corpus, on=CELL, maintain_order="left")
    cells = cells.join(tokens, on=CELL, maintain_order="left")
    if not trained_here(name):
        cells = cells.with_columns(split=pl.lit("all"))
    whole = cells["correct"]
    if subject.settings.answer_token is not None:
        whole = pl.Series(_whole(subject, cells), dtype=pl.Boolean)
    grouped = cells.with_columns(whole=whole).group_by("operator", "split")
    table = grouped.agg(
        accuracy=pl.col("correct").mean(),
        whole_accuracy=pl.col("whole").mean(),
        cells=pl.len().cast(pl.Int64),
        majority_accuracy=_majority("answer_token"),
        majority_whole_accuracy=_majority("result"),
    )
    table = table.select(pl.lit(name).alias("subject"), pl.all()).sort("operator", "split")
    write_table(table, subject.path("store/answer_accuracy.parquet"))


def _majority(answers: str) -> pl.Expr:
    """Return the accuracy of always predicting the most frequent value of a column of answers."""
    return pl.col(answers).unique_counts().max() / pl.len()


def _whole(subject: Subject, cells: pl.DataFrame) -> np.ndarray:
    """Return whether each cell's whole answer is predicted, (cells,).

    Cells with the same operator and op1 run together, so that the tokens before op2 are computed
    once.
    """
    settings, loaded = subject.settings, checkpoint.from_settings(subject.settings)
    own, words = tokenizer.load(settings.source), load(Tasks).operators
    passes = settings.passes or load(Passes)
    readers = {}
    for operator in settings.operators:
        symbol = words[operator].symbol
        template = Template(own, settings.template, symbol, settings.bos, settings.chat)
        readers[operator] = Reader(template, settings.answer_token or 0)
    predicted = np.zeros(len(cells), bool)
    rows = cells.with_row_index().group_by("operator", "op1", maintain_order=True).agg("index")
    with progress.bar(total=len(cells), desc=f"whole answers {subject.name}", unit="prompt") as bar:
        for operator, _, numbers in rows.iter_rows():
            answers = readers[operator].wholes(cells[numbers].select(*CELL[1:], "result").rows())
            predicted[numbers] = ask.says(loaded, answers, passes.prompts)
            bar.update(len(numbers))
    return predicted


if __name__ == "__main__":
    main(sys.argv[1])
