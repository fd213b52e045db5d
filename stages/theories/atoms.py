"""What theories of a neuron build its map from: heuristics, helices of the three numbers of a cell, or waves over the square.

Each theory is a dictionary of terms, and says of a neuron a few of them with a coefficient each.
"""

import numpy as np
import polars as pl

from stages.heuristics.waves.fourier import FrequencyPairs
from stages.lib.heuristics.members import listed, members
from stages.lib.sql.database import Database
from stages.theories import bases

CONSTANT = 1e-12  # of a term's mean square; a smaller variance is rounding


def bag(database: Database, catalogue: pl.DataFrame, operator: str, places: np.ndarray) -> np.ndarray:
    """Every heuristic of the catalogue as 0 and 1, (terms, cells); places: which of the operator's cells, by op1, then op2."""
    return members(database, operator, listed(catalogue, operator))[:, places].astype(np.float64)


def helices(numbers: dict[str, np.ndarray], periods: list[float]) -> np.ndarray:
    """The helix's terms of op1, op2 and the result, (terms, cells), as the study fits them to neurons (Sec. 5)."""
    return np.concatenate([bases.helix(of, periods).T for of in numbers.values()])


def waves(spectra: pl.DataFrame, shape: tuple[int, int], count: int, op1: np.ndarray, op2: np.ndarray) -> np.ndarray:
    """Cosine and sine, (terms, cells), of the `count` waves that carry most of these neurons' variance together.

    spectra: rows of the table, of the neurons in question.
    """
    pairs, names = FrequencyPairs.from_shape(shape), ["frequency1", "frequency2"]
    share = pl.col("share").cast(pl.Float64).sum().round(6)  # equal on every kind of processor
    strongest = spectra.group_by(names).agg(share).sort("share", *names, descending=[True, False, False]).head(count)
    numbers = {tuple(one): number for number, one in enumerate(pairs.frequencies.tolist())}
    terms = [pairs.waves(numbers[one], op1, op2) for one in strongest.select(names).rows()]
    return np.concatenate([np.zeros((0, len(op1))), *terms])


def scaled(terms: np.ndarray, training: int) -> np.ndarray:
    """Terms (terms, cells) with mean 0 and length 1 on the first `training` cells; those that do not vary there are left out."""
    centred = terms - terms[:, :training].mean(1, keepdims=True)
    squares = (centred[:, :training] ** 2).sum(1)
    varied = squares > CONSTANT * (terms[:, :training] ** 2).sum(1)
    return centred[varied] / np.sqrt(squares[varied, None])
