"""Judge one neuron by relabellings: how surprising are its scores?

Heuristics differ in the score that chance gives and in how much it varies. So scores are compared
as z: the score minus its mean under relabelling, in units that depend on the heuristic's size (see
`units`). The largest z over all heuristics and both sides, draw by draw, is the null of the
heuristic that fits best. A p-value from it (p_family) accounts for the search through the catalogue
(Westfall & Young 1993, single step).

A neuron gets no more draws once its best z is reached `exceedances` times (Besag & Clifford 1991).
Looks are after 20, 40, 80, ... draws, and the p-value is that of the last look. It is valid: let n
be the draws of the first look at which (exceedances + 1) / (n + 1) <= t. A neuron that stopped
earlier has a p-value above t. So a final p-value of at most t requires one of at most t after n
draws, whose probability is at most t.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from stages.heuristics.null_distribution.relabelled import Null, RelabelledNeuron, Relabellings
from stages.heuristics.settings import PermutationTests
from stages.lib.core.compiled import compiled
from stages.lib.heuristics.answer_sets import AnswerSets, find
from stages.lib.heuristics.grid import OperandGrid
from stages.lib.heuristics.scores import Sets

GROUPS = ("operands", "result", "any")
MEASURES = ("raw", "chance_corrected")
UNIT_OF_ANSWER_SETS = 0.1  # a constant, as their size differs from draw to draw
KEPT = 1000  # draws whose scores are in memory at once; means are taken over these


@dataclass(frozen=True, eq=False)
class Judged:
    """What relabellings tell about one neuron.

    candidates: columns of the table permutation_tests.
    bests: (draws, GROUPS, MEASURES) best scores under the first draws.
    naming: correlation of activation and value logit, and its p-value.
    """

    candidates: dict[str, np.ndarray]
    bests: np.ndarray
    naming: tuple[float, float]


def judged(
    grid: OperandGrid,
    activations: np.ndarray,
    logits: np.ndarray,
    relabellings: Iterable[Relabellings],
    settings: PermutationTests,
    sets: AnswerSets,
) -> Judged:
    """Judge one neuron by relabellings, until they reach its best score too often.

    activations: (op1, op2) of the operand grid; logits: (results,); relabellings: in steps (see
    steps_to).
    """
    neuron, steps = RelabelledNeuron(grid, activations, logits, sets), iter(relabellings)
    null = neuron.null(next(steps))
    best = bests(grid, null)
    tally = BestTally(grid, null, settings.smallest_chance_corrected)
    while tally.exceedances < settings.exceedances:
        step = next(steps, None)
        if step is None:
            break
        more = neuron.null(step)
        if tally.labellings + len(more.correlations) > KEPT + 1:
            tally.add(more)
        else:
            null += more
            tally = BestTally(grid, null, settings.smallest_chance_corrected)
    names = [*grid.operands.names, *grid.answers.names]
    if null.chance_corrected.shape[2] > len(names):
        contributions = activations.ravel()[grid.cells] * logits[grid.results]
        answer_set = find(contributions, grid.results, sets)
        names.append(answer_set.name if answer_set else "")
    heuristics = {"heuristic": np.array(names, object)[tally.number]}
    as_large = null.correlations >= null.correlations[0]
    naming = float(null.correlations[0]), float(as_large.mean())
    return Judged(heuristics | tally.columns(), best, naming)


def steps_to(draws: int, first: int) -> Iterator[range]:
    """Yield the numbers of relabellings in steps, which double their count; each has at most KEPT.

    The first step has the true labels, number 0, and `first` relabellings.
    """
    yield range(min(first, draws) + 1)
    known = first
    while known < draws:
        following = min(2 * known, known + KEPT, draws)
        yield range(known + 1, following + 1)
        known = following


class BestTally:
    """Heuristics clearly above chance on one neuron, and how many labellings reach their scores.

    The true labels count as one labelling.
    """

    def __init__(self, grid: OperandGrid, null: Null, smallest: float):
        """Select the candidates, and measure the mean score of each.

        null: the first labellings; smallest: chance-corrected score from which on a heuristic is a
        candidate.
        """
        scores = null.chance_corrected
        self.mean, self.unit = _mean(scores), units(grid)[: scores.shape[2]]
        self.side, self.number = np.nonzero(scores[0] >= smallest)  # each (candidates,)
        self.chance_corrected = scores[0, self.side, self.number]
        self.z = ((scores[0] - self.mean) / self.unit)[self.side, self.number]
        self.deviation = scores[:, self.side, self.number].std(0, dtype=np.float64)
        self.labellings, self.reached = 0, 0
        self.reached_by_any = np.zeros(len(self.z), np.int64)
        self.add(null)

    def add(self, null: Null) -> None:
        """Count more labellings, whose scores do not enter the means."""
        scores = null.chance_corrected
        self.labellings += len(scores)
        reached = scores[:, self.side, self.number] >= self.chance_corrected
        self.reached = self.reached + reached.sum(0)
        largest = _largest(scores, self.mean, self.unit)
        self.reached_by_any += (largest[:, None] >= self.z - 1e-9).sum(0)

    @property
    def exceedances(self) -> float:
        """Return how many relabellings reach the neuron's best z; infinite without a candidate."""
        if not len(self.z):
            return np.inf
        return float(self.reached_by_any.min()) - 1

    def columns(self) -> dict[str, np.ndarray]:
        """Return the columns of the table permutation_tests, except for the heuristic's name."""
        return {
            "side": np.array(["top", "bottom"], object)[self.side],
            "chance_corrected": self.chance_corrected,
            "null_mean": self.mean[self.side, self.number],
            "null_std": self.deviation,
            "z": self.z,
            "p_value": self.reached / self.labellings,
            "p_family": self.reached_by_any / self.labellings,
            "draws": np.full(len(self.z), self.labellings - 1),
        }


@compiled()
def _mean(scores):
    """Average over draws: (2, heuristics) float64."""
    total = np.zeros(scores.shape[1:])
    for draw in range(len(scores)):
        for side in range(2):
            for number in range(scores.shape[2]):
                total[side, number] += scores[draw, side, number]
    return total / len(scores)


@compiled()
def _largest(scores, mean, unit):
    """Return the largest z of each draw (draws,)."""
    largest = np.full(len(scores), -np.inf)
    for draw in range(len(scores)):
        for side in range(2):
            for number in range(scores.shape[2]):
                above = scores[draw, side, number] - mean[side, number]
                largest[draw] = max(largest[draw], above / unit[number])
    return largest


@lru_cache(maxsize=8)
def units(grid: OperandGrid) -> np.ndarray:
    """Return the units of z: of operands' heuristics, the result's, and a set of results."""
    operands = deviations(grid.operands.sets, grid.operands.share)
    answers = deviations(grid.answers.sets, grid.answers.share)
    return np.concatenate([operands, answers, [UNIT_OF_ANSWER_SETS]])


def deviations(sets: Sets, share: np.ndarray) -> np.ndarray:
    """Return the standard deviation (sets,) of chance-corrected scores in a simple model of chance.

    In this model, values come first at random: all cells of a value or none. A set of s equal
    values with a share p of all cells then scores p on average, with variance p (1 - p) / s.
    Values of unequal weight count as (sum of cells)^2 / (sum of squared cells) equal ones. No
    relabelled operand varies more. Unlike a deviation measured on the draws, this one does not
    depend on them.
    """
    squares = [np.bincount(values).astype(np.float64) ** 2 for values in sets.values]
    squares.append(np.ones(sets.values.shape[1]))  # each cell, for sets of cells
    weights = []
    for quantity, (start, end) in zip(sets.quantity, pairwise(sets.starts), strict=True):
        weights.append(squares[quantity][sets.members[start:end]].sum())
    return np.sqrt(share / (1 - share) * np.array(weights)) / sets.k


def bests(grid: OperandGrid, null: Null) -> np.ndarray:
    """Return the best score of any heuristic, (draws, GROUPS, MEASURES).

    A set of results has no raw score of its own.
    """
    share = np.concatenate([grid.operands.share, grid.answers.share]).astype(np.float32)
    split, end = len(grid.operands.names), len(share)
    chance_corrected = null.chance_corrected
    raw = chance_corrected[:, :, :end] * (1 - share) + share
    operands = [_best(raw[:, :, :split]), _best(chance_corrected[:, :, :split])]
    answers = [_best(raw[:, :, split:]), _best(chance_corrected[:, :, split:])]
    best = np.array([operands, answers])  # (groups, measures, draws)
    return np.concatenate([best, best.max(0, keepdims=True)]).transpose(2, 0, 1)


def _best(scores: np.ndarray) -> np.ndarray:
    return scores.max((1, 2), initial=-1)
