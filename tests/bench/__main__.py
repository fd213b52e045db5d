"""Run benchmarks: ratios measured side by side in one run.

    make bench                    all of them
    python -m tests.bench NAME    one of them

Each prints its own figures; every figure is the median of several rounds, taken in turn.
"""

import argparse
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import torch

# benchmark -> its module, imported when it runs: what other modules need may be missing
MODULES = {
    "dump": "store",
    "memory": "store",
    "sql": "store",
    "neurons": "patching",
    "components": "patching",
    "mediation": "mediation",
    "bound": "patching",
    "discover": "matching",
    "match": "matching",
    "permutation_tests": "matching",
    "relabel": "matching",
    "explorer": "explorer",
    "units": "units",
    "workers": "workers",
    "stages": "stages",
    "gpu": "gpu",
}


def benchmark(name: str) -> Callable[..., None]:
    """Return the function of a benchmark. Ends the program if a package is missing."""
    try:
        return getattr(import_module(f"tests.bench.{MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        problem = f"{name} needs the package {error.name}, which is not installed"
        sys.exit(f"python -m tests.bench: {problem}; install the requirements")


def main() -> None:
    description = "Run benchmarks; all of them if none is named."
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=description)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODULES))
    parser.add_argument("--shape", help="of gpu: toy, llama-3-8b or pythia-6.9b")
    parser.add_argument("--budget", type=float, default=480.0, help="of gpu: seconds in all")
    parser.add_argument("--out", type=Path, help="of gpu: a file for its figures as JSON lines")
    parser.add_argument("--subject", default="abacus", help="of stages: a model that is computed")
    options = parser.parse_args()
    for name in options.names:
        if name not in MODULES:
            parser.error(f"unknown benchmark {name!r}; benchmarks: {', '.join(MODULES)}")
    print(f"{os.cpu_count()} cores, torch {torch.__version__}", flush=True)
    for name in options.names or MODULES:
        run = benchmark(name)
        if name == "gpu":
            run(options.shape, options.budget, options.out)
        elif name == "stages":
            run(options.subject)
        else:
            run()


if __name__ == "__main__":
    main()
