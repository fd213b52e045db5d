"""Write a model's accuracies for `dvc metrics show`, to reports/<subject>/metrics.json."""

import json
import sys
from pathlib import Path

import polars as pl

from stages.lib.core.files import replacing
from stages.lib.subject import Subject


def main(name: str) -> None:
    """Write accuracies, 0 to 1 with four digits, by task or grid, operator and split."""
    subject = Subject.named(name)
    metrics: dict = {"grid": {}, "tasks": {}}
    if subject.settings.answer_token is not None:  # the grid's accuracies are of this token
        answers = subject.table("store/answer_accuracy.parquet")
        metrics["whole answers"] = _by_split(answers, "whole_accuracy")
    metrics["grid"] = _by_split(subject.table("store/accuracy.parquet"), "accuracy")
    tasks = subject.table("store/task_accuracy.parquet").drop_nulls("accuracy")
    for task in tasks["task"].unique(maintain_order=True):
        metrics["tasks"][task] = _by_split(tasks.filter(task=task), "accuracy")
    with replacing(Path("reports") / name / "metrics.json") as partial:
        partial.write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")


def _by_split(rows: pl.DataFrame, column: str) -> dict[str, dict[str, float]]:
    """Return a column of accuracies as operator -> split -> accuracy."""
    accuracies: dict[str, dict[str, float]] = {}
    for operator, split, accuracy in rows.select("operator", "split", column).iter_rows():
        accuracies.setdefault(operator, {})[split] = round(accuracy, 4)
    return accuracies


if __name__ == "__main__":
    main(sys.argv[1])
