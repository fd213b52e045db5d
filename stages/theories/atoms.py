"""Build the dictionaries of terms from which theories of a neuron's map are fitted.

A theory predicts a neuron's map as a weighted sum of a few terms of its dictionary. The terms are
heuristics (bag), lines and circles of the cell's three numbers (helix), or Fourier components over
the operand grid (waves).
"""

import numpy as np
import polars as pl

from stages.heuristics.fourier.frequencies import FrequencyPairs
from stages.lib.heuristics.members import listed, members
from stages.lib.sql.database import Database
from stages.theories import bases

CONSTANT = 1e-12  # share of a term's mean square; a smaller variance is rounding


def bag(
    database: Database, catalogue: pl.DataFrame, operator: str, order: np.ndarray
) -> np.ndarray:
    """Return every heuristic of the catalogue as 0 and 1, (terms, cells).

    order: (cells,) row numbers of the cells in the operator's cells, sorted by op1, then op2
    """
    return members(database, operator, listed(catalogue, operator))[:, order].astype(np.float64)


def helices(numbers: dict[str, np.ndarray], periods: list[float]) -> np.ndarray:
    """Return the helix's terms of op1, op2 and the result, (terms, cells).

    The study fits these terms to neurons, too (Kantamneni and Tegmark 2025, Sec. 5).
    numbers: quantity -> its value in each cell
    """
    return np.concatenate([bases.helix(values, periods).T for values in numbers.values()])


def waves(
    spectra: pl.DataFrame, shape: tuple[int, int], count: int, op1: np.ndarray, op2: np.ndarray
) -> np.ndarray:
    """Return cosine and sine of the strongest Fourier components, (terms, cells).

    These are the `count` components that carry most of the neurons' summed share of variance.
    spectra: frequency1, frequency2 and share of components of these neurons' maps; shape: of the
    operand grid
    """
    pairs, names = FrequencyPairs.from_shape(shape), ["frequency1", "frequency2"]
    # Rounded sums have the same order on every kind of processor.
    share = pl.col("share").cast(pl.Float64).sum().round(6)
    shares = spectra.group_by(names).agg(share)
    strongest = shares.sort("share", *names, descending=[True, False, False]).head(count)
    frequencies = map(tuple, pairs.frequencies.tolist())
    numbers = {frequency: number for number, frequency in enumerate(frequencies)}
    rows = strongest.select(names).rows()
    terms = [pairs.waves(numbers[frequency], op1, op2) for frequency in rows]
    return np.concatenate([np.zeros((0, len(op1))), *terms])


def scaled(terms: np.ndarray, training: int) -> np.ndarray:
    """Scale terms (terms, cells) to mean 0 and length 1 on the first `training` cells.

    Terms that are constant on these cells are left out.
    """
    centred = terms - terms[:, :training].mean(1, keepdims=True)
    squares = (centred[:, :training] ** 2).sum(1)
    varied = squares > CONSTANT * (terms[:, :training] ** 2).sum(1)
    return centred[varied] / np.sqrt(squares[varied, None])
