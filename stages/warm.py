"""Run a command whose stages start with their libraries loaded: python -m stages.warm dvc repro

Most stages of a small subject take less time than Python takes to import torch, transformers,
Polars and DuckDB. This process imports them once, and each `python -m stages.…` below the command
becomes a fork of it. A stage behaves as usual: it is a process of its own, has its caller's streams
and environment, imports our code from the current files, ends when its caller ends, and writes the
same bytes.

If the command is `dvc repro`, its output also tells how far it is, such as "stage 40 of 110".

Python runs a stage as usual if it is called from another folder or with other import paths, after
this process has ended, on systems other than Linux, or if no folder for the script that replaces
Python can hold programs.

    command ── sh ── python (CALLER: requests a stage, forwards signals, waits for the status)
    stages.warm (serve: forwards signals and the status) ── stage
"""

import atexit
import ctypes
import gc
import importlib
import logging
import multiprocessing.util
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
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FORKS = sys.platform == "linux"  # on other systems a fork of loaded libraries may hang
LIBRARIES = (
    "numpy",
    "polars",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "duckdb",
    "h5py",
    "numba",
    "pydantic.type_adapter",
    "ruamel.yaml",
    "sqlglot",
    "tqdm",
    "concurrent.futures.process",
    "multiprocessing.spawn",
    "matplotlib.pyplot",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.tokenization_utils_tokenizers",
)
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PREFIX = "warm-"
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
# variables that are read when libraries are imported or Python starts
SAME = ("PYTHONPATH", "OMP_NUM_THREADS", "POLARS_MAX_THREADS", "PYTHONHASHSEED")

SCRIPT = """#!/bin/sh
exec {python} -IS {caller} "$@"
"""
# It imports what is below json, socket and signal, which take longer to import than it runs.
CALLER = """import os, sys
argv, root, same = sys.argv[1:], {root!a}, {same!a}
def plain():
    os.execv({python!a}, [{python!a}, *argv])
if argv[:1] != ["-m"] or not argv[1].startswith("stages."):
    plain()
if os.getcwdb() != root or any(os.environ.get(name) != value for name, value in same.items()):
    plain()
import _signal, _socket, array
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
try:
    folder = os.open({folder!a}, os.O_PATH)
    # the folder's own path may be longer than the longest address
    server.connect(f"/proc/self/fd/{{folder}}/socket")
    os.close(folder)
except OSError:
    plain()
signals = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)
_signal.pthread_sigmask(_signal.SIG_BLOCK, signals)  # no signal may split the request
for number in signals:
    _signal.signal(number, lambda number, _: server.send(bytes([number])))
arguments = [os.fsencode(argument) for argument in argv[1:]]
environment = [name + b"=" + value for name, value in os.environb.items()]
request = b"\\0".join([b"%d" % len(arguments), *arguments, *environment])
streams = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))
try:
    server.sendmsg([len(request).to_bytes(8, "big")], [streams])
    server.sendall(request)
except OSError:
    plain()  # the server has ended before it could start anything
_signal.pthread_sigmask(_signal.SIG_UNBLOCK, signals)
status = server.recv(1)
if not status:
    sys.exit("stages.warm has ended before this stage did")
if status[0] > 128:
    if status[0] - 128 != _signal.SIGKILL:
        _signal.signal(status[0] - 128, _signal.SIG_DFL)
    os.kill(os.getpid(), status[0] - 128)
sys.exit(status[0])
"""

QUICK_DVC = Path(__file__).parent / "lib/console/quick_dvc.py"

Request = tuple[list[str], dict[bytes, bytes]]  # the command line of a stage, and its environment


def main() -> None:
    """Run the command of the command line and exit with its status; in a stage's fork, run it."""
    if len(sys.argv) < 2:
        usage = "usage: python -m stages.warm COMMAND …"
        sys.exit(f"{usage}, such as python -m stages.warm dvc repro")
    folder = _folder() if FORKS else None
    if not folder:
        try:
            os.execvp(sys.argv[1], sys.argv[1:])
        except OSError as error:
            sys.exit(f"stages.warm: {error}")
    listener = _listen(folder)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    progress = _progress(sys.argv[1:])
    pipe = subprocess.PIPE if progress else None
    try:
        environment = {**os.environ, "PATH": path}
        command = subprocess.Popen(_command(sys.argv[1:]), env=environment, stdout=pipe)
    except OSError as error:
        shutil.rmtree(folder)
        sys.exit(f"stages.warm: {error}")
    for number in FORWARDED:
        signal.signal(number, lambda number, _: _forward(command, number))
    output = Output(command, progress)
    stage = serve(listener, command, output)
    if stage is None:
        output.end()
        shutil.rmtree(folder, ignore_errors=True)
        # at once, because libraries take half a second to end
        os._exit(_exit_status(command.wait()))
    _run(*stage)


def _command(arguments: list[str]) -> list[str]:
    """Return the command line, in which the DVC of this environment takes less time for locks."""
    own = Path(sys.executable).parent / "dvc"
    if arguments[0] == "dvc" and shutil.which("dvc") == str(own):
        return [sys.executable, "-P", str(QUICK_DVC), *arguments[1:]]
    return arguments


def _progress(command: list[str]) -> Any:
    """Return the progress of a command, None if it is not `dvc repro`."""
    with suppress(Exception):  # a run does not depend on the report of its progress
        # only here: other commands need no YAML
        from stages.lib.console.pipeline import progress_of

        return progress_of(command, lambda text: print(text, file=sys.stderr, flush=True))
    return None


class Output:
    """A command's standard output on its way through this process, if its progress is reported."""

    def __init__(self, command: subprocess.Popen, progress: Any):
        self.command, self.progress, self.line = command, progress, b""
        self.sources = [command.stdout.fileno()] if command.stdout else []

    def close(self) -> None:
        if self.command.stdout:
            self.command.stdout.close()
        self.sources = []

    def copy(self) -> None:
        """Write what the command has printed, and report the progress that its lines tell."""
        text = rest = os.read(self.sources[0], 1 << 16)
        try:
            while rest:
                rest = rest[os.write(1, rest) :]
        except OSError:  # nobody reads it any more: the command gets this error, too
            return self.close()
        if not text:
            return self.close()
        *lines, self.line = (self.line + text).split(b"\n")
        try:
            for line in lines if self.progress else ():
                self.progress.read(line.decode("utf-8", "replace"))
        except Exception:  # such as a dvc.yaml that DVC will refuse
            self.progress = None

    def look(self) -> None:
        """Report progress that no line tells."""
        try:
            if self.progress:
                self.progress.look()
        except Exception:
            self.progress = None

    def end(self) -> None:
        """Copy the rest after the command has ended, and record how long the stages took."""
        while self.sources and select.select(self.sources, [], [], 0)[0]:
            self.copy()
        if self.progress:
            with suppress(Exception):
                self.progress.end(self.command.wait() == 0)


def _exit_status(code: int) -> int:
    """Return the exit status, as shells do, of a process that a signal may have ended."""
    return code if code >= 0 else 128 - code


def _folder() -> Path | None:
    """Make a private folder for PATH, with scripts named like Python.

    Returns None if no folder can hold programs. The folder's name has the number of this process:
    if it is killed, the next process removes the folder.
    """
    owner = f"{PREFIX}{socket.gethostname()}-"
    for parent in (Path(tempfile.gettempdir()), Path.cwd() / ".dvc/tmp", Path.cwd()):
        if os.pathsep in str(parent) or not os.access(parent, os.W_OK):
            continue
        for other in parent.glob(f"{owner}*"):
            if _is_abandoned(other, other.name.removeprefix(owner).partition("-")[0]):
                shutil.rmtree(other, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{owner}{os.getpid()}-", dir=parent))
        _write_scripts(folder)
        if os.access(folder / "python", os.X_OK):
            return folder
        shutil.rmtree(folder)  # its file system is mounted without execution
    return None


def _write_scripts(folder: Path) -> None:
    caller = folder / "caller.py"
    same = {name: os.environ.get(name) for name in SAME}
    text = CALLER.format(python=sys.executable, root=os.getcwdb(), same=same, folder=str(folder))
    caller.write_text(text, encoding="ascii")
    for name in ("python", "python3"):
        python = shlex.quote(sys.executable)
        script = SCRIPT.format(python=python, caller=shlex.quote(str(caller)))
        (folder / name).write_bytes(os.fsencode(script))
        (folder / name).chmod(0o700)


def _is_abandoned(folder: Path, process: str) -> bool:
    """Return whether a folder is ours and the process that made it has ended."""
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
    """Return a socket in the folder that accepts requests."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # the folder's own path may be longer than the longest address
    descriptor = os.open(folder, os.O_PATH)
    listener.bind(f"/proc/self/fd/{descriptor}/socket")
    os.close(descriptor)
    listener.listen(64)
    return listener


def _forward(command: subprocess.Popen, number: int) -> None:
    """Forward a signal to the command, except Ctrl-C in a terminal, which the command gets too."""
    if number != signal.SIGINT or not os.isatty(0):
        command.send_signal(number)


def serve(
    listener: socket.socket,
    command: subprocess.Popen,
    output: Output,
) -> Request | None:
    """Fork a process for each requested stage until the command ends; then return None.

    Meanwhile, copy the command's output, forward signals to stages, and tell their callers how they
    ended. In the process of a stage: return its request.
    """
    stages: list[RunningStage] = []
    while command.poll() is None:
        watched: list[Any] = [listener, *output.sources]
        for stage in stages:
            watched += [stage.caller, stage.ended]
        ready = select.select(watched, [], [], 0.1)[0]
        if {*output.sources} & {*ready}:
            output.copy()
        output.look()
        stages = [stage for stage in stages if not stage.has_ended(ready)]
        if listener not in ready:
            continue
        caller, _ = listener.accept()
        load()
        _forget_exit_functions()
        started = _start(caller)
        if isinstance(started, RunningStage):
            stages.append(started)
        elif started:
            listener.close()
            output.close()
            for stage in stages:
                stage.close()
            return started
    for stage in stages:
        stage.end(signal.SIGKILL)
    return None


class RunningStage(NamedTuple):
    """A stage that runs: its process, its caller, and a pipe that closes when the stage ends."""

    process: int
    caller: socket.socket
    ended: int

    def has_ended(self, ready: list[Any]) -> bool:
        """Return whether the stage has ended, after forwarding its caller's signals.

        If the caller has ended, kill the stage and all processes that it started.
        """
        if self.ended in ready:
            self.end()
            return True
        if self.caller not in ready:
            return False
        with suppress(ConnectionResetError):
            if signals := self.caller.recv(1):
                self.send(signals[0])
                return False
        self.end(signal.SIGKILL)
        return True

    def send(self, number: int) -> None:
        """Send a signal to all processes of the stage."""
        try:
            os.killpg(self.process, number)
        except ProcessLookupError:  # the stage has not started its process group yet
            os.kill(self.process, number)

    def end(self, number: int | None = None) -> None:
        """Wait for the stage, after a signal if one is given, and tell its caller the status."""
        if number:
            self.send(number)
        status = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        with suppress(OSError):  # the caller may have ended
            self.caller.send(bytes([_exit_status(status)]))
        self.close()

    def close(self) -> None:
        """Forget the stage, whose process remains."""
        self.caller.close()
        os.close(self.ended)


@cache
def load() -> None:
    """Import the libraries that stages use."""
    # the usual check for a GPU would initialise CUDA, which stages could not use after the fork
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # as stages.lib.drawing, whatever Jupyter or the user sets
    os.environ |= {"MPLBACKEND": "agg", "MATPLOTLIBRC": os.devnull}
    gc.disable()
    for library in LIBRARIES:
        with suppress(Exception):  # a stage that needs the library reports the error
            importlib.import_module(library)
    with suppress(Exception):
        # the first model of a process makes preparations that later models share
        importlib.import_module("pydantic").create_model("First")
    gc.freeze()  # no process checks the loaded objects again
    gc.enable()


@cache
def _forget_exit_functions() -> None:
    """Forget what libraries do when Python ends. This process and its forks must not end that way.

    Both end without unloading libraries (os._exit), some of which would crash otherwise. Torch
    alone removes its operators one by one, which takes longer than many a stage.
    """
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False
    atexit._clear()
    # Python's own functions, which run in reverse order
    atexit.register(logging.shutdown)
    atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]


def _start(caller: socket.socket) -> RunningStage | Request | None:
    """Fork a stage; in its process, return its request. Return None if the caller has ended."""
    header, streams, _, _ = socket.recv_fds(caller, 8, 3)
    request, length = b"", int.from_bytes(header, "big")
    while len(request) < length:
        part = caller.recv(length - len(request))  # the bytes after it are signals
        if not part:
            break
        request += part
    if not request or len(request) < length:
        for stream in streams:
            os.close(stream)
        caller.close()
        return None
    ended, alive = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # until the stage has its own handlers
    process = os.fork()
    if process:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        for descriptor in (alive, *streams):
            os.close(descriptor)
        return RunningStage(process, caller, ended)
    os.setsid()
    ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
    caller.close()
    os.close(ended)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    count, *parts = request.split(b"\0")
    arguments = [os.fsdecode(argument) for argument in parts[: int(count)]]
    variables = [variable.partition(b"=") for variable in parts[int(count) :]]
    return arguments, {name: value for name, _, value in variables}


def _run(arguments: list[str], environment: dict[bytes, bytes]) -> None:
    """Run a stage as if Python had just been started for it."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    os.environ.clear()
    for name, value in environment.items():
        os.environb[name] = value
    time.tzset()
    sys.argv = arguments
    for module in [name for name in sys.modules if name.partition(".")[0] == "stages"]:
        del sys.modules[module]
    status = 0
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = _status_of(end)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    # the steps of Python's own end, except unloading the libraries
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if status < 0:  # as Python does after Ctrl-C
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _status_of(end: SystemExit) -> int:
    """Return the exit status of a SystemExit, and print its message, as Python does."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
