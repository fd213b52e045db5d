"""How much of a map a theory of it explains: least squares on the training cells, scored on the held-out ones."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from stages.heuristics.waves.fourier import FrequencyPairs

COLLINEAR = 1e-10  # of the largest eigenvalue of the terms' products; a smaller one is rounding: the terms depend on each other


@dataclass(frozen=True, eq=False)
class SplitCells:
    """The cells of an operator that a store has answers for, those of training first.

    shape: of the square; order: (cells,) which of the operator's cells, by op1, then op2, each is; op1, op2: (cells,);
    training: how many are cells of training.
    """

    shape: tuple[int, int]
    order: np.ndarray
    op1: np.ndarray
    op2: np.ndarray
    training: int

    @classmethod
    def of(cls, cells: pl.DataFrame, results: np.ndarray) -> "SplitCells":
        """cells: op1, op2, split of all of an operator's, by op1, then op2; results: the store's answers (op1, op2), -1 for none."""
        op1, op2 = cells["op1"].to_numpy(), cells["op2"].to_numpy()
        inside = (op1 < results.shape[0]) & (op2 < results.shape[1])  # of the operands that the subject is asked
        answered = inside & (results[np.where(inside, op1, 0), np.where(inside, op2, 0)] >= 0)
        training = (cells["split"] == "train").to_numpy()
        order = np.concatenate([np.flatnonzero(answered & training), np.flatnonzero(answered & ~training)])
        return cls((results.shape[0], results.shape[1]), order, op1[order], op2[order], int((answered & training).sum()))


@dataclass(frozen=True)
class Fit:
    """terms: fitted coefficients that are free, without the intercept; share: of the held-out cells' variance, NaN without any."""

    terms: int
    share: float


def explain(terms: np.ndarray, values: np.ndarray, training: int) -> Fit:
    """Fits values (cells,) by terms (terms, cells), the intercept among them, on the first `training` cells; scores on the others."""
    coefficients, rank = _fitted(terms[:, :training], values[:training])
    held_out = values[training:]
    if not len(held_out) or (held_out == held_out[0]).all():
        return Fit(rank - 1, np.nan)
    left = held_out - coefficients @ terms[:, training:]
    return Fit(rank - 1, float(1 - left @ left / ((held_out - held_out.mean()) ** 2).sum()))


def indicators(members: np.ndarray) -> np.ndarray:
    """The intercept and heuristics as terms; members: (heuristics, cells) bool."""
    return np.concatenate([np.ones((1, members.shape[1])), members])


def waves(values: np.ndarray, cells: SplitCells, pairs: FrequencyPairs, count: int) -> np.ndarray:
    """The intercept and the strongest waves as terms, `count` of them or, since a wave has a cosine and a sine, one more.

    Each wave is the strongest of what the former leave of values (cells,) on the training cells, all other places of the
    square being at the mean (orthogonal matching pursuit): on cells that are no full square, waves are not independent.
    """
    terms, training = np.ones((1, len(values))), cells.training
    left = np.zeros(cells.shape, np.float32)
    while len(terms) <= count:
        coefficients, _ = _fitted(terms[:, :training], values[:training])
        left[cells.op1[:training], cells.op2[:training]] = values[:training] - coefficients @ terms[:, :training]
        pair = int(pairs.powers(left[None])[0].argmax())
        terms = np.concatenate([terms, pairs.waves(pair, cells.op1, cells.op2)])
    return terms


def _fitted(terms: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, int]:
    """Coefficients of least squares, the smallest where terms depend on each other, and how many of the terms do not."""
    coefficients, _, rank, _ = np.linalg.lstsq(terms @ terms.T, terms @ values, rcond=COLLINEAR)
    return coefficients, int(rank)
