"""Numbers as points of a curve: the terms that a theory of the residual stream is linear in.

The helix is B(a) = [a, cos(2 pi a / T), sin(2 pi a / T), ... for each period T] (Kantamneni and Tegmark 2025, Sec. 4). The sine of
period 2 is 0 at every whole number, and is left out: with the study's periods 2, 5, 10 and 100 the helix has 8 terms, not 9.
"""

from collections.abc import Sequence

import numpy as np

ZERO = 1e-9  # of a term's size; a smaller one is 0 at all these numbers


def line(numbers: np.ndarray) -> np.ndarray:
    """The number itself, (numbers, 1)."""
    return numbers[:, None].astype(np.float64)


def circles(numbers: np.ndarray, periods: Sequence[float] | np.ndarray) -> np.ndarray:
    """Cosine and sine of each period, (numbers, terms); those that are 0 at all numbers are left out."""
    turns = 2 * np.pi * numbers[:, None] / np.asarray(periods, float)
    terms = np.stack([np.cos(turns), np.sin(turns)], axis=2).reshape(len(numbers), 2 * len(periods))
    return terms[:, np.abs(terms).max(0, initial=0) > ZERO]


def helix(numbers: np.ndarray, periods: Sequence[float] | np.ndarray) -> np.ndarray:
    """The line and the circles."""
    return np.concatenate([line(numbers), circles(numbers, periods)], axis=1)


def polynomial(numbers: np.ndarray, degree: int) -> np.ndarray:
    """Legendre's polynomials from the first to this degree over the range of the numbers, (numbers, degree)."""
    low, high = numbers.min(), numbers.max()
    scaled = (2 * numbers - low - high) / max(high - low, 1)
    return np.polynomial.legendre.legvander(scaled, degree)[:, 1:]
