"""Write a model's accuracies for `dvc metrics show`, to reports/<subject>/metrics.json."""

import json
import sys
from pathlib import Path
from typing import Any

import polars as pl

from stages.lib.core.files import replacing
from stages.lib.subject import Subject

MAJORITY = "most frequent answer"


def main(name: str) -> None:
    """Write accuracies, 0 to 1 with four digits, by task or grid, operator and split.

    The same accuracies of always predicting the most frequent answer are below MAJORITY.
    """
    subject = Subject.named(name)
    metrics = _accuracies(subject, "")
    metrics[MAJORITY] = _accuracies(subject, "majority_")
    with replacing(Path("reports") / name / "metrics.json") as partial:
        partial.write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")


def _accuracies(subject: Subject, prefix: str) -> dict[str, Any]:
    """Return accuracies by what is asked. prefix: of the columns, majority_ or empty."""
    accuracies: dict[str, Any] = {"grid": {}, "tasks": {}}
    if subject.settings.answer_token is not None:  # the grid's accuracies are of this token
        answers = subject.table("store/answer_accuracy.parquet")
        accuracies["whole answers"] = _by_split(answers, f"{prefix}whole_accuracy")
    grid, column = subject.table("store/accuracy.parquet"), f"{prefix}accuracy"
    accuracies["grid"] = _by_split(grid, column)
    tasks = subject.table("store/task_accuracy.parquet").drop_nulls("accuracy")
    for task in tasks["task"].unique(maintain_order=True):
        accuracies["tasks"][task] = _by_split(tasks.filter(task=task), column)
    return accuracies


def _by_split(rows: pl.DataFrame, column: str) -> dict[str, dict[str, float]]:
    """Return a column of accuracies as operator -> split -> accuracy."""
    accuracies: dict[str, dict[str, float]] = {}
    for operator, split, accuracy in rows.select("operator", "split", column).iter_rows():
        accuracies.setdefault(operator, {})[split] = round(accuracy, 4)
    return accuracies


if __name__ == "__main__":
    main(sys.argv[1])
