"""The machine that a stage runs on, as its environment says: how many processes share work, and on which device models run.

None of it changes a result, so that none of it stands in params.yaml, and no stage is rerun for it.
"""

import os
import re

from stages.lib.core.settings import ParamsError

WORKERS, DEVICE, GPUS, WEIGHTS, PASSES = (
    "BAG_WORKERS",
    "BAG_DEVICE",
    "BAG_GPUS",
    "BAG_WEIGHTS",
    "BAG_PASSES",
)
# Passes of the settings' size, which suits a processor's cache, in one that suits a GPU: of prompts,
# and of runs (docs/cluster.md has the measurements).
PROMPTS, RUNS = 16, 64
MODELS = (DEVICE, GPUS, WEIGHTS, PASSES)  # say how models run, wherever a worker is
MOST = 1024


def workers() -> int:
    """How many processes, or where there is only one how many of its threads, may share work: as asked for, or one for each core.

    One where models run on a GPU: a second would only wait for the first one's. Raises ParamsError as `asked`.
    """
    if number := asked():
        return number
    return 1 if device() == "cuda" else cores()


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """Return the threads of each worker: 1, as there is one worker for each core; on a GPU all.

    There they put into place what the GPU has computed, which one thread does too slowly.
    """
    return 1 if device() == "cpu" else max(1, cores() // workers())


def asked() -> int | None:
    """BAG_WORKERS, None where it is not said. Raises ParamsError where it is no such number."""
    return _number(WORKERS, "worker processes") if WORKERS in os.environ else None


def gpus() -> int:
    """GPUs of each worker: 0, or where models run on GPUs BAG_GPUS, by default 1. Raises ParamsError where that is no such number."""
    if device() == "cpu":
        return 0
    return _number(GPUS, "GPUs of one worker") if GPUS in os.environ else 1


def weights() -> int | None:
    """Bytes of weights that a device may hold: BAG_WEIGHTS, in GiB, None where it says nothing. Raises ParamsError on no such number."""
    given = os.environ.get(WEIGHTS)
    if given is None:
        return None
    if not re.fullmatch(r"\d{1,6}(\.\d{1,9})?", given) or not float(given):
        raise ParamsError(
            f"the environment says {WEIGHTS}={given!r}, but it is GiB of weights that a device may hold, such as 40 or 0.5"
        )
    return int(float(given) * (1 << 30))


def passes(usual: int) -> int:
    """Return how many times what the settings say goes through a model at once.

    1 on a processor; on a GPU BAG_PASSES, or `usual`, which is PROMPTS or RUNS. Like the device, it
    decides the order in which numbers are added up, and so their last digits: work begun with one
    is not gone on with by another. Raises ParamsError where BAG_PASSES is no such number.
    """
    if device() == "cpu":
        return 1
    if PASSES not in os.environ:
        return usual
    return _number(PASSES, "passes of the settings' size that are one on a GPU")


def device() -> str:
    """Where models run: BAG_DEVICE, cpu or cuda; cpu where it says nothing. Raises ParamsError on any other."""
    given = os.environ.get(DEVICE, "cpu")
    if given not in ("cpu", "cuda"):
        raise ParamsError(f"the environment says {DEVICE}={given!r}, but models run on cpu or cuda")
    return given


def _number(name: str, of: str) -> int:
    given = os.environ[name]
    if not given.isdecimal() or not 1 <= int(given) <= MOST:
        raise ParamsError(
            f"the environment says {name}={given!r}, but it is a number of {of}, 1 to {MOST}"
        )
    return int(given)
