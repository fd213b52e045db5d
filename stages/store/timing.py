"""Measure how long a function takes on one core of this machine."""

import time
from collections.abc import Callable


def repeated(run: Callable[[], object], seconds: float) -> float:
    """Return the mean CPU seconds of one call, from calls for some seconds.

    CPU time changes little with other work on the machine.
    """
    begin, calls = time.process_time(), 0
    while time.process_time() < begin + seconds or not calls:
        run()
        calls += 1
    return (time.process_time() - begin) / calls
