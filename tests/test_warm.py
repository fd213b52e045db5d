"""Test stages.warm: a stage below it behaves as usual, except that its libraries are loaded."""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from stages import warm as stages_warm
from tests.conftest import run_in
from tests.micro import ROOT

HELLO = """
import os, sys, time
from pathlib import Path
mark, is_loaded = os.environ["MARK"], "numpy" in sys.modules
print(__name__, sys.argv[1:], os.getcwd(), mark, sys.stdin.read(), is_loaded, flush=True)
print("to stderr", file=sys.stderr)
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
    """Make a folder with two stages; its name has a blank and a quote."""
    folder = tmp_path / "it's here"
    (folder / "stages").mkdir(parents=True)
    # torch and other libraries would take seconds in every test
    few = 'LIBRARIES = ("json", "broken", "numpy")'
    code = (ROOT / "stages/warm.py").read_text()
    code = re.sub(r"LIBRARIES = \(.*?\n\)", few, code, flags=re.DOTALL)
    (folder / "stages/warm.py").write_text(code)
    (folder / "stages/__init__.py").touch()
    # as matplotlib does if MPLBACKEND names a backend that is not installed
    (folder / "broken.py").write_text("raise ValueError")
    (folder / "stages/hello.py").write_text(HELLO)
    (folder / "stages/sleep.py").write_text(SLEEP)
    return folder


def warm(*command: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "stages.warm", *command)


@pytest.mark.parametrize(
    ("argument", "status"), [("go", 0), ("refuse", 1), ("fail", 1), ("die", 137)]
)
def test_a_stage_writes_and_ends_as_usual(project: Path, argument: str, status: int):
    mark = "7=8\n\u00e9"
    call = f"MARK='{mark}' python -m stages.hello {argument} 'two words' ''; exit $?"
    command = ("sh", "-c", call)
    loaded = run_in(project, *warm(*command), check=False, input="typed")
    plain = run_in(project, *command, check=False, input="typed")
    words = [argument, "two words", ""]
    assert plain.stdout == f"__main__ {words} {project} {mark} typed False\n"
    assert loaded.stdout == plain.stdout.replace("False", "True")
    assert loaded.returncode == plain.returncode == status
    assert loaded.stderr.splitlines()[0] == plain.stderr.splitlines()[0] == "to stderr"
    assert loaded.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["it's $HOME `x` \"\\ é", "long" * 30])
def test_the_folder_for_temporary_files_may_have_any_name(project: Path, tmp_path: Path, name: str):
    folder = tmp_path / name
    folder.mkdir()
    more = {"TMPDIR": str(folder), "MARK": "7 é"}
    script = 'ls "$TMPDIR" | grep -c ^warm; python -m stages.hello go </dev/null'
    done = run_in(project, *warm("sh", "-c", script), more=more)
    assert done.stdout == f"1\n__main__ ['go'] {project} 7 é  True\n"
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_hold_programs_is_not_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    refused = tmp_path / "noexec"
    refused.mkdir()
    access = os.access

    def without_programs(path: str | Path, mode: int) -> bool:
        is_program = mode == os.X_OK and refused in Path(path).parents
        return access(path, mode) and not is_program

    monkeypatch.setattr(os, "access", without_programs)
    monkeypatch.setattr(tempfile, "tempdir", str(refused))
    monkeypatch.chdir(tmp_path)
    folder = stages_warm._folder()
    assert folder
    assert folder.parent == tmp_path
    assert list(refused.iterdir()) == []
    monkeypatch.chdir(refused)
    assert stages_warm._folder() is None


def test_only_the_folder_of_a_killed_process_is_removed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    mine = f"warm-{socket.gethostname()}-"
    abandoned = f"{mine}{ended.pid}-x"
    others = (f"{mine}{os.getpid()}-x", f"warm-other-{ended.pid}-x", "warm-x")
    for name in (abandoned, *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "caller.py").touch()
    folder = stages_warm._folder()
    assert folder
    assert {path.name for path in tmp_path.iterdir()} == {folder.name, *others}


@pytest.mark.parametrize(("last", "status"), [("", 0), ("sys.exit('no')", 1), ("int('no')", 1)])
def test_a_stage_ends_with_its_own_exit_functions_only(project: Path, last: str, status: int):
    lines = ["import atexit, weakref", "atexit.register(print, 'of a library')"]
    lines += ["weakref.finalize(atexit, print, 'of an object of a library')"]
    (project / "broken.py").write_text("\n".join(lines))
    lines = ["import atexit, sys, tempfile", "atexit.register(print, 'of the stage')"]
    lines += ["tempfile.kept = tempfile.TemporaryDirectory(dir='.', prefix='removed')", last]
    (project / "stages/hello.py").write_text("\n".join(lines))
    done = run_in(project, *warm("python", "-m", "stages.hello"), check=False)
    assert (done.returncode, done.stdout) == (status, "of the stage\n")
    assert not [*project.glob("removed*")]
    # without a stage, Python ends as usual
    code = "from stages import warm; warm.load()"
    loaded = run_in(project, "python", "-c", code).stdout
    assert loaded == "of an object of a library\nof a library\n"


def test_a_stage_runs_the_current_files(project: Path):
    change = "open('stages/hello.py', 'w').write('print(6 * 7)')"
    hello = "python -m stages.hello"
    script = f'MARK=7 {hello} go </dev/null && python -c "{change}" && {hello}'
    assert run_in(project, *warm("sh", "-c", script)).stdout.splitlines()[-1] == "42"


def test_another_folder_or_path_gets_its_own_python(project: Path):
    (project / "below").mkdir()
    hello = "MARK=7 PYTHONPATH=.. python -m stages.hello go </dev/null"
    script = f"cd below && {hello}; python -c 'import sys; print(len(sys.argv))'"
    first, last = run_in(project, *warm("sh", "-c", script)).stdout.splitlines()
    assert first.endswith("7  False")
    assert last == "1"


def test_the_command_gives_its_status_and_leaves_no_file(project: Path, tmp_path: Path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(warm("sh", "-c", "exit 5"), cwd=project, env=environment, check=False)
    assert done.returncode == 5
    assert list(tmp_path.iterdir()) == [project]
    for command, message in (
        ((), "COMMAND"),
        (("no-such-command",), "stages.warm: [Errno 2] No such file or directory"),
    ):
        refused = run_in(project, *warm(*command), check=False)
        assert refused.returncode == 1
        assert message in refused.stderr.splitlines()[-1]


@dataclass
class Sleeping:
    """The process of stages.warm, a stage's caller, the stage itself and the stage's worker."""

    server: subprocess.Popen
    caller: psutil.Process
    stage: psutil.Process
    worker: psutil.Process

    def ended(self) -> bool:
        """Return whether all processes of the stage end within a minute."""
        return not psutil.wait_procs([self.caller, self.stage, self.worker], 60)[1]


@pytest.fixture
def sleeping(project: Path, request: pytest.FixtureRequest) -> Iterator[Sleeping]:
    """Start a stage that sleeps. request.param: the stage's argument."""
    script = f"echo $$; exec python -m stages.sleep {request.param}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with subprocess.Popen(
        warm("sh", "-c", script),
        cwd=project,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(project)},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout
        caller = psutil.Process(int(server.stdout.readline()))
        assert server.stdout.readline() == "sleeps\n"
        stage, worker = map(int, (project / "pids").read_text().split())
        yield Sleeping(server, caller, psutil.Process(stage), psutil.Process(worker))
        server.kill()


@pytest.mark.parametrize("sleeping", ["handle"], indirect=True)
def test_a_signal_reaches_the_stage(sleeping: Sleeping):
    sleeping.caller.send_signal(signal.SIGTERM)
    assert sleeping.server.wait(60) == 3
    assert sleeping.ended()


def test_a_signal_right_after_the_request_reaches_the_stage():
    caller, server = socket.socketpair()
    request = b"1\0stages.hello\0A=1"
    socket.send_fds(caller, [len(request).to_bytes(8, "big")], [0, 1, 2])
    caller.sendall(request + bytes([signal.SIGTERM]))
    stage = stages_warm._start(server)
    if not isinstance(stage, stages_warm.RunningStage):  # the stage's process
        # another test may have set a handler
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        signal.pause()
        return
    while not stage.has_ended(select.select([stage.caller, stage.ended], [], [])[0]):
        pass
    assert caller.recv(1)[0] == 128 + signal.SIGTERM


def test_a_caller_that_ends_before_its_request_starts_nothing():
    caller, server = socket.socketpair()
    socket.send_fds(caller, [(100).to_bytes(8, "big")], [0, 1, 2])
    caller.close()
    assert stages_warm._start(server) is None


@pytest.mark.parametrize("sleeping", ["on"], indirect=True)
def test_a_killed_caller_ends_the_stage_and_its_workers(sleeping: Sleeping):
    sleeping.caller.kill()
    assert sleeping.server.wait(60) == 137
    assert sleeping.ended()


@pytest.mark.parametrize("sleeping", ["on"], indirect=True)
def test_a_killed_server_ends_the_stage_and_its_caller(sleeping: Sleeping):
    sleeping.server.kill()
    assert not psutil.wait_procs([sleeping.caller, sleeping.stage], 60)[1]
    sleeping.worker.kill()


@pytest.mark.parametrize("sleeping", ["on"], indirect=True)
def test_a_killed_stage_ends_its_caller_with_the_same_status(sleeping: Sleeping):
    sleeping.stage.kill()
    assert sleeping.server.wait(60) == 137
    sleeping.worker.kill()


def test_on_other_systems_than_linux_the_command_runs_as_usual(project: Path):
    file = project / "stages/warm.py"
    code = file.read_text().replace('sys.platform == "linux"', 'sys.platform == "elsewhere"')
    file.write_text(code)
    command = warm("sh", "-c", "MARK=7 python -m stages.hello go; exit 5")
    done = run_in(project, *command, check=False, input="typed")
    assert (done.returncode, done.stdout) == (5, f"__main__ ['go'] {project} 7 typed False\n")
    missing = run_in(project, *warm("no-such-command"), check=False)
    assert "stages.warm: [Errno 2] No such file" in missing.stderr
