"""The machine that a stage runs on, as its environment says: how many processes share work, and on which device models run.

None of it changes a result, so that none of it stands in params.yaml, and no stage is rerun for it.
"""

import os

from stages.lib.core.settings import ParamsError

WORKERS, DEVICE, GPUS = "BAG_WORKERS", "BAG_DEVICE", "BAG_GPUS"
MOST = 1024


def workers() -> int:
    """How many processes, or where there is only one how many of its threads, may share work: as asked for, or one for each core.

    One where models run on a GPU: a second would only wait for the first one's. Raises ParamsError as `asked`.
    """
    if number := asked():
        return number
    if device() == "cuda":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def asked() -> int | None:
    """BAG_WORKERS, None where it is not said. Raises ParamsError where it is no such number."""
    return _number(WORKERS, "worker processes") if WORKERS in os.environ else None


def gpus() -> int:
    """GPUs of each worker: 0, or where models run on GPUs BAG_GPUS, by default 1. Raises ParamsError where that is no such number."""
    if device() == "cpu":
        return 0
    return _number(GPUS, "GPUs of one worker") if GPUS in os.environ else 1


def device() -> str:
    """Where models run: BAG_DEVICE, cpu or cuda; cpu where it says nothing. Raises ParamsError on any other."""
    given = os.environ.get(DEVICE, "cpu")
    if given not in ("cpu", "cuda"):
        raise ParamsError(f"the environment says {DEVICE}={given!r}, but models run on cpu or cuda")
    return given


def _number(name: str, of: str) -> int:
    given = os.environ[name]
    if not given.isdecimal() or not 1 <= int(given) <= MOST:
        raise ParamsError(f"the environment says {name}={given!r}, but it is a number of {of}, 1 to {MOST}")
    return int(given)
