"""Choose terms of a dictionary for each neuron, each time the one that reduces the error most.

This is orthogonal least squares (Chen, Billings and Luo 1989) for many neurons at once. It needs
only products of terms: with G the products of the terms with each other and c those with a neuron's
map, u_k = (G_k - sum over j of u_jk u_j) / its length are the products of all terms with the k-th
direction, and c - sum over k of c'_k u_k is what remains of c.
"""

from collections.abc import Iterator, Sequence

import numpy as np

# Share of a term's square. A term of which less remains is a combination of the terms before it.
DEPENDENT = 1e-6
# Share of what the best first term explains. Smaller gains are rounding, which depends on the
# processor.
HELPFUL = 1e-10


def pursue(
    gram: np.ndarray, products: np.ndarray, budgets: Sequence[int]
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield (budget, terms, coefficients) for each of the rising budgets.

    gram: (terms, terms) products of terms of length 1 with each other
    products: (neurons, terms) products of each neuron's map with the terms

    Both yielded arrays are (neurons, budget), narrower if the dictionary has fewer terms.
    """
    neurons, count = products.shape
    remaining = products.copy()
    free = np.ones((neurons, count))  # what remains of each term's square
    terms = np.zeros((neurons, 0), int)
    directions = np.zeros((neurons, min(max(budgets), count), count))
    each = np.arange(neurons)
    least = HELPFUL * (products**2).max(1, keepdims=True, initial=0)
    for size in range(1, directions.shape[1] + 1):
        gains = np.where(free > DEPENDENT, remaining**2 / np.maximum(free, DEPENDENT), -1)
        gains[gains < least] = -1
        best = _first_largest(gains)
        # (neurons, directions): the new term along the directions of the terms before it
        along = directions[each, : size - 1, best]
        new = gram[best] - (along[:, None] @ directions[:, : size - 1])[:, 0]
        length = np.sqrt(np.maximum(free[each, best], DEPENDENT))
        new *= ((gains[each, best] > 0) / length)[:, None]  # 0 where no term helps any more
        directions[:, size - 1] = new
        remaining -= (remaining[each, best] / length)[:, None] * new
        free -= new**2
        free[each, best] = 0
        terms = np.concatenate([terms, best[:, None]], axis=1)
        if size in budgets:
            yield size, terms, coefficients(gram, products, terms)
    for budget in budgets:
        if budget > directions.shape[1]:
            yield budget, terms, coefficients(gram, products, terms)


def coefficients(gram: np.ndarray, products: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """Return least-squares coefficients (neurons, terms) of the chosen terms (neurons, terms)."""
    # The ridge keeps the system solvable where a term is chosen twice.
    ridge = 1e-9 * np.eye(terms.shape[1])
    own = gram[terms[:, :, None], terms[:, None, :]] + ridge
    return np.linalg.solve(own, np.take_along_axis(products, terms, 1)[:, :, None])[:, :, 0]


def _first_largest(gains: np.ndarray) -> np.ndarray:
    """Return the first of the largest gains in each row.

    Gains that differ only in their last digits count as equal, so that every kind of processor
    chooses the same term.
    """
    return (gains >= gains.max(1, keepdims=True) * (1 - 1e-9)).argmax(1)
