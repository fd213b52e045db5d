"""Read from environment variables how stages run: worker processes, devices, memory for weights.

None of these changes a result. So they are not in params.yaml, and no stage reruns for them.
"""

import os
import re
from typing import TypeVar

from stages.lib.core.settings import ParamsError

WORKERS = "BAG_WORKERS"
DEVICE = "BAG_DEVICE"
GPUS = "BAG_GPUS"
WEIGHTS = "BAG_WEIGHTS"
PASSES = "BAG_PASSES"
# How many passes of the settings' size, which suits a processor's cache, make one that suits a GPU
# (docs/cluster.md has the measurements).
PASSES_ON_GPU = 16
MODELS = (DEVICE, GPUS, WEIGHTS, PASSES)  # how models run, wherever a worker is
MOST = 1024
Default = TypeVar("Default", int, None)


def workers() -> int:
    """Return how many processes share work, or how many threads of a single process.

    BAG_WORKERS, by default 1 per core. With models on a GPU the default is 1: a second process
    would only wait for the first. Raises ParamsError if BAG_WORKERS is not such a number.
    """
    number = requested_workers()
    if number:
        return number
    return 1 if device() == "cuda" else cores()


def cores() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads() -> int:
    """Return the threads of each worker: 1 per worker on processors, all with a GPU.

    With a GPU, they store what the GPU has computed, for which one thread is too slow.
    """
    if device() == "cpu":
        return 1
    return max(1, cores() // workers())


def requested_workers() -> int | None:
    """Return BAG_WORKERS, None if it is not set. Raises ParamsError if it is not such a number."""
    return _number(WORKERS, "worker processes", None)


def gpus() -> int:
    """Return the GPUs of each worker: BAG_GPUS, by default 1; 0 if models run on processors.

    Raises ParamsError if BAG_GPUS is not such a number.
    """
    if device() == "cpu":
        return 0
    return _number(GPUS, "GPUs of one worker", 1)


def weights() -> int | None:
    """Return how many bytes of weights a device may hold: BAG_WEIGHTS, in GiB; None if not set.

    Raises ParamsError if BAG_WEIGHTS is not such a number.
    """
    text = os.environ.get(WEIGHTS)
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,6}(\.\d{1,9})?", text) or not float(text):
        meaning = "it is GiB of weights that a device may hold, such as 40 or 0.5"
        raise ParamsError(f"environment variable {WEIGHTS}={text!r}, but {meaning}")
    return int(float(text) * (1 << 30))


def passes() -> int:
    """Return how many passes of the settings' size go through a model as one.

    1 on a processor; on a GPU BAG_PASSES, by default PASSES_ON_GPU. Like the device, it decides the
    order in which numbers are summed, and so their last digits. So a stage does not resume work
    with another value. Raises ParamsError if BAG_PASSES is not such a number.
    """
    if device() == "cpu":
        return 1
    return _number(PASSES, "passes of the settings' size that are one on a GPU", PASSES_ON_GPU)


def device() -> str:
    """Return where models run: BAG_DEVICE, cpu or cuda, by default cpu.

    Raises ParamsError on another value.
    """
    text = os.environ.get(DEVICE, "cpu")
    if text not in ("cpu", "cuda"):
        problem = f"environment variable {DEVICE}={text!r}"
        raise ParamsError(f"{problem}, but models run on cpu or cuda")
    return text


def _number(name: str, meaning: str, default: Default) -> int | Default:
    """Return the number in an environment variable, `default` if it is not set."""
    text = os.environ.get(name)
    if text is None:
        return default
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        problem = f"environment variable {name}={text!r}"
        raise ParamsError(f"{problem}, but it is a number of {meaning}, 1 to {MOST}")
    return int(text)
