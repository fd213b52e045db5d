"""Predicts the answer to each prompt of the tasks outside the grid.

A model that was trained here reads the prompts of `tasks`. Any other model reads those of
`real_tasks`; `largest_operand` in its entry leaves out sums with larger operands. The two tables
number their prompts apart, so that a row here belongs to a prompt of one of them.

Table task_predictions: a subject's answers to the prompts of the tasks
    subject             VARCHAR  the model
    task                VARCHAR  as in tasks and real_tasks
    prompt_number       INTEGER  as in tasks or, for a model not trained here, in real_tasks
    predicted           VARCHAR  the most likely next token
    correct             BOOLEAN  whether that is the answer, or the one of its tokens that the subject is asked for
    answer_logit        FLOAT    logit of the answer; null where the answer is not one token of the subject
    max_logit           FLOAT    largest logit
    answer_probability  FLOAT    softmax probability of the answer over the whole vocabulary
"""

import sys

import numpy as np
import polars as pl

from stages.lib import ask
from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.core.words import ARITHMETIC
from stages.lib.model import checkpoint, contents, tokenizer
from stages.lib.origins import trained_here
from stages.lib.settings import Passes
from stages.lib.subject import Subject


def main(name: str) -> None:
    subject = Subject.named(name)
    tasks = prompts_of(subject)
    own = tokenizer.load(subject.settings.source)
    loaded = checkpoint.of(subject.settings)
    asked = ask.encode(
        own,
        tasks["prompt"].to_list(),
        tasks["answer"].to_list(),
        subject.settings.bos,
        subject.settings.answer_token,
    )
    contents.limits(subject.settings.source).check_length(max(map(len, asked.sequences)))
    checkpoint.knows(loaded, np.concatenate([asked.answers, *asked.sequences]))
    passes = subject.settings.passes or load(Passes)
    said = ask.ask(loaded, asked, passes.prompts, desc=f"tasks {name}")
    one_token = asked.answers >= 0
    if unknown := (~one_token).sum():
        progress.say(
            f"tasks {name}: {unknown} of {len(tasks)} answers are not one token of its tokenizer; no one can say whether it knows them"
        )
    answered = tasks.select(
        pl.lit(name).alias("subject"),
        "task",
        "prompt_number",
        predicted=pl.Series(own.batch_decode([[token] for token in said.predicted])),
        correct=pl.Series(said.predicted == asked.answers),
        answer_logit=_or_null(said.answer_logit, one_token),
        max_logit=pl.Series(said.max_logit),
        answer_probability=_or_null(said.answer_probability, one_token),
    )
    write_table(answered, subject.path("store/task_predictions.parquet"))


def prompts_of(subject: Subject) -> pl.DataFrame:
    """Return the prompts that a model is asked, with the columns of `tasks`."""
    if trained_here(subject.name):
        return read_table("data/corpus/tasks.parquet")
    tasks = read_table("data/corpus/real_tasks.parquet")
    if (largest := subject.settings.largest_operand) is None:
        return tasks
    calculated = pl.col("task").is_in(ARITHMETIC)
    return tasks.filter(~calculated | (pl.max_horizontal("op1", "op2", "op3") <= largest))


def _or_null(values: np.ndarray, known: np.ndarray) -> pl.Series:
    return pl.Series(
        [
            value if there else None
            for value, there in zip(values.tolist(), known.tolist(), strict=True)
        ],
        dtype=pl.Float32,
    )


if __name__ == "__main__":
    main(sys.argv[1])
