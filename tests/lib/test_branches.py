"""Branches of the pipeline run side by side, and have no stage in common."""

import json
import os
import re
import signal
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import psutil
import pytest
import yaml

from stages.lib.console import branches
from stages.lib.console.branches import LAST, PHASES, Branch, Phase, run, separate
from stages.lib.console.pipeline import RECORD, Progress, plan
from stages.lib.core.settings import read
from tests.conftest import run_in
from tests.micro import ROOT

# stands for DVC: says how many workers a branch has, and fails where a target says so
STAND_IN = """
import os, sys
print("workers", os.environ["BAG_WORKERS"], *sys.argv[1:])
sys.exit("fails" in sys.argv)
"""


@pytest.mark.parametrize("name", PHASES)
def test_branches_share_no_stage_beyond_those_that_ran_before(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    whole, _ = plan([], bool(LAST[name]))
    for phase in PHASES[name](read()):
        before, _ = plan(phase.before, False)
        together = separate(phase)
        assert len(together) == len(phase.branches) > 1
        for first, second in combinations(together, 2):
            assert first.stages
            assert not first.stages.keys() & second.stages.keys()
            assert not before.keys() & {*first.stages, *second.stages}
        for branch in together:
            stages, _ = plan(branch.targets, False)
            assert stages.keys() <= before.keys() | branch.stages.keys()
            assert stages.keys() <= whole.keys()  # which the progress counts


@pytest.mark.parametrize("name", PHASES)
def test_each_round_finds_what_it_needs(name: str, monkeypatch: pytest.MonkeyPatch):
    """No round repeats what the rounds before it have made."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(Branch, "lacks_outputs", lambda _: True)
    ran: set[str] = set()
    for together in branches.rounds_of(PHASES[name](read())):
        made: set[str] = set()
        for branch in together:
            stages, _ = plan(branch.targets, False)
            own = branch.stages or stages
            assert stages.keys() <= ran | own.keys()
            assert not branch.stages.keys() & ran
            assert not own.keys() <= ran
            made.update(own)
        ran |= made


def test_branches_that_share_a_stage_become_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    heuristics, store = "stages/heuristics/dvc.yaml", "stages/store/dvc.yaml"
    scores, accuracy = [f"{heuristics}:scores@abacus"], [f"{store}:accuracy@abacus"]
    planted = [f"{heuristics}:scores@planted"]
    [joined] = separate(Phase([], [scores, accuracy, planted]))
    assert sorted(joined.targets) == sorted(scores + accuracy + planted)
    before = [f"{store}:dump@abacus", f"{heuristics}:heuristics"]
    assert len(separate(Phase(before, [scores, accuracy, planted]))) == 3


def test_a_branch_with_all_outputs_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    [branch] = separate(Phase([], [["stages/corpus/dvc.yaml:cells"]]))
    monkeypatch.chdir(tmp_path)
    assert branch.lacks_outputs()
    for stage in branch.stages.values():
        for path in map(Path, stage.writes):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    assert not branch.lacks_outputs()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches, "REPRO", (sys.executable, "-c", STAND_IN))
    monkeypatch.setattr(signal, "signal", lambda *_: None)


def progress() -> Progress:
    return Progress(print, [], every=False)


@pytest.mark.parametrize(("workers", "share"), [("1", "1"), ("2", "1"), ("8", "2")])
def test_branches_share_the_workers(
    stand_in: None,
    workers: str,
    share: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
):
    monkeypatch.setenv("BAG_WORKERS", workers)
    run([Branch([target]) for target in "abcd"], progress())
    assert sorted(capfd.readouterr().out.splitlines()) == [f"workers {share} {x}" for x in "abcd"]


def test_a_failed_branch_is_an_error_after_the_others_have_ended(
    stand_in: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    monkeypatch.setenv("BAG_WORKERS", "2")
    with pytest.raises(SystemExit, match="`dvc repro` has failed"):
        run([Branch([target]) for target in ("fails", "a", "b")], progress())
    assert re.findall(r"1 (\w+)", capfd.readouterr().out).count("b") == 1


def test_ctrl_c_ends_all_branches(tmp_path: Path):
    """Two branches wait for each other's end; signals to their parent alone end them."""
    waits = "import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(600)"
    code = (
        "import sys\n"
        "from stages.lib.console import branches\n"
        f"branches.REPRO = (sys.executable, '-c', {waits!r})\n"
        "progress = branches.Progress(print, [], every=False)\n"
        "branches.run([branches.Branch([name]) for name in sys.argv[1:]], progress)"
    )
    files = [tmp_path / "first", tmp_path / "second"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, files)],
        env={**os.environ, "BAG_WORKERS": "2", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not all(file.exists() and file.read_text() for file in files):
        assert process.poll() is None
    # two at once, as from a shell and from what it started
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        process.send_signal(number)
    assert process.wait(60) == 128 + signal.SIGINT
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


# first -> left, right -> last; right fails until the file `allowed` exists
STAGES = {
    "first": ("cp in first", ["in"]),
    "left": ("cp first left", ["first"]),
    "right": ("test -e allowed && cp first right", ["first"]),
    "last": ("cat left right > last", ["left", "right"]),
}
RUN_ALL = """
from stages.lib.console import branches
branches.run_all([branches.Phase(["first"], [["left"], ["right"]])], [])
"""


@pytest.fixture
def diamond(tmp_path: Path) -> Path:
    """Make a DVC project of STAGES, each of which takes a fifth of a second and more."""
    stages = {}
    for name, (command, reads) in STAGES.items():
        stages[name] = {"cmd": f"sleep 0.2 && {command}", "deps": reads, "outs": [name]}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    (tmp_path / "in").write_text("1")
    run_in(tmp_path, "dvc", "init", "--quiet", "--no-scm")
    return tmp_path


def counted(project: Path, workers: int, status: int = 0) -> list[str]:
    """Run the diamond with real `dvc repro`; return the lines that tell its progress."""
    more = {"PYTHONPATH": str(ROOT), "BAG_WORKERS": str(workers)}
    done = run_in(project, sys.executable, "-c", RUN_ALL, check=False, more=more)
    assert done.returncode == status, done.stdout + done.stderr
    assert ("`dvc repro` has failed" in done.stderr) == bool(status)
    return re.findall(r"^stage \d.*$", done.stderr, re.MULTILINE)


def test_a_signal_ends_the_stage_that_dvc_runs(tmp_path: Path):
    """DVC itself ignores Ctrl-C while a stage runs."""
    stages = {"sleeps": {"cmd": "echo $$ > stage.pid && sleep 600", "outs": ["never"]}}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    run_in(tmp_path, "dvc", "init", "--quiet", "--no-scm")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = subprocess.Popen(
        [sys.executable, "-c", "from stages.lib.console import branches; branches.run_all([], [])"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    file = tmp_path / "stage.pid"
    while not (file.exists() and file.read_text()):
        assert process.poll() is None
    stage = psutil.Process(int(file.read_text()))
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGINT
    assert not psutil.wait_procs([stage], 60)[1]
    assert not (tmp_path / RECORD).exists()


def test_every_stage_of_branches_is_counted_and_timed(diamond: Path):
    """Run it with a failing branch, resume it, and run it again with all branches."""
    assert counted(diamond, 2, status=1) == ["stage 1 of 4", "stage 2 of 4", "stage 3 of 4"]
    assert json.loads((diamond / RECORD).read_text()).keys() == {"first", "left"}
    (diamond / "allowed").touch()
    assert counted(diamond, 2)[-1] == "stage 4 of 4"  # which has never run before
    seconds = json.loads((diamond / RECORD).read_text())
    assert seconds.keys() == STAGES.keys()
    assert all(0.2 <= value < 60 for value in seconds.values())
    (diamond / "in").write_text("2")
    for name in STAGES:
        (diamond / name).unlink()
    lines = counted(diamond, 2)
    numbers = [line.partition(",")[0] for line in lines]
    assert numbers == [f"stage {number} of 4" for number in range(1, 5)]
    assert all(re.search(r", about \d+ s left$", line) for line in lines)
    assert counted(diamond, 2) == []
