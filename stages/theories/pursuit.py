"""Chooses a few terms of a dictionary for each neuron, one after another: the next is the one that lowers the error most.

Orthogonal least squares (Chen, Billings and Luo 1989) for many neurons at once, on products alone: with G the products of the terms
with each other, and c those with a neuron's map, u_k = (G_k - sum over j of u_jk u_j) / its length are the products of all terms with
the k-th direction; what is left of c is c - sum over k of c'_k u_k.
"""

from collections.abc import Iterator, Sequence

import numpy as np

DEPENDENT = 1e-6  # of a term's square; what is left of one that follows from those chosen
HELPFUL = 1e-10  # of what the best first term explains; less is rounding, as processors differ in it


def pursue(gram: np.ndarray, products: np.ndarray, budgets: Sequence[int]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields (budget, terms, coefficients) for each rising budget; both arrays (neurons, terms), fewer terms where there are no more.

    gram: (terms, terms) products of terms of length 1; products: (neurons, terms) with the neurons' maps.
    """
    neurons, count = products.shape
    left, free = products.copy(), np.ones((neurons, count))  # what is left of the products, and of each term's square
    chosen, directions = np.zeros((neurons, 0), int), np.zeros((neurons, min(max(budgets), count), count))
    every = np.arange(neurons)
    least = HELPFUL * (products**2).max(1, keepdims=True) if count else np.zeros((neurons, 1))
    for size in range(1, directions.shape[1] + 1):
        gains = np.where(free > DEPENDENT, left**2 / np.maximum(free, DEPENDENT), -1)
        gains[gains < least] = -1
        best = _largest(gains)
        own = directions[every, : size - 1, best]  # (neurons, directions): the new term along the former ones
        new = gram[best] - (own[:, None] @ directions[:, : size - 1])[:, 0]
        length = np.sqrt(np.maximum(free[every, best], DEPENDENT))
        new *= ((gains[every, best] > 0) / length)[:, None]  # where no term helps any more, nothing
        directions[:, size - 1] = new
        left -= (left[every, best] / length)[:, None] * new
        free -= new**2
        free[every, best] = 0
        chosen = np.concatenate([chosen, best[:, None]], axis=1)
        if size in budgets:
            yield size, chosen, coefficients(gram, products, chosen)
    for budget in budgets:
        if budget > directions.shape[1]:
            yield budget, chosen, coefficients(gram, products, chosen)


def coefficients(gram: np.ndarray, products: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Least squares by the chosen terms (neurons, terms)."""
    among = gram[chosen[:, :, None], chosen[:, None, :]] + 1e-9 * np.eye(chosen.shape[1])  # solvable where a term stands twice
    return np.linalg.solve(among, np.take_along_axis(products, chosen, 1)[:, :, None])[:, :, 0]


def _largest(gains: np.ndarray) -> np.ndarray:
    """The first of the largest in each row; what differs in its last digits alone is the same on every kind of processor."""
    return (gains >= gains.max(1, keepdims=True) * (1 - 1e-9)).argmax(1)
