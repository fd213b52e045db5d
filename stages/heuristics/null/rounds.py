"""How many relabellings the neurons of an operator get: rounds, until the p-values at the floor are small enough for labels.

A p-value of n relabellings is at least 1 / (n + 1), the floor. Benjamini and Hochberg label k of m neurons at a level if their p-values
are at most level * k / m, so that the floor must be below this for the k neurons at the floor. The more neurons are heuristics, the
fewer relabellings it takes (Sandve et al. 2011): m / level relabellings in all, however many neurons share them.

Each round has relabellings of its own, so that the choice of their number does not depend on the p-values that come of them.
"""

import math
from dataclasses import dataclass

import numpy as np

from stages.heuristics.settings import Nulls

ENOUGH, PLANNED = 1.5, 2.0  # times the relabellings that put the floor exactly at the threshold: what suffices, and what a round is to have
GROWTH = 8  # times the relabellings of the last round, at most: chance has most of the few neurons that are then at the floor


@dataclass(frozen=True, eq=False)
class Standing:
    """What is known of an operator's neurons after a round. tests: neurons; draws: relabellings of the undecided ones;
    exceedances: (undecided,) how many of these reach the best score of each."""

    tests: int
    draws: int
    exceedances: np.ndarray


def next_draws(standing: Standing, settings: Nulls, level: float) -> int | None:
    """Return how many relabellings the next round has; None if no round can add labels."""
    tests, draws = standing.tests, standing.draws
    at_floor = int((standing.exceedances == 0).sum())
    if not len(standing.exceedances) or _suffices(at_floor, tests, draws, level, ENOUGH):
        return None
    if not _suffices(len(standing.exceedances), tests, settings.most_draws, level, 1):
        return None  # not even most_draws would be enough
    by_chance = (tests - at_floor) / (draws + 1)
    wanted = PLANNED * tests / (level * max(1, at_floor - by_chance))
    planned = min(math.ceil(wanted), GROWTH * draws, settings.most_draws)
    return planned if planned > draws else None


def _suffices(neurons: int, tests: int, draws: int, level: float, times: float) -> bool:
    return level * neurons * (draws + 1) >= times * tests
