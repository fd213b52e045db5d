"""Check that a stage that is killed, or fills the disk, later writes the same bytes."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import run_in

# Each way in which stages write: stores and tables, parts (of few units), parts of three tables,
# and one table. First comes the number of changes of files from kill to kill, which is odd, since
# a file that is opened is renamed later.
STAGES = {
    "store": ("51", "stages.store.dump", "planted"),
    "circuit": ("15", "stages.lib.executor.runs", "circuit/head_circuit", "planted"),
    "heuristics": ("59", "stages.heuristics.permutation_tests", "planted"),
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
    """Return the bytes of a stage's outputs."""
    bytes_of: dict[Path, bytes] = {}
    for name in OUTPUTS[chapter]:
        files = [data / name] if "." in name else (data / name).iterdir()
        bytes_of |= {file: file.read_bytes() for file in files}
    return bytes_of


def files_in(folder: Path) -> set[Path]:
    return set(filter(Path.is_file, folder.rglob("*")))


@pytest.mark.parametrize("chapter", STAGES)
def test_after_early_ends_a_stage_writes_the_same_bytes(micro_copy: Path, chapter: str):
    data = micro_copy / "data"
    expected, files = contents(data, chapter), files_in(data)
    for file in expected:
        file.unlink()
    script = Path(__file__).with_name("ended.py")
    done = run_in(micro_copy, sys.executable, str(script), *STAGES[chapter])
    killed, full = map(int, done.stdout.splitlines()[-2:])
    assert killed > 1
    assert full > 0
    assert contents(data, chapter) == expected
    assert files_in(data) == files


def test_two_runs_at_once_end_well_or_with_a_message(micro_copy: Path):
    stage = "stages/store/dvc.yaml:dump@planted"
    expected = contents(micro_copy / "data", "store")
    environment = {
        "PYTHONPATH": str(micro_copy),
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(Path.home()),
    }
    start = partial(
        subprocess.Popen,
        ["dvc", "repro", "-f", "-s", stage],
        cwd=micro_copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for process in (start(), start()):
        text, _ = process.communicate()
        assert process.returncode == 0 or "lock" in text.lower()
        assert "Traceback" not in text
    # Each may refuse the other: one needs the outputs, the other the lock to end its stage.
    run_in(micro_copy, "dvc", "repro", "-s", stage)
    assert contents(micro_copy / "data", "store") == expected
    assert "up to date" in run_in(micro_copy, "dvc", "status", stage).stdout
