"""Train a model further on one task of the corpus.

Stolfo et al. (2023) fine-tuned Pythia-2.8B on three operands. The result is a new model,
whose weights have the type of its source. Interrupted training continues from
data/models/<name>.partial/, which is removed at the end.

Table finetune_log: a row for each measurement during fine-tuning
    step           BIGINT  optimiser steps so far
    loss           DOUBLE  cross entropy at the answers of the last batch, nats; NaN at step 0
    learning_rate  DOUBLE  learning rate at this step
    train          DOUBLE  accuracy on a fixed sample of the task's prompts in the training data, 0
                           to 1
    held_out       DOUBLE  accuracy on a fixed sample of the task's held-out prompts, 0 to 1; the
                           task factual has no such prompts and no such column
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

from stages.corpus import prompts as corpus
from stages.corpus.settings import Tasks
from stages.lib import ask, model
from stages.lib.core.digest import digest
from stages.lib.core.settings import ParamsError, load
from stages.lib.core.tables import read_table, write_table
from stages.lib.model import stored, tokenizer
from stages.subjects import training
from stages.subjects.settings import Finetuning, load_finetuning
from stages.subjects.training import loop, resume

DRAWS_PER_PROMPT = 20  # for the fixed sample, which is smaller if too few draws are of a split
DATA = (Path("data/corpus/cells.parquet"), Path("data/corpus/facts.parquet"))


class FinetuneExamples:
    """The prompts of each step in the model's tokens, and those on which accuracy is measured."""

    def __init__(
        self,
        name: str,
        settings: Finetuning,
        tasks: Tasks,
        cells: pl.DataFrame,
        facts: pl.DataFrame,
    ):
        self.settings = settings
        self.tokenizer = tokenizer.load(settings.source)
        if settings.bos and self.tokenizer.bos_token_id is None:
            problem = f"the tokenizer of {settings.source} has no BOS token"
            raise ParamsError(f"finetune.{name}.bos is true, but {problem}; set it to false")
        evenly = cells.select(1 / pl.len().over("operator")).to_series().to_numpy()
        self.corpus = corpus.Corpus(tasks, cells, facts, evenly, split="train")
        count = settings.evaluation_prompts
        rng = np.random.default_rng([settings.seed, settings.steps])
        all_prompts = corpus.Corpus(tasks, cells, facts, evenly, split=None)
        drawn = all_prompts.draw(settings.task, DRAWS_PER_PROMPT * count, rng)
        self.evaluation: dict[str, loop.Batch] = {}
        for column, split in training.SPLITS.items():
            examples = self._known([prompt for prompt in drawn if prompt.split == split])
            if examples:
                self.evaluation[column] = loop.bucket(examples[:count])
        if "train" not in self.evaluation:
            problem = f"no answer to a prompt of {settings.task} is one token of {settings.source}"
            raise ParamsError(
                f"finetune.{name}: {problem}; there is nothing to train on: choose another task"
            )

    def of_step(self, step: int) -> loop.Batch:
        rng = np.random.default_rng([self.settings.seed, step])
        examples: list[loop.Example] = []
        while len(examples) < self.settings.batch:
            examples += self._known(self.corpus.draw(self.settings.task, self.settings.batch, rng))
        return loop.bucket(examples[: self.settings.batch])

    def _known(self, prompts: list[corpus.Prompt]) -> list[loop.Example]:
        """Return the examples of the prompts whose answer is one token."""
        if not prompts:
            return []
        texts = [prompt.prompt for prompt in prompts]
        answers = [prompt.answer for prompt in prompts]
        encoded = ask.encode(self.tokenizer, texts, answers, self.settings.bos)
        pairs = zip(encoded.sequences, encoded.answers.tolist(), strict=True)
        return [loop.example(tokens, [answer]) for tokens, answer in pairs if answer >= 0]


def _key(settings: Finetuning, tasks: Tasks) -> str:
    """Return a digest of everything that the trained weights depend on."""
    return digest(
        [*DATA, Path(settings.source), model, training, ask, corpus, Path(__file__)],
        settings,
        tasks,
    )


def _summary(row: dict) -> str:
    """Return the accuracies, for the progress bar."""
    measured = {name: row[name] for name in training.SPLITS if name in row}
    return ", ".join(f"{name.replace('_', '-')} {share:.3f}" for name, share in measured.items())


def main(name: str) -> None:
    settings, tasks = load_finetuning(name), load(Tasks)
    cells, facts = map(read_table, DATA)
    examples = FinetuneExamples(name, settings, tasks, cells, facts)
    source, dtype = stored.load(settings.source, settings.threads)
    run = loop.Run.start(f"finetune.{name}", settings, lambda: source)
    partial = Path(f"data/models/{name}.partial")
    resume.complete(run, examples, partial, _key(settings, tasks), lambda: None, _summary)
    run.save(partial, examples.tokenizer, dtype)
    write_table(pl.DataFrame(run.log), Path("data") / name / "subjects/finetune_log.parquet")
    resume.deliver(partial, Path("data/models") / name)


if __name__ == "__main__":
    main(sys.argv[1])
