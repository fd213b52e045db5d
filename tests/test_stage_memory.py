"""The benchmark of stages measures the peak memory of a stage's processes."""

import os
from pathlib import Path

import pytest

from stages.lib.console.pipeline import Stage
from tests.bench.stages import measured

MIB = 300  # that a worker of the stage fills
PROGRAM = f"""
import subprocess, sys, time
from pathlib import Path
Path("out").write_text("new")
code = "b = bytearray({MIB} << 20); b[::4096] = bytes(len(b[::4096])); print(); input()"
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
worker = subprocess.Popen([sys.executable, "-c", code], **pipes)
worker.stdout.readline()  # it is full now
time.sleep(float(sys.argv[1]))
worker.communicate(b"end")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a project with one output, which links to that of the project."""
    monkeypatch.chdir(tmp_path)
    Path("out").write_text("old")
    copy = tmp_path / "copy"
    copy.mkdir()
    os.link("out", copy / "out")
    (copy / "program.py").write_text(PROGRAM)
    return copy


@pytest.mark.parametrize(("seconds", "is_whole"), [(2, True), (600, False)])
def test_the_peak_is_of_the_largest_process(folder: Path, seconds: int, is_whole: bool):
    stage = Stage((), ("out",), f"python program.py {seconds}")
    peak = measured(stage, folder, 20 if is_whole else 3)
    assert MIB < peak.mib < MIB + 60
    assert peak.is_whole == is_whole
    assert Path("out").read_text() == (folder / "out").read_text() == "old"


def test_a_stage_that_fails_ends_the_benchmark(folder: Path):
    with pytest.raises(SystemExit, match=r"program\.py none failed"):
        measured(Stage((), ("out",), "python program.py none"), folder, 20)
