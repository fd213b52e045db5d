"""Check the GPU benchmark at toy size on a processor: every section runs, failures end none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.bench.gpu import UNTIL, gpu
from tests.bench.gpu.report import Report

ROOT = Path(__file__).parents[1]
MISSING = ["duckdb", "sqlglot", "dvc", "dash", "upath"]  # on a machine that only has torch
ENDED = "FAILED", "skipped", "stopped", "out of memory"
CODE = f"""
import os, runpy, sys
sys.modules.update(dict.fromkeys({MISSING}))
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
runpy.run_module("tests.bench", run_name="__main__")
"""


def test_every_section_runs_at_toy_size_without_databases(tmp_path: Path):
    out = tmp_path / "figures.jsonl"
    command = [sys.executable, "-c", CODE, "gpu", "--shape", "toy", "--budget", "480", "--out", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    figures = [json.loads(line) for line in out.read_text().splitlines()]
    assert list(dict.fromkeys(figure["section"] for figure in figures)) == ["machine", *UNTIL]
    values = {figure["name"]: figure["value"] for figure in figures}
    assert not any(str(value).startswith(ENDED) for value in values.values()), done.stdout
    assert values["dump: stored numbers that differ"] == 0
    assert values["runs: stored numbers that differ"] == 0
    table = done.stdout[done.stdout.index("\nsection ") :].splitlines()
    assert sum(line.startswith(tuple(UNTIL)) for line in table) == len(figures) - 3
    assert table[-1].endswith(", 0 failed")


def test_a_failure_ends_only_its_own_attempt(capsys: pytest.CaptureFixture):
    def too_large() -> None:
        raise torch.OutOfMemoryError

    report = Report(1000)
    report.section("first", 0.5, lambda: report.attempt("part", lambda: 1 / 0))
    report.section("second", 0.8, lambda: report.attempt("large", too_large))
    report.section("third", 0.9, too_large)
    report.section("last", -1.0, too_large)
    report.summary()
    assert report.failures == 2
    values = {(row["section"], row["name"]): row["value"] for row in report.figures}
    assert values["first", "part"] == "FAILED: ZeroDivisionError: division by zero"
    assert values["second", "large"] == "out of memory"
    assert values["last", "section"] == "skipped: no time left"
    assert capsys.readouterr().out.endswith("2 failed\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_skipped(capsys: pytest.CaptureFixture):
    gpu()
    assert "skipped" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="unknown shape 'llama-9'; shapes: toy, llama-3-8b"):
        gpu("llama-9")
