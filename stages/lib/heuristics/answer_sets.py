"""Multi-result heuristics: the few results that a neuron's map has in its first cells, found on the map itself."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from stages.lib.core.settings import Count, Section
from stages.lib.core.words import Operator
from stages.lib.heuristics.scores import answer_set, descending


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
    chosen = np.zeros(settings.results, np.int64)
    ordered = results[descending(contributions)]
    number, score = answer_set(ordered, sizes, min(settings.first_cells, len(results)), settings.results, settings.covers, chosen)
    share = sizes[chosen[:number]].sum() / len(results)
    if number == 0 or share == 1:
        return None
    inside, scale = contributions[np.isin(results, chosen[:number])].mean(), np.sqrt(np.square(contributions, dtype=np.float64).mean())
    return Found(
        f"result in {{{', '.join(map(str, sorted(chosen[:number])))}}}", float(score), float(share), float(inside / scale) if scale else 0.0
    )
