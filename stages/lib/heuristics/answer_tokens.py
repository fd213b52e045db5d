"""Heuristics of the token that a model predicts, if answers have several tokens.

The token stands for a number, such as a digit, which is called `asked`. It is a function of the
result, so heuristics of `asked` are sets of results, too, and are scored together with heuristics
of the result. The catalogue does not depend on a model, so these heuristics are not in it. This
module names them:

* single digits, and what the catalogue has for the result, applied to `asked`;
* what column addition needs: the carry (or borrow), and sums of two digits with and without a
carry.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from stages.lib.core.hdf5_store import LayerStore
from stages.lib.heuristics.names import Heuristic, digit_sums

KINDS = ("range", "modulo", "pattern", "period")  # the catalogue's, which `asked` has, too
DIGITS = 10
PLACES = (1, 10, 100)
COLUMNS = {
    "add": ["carry into 10", "carry into 100", *digit_sums(PLACES)],
    "subtract": ["borrow from 10", "borrow from 100"],
}


def numbers(store: LayerStore) -> np.ndarray | None:
    """Return the number that the predicted token stands for, by result: (results,), -1 if none.

    Returns None if the model predicts whole results.
    """
    text = store.attributes.get("asked")
    if text is None:
        return None
    return np.array(text.split(","), np.int64)


def logit_numbers(store: LayerStore, results: np.ndarray) -> np.ndarray:
    """Return which number's value logit belongs to each result; 0 if none does."""
    known = numbers(store)
    if known is None:
        return results
    return known[np.minimum(results, len(known) - 1)].clip(min=0)


def names(catalogue: Sequence[Heuristic], operator: str, largest: int) -> Iterator[str]:
    """Yield names of heuristics of `asked`, and of columns that the catalogue lacks.

    catalogue: the operator's heuristics; largest: largest number that a token stands for.
    """
    for digit in range(min(largest + 1, DIGITS)):
        yield f"asked = {digit}"
    known = set()
    for heuristic in catalogue:
        known.add(heuristic.name)
        if heuristic.quantity == "result" and heuristic.kind in KINDS:
            yield heuristic.name.replace("result", "asked", 1)
    for name in COLUMNS.get(operator, []):
        if name not in known:
            yield name
