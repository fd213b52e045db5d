"""Units of work: every unit once, whoever does it; a worker that is killed is replaced; the bytes are always the same."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.lib.core import environment
from stages.lib.core.settings import ParamsError
from stages.lib.units import local
from stages.lib.units.pool import Do, Report, WorkerError
from stages.lib.units.queue import DEATHS, Queue, Unit
from tests.micro import ROOT

UNITS = {number: Unit(f"the unit {number}", 3, number // 4) for number in range(20)}


def start(folder: str, wrong: int, deadly: int, deaths: int) -> Do:
    """Note in the folder who did a unit, after two thirds of it are reported.

    One unit goes wrong, one kills its worker so many times.
    """

    def do(unit: int, report: Report) -> None:
        if unit == wrong:
            raise ValueError(f"unit {unit} cannot be done")
        report(2)
        killed = Path(folder) / f"killed {len(list(Path(folder).glob('killed *')))}"
        if unit == deadly and len(list(Path(folder).glob("killed *"))) < deaths:
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with (Path(folder) / str(unit)).open("x") as file:
            file.write(str(os.getpid()))

    return do


def shared(
    folder: Path, wrong: int = -1, deadly: int = -1, deaths: int = 0, fork: bool = False
) -> list[int]:
    """Return the units done; their sizes must have been reported, work of killed workers once."""
    arguments = str(folder), wrong, deadly, deaths
    amounts: list[int] = []
    with local.ready(start, *arguments, fork=fork) as workers:
        numbers = list(workers.do(UNITS, start(*arguments), None, lambda n, _: amounts.append(n)))
    assert sum(amounts) == 3 * len(UNITS)
    assert len(amounts) > len(UNITS)  # within units
    assert (min(amounts) < 0) == bool(deaths)
    return numbers


def done(folder: Path) -> dict[int, int]:
    return {
        int(path.name): int(path.read_text()) for path in folder.iterdir() if path.name.isdecimal()
    }


@pytest.mark.parametrize(("number", "fork"), [(1, True), (3, False), (3, True)])
def test_every_unit_is_done_once_by_as_many_processes_as_asked_for(
    number: int, fork: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(local, "FORKS", True)
    monkeypatch.setenv(environment.WORKERS, str(number))
    assert sorted(shared(tmp_path, fork=fork)) == list(UNITS)
    assert sorted(done(tmp_path)) == list(UNITS)
    who = set(done(tmp_path).values())
    assert who == {os.getpid()} if number == 1 else os.getpid() not in who and len(who) <= number


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
    assert (
        capfd.readouterr().err.count("was killed at the unit 7, which is done again") == DEATHS - 1
    )


def test_a_unit_that_kills_every_worker_is_named_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(environment.WORKERS, "3")
    with pytest.raises(
        WorkerError,
        match=rf"^{DEATHS} workers were killed at one unit of work, the unit 7, .* the same command goes on",
    ):
        shared(tmp_path, deadly=7, deaths=99)
    assert 7 not in done(tmp_path)


def test_workers_end_with_who_asked_them(tmp_path: Path):
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
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=variables
    ) as driver:
        assert driver.stdout
        found = {psutil.Process(int(line)) for line in iter(driver.stdout.readline, "idle\n")}
        assert found
        driver.kill()
    assert psutil.wait_procs(found, timeout=30)[1] == []


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
def test_a_queue_gives_every_unit_once_and_again_where_a_worker_died(
    groups: list[int], asked: list[tuple[int, bool]]
):
    units = {number: Unit(str(number), group=group) for number, group in enumerate(groups)}
    queue, given_out, deaths = Queue(units), list[int](), dict[int, int]()
    for worker, dies in [*asked, *[(0, False)] * (len(units) + 1)]:
        unit = queue.next(worker)
        if unit is not None and dies and deaths.get(unit, 0) < DEATHS - 1:
            deaths[unit] = deaths.get(unit, 0) + 1
            assert queue.died(worker, unit)
        elif unit is not None:
            given_out.append(unit)
    assert sorted(given_out) == list(units)


@given(st.integers(1, 5), st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_workers_in_turn_change_groups_no_more_often_than_they_must(workers: int, sizes: list[int]):
    units = {
        number: Unit("", group=group)
        for number, group in enumerate(g for g, size in enumerate(sizes) for _ in range(size))
    }
    queue, changes, at = Queue(units), 0, dict[int, int]()
    for turn in range(len(units)):
        group = units[queue.next(turn % workers)].group  # type: ignore[index]
        changes += at.get(turn % workers) != group
        at[turn % workers] = group
    assert changes <= len(sizes) + workers * (workers - 1)
