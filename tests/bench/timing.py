"""Measure the time of actions."""

import statistics
import time
from collections.abc import Callable


def median(rounds: int, *actions: Callable[[], object]) -> list[float]:
    """Return median seconds of each action, taken in turn after one unmeasured round."""
    seconds: list[list[float]] = [[] for _ in actions]
    for number in range(rounds + 1):
        for action, measured in zip(actions, seconds, strict=True):
            start = time.perf_counter()
            action()
            if number:
                measured.append(time.perf_counter() - start)
    return list(map(statistics.median, seconds))
