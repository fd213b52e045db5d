"""Workers on a Ray cluster: actors, which hold what their work needs, such as a model's weights. The one importer of ray.

There are BAG_WORKERS of them, by default one for every processor of the cluster, and where BAG_DEVICE is cuda one for every BAG_GPUS (1)
of its GPUs. What they write goes to the project's folder, which all machines see under the same path; through Ray pass numbers of units
and nothing else. Those of a machine that is lost are started elsewhere, as soon as there is room.
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

from stages.lib.core import machine
from stages.lib.core.settings import ParamsError
from stages.lib.units.pool import Died, Do, WorkerError, Workers, sent, silent

PATIENCE = 600  # seconds without any worker
PATIENCE_TO_CONNECT = 10  # seconds
# With the largest number that a process has.
SOCKET = "/ray/session_2026-11-26_11-44-32_123456_4194304/sockets/plasma_store"
LONGEST_FOLDER = 107 - len(SOCKET)  # Linux takes addresses of 107 bytes


@contextmanager
def ready(start: Callable[..., Do], *arguments: Any) -> Iterator[Workers]:
    """Actors that share units; start: as of local.ready. RAY_ADDRESS says where the cluster is; without, it is this machine."""
    mine = not ray.is_initialized()
    if mine:
        _check_address()
        _check_folder()
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    gpus = machine.gpus()
    has = ray.cluster_resources()
    number = machine.requested_workers() or int(has.get("GPU", 0) // gpus if gpus else has.get("CPU", 0))
    if not number:
        raise ParamsError(f"the Ray cluster has {has.get('GPU', 0):.0f} GPUs, and each worker is to have {gpus}")
    environment = {name: os.environ[name] for name in machine.MODELS if name in os.environ} | {machine.WORKERS: "1"}
    remote = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)(_Remote)
    workers = Workers(number, partial(_Actor, remote, os.getcwd(), environment, pickle.dumps((start, arguments))), _finished, here=False)
    try:
        yield workers
    finally:
        workers.dismiss()
        if mine:
            ray.shutdown()


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
    """What an actor is. start: what makes it able to do units, pickled, since it can be read in the project's folder alone."""

    def __init__(self, folder: str, environment: dict[str, str], start: bytes):
        self.folder, self.environment, self.start = folder, environment, start
        self.work: Do | None = None

    def join(self) -> None:
        """Takes no time; done as soon as the actor is there."""

    def do(self, unit: int) -> BaseException | None:
        """Does a unit; returns what it raises."""
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
    """An actor as its driver sees it: what it was given last, None before it is there."""

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
    patience = None if any(one.unit is not None for one in busy) else PATIENCE
    told, _ = ray.wait([one.waiting for one in busy], num_returns=1, timeout=patience)
    if not told:
        raise WorkerError(f"the Ray cluster had no room for a worker in {PATIENCE} s; what is done is kept: the same command goes on")
    return [one for one in busy if one.waiting in told]
