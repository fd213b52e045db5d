"""Trains a subject further on one task of the corpus, as the study of causal mediation did on three operands: a new subject.

It becomes a model as the subject's, its weights stored in the same type.
Interrupted, it continues from data/models/<name>.partial/, which it removes when done.

Table finetune_log: A row at every step at which a fine-tuned subject was measured.
step  BIGINT  optimiser steps so far
loss  DOUBLE  cross entropy at the answers of the last batch, nats; NaN at step 0
learning_rate  DOUBLE  at that step
train  DOUBLE  accuracy on a fixed sample of the task's prompts that are trained on, 0 to 1
held_out  DOUBLE  accuracy on a fixed sample of those that never are; facts have none
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

DRAWS_PER_PROMPT = (
    20  # for the fixed sample; where they hold too few prompts of a split, it is smaller
)
DATA = (Path("data/corpus/cells.parquet"), Path("data/corpus/facts.parquet"))


class FinetuneExamples:
    """The prompts of each step in the subject's tokens, and those on which accuracy is measured."""

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
            raise ParamsError(
                f"finetune.{name}.bos is true, but the tokenizer of {settings.source} has no BOS token"
            )
        evenly = cells.select(1 / pl.len().over("operator")).to_series().to_numpy()
        self.corpus = corpus.Corpus(tasks, cells, facts, evenly, split="train")
        drawn = corpus.Corpus(tasks, cells, facts, evenly, split=None).draw(
            settings.task,
            DRAWS_PER_PROMPT * settings.evaluation_prompts,
            np.random.default_rng([settings.seed, settings.steps]),
        )
        known = {
            column: self._known([p for p in drawn if p.split == split])
            for column, split in training.SPLITS.items()
        }
        if not known["train"]:
            raise ParamsError(
                f"finetune.{name}: no answer to a prompt of {settings.task} is one token of {settings.source}; there is nothing to train on"
            )
        self.evaluation = {
            column: loop.bucket(found[: settings.evaluation_prompts])
            for column, found in known.items()
            if found
        }

    def of_step(self, step: int) -> loop.Batch:
        rng = np.random.default_rng([self.settings.seed, step])
        examples: list[loop.Example] = []
        while len(examples) < self.settings.batch:
            examples += self._known(self.corpus.draw(self.settings.task, self.settings.batch, rng))
        return loop.bucket(examples[: self.settings.batch])

    def _known(self, prompts: list[corpus.Prompt]) -> list[loop.Example]:
        """Those whose answer is one token."""
        if not prompts:
            return []
        asked = ask.encode(
            self.tokenizer,
            [p.prompt for p in prompts],
            [p.answer for p in prompts],
            self.settings.bos,
        )
        pairs = zip(asked.sequences, asked.answers.tolist(), strict=True)
        return [loop.asked(sequence, [answer]) for sequence, answer in pairs if answer >= 0]


def _key(settings: Finetuning, tasks: Tasks) -> str:
    return digest(
        [*DATA, Path(settings.source), model, training, ask, corpus, Path(__file__)],
        settings,
        tasks,
    )


def _said(row: dict) -> str:
    return ", ".join(
        f"{name.replace('_', '-')} {row[name]:.3f}" for name in training.SPLITS if name in row
    )


def main(name: str) -> None:
    settings, tasks = load_finetuning(name), load(Tasks)
    cells, facts = map(read_table, DATA)
    examples = FinetuneExamples(name, settings, tasks, cells, facts)
    source, dtype = stored.load(settings.source, settings.threads)
    run = loop.Run.start(f"finetune.{name}", settings, lambda: source)
    partial = Path(f"data/models/{name}.partial")
    resume.complete(run, examples, partial, _key(settings, tasks), lambda: None, _said)
    run.save(partial, examples.tokenizer, dtype)
    write_table(pl.DataFrame(run.log), Path("data") / name / "subjects/finetune_log.parquet")
    resume.deliver(partial, Path("data/models") / name)


if __name__ == "__main__":
    main(sys.argv[1])
