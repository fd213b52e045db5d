"""Runs a command, such as `dvc repro`, in which stages find their libraries loaded: python -m stages.warm dvc repro

Most stages of a small subject take less time than Python takes to import torch, transformers,
Polars and DuckDB. Here they are imported once, and `python -m stages.…` anywhere below the command
becomes a fork of this process. All else is as without: a process of its own with its caller's
streams and environment, which imports our own code from the files as they are then and ends when
its caller ends; a stage leaves the same bytes. What is called from another folder, or with other
paths to import from, is run by Python as usual, and so is everything once this process is gone,
where the system is not Linux, or where no folder for the script that takes Python's place can hold
programs.

    command ── sh ── python (CALLER: asks, hands on signals, waits for the status)
    stages.warm (serve) ── _keep (one for each stage: hands on signals and the status) ── stage
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

FORKS = sys.platform == "linux"  # elsewhere a fork of a process that has loaded such libraries may hang
LIBRARIES = (
    "numpy", "polars", "pyarrow.dataset", "pyarrow.parquet", "duckdb", "h5py", "numba", "pydantic.type_adapter", "ruamel.yaml",
    "sqlglot", "tqdm", "concurrent.futures.process", "multiprocessing.spawn", "matplotlib.pyplot", "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg", "torch", "transformers.models.auto.modeling_auto", "transformers.models.llama.modeling_llama",
    "transformers.tokenization_utils_tokenizers",
)  # fmt: skip
HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PREFIX = "warm-"
SAME = ("PYTHONPATH", "OMP_NUM_THREADS", "PYTHONHASHSEED")  # read when libraries are imported or Python starts

SCRIPT = """#!/bin/sh
exec {python} -IS {caller} "$@"
"""
CALLER = """import os, sys
argv, root, same = sys.argv[1:], {root!a}, {same!a}
def plain():
    os.execv({python!a}, [{python!a}, *argv])
if argv[:1] != ["-m"] or not argv[1].startswith("stages."):
    plain()
if os.getcwdb() != root or any(os.environ.get(name) != value for name, value in same.items()):
    plain()
import json, signal, socket
server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
try:
    folder = os.open({folder!a}, os.O_PATH)
    # not by the folder's own path, which may be longer than the longest address
    server.connect(f"/proc/self/fd/{{folder}}/socket")
    os.close(folder)
except OSError:
    plain()
signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # none in the midst of what is asked
for number in signals:
    signal.signal(number, lambda number, _: server.send(bytes([number])))
variables = os.environb.items()
environment = {{name.decode("latin-1"): value.decode("latin-1") for name, value in variables}}
request = json.dumps([argv[1:], environment]).encode()
try:
    socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(request)
except OSError:
    plain()  # the server has ended before it could start anything
signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
status = server.recv(1)
if not status:
    sys.exit("stages.warm has ended before this stage did")
if status[0] > 128:
    if status[0] - 128 != signal.SIGKILL:
        signal.signal(status[0] - 128, signal.SIG_DFL)
    os.kill(os.getpid(), status[0] - 128)
sys.exit(status[0])
"""


def main() -> None:
    """Runs the command of the command line and ends with its status; in a stage's process, runs the stage."""
    if len(sys.argv) < 2:
        sys.exit("python -m stages.warm COMMAND …, such as python -m stages.warm dvc repro")
    folder = _folder() if FORKS else None
    if not folder:
        try:
            os.execvp(sys.argv[1], sys.argv[1:])
        except OSError as error:
            sys.exit(f"stages.warm: {error}")
    listener = _listen(folder)
    try:
        command = subprocess.Popen(sys.argv[1:], env={**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"})
    except OSError as error:
        shutil.rmtree(folder)
        sys.exit(f"stages.warm: {error}")
    for number in HANDED_ON:
        signal.signal(number, lambda number, _: _hand_on(command, number))
    stage = serve(listener, command)
    if stage is None:
        shutil.rmtree(folder, ignore_errors=True)
        status = command.wait()
        os._exit(status if status >= 0 else 128 - status)  # at once: libraries take half a second to end
    _run(*stage)


def _folder() -> Path | None:
    """Make a private folder for PATH, with scripts named like Python; None if none may run.

    Its name says whose it is: where that process was killed, the next one removes it.
    """
    owner = f"{PREFIX}{socket.gethostname()}-"
    for place in (Path(tempfile.gettempdir()), Path.cwd() / ".dvc/tmp", Path.cwd()):
        if os.pathsep in str(place) or not os.access(place, os.W_OK):
            continue
        for other in place.glob(f"{owner}*"):
            if _is_left(other, other.name.removeprefix(owner).partition("-")[0]):
                shutil.rmtree(other, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{owner}{os.getpid()}-", dir=place))
        same = {name: os.environ.get(name) for name in SAME}
        caller = folder / "caller.py"
        caller.write_text(
            CALLER.format(python=sys.executable, root=os.getcwdb(), same=same, folder=str(folder)),
            encoding="ascii",
        )
        for name in ("python", "python3"):
            python = shlex.quote(sys.executable)
            script = SCRIPT.format(python=python, caller=shlex.quote(str(caller)))
            (folder / name).write_bytes(os.fsencode(script))
            (folder / name).chmod(0o700)
        if os.access(folder / "python", os.X_OK):
            return folder
        shutil.rmtree(folder)  # programs in it do not run, as its file system is mounted so
    return None


def _is_left(folder: Path, process: str) -> bool:
    """Whether a folder is ours and the process that made it is gone."""
    if not process.isdecimal() or folder.stat().st_uid != os.getuid():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _listen(folder: Path) -> socket.socket:
    """A socket in the folder, whose own path may be longer than an address can be."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    descriptor = os.open(folder, os.O_PATH)
    listener.bind(f"/proc/self/fd/{descriptor}/socket")
    os.close(descriptor)
    listener.listen(64)
    return listener


def _hand_on(command: subprocess.Popen, number: int) -> None:
    """A terminal gives Ctrl-C to the command itself, everyone else only to us."""
    if number != signal.SIGINT or not os.isatty(0):
        command.send_signal(number)


def serve(listener: socket.socket, command: subprocess.Popen) -> tuple[list[str], dict[str, str]] | None:
    """None once the command has ended. In the process of a stage: its command line and its environment."""
    keepers: list[int] = []
    while command.poll() is None:
        if not select.select([listener], [], [], 0.1)[0]:
            keepers = [keeper for keeper in keepers if os.waitpid(keeper, os.WNOHANG) == (0, 0)]
            continue
        connection, _ = listener.accept()
        _load()
        if keeper := os.fork():
            keepers.append(keeper)
            connection.close()
            continue
        listener.close()
        return _keep(connection)
    return None


@cache
def _load() -> None:
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # to ask for a GPU the usual way would take it from the stages
    # as stages.lib.drawing, whatever Jupyter or the user sets
    os.environ |= {"MPLBACKEND": "agg", "MATPLOTLIBRC": os.devnull}
    gc.disable()
    for library in LIBRARIES:
        with suppress(Exception):  # the stage that needs it says so
            importlib.import_module(library)
    with suppress(Exception):
        importlib.import_module("pydantic").create_model("First")  # makes ready what every first model of a process makes ready
    gc.freeze()  # what is loaded is never looked through again, here or in a stage
    gc.enable()


def _keep(connection: socket.socket) -> tuple[list[str], dict[str, str]]:
    """Starts a stage, whose process returns; hands signals to it, and kills it with all it started where the caller is gone."""
    header, streams, _, _ = socket.recv_fds(connection, 8, 3)
    asked, length = b"", int.from_bytes(header, "big")
    while len(asked) < length:
        asked += connection.recv(length - len(asked))  # what stands behind it is a signal
    arguments, environment = json.loads(asked)
    ended, alive = os.pipe()
    stage = os.fork()
    if not stage:
        os.setsid()
        connection.close()
        os.close(ended)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return arguments, environment
    for number in HANDED_ON:
        signal.signal(number, signal.SIG_IGN)
    for descriptor in (alive, *streams, 0, 1, 2):
        os.close(descriptor)
    while ended not in select.select([connection.fileno(), ended], [], [])[0]:
        if not (signals := connection.recv(1)):
            _kill(stage, signal.SIGKILL)
            break
        _kill(stage, signals[0])
    status = os.waitstatus_to_exitcode(os.waitpid(stage, 0)[1])
    try:
        connection.send(bytes([status if status >= 0 else 128 - status]))
    finally:
        os._exit(0)


def _kill(stage: int, number: int) -> None:
    try:
        os.killpg(stage, number)
    except ProcessLookupError:  # its group has not begun
        os.kill(stage, number)


def _run(arguments: list[str], environment: dict[str, str]) -> None:
    """The stage, as if Python had just been started for it."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    for variable, value in environment.items():  # bytes, each as the letter of its number
        os.environb[variable.encode("latin-1")] = value.encode("latin-1")
    time.tzset()
    sys.argv = arguments
    for module in [name for name in sys.modules if name.partition(".")[0] == "stages"]:
        del sys.modules[module]
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    threading._shutdown()  # type: ignore[attr-defined]  # what Python does at its end, but for clearing away all libraries
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
