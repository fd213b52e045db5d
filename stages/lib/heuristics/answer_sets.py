"""Multi-result heuristics: the few results that a neuron's map has in its first cells, found on the map itself."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from stages.lib.core.compiled import compiled
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
    first = np.bincount(ordered[: settings.first_cells], minlength=len(sizes))
    chosen = covering(first, settings.results, settings.covers)
    share = sizes[chosen].sum() / len(results)
    if len(chosen) == 0 or share == 1:
        return None
    score = np.isin(ordered[: sizes[chosen].sum()], chosen).mean()
    inside, scale = contributions[np.isin(results, chosen)].mean(), np.sqrt(np.square(contributions, dtype=np.float64).mean())
    return Found(
        f"result in {{{', '.join(map(str, sorted(chosen)))}}}", float(score), float(share), float(inside / scale) if scale else 0.0
    )


@compiled()
def covering(first, most, covers):
    """The fewest results that cover a share of a map's first cells: int64, none where one or more than `most` are needed.

    first: (results,) in how many of these cells each is the answer, in whatever unit; most: results allowed; covers: the share.
    """
    counts, chosen = first.copy(), np.zeros(most, np.int64)
    reached, number, wanted = 0, 0, covers * first.sum()
    while number < most and reached < wanted:
        chosen[number] = np.argmax(counts)
        reached += counts[chosen[number]]
        counts[chosen[number]] = 0
        number += 1
    if number < 2 or reached < wanted:
        return chosen[:0]
    return chosen[:number]
