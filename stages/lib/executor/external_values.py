"""Read and write external values: what a theory predicts for a part of the model.

They lie beside the table <experiment>_interventions in <experiment>_given.h5. The array `pairs`
(pairs,) holds numbers of pairs. Each name in the table's column `given` has an array (pairs, units)
with one row per pair, in their order.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib.core import hdf5_store
from stages.lib.executor.interventions import Intervention, InterventionError, Patch
from stages.lib.model.architecture import Architecture

PAIRS = "pairs"
HELD = 256 << 20  # bytes of arrays that a process keeps: many patches name the same ones


class Given:
    """The external values of one table of interventions.

    rows: pair -> its row. Raises InterventionError if a pair has two rows.
    """

    def __init__(self, path: Path):
        self.path, self.rows, self._arrays = path, dict[int, int](), dict[str, np.ndarray]()
        for row, pair in enumerate(hdf5_store.read_array(path, PAIRS).tolist()):
            if self.rows.setdefault(pair, row) != row:
                problem = f"{path} gives values for pair {pair} twice"
                raise InterventionError(f"{problem}; each pair has one row")

    @classmethod
    def for_table(cls, table: pl.DataFrame, interventions: Path) -> "Given | None":
        """Return the external values beside a table, None if no row is replaced by them.

        interventions: the table's file.
        """
        if "given" not in table["replacement"]:
            return None
        name = interventions.name.replace("_interventions.parquet", "_given.h5")
        return cls(interventions.with_name(name))

    def values(self, patch: Patch, pairs: np.ndarray) -> np.ndarray:
        """Return what a patch writes for these pairs, by number: (pairs, units).

        Raises InterventionError for a pair without a value.
        """
        return self._array(str(patch.given))[self.rows_of(pairs)]

    def _array(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            array = hdf5_store.read_array(self.path, name)
            if sum(kept.nbytes for kept in self._arrays.values()) + array.nbytes > HELD:
                self._arrays.clear()
            self._arrays[name] = array
        return self._arrays[name]

    def rows_of(self, pairs: np.ndarray) -> list[int]:
        """Return the rows of these pairs. Raises InterventionError for a pair without one."""
        numbers = pairs.tolist()
        for number in numbers:
            if number not in self.rows:
                raise InterventionError(f"{self.path} gives nothing for pair {number}")
        return [self.rows[number] for number in numbers]

    def check(self, interventions: Iterable[Intervention], architecture: Architecture) -> None:
        """Raise InterventionError unless each array has one row per pair, one column per unit."""
        shapes: dict[str, tuple[int, ...]] = {}
        for intervention in interventions:
            for patch in intervention.patches:
                if patch.given is None:
                    continue
                if patch.given not in shapes:
                    shapes[patch.given] = hdf5_store.read_shape(self.path, patch.given)
                needed = len(self.rows), _units(patch, architecture)
                if shapes[patch.given] != needed:
                    sizes = f"{_product(shapes[patch.given])} values, not {_product(needed)}"
                    array = f"intervention {intervention.number}: {patch.given!r} in {self.path}"
                    raise InterventionError(f"{array} has {sizes}: pairs x units")


def _units(patch: Patch, architecture: Architecture) -> int:
    """Return how many units a patch of all units writes."""
    return architecture.width if patch.component == "residual" else architecture.neurons


def _product(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def write(path: Path, pairs: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
    """Write external values as `write_each` does."""
    write_each(path, pairs, arrays.items())


def write_each(path: Path, pairs: np.ndarray, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write named arrays (pairs, units) for the pairs of these numbers, one array at a time.

    Values are float32 in steps of 2^-16 of the array's largest value. Rounding in float64, which
    differs between kinds of processors, then hardly ever changes a stored value.
    """
    stored = ((name, _in_steps(array)) for name, array in arrays)
    hdf5_store.write_arrays(path, chain([(PAIRS, pairs.astype(np.int32))], stored), {})


def _in_steps(x: np.ndarray) -> np.ndarray:
    """Return the nearest step, the upper one in the middle between two.

    Models of simple weights have many values in the middle; a little more than half is added so
    that rounding cannot move these to the lower step.
    """
    step = np.exp2(np.frexp(np.abs(x).max(initial=0))[1] - 16)
    return (np.floor(x / step + (0.5 + 1e-8)) * step + 0.0).astype(np.float32)  # + 0.0: no -0.0
