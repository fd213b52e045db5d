"""Time the functions that describe neurons' maps, in a process beside this one.

These functions belong to later chapters, from which this one imports nothing. So a program of a
later chapter times them. It runs while this process imports torch.
"""

import argparse
import atexit
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from stages.corpus.settings import Cells
from stages.lib.core.files import replacing
from stages.lib.core.settings import ParamsError, load
from stages.lib.core.vocabulary import Operator

ROOT = Path(__file__).parents[2]  # the folder of `stages`, which this process imports
PROGRAM = "stages.theories.kernel_times"
# Operators from the one with the most cells: its map is measured.
BY_CELLS: tuple[Operator, ...] = ("add", "divide", "subtract", "multiply")
PATIENCE = 15  # seconds until a line says why the program takes long
KEPT = ROOT / ".cache/kernel_times"  # times of this machine
KEPT_FOR = 86_400  # seconds
# what decides how long the functions take: their program, and settings of the project
DECIDING = (
    ROOT / "stages/theories/kernel_times.py",
    Path("stages/heuristics/params.yaml"),
    Path("stages/theories/params.yaml"),
)


@dataclass(frozen=True)
class KernelTimes:
    """Seconds that one core takes for a random map of a neuron over the operand grid.

    cells: with an answer, on the measured grid, which has `grid` cells in all; scores: of the
    catalogue's heuristics; draw: a relabelling in permutation tests, with what follows from it;
    spectrum: the strongest Fourier components; search: of the shortest predicate; explained: a fit
    of some labels, and of as many Fourier components; fits: of three theories with few terms.
    """

    cells: int
    grid: int
    scores: float
    draw: float
    spectrum: float
    search: float
    explained: float
    fits: float


class Measurement:
    """The program at work. It ends when this process ends."""

    def __init__(self, side: int, operator: Operator):
        """side: number of operands; operator: whose cells have the map."""
        command = [sys.executable, "-P", "-m", PROGRAM, str(side), operator]
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": paths}
        for library in ("OMP", "OPENBLAS", "MKL"):  # one core, whatever numpy would take
            environment[f"{library}_NUM_THREADS"] = "1"
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe)
        self.measured: KernelTimes | None = None
        atexit.register(self.process.kill)

    def times(self) -> KernelTimes:
        """Wait for the times. Raises ParamsError if a setting stops the program."""
        if self.measured is None:
            self.measured = self._wait()
        return self.measured

    def _wait(self) -> KernelTimes:
        try:
            output, errors = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            why = "the functions that are timed are compiled first, once for each checkout"
            print(f"bag: {why}, up to a minute", file=sys.stderr)
            output, errors = self.process.communicate()
        if self.process.returncode:
            raise ParamsError(errors.decode(errors="replace").strip())
        return KernelTimes(**json.loads(output))


@cache
def begin(side: int, operator: Operator) -> Measurement:
    """Start the program for a grid, if it has not been started yet."""
    return Measurement(side, operator)


def times(side: int, operator: Operator) -> KernelTimes:
    """Return the times for a grid, measured now or on this machine within the last day.

    Raises ParamsError as Measurement does.
    """
    kept = _kept(side, operator)
    known = _remembered(kept)
    if known is None:
        known = begin(side, operator).times()
        # a checkout that is read-only keeps nothing
        with suppress(OSError), replacing(kept, shared=True) as partial:
            partial.write_text(json.dumps(vars(known)), encoding="utf-8")
    return known


def _kept(side: int, operator: Operator) -> Path:
    content = b"".join(file.read_bytes() for file in DECIDING if file.is_file())
    machine = f"{platform.node()} {os.cpu_count()}".encode()
    return KEPT / f"{side}-{operator}-{sha256(content + machine).hexdigest()[:16]}.json"


def _remembered(kept: Path) -> KernelTimes | None:
    """Return the times of a file, None if it is absent, too old, or of other times."""
    try:
        if time.time() - kept.stat().st_mtime > KEPT_FOR:
            return None
        return KernelTimes(**json.loads(kept.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def measured_operator(operators: Sequence[Operator]) -> Operator:
    """Return the operator of a model whose cells are the most."""
    return min(operators, key=BY_CELLS.index)


def begin_early(options: argparse.Namespace) -> None:
    """Start the program for the grid of these options of `bag check`, before torch is imported.

    Options that are not allowed, which a file for --entry may have, start nothing.
    """
    operators, own = options.operators, options.largest_operand
    largest = load(Cells).largest_operand
    is_allowed = isinstance(operators, list) and isinstance(own, int | None)
    known = [operator for operator in BY_CELLS if is_allowed and operator in operators]
    if known and not options.store_only:
        side = 1 + min(largest, largest if own is None else own)
        if _remembered(_kept(side, known[0])) is None:
            begin(side, known[0])
