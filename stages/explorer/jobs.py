"""Ablate neurons on every cell of a grid, in the background, while pages show how far it is."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stages.explorer.live import GridPart, Live

Neurons = list[tuple[int, int]]  # layer and neuron
# seconds without the lock, so that a page that waits for the model gets it: a thread that releases
# a lock and takes it at once leaves it to nobody else
YIELD = 0.005
ROWS = """
    select 0 as intervention, '{operator}' as operator, null as split, 'neuron' as component,
        layer, list(neuron order by neuron) as units, 'last' as position, null as key_position,
        '{replacement}' as replacement
    from (values {neurons}) as selected(layer, neuron)
    group by layer
    order by layer
"""
BROKEN, MENDED, SAME = 1, -1, 0  # a cell's answer: wrong after the ablation, right, as before


@dataclass(frozen=True)
class Ablation:
    """Which neurons are ablated, and how.

    other: operator, op1 and op2 of the prompt whose values replace theirs, if `replacement` is
    counterfactual; made_of: see Project.made_of.
    """

    subject: str
    operator: str
    neurons: tuple[tuple[int, int], ...]
    replacement: str
    other: tuple[str, int, int] | None = None
    made_of: int = 0

    def rows(self) -> str:
        """Return the SQL of the rows of this intervention, to start an experiment from."""
        listed = ", ".join(f"({layer}, {neuron})" for layer, neuron in self.neurons)
        replacement = self.replacement
        return ROWS.format(operator=self.operator, replacement=replacement, neurons=listed)


def no_cells() -> np.ndarray:
    """Return an empty map (op1, op2)."""
    return np.zeros((0, 0))


@dataclass
class GridJob:
    """An ablation on every cell of an operator, in a thread of its own.

    done: whether it has ended; cells: finished, of all; changes, random: maps (op1, op2) of BROKEN,
    MENDED and SAME for the ablated and the random neurons, NaN where there is no cell; tabs: of
    browsers, that look at it.
    """

    ablation: Ablation
    done: bool = False
    cells: tuple[int, int] = (0, 0)
    error: str | None = None
    changes: np.ndarray = field(default_factory=no_cells)
    random: np.ndarray = field(default_factory=no_cells)
    stopped: bool = False
    thread: threading.Thread | None = None
    tabs: set[str] = field(default_factory=set)

    def share(self) -> int:
        """Return how much is done, in twentieths: a page shows each of these steps."""
        return self.cells[0] * 20 // max(self.cells[1], 1)

    def start(self, live: "Live", lock: threading.RLock, side: int) -> None:
        """Start the thread. lock: guards the model; side: of the grid, in operands."""
        self.changes = np.full((side, side), np.nan, np.float32)
        self.random = self.changes.copy()
        self.thread = threading.Thread(target=self._run, args=(live, lock), daemon=True)
        self.thread.start()

    def _run(self, live: "Live", lock: threading.RLock) -> None:
        try:
            with lock:
                parts = self._parts(live)
            while not self.stopped:
                with lock:  # other threads may use the model between parts
                    part = next(parts, None)
                if part is None:
                    break
                self._add(part)
                time.sleep(YIELD)
        except Exception as error:  # any error: the page shows it
            self.error = str(error)
        self.done = True

    def _parts(self, live: "Live") -> "Iterator[GridPart]":
        ablation = self.ablation
        other = live.cell(*ablation.other) if ablation.other else None
        random = live.random(ablation.neurons, 0)
        operator, replacement = ablation.operator, ablation.replacement
        return live.grid(operator, ablation.neurons, random, replacement, other)

    def _add(self, part: "GridPart") -> None:
        before, after, control = (part.predicted == part.answers).astype(np.float32)
        self.changes[part.op1, part.op2] = before - after
        self.random[part.op1, part.op2] = before - control
        self.cells = part.done, part.cells
