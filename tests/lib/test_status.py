"""`bag status` summarises whole projects and parts of projects."""

import re
import shlex
from pathlib import Path

import polars as pl
import pytest

from stages.lib.console.status import size_of, status
from stages.lib.sql.database import connect
from tests.conftest import run_in

ACCURACY = {
    "subject": ["mine"] * 3,
    "operator": ["add", "add", "divide"],
    "accuracy": [1.0, 0.5, 0.25],
    "cells": [300, 100, 8],
}
LABELS = {
    "subject": ["mine"] * 4,
    "layer": [0, 0, 1, 1],
    "neuron": [7, 7, 7, 8],
    "heuristic": ["op1 = 3", "op2 = 3", "op1 = 3", "op1 = 4"],
}


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that writes tables into a project without params.yaml and summarises it."""
    monkeypatch.chdir(tmp_path)

    def write(**tables: dict) -> list[str]:
        data = Path("data")
        data.mkdir()
        for name, columns in tables.items():
            pl.DataFrame(columns).write_parquet(data / f"mine/store/{name}.parquet", mkdir=True)
        return status(connect(data), data)

    return write


def test_a_whole_run_in_five_lines(micro: Path):
    printed = run_in(micro, "bag", "status").stdout.splitlines()
    counted, accuracy, labelled, page, query = printed
    database = connect(micro / "data")
    [(subjects,)] = database.sql(
        "select count(distinct subject) from (from predictions select subject union all from "
        "task_predictions select subject)"
    ).fetchall()
    assert re.fullmatch(
        rf"{subjects} subjects, {len(database.tables())} tables, \d+ MB in data/", counted
    )
    for operator, share in database.sql(
        "select operator, avg(correct::int) from predictions join cells using (operator, op1, op2) "
        "where subject = 'abacus' group by all"
    ).fetchall():
        assert f"{operator} {share:.2%}" in accuracy
    [(neurons,)] = database.sql(
        "select count(*) from (select distinct layer, neuron from labels where subject = 'abacus')"
    ).fetchall()
    assert labelled.startswith(f"{neurons} neurons of abacus labelled with ")
    assert page == "The page to read: reports/index.html"
    assert run_in(micro, *shlex.split(query.removeprefix("Try: "))).stdout.count("│") > 30


def test_shares_are_of_cells_and_neurons_count_once(lines):
    counted, accuracy, labelled, page, query = lines(accuracy=ACCURACY, labels=LABELS)
    assert re.fullmatch(r"1 subject, 2 tables, \d kB in data/", counted)
    assert accuracy == "accuracy of mine: add 87.50%, divide 25.00%"
    assert labelled == "3 neurons of mine labelled with 3 heuristics"
    assert page == "No page reports/index.html yet: the stage report makes it"
    assert "from labels where subject = 'mine'" in query


def test_an_accuracy_is_beside_that_of_the_most_frequent_answer(lines):
    _, accuracy, *_ = lines(accuracy=ACCURACY | {"majority_accuracy": [0.5, 0.3, 0.125]})
    assert accuracy == (
        "accuracy of mine (of the most frequent answer): add 87.50% (45.00%), "
        "divide 25.00% (12.50%)"
    )


def test_a_missing_table_is_named_with_its_stage(lines):
    counted, accuracy, labelled, _, query = lines(task_accuracy={"subject": ["mine", "other"]})
    assert counted.startswith("2 subjects, 1 table, ")
    assert accuracy == "No accuracy of mine yet: the stage accuracy makes it (table accuracy)"
    assert labelled == "No labelled neuron of mine yet: the stage labels makes it (table labels)"
    assert query == "Try: bag --help"


def test_no_label_is_told_from_labels_that_were_never_made(lines):
    """Labels of one model say nothing about another; a table without rows says that it has none."""
    Path("params.yaml").write_text("default: other\n")
    tables = {"accuracy": ACCURACY, "labels": {name: [] for name in LABELS}}
    _, accuracy, labelled, _, query = lines(**tables)
    assert accuracy.startswith("accuracy of mine: ")
    assert labelled == "0 neurons of mine labelled with 0 heuristics"
    Path("data/mine").rename("data/other")
    Path("data/mine/store").mkdir(parents=True)
    Path("data/other/store/accuracy.parquet").rename("data/mine/store/accuracy.parquet")
    _, accuracy, labelled, _, query = status(connect("data"), Path("data"))
    assert accuracy.startswith("accuracy of mine: ")
    assert labelled == "No labelled neuron of mine yet: the stage labels makes it (table labels)"
    assert "from accuracy where subject = 'mine'" in query


def test_an_empty_project_is_summarised(lines):
    assert lines()[0] == "0 subjects, 0 tables, 0 B in data/"


@pytest.mark.parametrize(
    ("size", "words"),
    [(999, "999 B"), (1_500, "2 kB"), (12_345_678, "12 MB"), (3_210_000_000, "3.2 GB")],
)
def test_a_size_in_words(tmp_path: Path, size: int, words: str):
    with (tmp_path / "sparse.h5").open("wb") as file:
        file.truncate(size)
    (tmp_path / "weights.safetensors").write_bytes(b"no table")
    assert size_of(tmp_path) == words
