"""Stages of queries: what they write, and errors of one sentence."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from stages.lib.core.tables import read_table, write_table
from tests.micro import ROOT


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["circuit/unknown", "abacus"],
            (
                "stages/circuit has no stage 'unknown' that runs queries; available stages: "
                "late_layers, "
            ),
        ),
        (["circuit/circuit_figures", "abacus"], "no stage 'circuit_figures' that runs queries"),
        (
            ["nowhere/pairs", "abacus"],
            "stages/nowhere has no stage 'pairs' that runs queries; available chapters: corpus, ",
        ),
        (
            ["circuit/late_layers", "mine"],
            "circuit/late_layers runs for the subjects abacus, .*; mine is not among them",
        ),
        (
            ["circuit/late_layers"],
            "circuit/late_layers runs for the subjects abacus, .*; name one of them",
        ),
        ([], "usage: python -m stages.lib.sql.stage CHAPTER/STAGE"),
        (["corpus/cells", "abacus"], "corpus/cells runs once, for no subject; leave out abacus"),
    ],
)
def test_a_wrong_name_is_a_sentence(arguments: list[str], words: str):
    command = [sys.executable, "-m", "stages.lib.sql.stage", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert re.search(words, done.stderr)


def test_a_stage_that_is_run_in_a_chapter_is_told_where_to_run():
    command = [sys.executable, "-m", "stages.lib.sql.stage", "circuit/late_layers", "abacus"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command,
        cwd=ROOT / "stages/circuit",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    way_out = f"run this in the project's root; `cd {ROOT}`"
    assert done.stderr == f"{ROOT / 'stages/circuit'} has no folder stages/: {way_out}\n"


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("select $threshold as x", {}, "$threshold has no value"),
        ("select y from cells", {}, 'Referenced column "y" not found'),
        ("select from", {}, "syntax error"),
        ("from nowhere", {}, "Table with name nowhere does not exist"),
        # after more than one group of rows was written
        ("select if(i = 299999, error('the last'), i) from range(300000) as t(i)", {}, "the last"),
        ("select 1", {"outs": ["data/corpus/other.parquet"]}, "no mine.parquet among its outs"),
    ],
)
def test_a_mistake_in_a_query_is_a_message(tmp_path: Path, text: str, more: dict, message: str):
    """Whoever adds a query makes these first."""
    done = run_query(tmp_path, text, pl.DataFrame({"x": [1]}), **more)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data/corpus/mine.parquet").exists()


def test_a_query_for_each_operator_writes_all_of_them(tmp_path: Path):
    """Groups of rows are written as they are computed."""
    cells = pl.DataFrame({"operator": ["subtract", "add", "divide"] * 100_000, "x": range(300_000)})
    text = "select $operator as name, x from cells where operator = $operator order by x"
    done = run_query(tmp_path, text, cells)
    assert (done.returncode, done.stderr) == (0, "")
    expected = cells.sort("operator", "x").rename({"operator": "name"})
    assert read_table(tmp_path / "data/corpus/mine.parquet").equals(expected)


def run_query(
    project: Path, text: str, cells: pl.DataFrame, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a stage corpus/mine with this query and the table cells. more: keys of its entry."""
    chapter = project / "stages/corpus"
    chapter.mkdir(parents=True)
    (project / "params.yaml").write_text("default: abacus\n")
    write_table(cells, project / "data/corpus/cells.parquet")
    (chapter / "mine.sql").write_text(text)
    deps = ["data/corpus/cells.parquet", "stages/corpus/mine.sql"]
    stage = {"deps": deps, "outs": ["data/corpus/mine.parquet"], **more}
    (chapter / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"mine": stage}}))
    return subprocess.run(
        [sys.executable, "-m", "stages.lib.sql.stage", "corpus/mine"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
