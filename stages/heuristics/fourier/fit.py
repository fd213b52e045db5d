"""Fit a theory of a map by least squares on training cells, and score it on held-out cells."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from stages.heuristics.fourier.frequencies import FrequencyPairs

# Relative to the largest eigenvalue of the terms' products. A smaller eigenvalue is rounding: the
# terms depend on each other.
COLLINEAR = 1e-10


@dataclass(frozen=True, eq=False)
class SplitCells:
    """The cells of an operator for which a store has answers, training cells first.

    shape: (op1, op2) of the grid; order: (cells,) index of each cell among all cells of the
    operator, in order of op1, then op2; op1, op2: (cells,); training: number of training cells.
    """

    shape: tuple[int, int]
    order: np.ndarray
    op1: np.ndarray
    op2: np.ndarray
    training: int

    @classmethod
    def from_table(cls, cells: pl.DataFrame, results: np.ndarray) -> "SplitCells":
        """Select the cells that have an answer.

        cells: op1, op2 and split of all cells of an operator, in order of op1, then op2; results:
        (op1, op2) the store's answers, -1 for none.
        """
        op1, op2 = cells["op1"].to_numpy(), cells["op2"].to_numpy()
        inside = (op1 < results.shape[0]) & (op2 < results.shape[1])  # the model's grid
        answered = inside & (results[np.where(inside, op1, 0), np.where(inside, op2, 0)] >= 0)
        in_training = (cells["split"] == "train").to_numpy()
        training = np.flatnonzero(answered & in_training)
        order = np.concatenate([training, np.flatnonzero(answered & ~in_training)])
        shape = (results.shape[0], results.shape[1])
        return cls(shape, order, op1[order], op2[order], len(training))


@dataclass(frozen=True)
class Fit:
    """How well terms explain values.

    terms: free coefficients, without the intercept; share: explained share of the held-out cells'
    variance, at most 1, NaN without any variance.
    """

    terms: int
    share: float


def explain(terms: np.ndarray, values: np.ndarray, training: int) -> Fit:
    """Fit values by terms on the first `training` cells, and score the fit on the others.

    terms: (terms, cells), the intercept among them; values: (cells,).
    """
    coefficients, rank = _fit(terms[:, :training], values[:training])
    held_out = values[training:]
    if not len(held_out) or (held_out == held_out[0]).all():
        return Fit(rank - 1, np.nan)
    error = held_out - coefficients @ terms[:, training:]
    return Fit(rank - 1, float(1 - error @ error / ((held_out - held_out.mean()) ** 2).sum()))


def indicators(members: np.ndarray) -> np.ndarray:
    """Return the intercept and heuristics as terms; members: (heuristics, cells) bool."""
    return np.concatenate([np.ones((1, members.shape[1])), members])


def waves(values: np.ndarray, cells: SplitCells, pairs: FrequencyPairs, count: int) -> np.ndarray:
    """Return the intercept and the strongest Fourier components as terms.

    There are `count` terms besides the intercept, or one more, since most components have a cosine
    and a sine. Each component is the strongest in what the former leave of values (cells,) on the
    training cells (orthogonal matching pursuit). All other locations of the grid count as the mean.
    The pursuit is necessary because components are not independent unless the cells are a whole
    grid.
    """
    terms, training = np.ones((1, len(values))), cells.training
    rest = np.zeros(cells.shape, np.float32)
    while len(terms) <= count:
        coefficients, _ = _fit(terms[:, :training], values[:training])
        error = values[:training] - coefficients @ terms[:, :training]
        rest[cells.op1[:training], cells.op2[:training]] = error
        pair = int(pairs.powers(rest[None])[0].argmax())
        terms = np.concatenate([terms, pairs.waves(pair, cells.op1, cells.op2)])
    return terms


def _fit(terms: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the coefficients of least squares and the number of independent terms.

    The coefficients are the smallest if terms depend on each other.
    """
    coefficients, _, rank, _ = np.linalg.lstsq(terms @ terms.T, terms @ values, rcond=COLLINEAR)
    return coefficients, int(rank)
