"""Worker processes: every unit once, whoever does it; what goes wrong is said, and what is done is kept."""

import os
import signal
from pathlib import Path

import pytest

from stages.lib.core import workers
from stages.lib.core.settings import ParamsError
from stages.lib.executor import runs


def start(folder: str, wrong: int, killed: int) -> workers.Do:
    """Notes in the folder who did a unit; one unit goes wrong, one kills its worker."""

    def do(unit: int) -> None:
        if unit == wrong:
            raise ValueError(f"unit {unit} cannot be done")
        if unit == killed:
            os.kill(os.getpid(), signal.SIGKILL)
        (Path(folder) / str(unit)).write_text(str(os.getpid()))

    return do


def done(folder: Path) -> dict[int, int]:
    return {int(path.name): int(path.read_text()) for path in folder.iterdir()}


@pytest.mark.parametrize(("number", "fork"), [(1, True), (3, False), (3, True)])
def test_every_unit_is_done_once_by_as_many_processes_as_asked_for(
    number: int, fork: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(workers.VARIABLE, str(number))
    units = list(range(20))
    with workers.ready(start, str(tmp_path), -1, -1, fork=fork) as shared:
        assert sorted(shared.do(units, start(str(tmp_path), -1, -1))) == units
    assert sorted(done(tmp_path)) == units
    who = set(done(tmp_path).values())
    assert who == {os.getpid()} if number == 1 else os.getpid() not in who and len(who) <= number


def test_what_a_unit_raises_is_raised_and_what_is_done_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(workers.VARIABLE, "2")
    with pytest.raises(ValueError, match="unit 7 cannot be done"), workers.ready(start, str(tmp_path), 7, -1, fork=False) as shared:
        list(shared.do(range(10), start(str(tmp_path), 7, -1)))
    assert 7 not in done(tmp_path)
    assert done(tmp_path)


def test_a_killed_worker_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(workers.VARIABLE, "2")
    with pytest.raises(workers.WorkerError, match="a worker process was killed"), workers.ready(start, str(tmp_path), -1, 7) as shared:
        list(shared.do(range(10), start(str(tmp_path), -1, 7)))
    assert 7 not in done(tmp_path)


@pytest.mark.parametrize("given", ["0", "two", "-1", "1.5", ""])
def test_a_wrong_number_of_workers_is_named(given: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(workers.VARIABLE, given)
    with pytest.raises(ParamsError, match=f"BAG_WORKERS='{given}'"):
        workers.count()


def test_runs_are_the_same_whoever_does_them(micro_copy: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(micro_copy)
    output = micro_copy / "data/abacus/neurons/runs/neuron.parquet"
    expected = output.read_bytes()
    monkeypatch.setattr(runs, "FEW", 0)
    for number in ("1", "3"):
        monkeypatch.setenv(workers.VARIABLE, number)
        output.unlink()
        runs.main("neurons/neuron", "abacus")
        assert output.read_bytes() == expected
