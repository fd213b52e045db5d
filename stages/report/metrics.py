"""Writes a subject's accuracies where `dvc metrics show` finds them: reports/<subject>/metrics.json."""

import json
import sys
from pathlib import Path

from stages.lib.core.files import replacing
from stages.lib.subject import Subject


def main(name: str) -> None:
    subject = Subject.named(name)
    grid, tasks = subject.table("store/accuracy.parquet"), subject.table("store/task_accuracy.parquet")
    metrics: dict = {"grid": {}, "tasks": {}}
    if subject.settings.answer_token is not None:  # the grid's are those of one token of the answer
        metrics["whole answers"] = {}
        for operator, split, accuracy in subject.table("store/answer_accuracy.parquet", ["operator", "split", "whole_accuracy"]).rows():
            metrics["whole answers"].setdefault(operator, {})[split] = round(accuracy, 4)
    for operator, split, accuracy in grid.select("operator", "split", "accuracy").rows():
        metrics["grid"].setdefault(operator, {})[split] = round(accuracy, 4)
    for task, operator, split, accuracy in tasks.drop_nulls("accuracy").select("task", "operator", "split", "accuracy").rows():
        metrics["tasks"].setdefault(task, {}).setdefault(operator, {})[split] = round(accuracy, 4)
    with replacing(Path("reports") / name / "metrics.json") as partial:
        partial.write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
