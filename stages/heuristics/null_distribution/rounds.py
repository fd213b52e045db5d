"""Plan how many relabellings the neurons of an operator get, in rounds.

A p-value from n relabellings is at least 1 / (n + 1), the floor. Benjamini and Hochberg label k of
m neurons if their p-values are at most level * k / m. So labels of the k neurons at the floor need
n + 1 >= m / (level * k): the more neurons are discoveries, the fewer relabellings each of them
takes (Sandve et al. 2011), and together they take m / level, whatever their number.

Each round has relabellings of its own. Their number follows from the rounds before, and so does not
depend on the p-values that they give.
"""

import math
from dataclasses import dataclass

import numpy as np

from stages.heuristics.settings import PermutationTests

# Multiples of the relabellings that put the floor exactly at the threshold.
ENOUGH = 1.5  # a round with this multiple is the last
PLANNED = 2.0  # the multiple of the next round; some neurons are at the floor by chance
# Largest multiple of the last round's relabellings. If few neurons are at the floor, most are there
# by chance, and the plan is uncertain.
GROWTH = 8


@dataclass(frozen=True, eq=False)
class Standing:
    """The neurons of an operator after a round.

    tests: number of neurons; draws: relabellings of the round; exceedances: (undecided neurons,)
    how many of these relabellings reach the neuron's best score.
    """

    tests: int
    draws: int
    exceedances: np.ndarray


def next_draws(standing: Standing, settings: PermutationTests, level: float) -> int | None:
    """Return how many relabellings the next round has; None if no round can add labels."""
    tests, draws = standing.tests, standing.draws
    undecided, at_floor = len(standing.exceedances), int((standing.exceedances == 0).sum())
    if not undecided or _suffices(at_floor, tests, draws, level, ENOUGH):
        return None
    if not _suffices(undecided, tests, settings.most_draws, level, 1):
        return None  # not even most_draws would be enough
    by_chance = (tests - at_floor) / (draws + 1)
    wanted = PLANNED * tests / (level * max(1, at_floor - by_chance))
    planned = min(math.ceil(wanted), GROWTH * draws, settings.most_draws)
    return planned if planned > draws else None


def _suffices(neurons: int, tests: int, draws: int, level: float, times: float) -> bool:
    """Check whether there are `times` the draws with which these neurons could have labels."""
    return level * neurons * (draws + 1) >= times * tests
