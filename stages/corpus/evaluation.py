"""Draw equally many evaluation prompts of each task from a corpus, as a table."""

import numpy as np
import polars as pl

from stages.corpus.prompts import Corpus, Prompt
from stages.corpus.settings import Tasks
from stages.lib.core.vocabulary import TASKS

COLUMNS = [
    "task",
    "prompt_number",
    "template",
    "operator",
    "op1",
    "op2",
    "op3",
    "prompt",
    "answer",
    "split",
]
NUMBERS = dict.fromkeys(["prompt_number", "template", "op1", "op2", "op3"], pl.Int32)


def evenly(cells: pl.DataFrame) -> np.ndarray:
    """Return a weight for each cell, (cells,), that gives every operator the same total."""
    return cells.select(1 / pl.len().over("operator")).to_series().to_numpy()


def drawn(corpus: Corpus, settings: Tasks) -> dict[str, list[Prompt]]:
    """Return the evaluation prompts of each task."""
    prompts: dict[str, list[Prompt]] = {}
    for number, task in enumerate(TASKS):
        rng = np.random.default_rng([settings.seed, number])
        prompts[task] = corpus.draw(task, settings.evaluation_prompts, rng)
    return prompts


def table(prompts: dict[str, list[Prompt]], first: int = 0) -> pl.DataFrame:
    """Return prompts as rows, numbered within each task from `first`."""
    rows: list[dict[str, object]] = []
    for of_task in prompts.values():
        rows += ({"prompt_number": i, **vars(prompt)} for i, prompt in enumerate(of_task, first))
    frame = pl.DataFrame(rows, schema_overrides=NUMBERS, infer_schema_length=None)
    return frame.select(COLUMNS)
