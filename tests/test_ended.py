"""A stage that is killed, or runs out of room, leaves nothing that is mistaken for its output, and goes on to the same bytes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import run_in

STAGES = {  # each way in which stages write: stores and tables, parts (of few units), parts of three tables, one table; changes of files
    # from kill to kill
    "store": ("5", "stages.store.dump", "planted"),
    "circuit": ("1", "stages.lib.executor.runs", "circuit/head_circuit", "planted"),
    "heuristics": ("10", "stages.heuristics.permutation_tests", "planted"),
    "corpus": ("1", "stages.lib.sql.stage", "corpus/cells"),
}
OUTPUTS = {
    "store": (
        "planted/store/activations",
        "planted/store/means.h5",
        "planted/store/predictions.parquet",
        "planted/store/value_logits.h5",
    ),
    "circuit": ("planted/circuit/runs/head_circuit.parquet",),
    "heuristics": (
        "planted/heuristics/permutation_tests.parquet",
        "planted/heuristics/null_shares.parquet",
        "planted/heuristics/naming.parquet",
    ),
    "corpus": ("corpus/cells.parquet",),
}


def contents(data: Path, chapter: str) -> dict[Path, bytes]:
    """The bytes of a stage's outputs."""
    files = [
        file
        for name in OUTPUTS[chapter]
        for file in ([data / name] if (data / name).suffix else (data / name).iterdir())
    ]
    return {file: file.read_bytes() for file in files}


@pytest.mark.parametrize("chapter", STAGES)
def test_ended_early_it_goes_on_to_the_same_bytes(micro_copy: Path, chapter: str):
    data = micro_copy / "data"
    expected, others = contents(data, chapter), {file for file in data.rglob("*") if file.is_file()}
    for file in expected:
        file.unlink()
    done = run_in(
        micro_copy, sys.executable, str(Path(__file__).with_name("ended.py")), *STAGES[chapter]
    )
    killed, full = map(int, done.stdout.splitlines()[-2:])
    assert killed > 1
    assert full > 0
    assert contents(data, chapter) == expected
    assert {file for file in data.rglob("*") if file.is_file()} == others


def test_two_runs_at_once_end_well_or_in_a_sentence(micro_copy: Path):
    stage = "stages/store/dvc.yaml:dump@planted"
    expected = contents(micro_copy / "data", "store")
    environment = {
        "PYTHONPATH": str(micro_copy),
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(Path.home()),
    }
    both = [
        subprocess.Popen(
            ["dvc", "repro", "-f", "-s", stage],
            cwd=micro_copy,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate()[0] for process in both]
    assert 0 in [process.returncode for process in both]
    for process, text in zip(both, said, strict=True):
        assert process.returncode == 0 or "lock" in text.lower()
        assert "Traceback" not in text
    assert contents(micro_copy / "data", "store") == expected
    assert "up to date" in run_in(micro_copy, "dvc", "status", stage).stdout
