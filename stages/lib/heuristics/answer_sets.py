"""Multi-result heuristics: the few results that a neuron's map has in its first cells, found on the map itself."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numba import njit
from pydantic import Field

from stages.lib.core.settings import Count, Section
from stages.lib.core.words import Operator
from stages.lib.heuristics.scores import descending


class AnswerSets(Section):
    operators: list[Operator]
    results: Annotated[int, Field(ge=2, le=20)]
    first_cells: Count
    covers: Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class Found:
    """A set of results, as a heuristic's name; score at the top; share of cells; strength (see matching.strengths)."""

    name: str
    score: float
    share: float
    strength: float


def find(contributions: np.ndarray, results: np.ndarray, settings: AnswerSets) -> Found | None:
    """The set of a map's first cells, or None where it takes one result or too many. contributions, results: (cells,)."""
    sizes = np.bincount(results)
    ordered = results[descending(contributions)]
    chosen = covering(ordered[: settings.first_cells], len(sizes), settings.results, settings.covers)
    share = sizes[chosen].sum() / len(results)
    if len(chosen) == 0 or share == 1:
        return None
    score = np.isin(ordered[: sizes[chosen].sum()], chosen).mean()
    inside, scale = contributions[np.isin(results, chosen)].mean(), np.sqrt(np.square(contributions, dtype=np.float64).mean())
    return Found(
        f"result in {{{', '.join(map(str, sorted(chosen)))}}}", float(score), float(share), float(inside / scale) if scale else 0.0
    )


@njit(nogil=True, cache=True)
def covering(first, results, most, covers):
    """The fewest results that cover a share of a map's first cells: int64, none where one or more than `most` are needed.

    first: the answers of these cells; results: their possible number; most: results allowed; covers: the share.
    """
    counts, chosen = np.zeros(results, np.int32), np.zeros(most, np.int64)
    for result in first:
        counts[result] += 1
    reached, number = 0, 0
    while number < most and reached < covers * len(first):
        chosen[number] = np.argmax(counts)
        reached += counts[chosen[number]]
        counts[chosen[number]] = 0
        number += 1
    if number < 2 or reached < covers * len(first):
        return chosen[:0]
    return chosen[:number]
