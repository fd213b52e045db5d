"""The token of an answer that a subject is asked for, where answers have several: the number that it stands for, such as a digit.

Heuristics of that number stand beside those of the whole result: both are sets of results, as one result has one such number. The
catalogue is of no subject, so they are named here: what it says of the result, said of the number, and single digits. So are what
column addition would need: sums of two digits with and without a carry, and the carry (or borrow) itself.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from stages.lib.core.layered import LayerStore
from stages.lib.heuristics.names import Heuristic, digit_sums

KINDS = ("range", "modulo", "pattern", "period")  # of the catalogue that are said of the number, too
DIGITS = 10
PLACES = (1, 10, 100)
COLUMNS = {
    "add": [*(f"carry into {place}" for place in PLACES[1:]), *digit_sums(PLACES)],
    "subtract": [f"borrow from {place}" for place in PLACES[1:]],
}


def numbers(store: LayerStore) -> np.ndarray | None:
    """The number asked for by result, (results,), -1 where there is none; None of subjects that are asked for whole results."""
    listed = store.attributes.get("asked")
    return None if listed is None else np.array(listed.split(","), np.int64)


def voted(store: LayerStore, results: np.ndarray) -> np.ndarray:
    """Which numbers' value logits belong to these results; 0 where a result has none."""
    known = numbers(store)
    return results if known is None else known[np.minimum(results, len(known) - 1)].clip(min=0)


def names(catalogue: Sequence[Heuristic], operator: str, largest: int) -> Iterator[str]:
    """The names of heuristics of the number, and of columns that the catalogue lacks; largest: number that there is."""
    yield from (f"asked = {digit}" for digit in range(min(largest + 1, DIGITS)))
    yield from (one.name.replace("result", "asked", 1) for one in catalogue if one.quantity == "result" and one.kind in KINDS)
    known = {one.name for one in catalogue}
    yield from (name for name in COLUMNS.get(operator, []) if name not in known)
