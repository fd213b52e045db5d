"""Streams by the number that they may stand for: what is needed of them to fit any function of the number."""

from dataclasses import dataclass

import numpy as np

COLLINEAR = 1e-10  # of the largest eigenvalue of the terms' products; a smaller one is rounding: the terms depend on each other


@dataclass(frozen=True, eq=False)
class Numbered:
    """Vectors that carry a number.

    numbers: (numbers,) those there are, rising; counts: (numbers,) vectors of each; means: (numbers, width); within: the sum of squares
    around these means; total: around the mean of all.
    """

    numbers: np.ndarray
    counts: np.ndarray
    means: np.ndarray
    within: float
    total: float

    @classmethod
    def of(cls, vectors: np.ndarray, numbers: np.ndarray) -> "Numbered":
        """vectors: (vectors, width), numbers: (vectors,)."""
        known, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        starts = np.cumsum(counts) - counts
        means = np.add.reduceat(vectors[np.argsort(places, kind="stable")], starts) / counts[:, None] if len(known) else vectors
        within = float(((vectors - means[places]) ** 2).sum())
        around = means - vectors.mean(0) if len(vectors) else means
        return cls(known, counts, means, within, within + float(counts @ (around**2).sum(1)))

    @property
    def varies(self) -> bool:
        """Whether there is anything to explain: more than rounding."""
        return self.total > 1e-12 * float(self.counts @ (self.means**2).sum(1))

    def explained(self, at: np.ndarray, values: np.ndarray) -> float:
        """1 - error / variance of a function of the number, given by its values (numbers, width) at the rising numbers `at`, which have all
        of these."""
        error = self.means - values[np.searchsorted(at, self.numbers)]
        return 1 - (self.within + float(self.counts @ (error**2).sum(1))) / self.total


@dataclass(frozen=True, eq=False)
class Fitted:
    """A function of the number. values: (all numbers, width); rank: of its terms."""

    values: np.ndarray
    rank: int


def fit(terms: np.ndarray, every: np.ndarray, to: Numbered) -> Fitted:
    """Least squares by these terms and an intercept; terms: (all numbers, terms) at the rising numbers `every`, which have all of `to`."""
    share = to.counts / to.counts.sum()
    centre = share @ to.means
    known = terms[np.searchsorted(every, to.numbers)]
    middle = share @ known
    size = np.sqrt(np.maximum(share @ (known - middle) ** 2, np.finfo(float).tiny))  # terms of one size, or the line drowns the waves
    known, whole = (known - middle) / size, (terms - middle) / size
    weighted = known.T * share
    coefficients, _, rank, _ = np.linalg.lstsq(weighted @ known, weighted @ (to.means - centre), rcond=COLLINEAR)
    return Fitted(centre + whole @ coefficients, int(rank))


def by_number(every: np.ndarray, to: Numbered) -> Fitted:
    """The mean of each number, that of all where a number was not seen: what a function of the number can do at best."""
    values = np.tile(to.counts @ to.means / to.counts.sum(), (len(every), 1))
    values[np.searchsorted(every, to.numbers)] = to.means
    return Fitted(values, len(to.numbers) - 1)
