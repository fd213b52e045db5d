"""stages.warm: a stage below it is what it would be without, but for the time that libraries take to load."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stages import warm as stages_warm
from tests.conftest import run_in
from tests.micro import ROOT

HELLO = """
import os, sys, time
from pathlib import Path
print(__name__, sys.argv[1:], os.getcwd(), os.environ["MARK"], sys.stdin.read(), "numpy" in sys.modules, flush=True)
print("said", file=sys.stderr)
if sys.argv[1] == "refuse":
    sys.exit("a sentence")
if sys.argv[1] == "fail":
    raise ValueError
if sys.argv[1] == "die":
    os.kill(os.getpid(), 9)
"""
SLEEP = """
import multiprocessing, os, signal, sys, time
from pathlib import Path
def sleep():
    time.sleep(600)
if __name__ == "__main__":
    if sys.argv[1:] == ["handle"]:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    worker = multiprocessing.get_context("spawn").Process(target=sleep)
    worker.start()
    Path("pids").write_text(f"{os.getpid()} {worker.pid}")
    print("sleeps", flush=True)
    worker.join()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a blank and a quote in its name and two stages."""
    folder = tmp_path / "it's here"
    (folder / "stages").mkdir(parents=True)
    code = re.sub(
        r"LIBRARIES = \(.*?\n\)",
        'LIBRARIES = ("json", "broken", "numpy")',
        (ROOT / "stages/warm.py").read_text(),
        flags=re.DOTALL,
    )
    (folder / "stages/warm.py").write_text(code)  # torch and the like take seconds in every test
    (folder / "stages/__init__.py").touch()
    (folder / "broken.py").write_text(
        "raise ValueError('as matplotlib, where MPLBACKEND names what is not installed')"
    )
    (folder / "stages/hello.py").write_text(HELLO)
    (folder / "stages/sleep.py").write_text(SLEEP)
    return folder


def warm(*command: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "stages.warm", *command)


@pytest.mark.parametrize(
    ("argument", "status"), [("go", 0), ("refuse", 1), ("fail", 1), ("die", 137)]
)
def test_a_stage_says_and_ends_as_without(project: Path, argument: str, status: int):
    asked = f"MARK=7 python -m stages.hello {argument} 'two words'; exit $?"
    with_libraries = run_in(project, *warm("sh", "-c", asked), check=False, input="given")
    plain = run_in(project, "sh", "-c", asked, check=False, input="given")
    assert plain.stdout == f"__main__ ['{argument}', 'two words'] {project} 7 given False\n"
    assert with_libraries.stdout == plain.stdout.replace("False", "True")
    assert with_libraries.returncode == plain.returncode == status
    assert with_libraries.stderr.splitlines()[0] == plain.stderr.splitlines()[0] == "said"
    assert with_libraries.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["it's $HOME `x` \"\\ é", "long" * 30])
def test_the_folder_for_temporary_files_may_have_any_name(project: Path, tmp_path: Path, name: str):
    folder = tmp_path / name
    folder.mkdir()
    more = {"TMPDIR": str(folder), "MARK": "7 é"}
    asked = 'ls "$TMPDIR" | grep -c ^warm; python -m stages.hello go </dev/null'
    done = run_in(project, *warm("sh", "-c", asked), more=more)
    assert done.stdout == f"1\n__main__ ['go'] {project} 7 é  True\n"
    assert list(folder.iterdir()) == []


def test_where_programs_cannot_run_another_folder_is_taken(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    refused = tmp_path / "noexec"
    refused.mkdir()
    access = os.access
    monkeypatch.setattr(
        os,
        "access",
        lambda path, mode: (
            access(path, mode) and not (mode == os.X_OK and refused in Path(path).parents)
        ),
    )
    monkeypatch.setattr(tempfile, "tempdir", str(refused))
    monkeypatch.chdir(tmp_path)
    folder = stages_warm._folder()
    assert folder
    assert folder.parent == tmp_path
    assert list(refused.iterdir()) == []
    monkeypatch.chdir(refused)
    assert stages_warm._folder() is None


def test_what_a_killed_one_left_is_removed_and_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    mine = f"warm-{socket.gethostname()}-"
    left = f"{mine}{ended.pid}-x"
    others = (f"{mine}{os.getpid()}-x", f"warm-other-{ended.pid}-x", "warm-x")
    for name in (left, *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "caller.py").touch()
    folder = stages_warm._folder()
    assert folder
    assert {path.name for path in tmp_path.iterdir()} == {folder.name, *others}


def test_a_stage_runs_the_files_as_they_are_then(project: Path):
    change = "open('stages/hello.py', 'w').write('print(6 * 7)')"
    asked = f'MARK=7 python -m stages.hello go </dev/null && python -c "{change}" && python -m stages.hello'
    assert run_in(project, *warm("sh", "-c", asked)).stdout.splitlines()[-1] == "42"


def test_another_folder_or_path_gets_a_python_of_its_own(project: Path):
    (project / "below").mkdir()
    asked = "cd below && MARK=7 PYTHONPATH=.. python -m stages.hello go </dev/null; python -c 'import sys; print(len(sys.argv))'"
    first, last = run_in(project, *warm("sh", "-c", asked)).stdout.splitlines()
    assert first.endswith("7  False")
    assert last == "1"


def test_the_commands_status_and_nothing_else_is_left(project: Path, tmp_path: Path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(warm("sh", "-c", "exit 5"), cwd=project, env=environment, check=False)
    assert done.returncode == 5
    assert list(tmp_path.iterdir()) == [project]
    for wrong, said in (
        ((), "COMMAND"),
        (
            ("no-such-command",),
            "stages.warm: [Errno 2] No such file or directory: 'no-such-command'",
        ),
    ):
        refused = run_in(project, *warm(*wrong), check=False)
        assert refused.returncode == 1
        assert said in refused.stderr.splitlines()[-1]


@pytest.fixture
def sleeping(
    project: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[subprocess.Popen, list[psutil.Process]]]:
    """The process of stages.warm, and those of a stage below it: its caller, the stage itself and its worker."""
    asked = f"echo $$; exec python -m stages.sleep {request.param}"
    own = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(project),
    }
    environment = {**os.environ, **own}
    with subprocess.Popen(
        warm("sh", "-c", asked), cwd=project, env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout
        caller = psutil.Process(int(server.stdout.readline()))
        assert server.stdout.readline() == "sleeps\n"
        stage, worker = map(int, (project / "pids").read_text().split())
        yield server, [caller, psutil.Process(stage), psutil.Process(worker)]
        server.kill()


@pytest.mark.parametrize("sleeping", ["handle"], indirect=True)
def test_a_signal_reaches_the_stage(sleeping: tuple[subprocess.Popen, list[psutil.Process]]):
    server, (caller, stage, worker) = sleeping
    caller.send_signal(signal.SIGTERM)
    assert server.wait(60) == 3
    assert psutil.wait_procs([caller, stage, worker], 60)[1] == []


def test_a_signal_right_behind_what_is_asked_reaches_the_stage():
    caller, server = socket.socketpair()
    asked = json.dumps([["stages.hello"], {}]).encode()
    socket.send_fds(caller, [len(asked).to_bytes(8, "big")], [0, 1, 2])
    caller.sendall(asked + bytes([signal.SIGTERM]))
    keeper = os.fork()
    if not keeper:
        signal.signal(
            signal.SIGTERM, signal.SIG_DFL
        )  # whatever other tests have left in this process
        stages_warm._keep(server)  # returns in the stage's process
        signal.pause()
    server.close()
    assert caller.recv(1)[0] == 128 + signal.SIGTERM
    os.waitpid(keeper, 0)


@pytest.mark.parametrize("sleeping", ["on"], indirect=True)
def test_a_killed_caller_takes_the_stage_and_its_workers_along(
    sleeping: tuple[subprocess.Popen, list[psutil.Process]],
):
    server, below = sleeping
    below[0].kill()
    assert server.wait(60) == 137
    assert psutil.wait_procs(below, 60)[1] == []


@pytest.mark.parametrize("sleeping", ["on"], indirect=True)
def test_a_killed_stage_ends_its_caller_alike(
    sleeping: tuple[subprocess.Popen, list[psutil.Process]],
):
    server, below = sleeping
    below[1].kill()
    assert server.wait(60) == 137
    below[2].kill()


def test_elsewhere_than_on_linux_the_command_is_run_as_it_is(project: Path):
    file = project / "stages/warm.py"
    file.write_text(
        file.read_text().replace('sys.platform == "linux"', 'sys.platform == "elsewhere"')
    )
    done = run_in(
        project,
        *warm("sh", "-c", "MARK=7 python -m stages.hello go; exit 5"),
        check=False,
        input="given",
    )
    assert (done.returncode, done.stdout) == (5, f"__main__ ['go'] {project} 7 given False\n")
    assert (
        "stages.warm: [Errno 2] No such file"
        in run_in(project, *warm("no-such-command"), check=False).stderr
    )
