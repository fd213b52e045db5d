"""Predict the answer to each prompt of the tasks outside the grid.

A model that was trained here reads the prompts of `tasks`. Any other model reads those of
`real_tasks`, without calculations whose operands exceed the `largest_operand` of its entry. The two
tables have different prompt numbers, so that a row belongs to a prompt of one of them.

Table task_predictions: a model's prediction for each prompt of the tasks
    subject             VARCHAR  the model
    task                VARCHAR  as in the tables tasks and real_tasks
    prompt_number       INTEGER  as in tasks or, for a model not trained here, in real_tasks
    answer_token        INTEGER  token id of the answer or, with the setting answer_token, of that
                                 token of the answer; null if there is none
    predicted           VARCHAR  text of the most likely next token
    correct             BOOLEAN  whether the most likely next token is the answer or, for a model
                                 with answer_token, that token of the answer
    answer_logit        FLOAT    logit of answer_token; null if answer_token is
    max_logit           FLOAT    largest logit of the vocabulary
    answer_probability  FLOAT    softmax probability of answer_token over the whole vocabulary, 0 to
                                 1; null if answer_token is
"""

import sys

import numpy as np
import polars as pl

from stages.lib import ask
from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.core.vocabulary import ARITHMETIC
from stages.lib.model import checkpoint, contents, tokenizer
from stages.lib.origins import trained_here
from stages.lib.settings import Passes
from stages.lib.subject import Subject


def main(name: str) -> None:
    subject = Subject.named(name)
    settings, tasks = subject.settings, prompts_of(subject)
    own = tokenizer.load(settings.source)
    loaded = checkpoint.from_settings(settings)
    if settings.chat:
        progress.say(f"tasks {name}: prompts are plain text, outside the chat template")
    texts, answers = tasks["prompt"].to_list(), tasks["answer"].to_list()
    encoded = ask.encode(own, texts, answers, settings.bos, settings.answer_token)
    contents.limits(settings.source).check_length(max(map(len, encoded.sequences)))
    checkpoint.knows(loaded, np.concatenate([encoded.answers, *encoded.sequences]))
    passes = settings.passes or load(Passes)
    predictions = ask.ask(loaded, encoded, passes.prompts, desc=f"tasks {name}")
    one_token = encoded.answers >= 0
    unknown = (~one_token).sum()
    if unknown:
        progress.say(
            f"tasks {name}: {unknown} of {len(tasks)} answers are not one token of its tokenizer; "
            "accuracies leave them out"
        )

    def if_known(values: np.ndarray) -> pl.Expr:
        return pl.when(pl.Series(one_token)).then(pl.Series(values)).cast(pl.Float32)

    answered = tasks.select(
        pl.lit(name).alias("subject"),
        "task",
        "prompt_number",
        answer_token=pl.when(pl.Series(one_token)).then(pl.Series(encoded.answers, dtype=pl.Int32)),
        predicted=pl.Series(own.batch_decode(predictions.predicted.reshape(-1, 1).tolist())),
        correct=pl.Series(predictions.predicted == encoded.answers),
        answer_logit=if_known(predictions.answer_logit),
        max_logit=pl.Series(predictions.max_logit),
        answer_probability=if_known(predictions.answer_probability),
    )
    write_table(answered, subject.path("store/task_predictions.parquet"))


def prompts_of(subject: Subject) -> pl.DataFrame:
    """Return the prompts for a model, with the columns of `tasks`."""
    if trained_here(subject.name):
        return read_table("data/corpus/tasks.parquet")
    tasks = read_table("data/corpus/real_tasks.parquet")
    largest = subject.settings.largest_operand
    if largest is None:
        return tasks
    calculated = pl.col("task").is_in(ARITHMETIC)
    return tasks.filter(~calculated | (pl.max_horizontal("op1", "op2", "op3") <= largest))


if __name__ == "__main__":
    main(sys.argv[1])
