"""Units of work: every unit once, whoever does it; a worker that is killed is replaced; the bytes are always the same."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.heuristics import nulls, scores
from stages.lib.core import machine
from stages.lib.core.settings import ParamsError
from stages.lib.executor import runs
from stages.lib.model import checkpoint
from stages.lib.units import local, work
from stages.lib.units.pool import Do, WorkerError
from stages.lib.units.queue import DEATHS, Queue, Unit
from stages.store import dump
from tests.micro import ROOT

UNITS = {number: Unit(f"the unit {number}", group=number // 4) for number in range(20)}


def start(folder: str, wrong: int, deadly: int, deaths: int) -> Do:
    """Notes in the folder who did a unit; one unit goes wrong, one kills its worker so many times."""

    def do(unit: int) -> None:
        if unit == wrong:
            raise ValueError(f"unit {unit} cannot be done")
        killed = Path(folder) / f"killed {len(list(Path(folder).glob('killed *')))}"
        if unit == deadly and len(list(Path(folder).glob("killed *"))) < deaths:
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with (Path(folder) / str(unit)).open("x") as file:
            file.write(str(os.getpid()))

    return do


def shared(folder: Path, wrong: int = -1, deadly: int = -1, deaths: int = 0, fork: bool = False) -> list[int]:
    arguments = str(folder), wrong, deadly, deaths
    with local.ready(start, *arguments, fork=fork) as workers:
        return list(workers.do(UNITS, start(*arguments)))


def done(folder: Path) -> dict[int, int]:
    return {int(path.name): int(path.read_text()) for path in folder.iterdir() if path.name.isdecimal()}


@pytest.mark.parametrize(("number", "fork"), [(1, True), (3, False), (3, True)])
def test_every_unit_is_done_once_by_as_many_processes_as_asked_for(
    number: int, fork: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(local, "FORKS", True)
    monkeypatch.setenv(machine.WORKERS, str(number))
    assert sorted(shared(tmp_path, fork=fork)) == list(UNITS)
    assert sorted(done(tmp_path)) == list(UNITS)
    who = set(done(tmp_path).values())
    assert who == {os.getpid()} if number == 1 else os.getpid() not in who and len(who) <= number


def test_what_a_unit_raises_is_raised_and_what_is_done_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(machine.WORKERS, "2")
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
    monkeypatch.setenv(machine.WORKERS, "2")
    assert sorted(shared(tmp_path, deadly=7, deaths=DEATHS - 1, fork=fork)) == list(UNITS)
    assert sorted(done(tmp_path)) == list(UNITS)
    assert capfd.readouterr().err.count("was killed at the unit 7, which is done again") == DEATHS - 1


def test_a_unit_that_kills_every_worker_is_named_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(machine.WORKERS, "3")
    with pytest.raises(WorkerError, match=rf"^{DEATHS} workers were killed at one unit of work, the unit 7, .* the same command goes on"):
        shared(tmp_path, deadly=7, deaths=99)
    assert 7 not in done(tmp_path)


def test_workers_end_with_who_asked_them(tmp_path: Path):
    code = """
import os, time
from stages.lib.units import local
from stages.lib.units.queue import Unit
def start():
    return lambda unit: print(os.getpid(), flush=True)
with local.ready(start) as workers:
    list(workers.do({n: Unit("") for n in range(4)}, print))
    print("idle", flush=True)
    time.sleep(600)
"""
    environment = os.environ | {machine.WORKERS: "2", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as driver:
        assert driver.stdout
        found = {psutil.Process(int(line)) for line in iter(driver.stdout.readline, "idle\n")}
        assert found
        driver.kill()
    assert psutil.wait_procs(found, timeout=30)[1] == []


@pytest.mark.parametrize("given", ["0", "two", "-1", "1.5", ""])
def test_a_wrong_number_of_workers_is_named(given: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(machine.WORKERS, given)
    with pytest.raises(ParamsError, match=f"BAG_WORKERS='{given}'"):
        machine.workers()


def test_a_wrong_device_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(machine.DEVICE, "gpu")
    with pytest.raises(ParamsError, match="BAG_DEVICE='gpu', but models run on cpu or cuda"):
        machine.device()


@pytest.mark.parametrize("engine", ["array", "array:2/2", "array:-1/2", "array:1/0", "rai", ""])
def test_a_wrong_engine_is_named(engine: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(work.ENGINE, engine)
    with pytest.raises(ParamsError, match=f"BAG_ENGINE='{engine}', but it is local, ray or array:I/N"):
        runs.main("neurons/neuron", "abacus")


@given(st.lists(st.integers(0, 5), max_size=60), st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=400))
def test_a_queue_gives_every_unit_once_and_again_where_a_worker_died(groups: list[int], asked: list[tuple[int, bool]]):
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
    units = {number: Unit("", group=group) for number, group in enumerate(g for g, size in enumerate(sizes) for _ in range(size))}
    queue, changes, at = Queue(units), 0, dict[int, int]()
    for turn in range(len(units)):
        group = units[queue.next(turn % workers)].group  # type: ignore[index]
        changes += at.get(turn % workers) != group
        at[turn % workers] = group
    assert changes <= len(sizes) + workers * (workers - 1)


STAGES: dict[str, tuple[Callable, tuple[str, ...], tuple[str, ...]]] = {
    "dump": (dump.main, ("abacus",), ("store/activations/add.h5", "store/activations/divide.h5", "store/means.h5", "store/value_logits.h5",
                                      "store/predictions.parquet")),
    "runs": (runs.main, ("neurons/neuron", "abacus"), ("neurons/runs/neuron.parquet",)),
    "scores": (scores.main, ("abacus",), ("heuristics/scores.parquet",)),
    "nulls": (nulls.main, ("abacus",), ("heuristics/nulls.parquet", "heuristics/null_shares.parquet", "heuristics/naming.parquet")),
}  # fmt: skip


@pytest.mark.parametrize("stage", STAGES)
def test_the_bytes_are_the_same_whoever_does_the_work(stage: str, micro_copy: Path, monkeypatch: pytest.MonkeyPatch):
    main, arguments, names = STAGES[stage]
    outputs = [micro_copy / "data/abacus" / name for name in names]
    expected = [output.read_bytes() for output in outputs]
    monkeypatch.chdir(micro_copy)
    for module in (runs, scores, nulls, dump):
        monkeypatch.setattr(module.Work, "few", 0)
    for workers, shares in (("1", []), ("3", []), ("2", ["array:1/3", "array:0/3", "array:2/3"]), ("1", ["array:1/2"])):
        monkeypatch.setenv(machine.WORKERS, workers)
        for output in outputs:
            output.unlink()
        for share in shares:
            monkeypatch.setenv(work.ENGINE, share)
            main(*arguments)
            assert not any(output.exists() for output in outputs)
        monkeypatch.delenv(work.ENGINE, raising=False)
        main(*arguments)
        assert [output.read_bytes() for output in outputs] == expected


def test_who_computes_otherwise_writes_no_parts(micro_copy: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(micro_copy)
    Path("data/abacus/store/predictions.parquet").unlink()
    monkeypatch.setenv(work.ENGINE, "array:0/2")
    dump.main("abacus")
    monkeypatch.setattr(checkpoint, "canary", lambda _: "other logits")
    monkeypatch.setenv(work.ENGINE, "array:1/2")
    with pytest.raises(SystemExit, match=r"gives other numbers than the one that began data/abacus/store/predictions\.parquet"):
        dump.main("abacus")


def test_processors_of_other_kinds_are_told_apart_where_bytes_are(micro: Path):
    wide, narrow = (checkpoint.load(micro / "data/models/abacus/step-00200", dtype, "cpu", 1) for dtype in ("float64", "float32"))
    found = checkpoint.canary(wide), checkpoint.canary(narrow)
    for loaded in (wide, narrow):  # as much as instruction sets differ by
        loaded.architecture.unembedding.weight.mul_(1 + torch.finfo(loaded.model.dtype).eps)
    assert checkpoint.canary(wide) == found[0]
    assert checkpoint.canary(narrow) != found[1]


def test_an_array_does_every_unit_once(micro_copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.chdir(micro_copy)
    output = micro_copy / "data/abacus/store/predictions.parquet"
    output.unlink()
    units = dump.Work("abacus").units
    for share in ("array:0/2", "array:1/2"):
        monkeypatch.setenv(work.ENGINE, share)
        dump.main("abacus")
    said = capsys.readouterr().err
    assert f"dump abacus: part 0 of 2 is done, {(len(units) + 1) // 2} units of work; once all parts are, the same command without" in said
    assert dump.Work("abacus").missing() == []
    before = {file: file.stat().st_mtime_ns for file in output.with_suffix(".parts").rglob("*.parquet")}
    assert len(before) == len(units)
    dump.main("abacus")  # still as one of an array: nothing is left to do
    assert before == {file: file.stat().st_mtime_ns for file in output.with_suffix(".parts").rglob("*.parquet")}
