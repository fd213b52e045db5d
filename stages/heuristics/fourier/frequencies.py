"""Compute the Fourier spectrum of maps over (op1, op2).

A map is a sum of Fourier components cos(2 pi (f1 op1 / n1 + f2 op2 / n2) + phase). The frequencies
(f1, f2) and (-f1, -f2) are the same component, so they are one pair. Its name is the member with
0 <= f1 <= n1 / 2 and -n2 / 2 < f2 <= n2 / 2 (f2 >= 0 if f1 is 0 or n1 / 2). By Parseval's theorem,
the powers of the pairs add up to the variance of the map.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class FrequencyPairs:
    """Every pair of frequencies of a grid except (0, 0), which is the mean.

    shape: (op1, op2) of the grid; frequencies: (pairs, 2) f1 and f2; places: (pairs,) index of each
    in the flat result of numpy's rfft2; weights: (pairs,) 2, or 1 for a frequency that is its own
    opposite.
    """

    shape: tuple[int, int]
    frequencies: np.ndarray
    places: np.ndarray
    weights: np.ndarray

    @classmethod
    def from_shape(cls, shape: tuple[int, int]) -> "FrequencyPairs":
        """List the pairs of a grid of this shape."""
        n1, n2 = shape
        half = n2 // 2 + 1
        f1, f2 = np.indices((n1, half)).reshape(2, -1)
        is_edge = 2 * f2 % n2 == 0  # in these columns, rfft2 holds both members of a pair
        places = np.flatnonzero(~(is_edge & (2 * f1 > n1)))[1:]
        f1, f2, is_edge = f1[places], f2[places], is_edge[places]
        is_negative = 2 * f1 > n1
        first, second = np.where(is_negative, n1 - f1, f1), np.where(is_negative, -f2, f2)
        is_own_opposite = is_edge & (2 * f1 % n1 == 0)
        weights = np.where(is_own_opposite, 1, 2).astype(np.float32)
        return cls(shape, np.stack([first, second], axis=1), places, weights)

    def powers(self, maps: np.ndarray) -> np.ndarray:
        """Return the power of every pair, (maps, pairs) float32.

        maps: (maps, op1, op2) float32. A mean of 0 loses the least precision.
        """
        flat = (len(maps), self.shape[0] * (self.shape[1] // 2 + 1))
        transformed = np.fft.rfft2(maps).reshape(flat)[:, self.places]
        squares = transformed.real**2
        squares += transformed.imag**2
        squares *= self.weights
        return squares

    def waves(self, pair: int, op1: np.ndarray, op2: np.ndarray) -> np.ndarray:
        """Return the cosine and the sine of a pair on these cells, (2, cells) float64.

        A pair that is its own opposite has no sine, as it is 0 everywhere: (1, cells).
        """
        f1, f2 = self.frequencies[pair]
        n1, n2 = self.shape
        wave = _turns(f1, n1)[op1] * _turns(f2, n2)[op2]
        return np.stack([wave.real, wave.imag][: int(self.weights[pair])])


def _turns(frequency: int, operands: int) -> np.ndarray:
    """Return exp(2 pi i frequency op / operands) for each operand, (operands,) complex128."""
    return np.exp(2j * np.pi * (frequency * np.arange(operands) % operands) / operands)


def strongest(powers: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest powers (pairs,), largest first, ties by index."""
    count = min(count, len(powers))
    least = np.partition(powers, len(powers) - count)[len(powers) - count]
    candidates = np.flatnonzero(powers >= least)
    return candidates[np.argsort(-powers[candidates], kind="stable")][:count]
