"""Test the metrics: accuracies, and beside them those of the most frequent answer."""

import json
from pathlib import Path

import polars as pl
import pytest
import yaml

from stages.report import metrics
from tests.micro import SHIPPED, alone

CELLS = {"subject": "s", "operator": "add", "split": ["held-out", "train"]}
WHOLE = CELLS | {"whole_accuracy": [0.25, 0.125], "majority_whole_accuracy": [0.0625, 0.03]}
TASKS = {
    "subject": "s",
    "task": ["factual", "retrieval"],
    "operator": "all",
    "split": "all",
    "accuracy": [0.75, None],  # no prompt counts
    "majority_accuracy": [0.375, None],
}


def test_every_accuracy_has_that_of_the_most_frequent_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """So that a first digit that is 1 in half of the sums is not read as success."""
    monkeypatch.chdir(tmp_path)
    model = alone("s", source="models/s", answer_token=0)
    Path("params.yaml").write_text(yaml.safe_dump(SHIPPED | model))
    grid = CELLS | {"accuracy": [0.5, 1.0], "majority_accuracy": [0.4875, 0.53004]}
    tables = {"accuracy": grid, "answer_accuracy": WHOLE, "task_accuracy": TASKS}
    for name, columns in tables.items():
        pl.DataFrame(columns).write_parquet(f"data/s/store/{name}.parquet", mkdir=True)
    Path("reports/s").mkdir(parents=True)
    metrics.main("s")
    written = json.loads(Path("reports/s/metrics.json").read_text())
    assert written == {
        "grid": {"add": {"held-out": 0.5, "train": 1.0}},
        "tasks": {"factual": {"all": {"all": 0.75}}},
        "whole answers": {"add": {"held-out": 0.25, "train": 0.125}},
        "most frequent answer": {
            "grid": {"add": {"held-out": 0.4875, "train": 0.53}},
            "tasks": {"factual": {"all": {"all": 0.375}}},
            "whole answers": {"add": {"held-out": 0.0625, "train": 0.03}},
        },
    }
