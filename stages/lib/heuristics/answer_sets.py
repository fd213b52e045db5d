"""Find multi-result heuristics: sets of few results that cover a neuron's largest contributions.

Such a heuristic is found on the neuron's own map rather than listed in the catalogue.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from stages.lib.core.compiled import compiled
from stages.lib.core.settings import Count, Section
from stages.lib.core.vocabulary import Operator
from stages.lib.heuristics.scores import descending


class AnswerSets(Section):
    operators: list[Operator]
    results: Annotated[int, Field(ge=2, le=20)]
    first_cells: Count
    covers: Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class Found:
    """A set of results.

    name: as a heuristic; score: at the top, 0 to 1; share: share of all cells, 0 to 1; strength:
    see scores.strengths.
    """

    name: str
    score: float
    share: float
    strength: float


def find(contributions: np.ndarray, results: np.ndarray, settings: AnswerSets) -> Found | None:
    """Return the set of results that covers a map's first cells.

    contributions, results: (cells,). Returns None if the first cells need a single result, or more
    results than the settings allow.
    """
    sizes = np.bincount(results)
    ordered = results[descending(contributions)]
    first = np.bincount(ordered[: settings.first_cells], minlength=len(sizes))
    members = covering(first, settings.results, settings.covers)
    k = sizes[members].sum()
    share = k / len(results)
    if len(members) == 0 or share == 1:
        return None
    score = np.isin(ordered[:k], members).mean()
    inside = contributions[np.isin(results, members)].mean()
    scale = np.sqrt(np.square(contributions, dtype=np.float64).mean())
    strength = float(inside / scale) if scale else 0.0
    name = f"result in {{{', '.join(map(str, sorted(members)))}}}"
    return Found(name, float(score), float(share), strength)


@compiled()
def covering(first, most, covers):
    """Return the fewest results that cover a share of a map's first cells, as int64.

    first: (results,) in how many of the first cells each is the answer, in any unit; most: largest
    number of results; covers: the share. The array is empty if a single result is enough, or if
    more than `most` are needed.
    """
    counts, members = first.copy(), np.zeros(most, np.int64)
    reached, number, wanted = 0, 0, covers * first.sum()
    while number < most and reached < wanted:
        members[number] = np.argmax(counts)
        reached += counts[members[number]]
        counts[members[number]] = 0
        number += 1
    if number < 2 or reached < wanted:
        return members[:0]
    return members[:number]
