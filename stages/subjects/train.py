"""Trains a model of our own on the grid and on every task, and keeps checkpoints along the way.

Each data/models/<name>/step-NNNNN/ is a loadable model, in bfloat16.
Interrupted, it continues from data/models/<name>.partial/, which it removes when done.

Table training_log: A row at every step at which a run that made a shipped model was measured; `training` is easier to query.
subject  VARCHAR  what was trained: an entry of `train` in stages/subjects/params.yaml
step  BIGINT  optimiser steps so far
loss  DOUBLE  cross entropy at the answers of the last batch, nats; NaN at step 0
learning_rate  DOUBLE  at that step
add_train  DOUBLE  accuracy on a fixed sample of the addition cells that are trained on, 0 to 1
add_held_out  DOUBLE  accuracy on a fixed sample of those that never are
subtract_train  DOUBLE  as add_train
subtract_held_out  DOUBLE  as add_held_out
multiply_train  DOUBLE  as add_train
multiply_held_out  DOUBLE  as add_held_out
divide_train  DOUBLE  as add_train
divide_held_out  DOUBLE  as add_held_out
arithmetic_train  DOUBLE  accuracy on a fixed sample of a task's prompts that are trained on; null where the recipe asks for none
arithmetic_held_out  DOUBLE  on those that never are
number_words_train  DOUBLE  as arithmetic_train
number_words_held_out  DOUBLE  as arithmetic_held_out
three_operands_train  DOUBLE  as arithmetic_train
three_operands_held_out  DOUBLE  as arithmetic_held_out
retrieval_train  DOUBLE  as arithmetic_train
retrieval_held_out  DOUBLE  as arithmetic_held_out
factual_train  DOUBLE  as arithmetic_train; facts are never held out
"""

import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

from stages.corpus import prompts as corpus
from stages.corpus.settings import Cells, Tasks
from stages.lib import model
from stages.lib.core.digest import digest
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.core.words import OPERATORS, TASKS
from stages.lib.model import tokenizer
from stages.subjects import training
from stages.subjects.settings import CellWeights, Train, load_training
from stages.subjects.training import fresh, loop, resume

DRAWS_PER_PROMPT = 15  # for the fixed sample of a task, of which one prompt in ten is held out
MEASURED = [
    f"{name}_{column}"
    for name in (*OPERATORS, *TASKS)
    for column in training.SPLITS
    if (name, column) != ("factual", "held_out")
]
LOG = {"step": pl.Int64} | dict.fromkeys(
    ("loss", "learning_rate", *MEASURED), pl.Float64
)  # null: not measured
DATA = (Path("data/corpus/cells.parquet"), Path("data/corpus/facts.parquet"))


class TrainExamples:
    """The training examples of each step, and the cells on which accuracy is measured."""

    def __init__(
        self,
        settings: Train,
        tasks: Tasks,
        largest_answer: int,
        cells: pl.DataFrame,
        facts: pl.DataFrame,
    ):
        self.settings = settings
        weights = _weights(cells, settings.cell_weights)
        self.corpus = corpus.Corpus(tasks, cells, facts, weights, split="train")
        self.tokenizer = tokenizer.build(
            largest_answer, self.corpus.texts(), digits=settings.numbers == "digits"
        )
        self.things = {
            self.tokenizer.convert_tokens_to_ids(thing) for thing in tasks.retrieval_things
        }
        symbols = {name: words.symbol for name, words in tasks.operators.items()}
        prompts = cells.select(
            pl.format("{}{}{}=", "op1", pl.col("operator").replace_strict(symbols), "op2").alias(
                "prompt"
            ),
            pl.col("result").cast(pl.String),
        )
        self.grid = self._examples(prompts["prompt"], prompts["result"])
        trained = (cells["split"] == "train").to_numpy()
        self.cumulative = np.cumsum(weights * trained)
        rng = np.random.default_rng(self.settings.seed)
        self.evaluation = {
            f"{operator}_{column}": self._grid_batch(
                _sample(rng, cells, operator, split, self.settings.evaluation_cells)
            )
            for operator in tasks.operators
            for column, split in training.SPLITS.items()
        } | self._evaluation_of_tasks(corpus.Corpus(tasks, cells, facts, weights, split=None), rng)

    def of_step(self, step: int) -> loop.Batch:
        rng = np.random.default_rng([self.settings.seed, step])
        counts = self._counts(step)
        drawn = np.searchsorted(
            self.cumulative, rng.uniform(0, self.cumulative[-1], counts.pop("grid")), side="right"
        )
        tasks = {task: self.corpus.draw(task, count, rng) for task, count in counts.items()}
        counting = [self._counted(p.prompt) for p in tasks.pop("counting", [])]
        return self._grid_batch(drawn) + loop.bucket(
            [*self._asked([p for drawn in tasks.values() for p in drawn]), *counting]
        )

    def _counts(self, step: int) -> dict[str, int]:
        """Examples per task, "grid" and "counting" among them: of the lesson that the step is in, behind all of them of the mixture."""
        for lesson in self.settings.curriculum:
            if step < lesson.steps:
                return {"grid": 0} | lesson.model_dump()["batch"]
            step -= lesson.steps
        return self.settings.batch.model_dump()

    def _grid_batch(self, rows: np.ndarray) -> loop.Batch:
        return loop.bucket([self.grid[row] for row in rows])

    def _asked(self, prompts: list[corpus.Prompt]) -> list[loop.Example]:
        return (
            self._examples([p.prompt for p in prompts], [p.answer for p in prompts])
            if prompts
            else []
        )

    def _counted(self, prompt: str) -> loop.Example:
        """A prompt of the task counting, in which every thing is to be followed by its number, not only the last."""
        tokens = self.tokenizer(prompt)["input_ids"]
        numbers: dict[int, int] = {}
        return tokens, [
            numbers.setdefault(token, before) if token in self.things else loop.UNASKED
            for before, token in pairwise([0, *tokens])
        ]

    def _examples(self, prompts: Iterable[str], answers: Iterable[str]) -> list[loop.Example]:
        asked, said = (
            self.tokenizer(list(prompts))["input_ids"],
            self.tokenizer(list(answers), add_special_tokens=False)["input_ids"],
        )
        end = [] if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id]
        return [
            loop.asked(prompt, answer + end) for prompt, answer in zip(asked, said, strict=True)
        ]

    def _evaluation_of_tasks(
        self, every: corpus.Corpus, rng: np.random.Generator
    ) -> dict[str, loop.Batch]:
        count, found = self.settings.evaluation_prompts, {}
        for task in TASKS if count else ():
            drawn = every.draw(task, DRAWS_PER_PROMPT * count, rng)
            for column, split in training.SPLITS.items():
                if some := [p for p in drawn if p.split == split][:count]:
                    found[f"{task}_{column}"] = loop.bucket(self._asked(some))
        return found


def _weights(cells: pl.DataFrame, weights: CellWeights) -> np.ndarray:
    by_operator = weights.model_dump()
    zero = by_operator.pop("divide_to_zero")
    into_zero = (pl.col("operator") == "divide") & (pl.col("result") == 0)
    weight = (
        pl.when(into_zero)
        .then(zero)
        .otherwise(pl.col("operator").replace_strict(by_operator, return_dtype=pl.Float64))
    )
    return cells.select(weight).to_series().to_numpy()


def _sample(
    rng: np.random.Generator, cells: pl.DataFrame, operator: str, split: str, count: int
) -> np.ndarray:
    rows = np.flatnonzero(((cells["operator"] == operator) & (cells["split"] == split)).to_numpy())
    return np.sort(rng.choice(rows, min(count, len(rows)), replace=False))


def _said(row: dict) -> str:
    measured = [name for name in (*OPERATORS, *TASKS) if f"{name}_held_out" in row]
    return "held-out " + " ".join(f"{name[:3]} {row[f'{name}_held_out']:.2f}" for name in measured)


def main(name: str) -> None:
    settings, tasks, grid = load_training(name), load(Tasks), load(Cells)
    partial = Path(f"data/models/{name}.partial")
    cells, facts = map(read_table, DATA)
    examples = TrainExamples(settings, tasks, grid.largest_answer, cells, facts)
    run = loop.Run.start(
        f"train.{name}", settings, lambda: fresh.llama(settings.model, examples.tokenizer)
    )

    def keep() -> None:
        if run.step in settings.checkpoints:
            run.save(partial / f"step-{run.step:05d}", examples.tokenizer)

    key = digest([*DATA, model, training, corpus, Path(__file__)], settings, tasks, grid)
    resume.complete(run, examples, partial, key, keep, _said)
    write_table(
        pl.DataFrame(run.log, schema=LOG).select(pl.lit(name).alias("subject"), pl.all()),
        Path(f"data/subjects/training_log/{name}.parquet"),
    )
    resume.deliver(partial, Path("data/models") / name)


if __name__ == "__main__":
    main(sys.argv[1])
