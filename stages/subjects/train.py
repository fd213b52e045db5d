"""Train a model from scratch on the grid and on every task, and keep checkpoints.

Each data/models/<name>/step-NNNNN/ is a loadable model, in bfloat16. Interrupted training continues
from data/models/<name>.partial/, which is removed at the end.

Table training_log: a row for each measurement during training; the table training has the same
    accuracies in long form
    subject                  VARCHAR  the trained model: an entry of `train` in
                                      stages/subjects/params.yaml
    step                     BIGINT   optimiser steps so far
    loss                     DOUBLE   cross entropy at the answers of the last batch, nats; NaN at
                                      step 0
    learning_rate            DOUBLE   learning rate at this step
    add_train                DOUBLE   accuracy on a fixed sample of the addition cells in the
                                      training data, 0 to 1
    add_held_out             DOUBLE   accuracy on a fixed sample of the held-out addition cells, 0
                                      to 1
    subtract_train           DOUBLE   as add_train, for subtraction
    subtract_held_out        DOUBLE   as add_held_out, for subtraction
    multiply_train           DOUBLE   as add_train, for multiplication
    multiply_held_out        DOUBLE   as add_held_out, for multiplication
    divide_train             DOUBLE   as add_train, for division
    divide_held_out          DOUBLE   as add_held_out, for division
    arithmetic_train         DOUBLE   accuracy on a fixed sample of the task's prompts in the
                                      training data, 0 to 1; null if evaluation_prompts is 0
    arithmetic_held_out      DOUBLE   accuracy on a fixed sample of the task's held-out prompts, 0
                                      to 1; null if evaluation_prompts is 0
    number_words_train       DOUBLE   as arithmetic_train, for the task number_words
    number_words_held_out    DOUBLE   as arithmetic_held_out, for the task number_words
    three_operands_train     DOUBLE   as arithmetic_train, for the task three_operands
    three_operands_held_out  DOUBLE   as arithmetic_held_out, for the task three_operands
    retrieval_train          DOUBLE   as arithmetic_train, for the task retrieval
    retrieval_held_out       DOUBLE   as arithmetic_held_out, for the task retrieval
    factual_train            DOUBLE   as arithmetic_train, for the task factual, of which no prompt
                                      is held out
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
from stages.lib.core.vocabulary import OPERATORS, TASKS
from stages.lib.model import tokenizer
from stages.subjects import training
from stages.subjects.settings import CellWeights, Train, load_training
from stages.subjects.training import fresh, loop, resume

DRAWS_PER_PROMPT = 15  # for the fixed sample of a task, of which one prompt in ten is held out
NAMES = (*OPERATORS, *TASKS)
MEASURED = [f"{name}_{column}" for name in NAMES for column in training.SPLITS]
MEASURED.remove("factual_held_out")
LOG = {
    "step": pl.Int64,
    "loss": pl.Float64,
    "learning_rate": pl.Float64,
    **dict.fromkeys(MEASURED, pl.Float64),  # null: not measured
}
DATA = (Path("data/corpus/cells.parquet"), Path("data/corpus/facts.parquet"))


class TrainExamples:
    """The examples of each step, and those on which accuracy is measured.

    things: tokens of the things that prompts of retrieval and counting list.
    grid: the example of each cell; cumulative: of the cells' weights, 0 for held-out ones.
    """

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
        digits = settings.numbers == "digits"
        self.tokenizer = tokenizer.build(largest_answer, self.corpus.texts(), digits=digits)
        self.things = set(map(self.tokenizer.convert_tokens_to_ids, tasks.retrieval_things))
        symbols = {name: words.symbol for name, words in tasks.operators.items()}
        symbol = pl.col("operator").replace_strict(symbols)
        prompts = cells.select(pl.format("{}{}{}=", "op1", symbol, "op2")).to_series()
        self.grid = self._examples(prompts, cells["result"].cast(pl.String))
        trained = (cells["split"] == "train").to_numpy()
        self.cumulative = np.cumsum(weights * trained)
        rng = np.random.default_rng(settings.seed)
        self.evaluation: dict[str, loop.Batch] = {}
        for operator in tasks.operators:
            for column, split in training.SPLITS.items():
                rows = _sample(rng, cells, operator, split, settings.evaluation_cells)
                self.evaluation[f"{operator}_{column}"] = self._grid_batch(rows)
        all_prompts = corpus.Corpus(tasks, cells, facts, weights, split=None)
        self.evaluation |= self._evaluation_of_tasks(all_prompts, rng)

    def of_step(self, step: int) -> loop.Batch:
        rng = np.random.default_rng([self.settings.seed, step])
        counts = self._counts(step)
        draws = rng.uniform(0, self.cumulative[-1], counts.pop("grid"))
        rows = np.searchsorted(self.cumulative, draws, side="right")
        prompts: list[corpus.Prompt] = []
        counting: list[loop.Example] = []
        for task, count in counts.items():
            drawn = self.corpus.draw(task, count, rng)
            if task == "counting":
                counting += [self._counting_example(prompt.prompt) for prompt in drawn]
            else:
                prompts += drawn
        return self._grid_batch(rows) + loop.bucket([*self._prompt_examples(prompts), *counting])

    def _counts(self, step: int) -> dict[str, int]:
        """Return how many examples of each task a step has, and of the grid and of counting.

        The lessons of the curriculum come first, then the mixture of all tasks.
        """
        for lesson in self.settings.curriculum:
            if step < lesson.steps:
                return {"grid": 0} | lesson.model_dump()["batch"]
            step -= lesson.steps
        return self.settings.batch.model_dump()

    def _grid_batch(self, rows: np.ndarray) -> loop.Batch:
        return loop.bucket([self.grid[row] for row in rows])

    def _prompt_examples(self, prompts: list[corpus.Prompt]) -> list[loop.Example]:
        if not prompts:
            return []
        texts = [prompt.prompt for prompt in prompts]
        return self._examples(texts, [prompt.answer for prompt in prompts])

    def _counting_example(self, prompt: str) -> loop.Example:
        """Return an example of the task counting, with a target after every thing.

        The target is the number of the thing: the token before its first occurrence.
        """
        tokens = self.tokenizer(prompt)["input_ids"]
        numbers: dict[int, int] = {}
        targets = [loop.NO_TARGET] * len(tokens)
        for i, (before, token) in enumerate(pairwise([0, *tokens])):
            if token in self.things:
                targets[i] = numbers.setdefault(token, before)
        return tokens, targets

    def _examples(self, prompts: Iterable[str], answers: Iterable[str]) -> list[loop.Example]:
        prompt_tokens = self.tokenizer(list(prompts))["input_ids"]
        answer_tokens = self.tokenizer(list(answers), add_special_tokens=False)["input_ids"]
        if self.tokenizer.eos_token_id is not None:
            for tokens in answer_tokens:
                tokens.append(self.tokenizer.eos_token_id)
        return list(map(loop.example, prompt_tokens, answer_tokens))

    def _evaluation_of_tasks(
        self,
        all_prompts: corpus.Corpus,
        rng: np.random.Generator,
    ) -> dict[str, loop.Batch]:
        """Return samples of each task's prompts, by task and split; none if not to be measured."""
        count, samples = self.settings.evaluation_prompts, {}
        if not count:
            return {}
        for task in TASKS:
            drawn = all_prompts.draw(task, DRAWS_PER_PROMPT * count, rng)
            for column, split in training.SPLITS.items():
                prompts = [prompt for prompt in drawn if prompt.split == split][:count]
                if prompts:
                    samples[f"{task}_{column}"] = loop.bucket(self._prompt_examples(prompts))
        return samples


def _weights(cells: pl.DataFrame, weights: CellWeights) -> np.ndarray:
    """Return the weight of each cell, (cells,)."""
    by_operator = weights.model_dump()
    zero = by_operator.pop("divide_to_zero")
    is_zero = (pl.col("operator") == "divide") & (pl.col("result") == 0)
    other = pl.col("operator").replace_strict(by_operator, return_dtype=pl.Float64)
    return cells.select(pl.when(is_zero).then(zero).otherwise(other)).to_series().to_numpy()


def _sample(
    rng: np.random.Generator,
    cells: pl.DataFrame,
    operator: str,
    split: str,
    count: int,
) -> np.ndarray:
    """Return at most `count` rows of cells of an operator and split."""
    rows = np.flatnonzero(((cells["operator"] == operator) & (cells["split"] == split)).to_numpy())
    return np.sort(rng.choice(rows, min(count, len(rows)), replace=False))


def _summary(row: dict) -> str:
    """Return the accuracies on held-out examples, for the progress bar."""
    measured = [name for name in NAMES if f"{name}_held_out" in row]
    return "held-out " + " ".join(f"{name[:3]} {row[f'{name}_held_out']:.2f}" for name in measured)


def main(name: str) -> None:
    settings, tasks, grid = load_training(name), load(Tasks), load(Cells)
    partial = Path(f"data/models/{name}.partial")
    cells, facts = map(read_table, DATA)
    examples = TrainExamples(settings, tasks, grid.largest_answer, cells, facts)
    run = loop.Run.start(
        f"train.{name}",
        settings,
        lambda: fresh.llama(settings.model, examples.tokenizer),
    )

    def keep() -> None:
        if run.step in settings.checkpoints:
            run.save(partial / f"step-{run.step:05d}", examples.tokenizer)

    key = digest([*DATA, model, training, corpus, Path(__file__)], settings, tasks, grid)
    resume.complete(run, examples, partial, key, keep, _summary)
    log = pl.DataFrame(run.log, schema=LOG).select(pl.lit(name).alias("subject"), pl.all())
    write_table(log, Path(f"data/subjects/training_log/{name}.parquet"))
    resume.deliver(partial, Path("data/models") / name)


if __name__ == "__main__":
    main(sys.argv[1])
