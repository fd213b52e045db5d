"""Benchmarks: ratios measured side by side in one run. `make bench` runs them all, `python -m tests.bench NAME` one.

Each function prints its own figures; every one is the median of several rounds, taken in turn.
"""

import os
import sys

import torch

from tests.bench.explorer import explorer
from tests.bench.gpu import gpu
from tests.bench.matching import match, nulls, relabel
from tests.bench.mediation import mediation
from tests.bench.patching import bound, components, neurons
from tests.bench.store import dump, memory, sql
from tests.bench.units import units
from tests.bench.workers import workers

BENCHMARKS = {
    function.__name__: function
    for function in (dump, memory, sql, neurons, components, mediation, bound, match, nulls, relabel, explorer, units, workers, gpu)
}


if __name__ == "__main__":
    if unknown := set(sys.argv[1:]) - BENCHMARKS.keys():
        sys.exit(f"python -m tests.bench: {', '.join(sorted(unknown))} is none of {', '.join(BENCHMARKS)}")
    print(f"{os.cpu_count()} cores, torch {torch.__version__}")
    for name in sys.argv[1:] or BENCHMARKS:
        BENCHMARKS[name]()
