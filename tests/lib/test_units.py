"""Check units of work: each is done once, and workers that are killed are replaced."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.lib.core import environment
from stages.lib.core.settings import ParamsError
from stages.lib.units import local
from stages.lib.units.pool import Do, Refused, Report, WorkerError, Workers
from stages.lib.units.queue import DEATHS, Queue, Unit
from tests.micro import ROOT

UNITS = {number: Unit(f"the unit {number}", 3, number // 4) for number in range(20)}


def start(folder: str, wrong: int, deadly: int, deaths: int) -> Do:
    """Return what notes in the folder who did a unit, after reporting two thirds of it.

    wrong: the unit that raises; deadly: the unit that kills its first `deaths` workers.
    """

    def do(unit: int, report: Report) -> None:
        if unit == wrong:
            raise ValueError(f"unit {unit} cannot be done")
        report(2)
        before = len(list(Path(folder).glob("killed *")))
        if unit == deadly and before < deaths:
            (Path(folder) / f"killed {before}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        partial = Path(folder) / f"{unit} of {os.getpid()}"
        partial.write_text(str(os.getpid()))
        # whole or not at all, as a worker may be ended at any time; an error if it is there already
        (Path(folder) / str(unit)).hardlink_to(partial)

    return do


def shared(
    folder: Path, wrong: int = -1, deadly: int = -1, deaths: int = 0, fork: bool = False
) -> list[int]:
    """Return the units done; each one's size must have been reported once, whoever did it."""
    arguments = str(folder), wrong, deadly, deaths
    amounts: list[int] = []
    with local.ready(start, *arguments, fork=fork) as workers:
        numbers = list(workers.do(UNITS, start(*arguments), None, lambda n, _: amounts.append(n)))
    assert sum(amounts) == 3 * len(UNITS)
    assert len(amounts) > len(UNITS)  # within units
    assert (min(amounts) < 0) == bool(deaths)
    return numbers


def done(folder: Path) -> dict[int, int]:
    """Return each unit's process."""
    files = [path for path in folder.iterdir() if path.name.isdecimal()]
    return {int(path.name): int(path.read_text()) for path in files}


@pytest.mark.parametrize(("number", "fork"), [(1, True), (3, False), (3, True)])
def test_every_unit_is_done_once_by_at_most_that_many_processes(
    number: int, fork: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(local, "FORKS", True)
    monkeypatch.setenv(environment.WORKERS, str(number))
    assert sorted(shared(tmp_path, fork=fork)) == list(UNITS)
    assert sorted(done(tmp_path)) == list(UNITS)
    processes = set(done(tmp_path).values())
    assert len(processes) <= number
    assert (os.getpid() in processes) == (number == 1)


def test_what_a_unit_raises_is_raised_and_what_is_done_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(environment.WORKERS, "2")
    with pytest.raises(ValueError, match="unit 7 cannot be done") as raised:
        shared(tmp_path, wrong=7)
    assert "in a worker process" in raised.value.__notes__[0]
    assert 7 not in done(tmp_path)
    assert done(tmp_path)


@pytest.mark.parametrize("fork", [False, True])
def test_a_killed_worker_is_replaced_and_its_unit_done_again(
    fork: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    monkeypatch.setattr(local, "FORKS", True)
    monkeypatch.setenv(environment.WORKERS, "2")
    assert sorted(shared(tmp_path, deadly=7, deaths=DEATHS - 1, fork=fork)) == list(UNITS)
    assert sorted(done(tmp_path)) == list(UNITS)
    message = "was killed at the unit 7, which is done again"
    assert capfd.readouterr().err.count(message) == DEATHS - 1


def test_a_unit_that_kills_every_worker_is_named_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(environment.WORKERS, "3")
    problem = f"^{DEATHS} workers were killed at one unit of work, the unit 7"
    with pytest.raises(WorkerError, match=f"{problem}, .* the same command goes on"):
        shared(tmp_path, deadly=7, deaths=99)
    assert 7 not in done(tmp_path)


class Joining:
    """A worker that is not ready when it is hired, such as an actor of a cluster."""

    unit: int | None = None

    def give(self, unit: int) -> None:
        self.unit = unit

    def result(self) -> None:
        pass

    def end(self) -> None:
        pass


def test_workers_of_a_cluster_do_a_second_round():
    """A stage may find more units after the first ones are done."""
    workers = Workers(2, Joining, list, at_once=False)
    for _ in range(2):
        assert sorted(workers.do(UNITS, print)) == list(UNITS)
    assert len(workers.hired) == 2


class Foreign(Joining):
    """A worker that is refused at its first unit, if it is the first that is hired."""

    def __init__(self, hired: list["Foreign"]):
        self.is_refused, self.has_ended = not hired, False
        hired.append(self)

    def result(self) -> None:
        if self.is_refused:
            raise Refused("it computes other numbers")

    def end(self) -> None:
        self.has_ended = True


def test_a_refused_worker_is_ended(capsys: pytest.CaptureFixture):
    """Its memory and its processor would stay taken as long as the others work."""
    hired: list[Foreign] = []
    workers = Workers(2, lambda: Foreign(hired), list)
    assert sorted(workers.do(UNITS, print)) == list(UNITS)
    assert [worker.has_ended for worker in hired] == [True, False]
    assert workers.hired == hired[1:]
    assert "is refused: it computes other numbers" in capsys.readouterr().err


def test_workers_end_with_the_process_that_started_them(tmp_path: Path):
    code = """
import os, time
from stages.lib.units import local
from stages.lib.units.queue import Unit
def start():
    return lambda unit, _: os.write(1, b"%d\\n" % os.getpid())
with local.ready(start) as workers:
    list(workers.do({n: Unit("") for n in range(4)}, print))
    print("idle", flush=True)
    time.sleep(600)
"""
    variables = os.environ | {environment.WORKERS: "2", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as driver:
        assert driver.stdout
        lines = iter(driver.stdout.readline, "idle\n")
        processes = {psutil.Process(int(line)) for line in lines}
        assert processes
        driver.kill()
    assert psutil.wait_procs(processes, timeout=30)[1] == []


@pytest.mark.parametrize("given", ["0", "two", "-1", "1.5", ""])
def test_a_wrong_number_of_workers_is_named(given: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(environment.WORKERS, given)
    with pytest.raises(ParamsError, match=f"BAG_WORKERS='{given}'"):
        environment.workers()


def test_a_wrong_device_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(environment.DEVICE, "gpu")
    with pytest.raises(ParamsError, match="BAG_DEVICE='gpu', but models run on cpu or cuda"):
        environment.device()


@given(
    st.lists(st.integers(0, 5), max_size=60),
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=400),
)
def test_a_queue_gives_every_unit_once_and_again_if_a_worker_died(
    groups: list[int], calls: list[tuple[int, bool]]
):
    units = {number: Unit(str(number), group=group) for number, group in enumerate(groups)}
    queue, given_out, deaths = Queue(units), list[int](), Counter[int]()
    for worker, dies in [*calls, *[(0, False)] * (len(units) + 1)]:
        unit = queue.next(worker)
        if unit is None:
            continue
        if dies and deaths[unit] < DEATHS - 1:
            deaths[unit] += 1
            assert queue.died(worker, unit)
        else:
            given_out.append(unit)
    assert sorted(given_out) == list(units)


@given(st.integers(1, 5), st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_workers_in_turn_change_groups_no_more_often_than_they_must(workers: int, sizes: list[int]):
    groups = np.repeat(np.arange(len(sizes)), sizes).tolist()
    units = {number: Unit("", group=group) for number, group in enumerate(groups)}
    queue, changes, at = Queue(units), 0, dict[int, int]()
    for turn in range(len(units)):
        unit = queue.next(turn % workers)
        assert unit is not None
        changes += at.get(turn % workers) != groups[unit]
        at[turn % workers] = groups[unit]
    assert changes <= len(sizes) + workers * (workers - 1)
