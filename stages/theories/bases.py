"""Numbers as points of a curve: the terms in which a theory of the residual stream is linear.

The helix is B(a) = [a, cos(2 pi a / T), sin(2 pi a / T), ... for each period T] (Kantamneni and
Tegmark 2025, Sec. 4). The sine of period 2 is 0 at every whole number and is left out. With the
study's periods 2, 5, 10 and 100 the helix therefore has 8 terms, not 9.
"""

from collections.abc import Sequence

import numpy as np

ZERO = 1e-9  # a term whose largest absolute value is smaller is 0 apart from rounding


def line(numbers: np.ndarray) -> np.ndarray:
    """Return the numbers themselves, (numbers, 1)."""
    return numbers[:, None].astype(np.float64)


def circles(numbers: np.ndarray, periods: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return cosine and sine of each period, (numbers, terms), without terms that are always 0."""
    turns = 2 * np.pi * numbers[:, None] / np.asarray(periods, float)
    pairs = np.stack([np.cos(turns), np.sin(turns)], axis=2)
    terms = pairs.reshape(len(numbers), 2 * len(periods))
    return terms[:, np.abs(terms).max(0, initial=0) > ZERO]


def helix(numbers: np.ndarray, periods: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the terms of the line and of the circles, (numbers, terms)."""
    return np.concatenate([line(numbers), circles(numbers, periods)], axis=1)


def polynomial(numbers: np.ndarray, degree: int) -> np.ndarray:
    """Return Legendre polynomials of degree 1 to `degree` over the numbers' range.

    The result is (numbers, degree).
    """
    low, high = numbers.min(), numbers.max()
    scaled = (2 * numbers - low - high) / max(high - low, 1)
    return np.polynomial.legendre.legvander(scaled, degree)[:, 1:]
