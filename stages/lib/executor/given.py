"""Values that a table of interventions brings along: what a theory says a part of the model does, to be put in its place.

They lie beside the table <experiment>_interventions in <experiment>_given.h5: the array `pairs` (pairs,) of numbers of pairs, and
by each name that the table's column `given` has an array (pairs, units), a row for each of these pairs, in their order.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib.core import layered
from stages.lib.executor.interventions import Intervention, InterventionError, Patch
from stages.lib.model.architecture import Architecture

PAIRS = "pairs"


class Given:
    """The store of one table. rows: pair -> its row."""

    def __init__(self, path: Path):
        self.path, pairs = path, layered.read_array(path, PAIRS).tolist()
        self.rows = {pair: row for row, pair in enumerate(pairs)}
        if twice := [pair for row, pair in enumerate(pairs) if self.rows[pair] != row]:
            raise InterventionError(
                f"{path} gives values for pair {twice[0]} twice; each pair has one row"
            )

    @classmethod
    def of(cls, table: pl.DataFrame, interventions: Path) -> "Given | None":
        """The store beside a table of interventions that puts in what is given; None where it puts in nothing of that kind."""
        if "given" not in table["replacement"]:
            return None
        return cls(
            interventions.with_name(
                interventions.name.replace("_interventions.parquet", "_given.h5")
            )
        )

    def values(self, patch: Patch, pairs: np.ndarray) -> np.ndarray:
        """What a patch puts in for these pairs, by number: (pairs, units). Raises InterventionError on a pair without a value."""
        return layered.read_array(self.path, str(patch.given))[self.rows_of(pairs)]

    def rows_of(self, pairs: np.ndarray) -> list[int]:
        """Where the values of these pairs stand. Raises InterventionError on a pair without a value."""
        if missing := [pair for pair in pairs.tolist() if pair not in self.rows]:
            raise InterventionError(f"{self.path} gives nothing for pair {missing[0]}")
        return [self.rows[pair] for pair in pairs.tolist()]

    def check(self, interventions: Iterable[Intervention], architecture: Architecture) -> None:
        """Raises InterventionError where an array has not a row for each pair, as wide as what it is put in place of."""
        for one in interventions:
            for patch in one.patches:
                if patch.given is not None:
                    shape = layered.read_array(self.path, patch.given).shape
                    needed = (
                        len(self.rows),
                        architecture.width
                        if patch.component == "residual"
                        else architecture.neurons,
                    )
                    if shape != needed:
                        found, expected = (" x ".join(map(str, of)) for of in (shape, needed))
                        raise InterventionError(
                            f"intervention {one.number}: {patch.given!r} in {self.path} has {found} values, not {expected}: pairs x units"
                        )


def write(path: Path, pairs: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a store as `write_each` does."""
    write_each(path, pairs, arrays.items())


def write_each(path: Path, pairs: np.ndarray, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write a store of named arrays (pairs, units), for the pairs of these numbers.

    Values are float32 in steps of 2^-16 of the array's largest value, so that rounding in float64,
    which differs from one kind of processor to another, hardly ever shows. Each array is written
    before the next is taken.
    """
    stored = ((name, _in_steps(array)) for name, array in arrays)
    layered.write_arrays(path, chain([(PAIRS, pairs.astype(np.int32))], stored), {})


def _in_steps(x: np.ndarray) -> np.ndarray:
    """The next step; upwards from the middle between two, where models of simple weights have many values."""
    step = np.exp2(np.frexp(np.abs(x).max(initial=0))[1] - 16)
    return (np.floor(x / step + (0.5 + 1e-8)) * step + 0.0).astype(
        np.float32
    )  # + 0.0: no negative zero
