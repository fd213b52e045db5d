"""The Fourier spectrum of maps over (op1, op2).

A map is a sum of waves cos(2 pi (f1 op1 / n1 + f2 op2 / n2) + phase). The frequencies (f1, f2) and (-f1, -f2) are the same
wave, so they are one pair, named by its member with 0 <= f1 <= n1 / 2 and -n2 / 2 < f2 <= n2 / 2 (f2 >= 0 where f1 is 0 or
n1 / 2). By Parseval's theorem the pairs' powers add up to the variance of the map.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class FrequencyPairs:
    """Every pair of frequencies of a square but (0, 0), which is the mean.

    shape: of the square; frequencies: (pairs, 2) f1 and f2; places: (pairs,) where each is in numpy's rfft2, flat;
    weights: (pairs,) 2, or 1 for a frequency that is its own opposite.
    """

    shape: tuple[int, int]
    frequencies: np.ndarray
    places: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, shape: tuple[int, int]) -> "FrequencyPairs":
        (n1, n2), half = shape, shape[1] // 2 + 1
        f1, f2 = (axis.ravel() for axis in np.indices((n1, half)))
        edge = 2 * f2 % n2 == 0  # in these columns rfft2 holds both members of a pair
        places = np.flatnonzero(~(edge & (2 * f1 > n1)))[1:]
        f1, f2, edge = f1[places], f2[places], edge[places]
        turned = 2 * f1 > n1
        frequencies = np.stack([np.where(turned, n1 - f1, f1), np.where(turned, -f2, f2)], axis=1)
        return cls(shape, frequencies, places, np.where(edge & (2 * f1 % n1 == 0), 1, 2).astype(np.float32))

    def powers(self, maps: np.ndarray) -> np.ndarray:
        """Power of every pair, (maps, pairs) float32, from maps (maps, op1, op2), float32 and best of mean 0."""
        transformed = np.fft.rfft2(maps).reshape(len(maps), self.shape[0] * (self.shape[1] // 2 + 1))[:, self.places]
        squares = transformed.real**2
        squares += transformed.imag**2
        squares *= self.weights
        return squares

    def waves(self, pair: int, op1: np.ndarray, op2: np.ndarray) -> np.ndarray:
        """Cosine and sine of a pair on these cells, (2, cells) float64; (1, cells) where there is no sine: it is 0 everywhere."""
        turns = [np.exp(2j * np.pi * (f * np.arange(n) % n) / n) for f, n in zip(self.frequencies[pair], self.shape, strict=True)]
        wave = turns[0][op1] * turns[1][op2]
        return np.stack([wave.real, wave.imag][: int(self.weights[pair])])


def strongest(powers: np.ndarray, count: int) -> np.ndarray:
    """Places of the `count` largest powers (pairs,), falling; of equal ones the first come first."""
    count = min(count, len(powers))
    least = np.partition(powers, len(powers) - count)[len(powers) - count]
    found = np.flatnonzero(powers >= least)
    return found[np.argsort(-powers[found], kind="stable")][:count]
