"""Run workers as actors of a Ray cluster; the only importer of ray.

An actor holds what its work needs, such as a model's weights. There are BAG_WORKERS actors, by
default one per processor of the cluster, and with BAG_DEVICE=cuda one per BAG_GPUS (1) of its GPUs.
Their output goes to the project's folder, which all machines see under the same path. Only numbers
of units pass through Ray. Actors of a lost machine start elsewhere as soon as there is room.
"""

import logging
import os
import pickle
import socket
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import ray

from stages.lib.core import environment
from stages.lib.core.settings import ParamsError
from stages.lib.units.pool import RESUME, Died, Do, WorkerError, Workers, sent, silent

PATIENCE = 600  # seconds without any worker
PATIENCE_TO_CONNECT = 10  # seconds
# The longest path of a socket, with the largest number that a process has.
SOCKET = "/ray/session_2026-11-26_11-44-32_123456_4194304/sockets/plasma_store"
LONGEST_FOLDER = 107 - len(SOCKET)  # Linux takes addresses of 107 bytes


@contextmanager
def ready(start: Callable[..., Do], *arguments: Any) -> Iterator[Workers]:
    """Yield actors that share units; start, arguments: as in local.ready.

    RAY_ADDRESS is the cluster's address; without it the cluster is this machine. Raises ParamsError
    if the cluster has too few GPUs, or cannot start.
    """
    is_mine = not ray.is_initialized()
    if is_mine:
        _check_address()
        _check_folder()
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    gpus = environment.gpus()
    number = _number(gpus)
    variables = {name: os.environ[name] for name in environment.MODELS if name in os.environ}
    variables[environment.WORKERS] = "1"
    remote = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)(_Remote)
    pickled = pickle.dumps((start, arguments))
    hire = partial(_Actor, remote, os.getcwd(), variables, pickled)
    workers = Workers(number, hire, _finished, at_once=False)
    try:
        yield workers
    finally:
        workers.dismiss()
        if is_mine:
            ray.shutdown()


def _number(gpus: int) -> int:
    """Return how many actors to start with so many GPUs each. Raises ParamsError if none can."""
    resources = ray.cluster_resources()
    available = int(resources.get("CPU", 0))
    if gpus:
        available = int(resources.get("GPU", 0) // gpus)
    number = environment.requested_workers() or available
    if not number:
        total = f"{resources.get('GPU', 0):.0f} GPUs"
        raise ParamsError(
            f"the Ray cluster has {total}, and each worker needs {gpus}; "
            f"set {environment.GPUS} to fewer, or add machines"
        )
    return number


def _check_folder() -> None:
    """Raise ParamsError where Ray's own cluster would put sockets at paths that are too long."""
    if os.environ.get("RAY_ADDRESS"):
        return
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    size = len(os.fsencode(folder))
    if size > LONGEST_FOLDER:
        raise ParamsError(
            f"Ray would put its sockets below {folder}, a path of {size} bytes; "
            f"at most {LONGEST_FOLDER} are possible: set RAY_TMPDIR=/tmp in the environment"
        )


def _check_address() -> None:
    """Raise ParamsError if nothing listens at RAY_ADDRESS, for which Ray would wait minutes.

    Addresses without a port, such as `auto`, are not checked.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE_TO_CONNECT).close()
    except (OSError, OverflowError) as error:
        problem = f"no Ray cluster answers at RAY_ADDRESS={address!r} ({error})"
        way_out = "correct it, start a cluster there (`ray start --head`)"
        raise ParamsError(f"{problem}; {way_out}, or unset it for one on this machine") from None


class _Remote:
    """An actor's side.

    start: pickled, since it can be unpickled only in the project's folder; makes what does units.
    """

    def __init__(self, folder: str, environment: dict[str, str], start: bytes):
        self.folder, self.environment, self.start = folder, environment, start
        self.work: Do | None = None

    def join(self) -> None:
        """Do nothing; this is done as soon as the actor is ready."""

    def do(self, unit: int) -> BaseException | None:
        """Do a unit; return what it raises."""
        try:
            if self.work is None:
                os.chdir(self.folder)
                os.environ.update(self.environment)
                sys.path.insert(0, self.folder)
                start, arguments = pickle.loads(self.start)
                self.work = start(*arguments)
            self.work(unit, silent)
        except BaseException as error:
            return sent(error)
        return None


class _Actor:
    """An actor as its driver sees it; unit: the unit that it was given last."""

    def __init__(self, remote: Any, *arguments: Any):
        self.actor = remote.remote(*arguments)
        self.waiting = self.actor.join.remote()
        self.unit: int | None = None

    def __str__(self) -> str:
        return f"worker {self.actor._actor_id.hex()[:8]}"

    def give(self, unit: int) -> None:
        self.unit, self.waiting = unit, self.actor.do.remote(unit)

    def result(self) -> None:
        try:
            error = ray.get(self.waiting)
        except ray.exceptions.RayActorError:
            raise Died from None
        if error is not None:
            raise error

    def end(self) -> None:
        with suppress(ray.exceptions.RayError):
            ray.kill(self.actor)


def _finished(busy: Collection[_Actor]) -> list[_Actor]:
    """Wait until some of the busy actors have a result; return these."""
    patience = None if any(actor.unit is not None for actor in busy) else PATIENCE
    waiting = [actor.waiting for actor in busy]
    finished, _ = ray.wait(waiting, num_returns=1, timeout=patience)
    if not finished:
        raise WorkerError(f"the Ray cluster had no room for a worker in {PATIENCE} s; {RESUME}")
    return [actor for actor in busy if actor.waiting in finished]
