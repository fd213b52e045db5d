"""Vectors grouped by the number that they may encode: all that a fit to the number needs.

A least-squares fit of a function of the number depends on the vectors only through their count,
mean and sum of squares for each number.
"""

from dataclasses import dataclass

import numpy as np

# Share of the largest eigenvalue of the terms' products. Smaller eigenvalues are rounding: the
# terms are linearly dependent.
COLLINEAR = 1e-10


@dataclass(frozen=True, eq=False)
class Numbered:
    """Vectors grouped by their number.

    numbers: (numbers,) the distinct numbers, rising
    counts: (numbers,) vectors of each number
    means: (numbers, width) mean vector of each number
    within: sum of squares around these means
    total: sum of squares around the mean of all vectors
    """

    numbers: np.ndarray
    counts: np.ndarray
    means: np.ndarray
    within: float
    total: float

    @classmethod
    def group(cls, vectors: np.ndarray, numbers: np.ndarray) -> "Numbered":
        """Group vectors (vectors, width) by their numbers (vectors,)."""
        distinct, group, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        if not len(distinct):
            return cls(distinct, counts, vectors, 0.0, 0.0)
        starts = np.cumsum(counts) - counts
        sums = np.add.reduceat(vectors[np.argsort(group, kind="stable")], starts)
        means = sums / counts[:, None]
        within = float(((vectors - means[group]) ** 2).sum())
        between = float(counts @ ((means - vectors.mean(0)) ** 2).sum(1))
        return cls(distinct, counts, means, within, within + between)

    @property
    def varies(self) -> bool:
        """Whether the vectors differ by more than rounding."""
        return self.total > 1e-12 * float(self.counts @ (self.means**2).sum(1))

    def explained(self, numbers: np.ndarray, values: np.ndarray) -> float:
        """Return 1 - error / variance of a function of the number on these vectors.

        numbers: (numbers,) rising, including all of these vectors'; values: (numbers, width).
        """
        error = self.means - values[np.searchsorted(numbers, self.numbers)]
        return 1 - (self.within + float(self.counts @ (error**2).sum(1))) / self.total


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted function of the number. values: (numbers, width); rank: of its terms."""

    values: np.ndarray
    rank: int


def fit(terms: np.ndarray, numbers: np.ndarray, vectors: Numbered) -> Fitted:
    """Fit an intercept and terms of the number to vectors by least squares.

    terms: (numbers, terms) at these numbers (numbers,), which are rising and include all numbers
    of the vectors.
    """
    weights = vectors.counts / vectors.counts.sum()
    centre = weights @ vectors.means
    seen = terms[np.searchsorted(numbers, vectors.numbers)]
    middle = weights @ seen
    # Terms get unit variance. Otherwise the line would drown the circles.
    scale = np.sqrt(np.maximum(weights @ (seen - middle) ** 2, np.finfo(float).tiny))
    seen, scaled = (seen - middle) / scale, (terms - middle) / scale
    weighted = seen.T * weights
    products = weighted @ (vectors.means - centre)
    coefficients, _, rank, _ = np.linalg.lstsq(weighted @ seen, products, rcond=COLLINEAR)
    return Fitted(centre + scaled @ coefficients, int(rank))


def fit_means(numbers: np.ndarray, vectors: Numbered) -> Fitted:
    """Predict each number's mean vector, the best that any function of the number can do.

    Numbers without a vector get the mean of all vectors.
    """
    values = np.tile(vectors.counts @ vectors.means / vectors.counts.sum(), (len(numbers), 1))
    values[np.searchsorted(numbers, vectors.numbers)] = vectors.means
    return Fitted(values, len(vectors.numbers) - 1)
