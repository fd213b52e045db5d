"""Trains the default subject on the grid and on every task, and keeps checkpoints along the way.

Each data/models/abacus/step-NNNNN/ is a loadable model, in bfloat16; training_log.parquet lies beside them.
Interrupted, it continues from data/models/abacus.partial/, which it removes when done.

Table training_log: A row at every step at which the run that made the shipped subject was measured; `training` is easier to query.
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
"""

from pathlib import Path

import numpy as np
import polars as pl

from stages.corpus import prompts as corpus
from stages.corpus.settings import Cells, Tasks
from stages.lib import model
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.core.words import OPERATORS
from stages.lib.digest import digest
from stages.lib.model import tokenizer
from stages.subjects import training
from stages.subjects.settings import CellWeights, Train
from stages.subjects.training import fresh, loop, resume

FOLDER = Path("data/models/abacus")
PARTIAL = Path("data/models/abacus.partial")
DATA = (Path("data/corpus/cells.parquet"), Path("data/corpus/facts.parquet"))


class TrainExamples:
    """The training examples of each step, and the cells on which accuracy is measured."""

    def __init__(self, settings: Train, tasks: Tasks, largest_answer: int, cells: pl.DataFrame, facts: pl.DataFrame):
        self.settings = settings
        weights = _weights(cells, settings.cell_weights)
        self.corpus = corpus.Corpus(tasks, cells, facts, weights, split="train")
        self.tokenizer = tokenizer.build(largest_answer, self.corpus.texts())
        self.vocabulary = self.tokenizer.get_vocab()
        symbols = {name: words.symbol for name, words in tasks.operators.items()}
        prompts = cells.select(
            pl.format("{}{}{}=", "op1", pl.col("operator").replace_strict(symbols), "op2").alias("prompt"),
            pl.col("result").cast(pl.String),
        )
        self.grid = np.array(self.tokenizer(prompts["prompt"].to_list())["input_ids"])  # (cells, 5)
        self.grid_answers = np.array(self.tokenizer.convert_tokens_to_ids(prompts["result"].to_list()))
        trained = (cells["split"] == "train").to_numpy()
        self.cumulative = np.cumsum(weights * trained)
        rng = np.random.default_rng(self.settings.seed)
        self.evaluation = {
            f"{operator}_{column}": self._grid_batch(_sample(rng, cells, operator, split, self.settings.evaluation_cells))
            for operator in tasks.operators
            for column, split in training.SPLITS.items()
        }

    def of_step(self, step: int) -> loop.Batch:
        rng = np.random.default_rng([self.settings.seed, step])
        counts = self.settings.batch.model_dump()
        drawn = np.searchsorted(self.cumulative, rng.uniform(0, self.cumulative[-1], counts.pop("grid")), side="right")
        prompts = [p for task, count in counts.items() for p in self.corpus.draw(task, count, rng)]
        sequences = self.tokenizer([p.prompt for p in prompts])["input_ids"]
        answers = [self.vocabulary[p.answer] for p in prompts]
        return self._grid_batch(drawn) + loop.bucket(sequences, answers)

    def _grid_batch(self, rows: np.ndarray) -> loop.Batch:
        return [(self.grid[rows], np.full(len(rows), self.grid.shape[1]), self.grid_answers[rows])]


def _weights(cells: pl.DataFrame, weights: CellWeights) -> np.ndarray:
    by_operator = weights.model_dump()
    zero = by_operator.pop("divide_to_zero")
    into_zero = (pl.col("operator") == "divide") & (pl.col("result") == 0)
    weight = pl.when(into_zero).then(zero).otherwise(pl.col("operator").replace_strict(by_operator, return_dtype=pl.Float64))
    return cells.select(weight).to_series().to_numpy()


def _sample(rng: np.random.Generator, cells: pl.DataFrame, operator: str, split: str, count: int) -> np.ndarray:
    rows = np.flatnonzero(((cells["operator"] == operator) & (cells["split"] == split)).to_numpy())
    return np.sort(rng.choice(rows, min(count, len(rows)), replace=False))


def _said(row: dict) -> str:
    return "held-out " + " ".join(f"{name[:3]} {row[f'{name}_held_out']:.2f}" for name in OPERATORS)


def main() -> None:
    settings, tasks, grid = load(Train), load(Tasks), load(Cells)
    cells, facts = map(read_table, DATA)
    examples = TrainExamples(settings, tasks, grid.largest_answer, cells, facts)
    run = loop.Run.start("train", settings, lambda: fresh.llama(settings.model, examples.tokenizer))

    def keep() -> None:
        if run.step in settings.checkpoints:
            run.save(PARTIAL / f"step-{run.step:05d}", examples.tokenizer)

    key = digest([*DATA, model, training, corpus, Path(__file__)], settings, tasks, grid)
    resume.complete(run, examples, PARTIAL, key, keep, _said)
    write_table(pl.DataFrame(run.log), PARTIAL / "training_log.parquet")
    resume.deliver(PARTIAL, FOLDER)


if __name__ == "__main__":
    main()
