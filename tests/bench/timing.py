"""How the benchmarks take time."""

import statistics
import time
from collections.abc import Callable


def median(rounds: int, *actions: Callable[[], object]) -> list[float]:
    """Median seconds of each action, the actions taken in turn after one unmeasured round."""
    seconds: list[list[float]] = [[] for _ in actions]
    for number in range(rounds + 1):
        for action, kept in zip(actions, seconds, strict=True):
            start = time.perf_counter()
            action()
            if number:
                kept.append(time.perf_counter() - start)
    return [statistics.median(kept) for kept in seconds]
