"""What relabelling says of one neuron: how surprising its scores are.

Heuristics differ in what they score by chance and in how much that varies, so scores are compared as z: what a score has above
its mean under relabelling, in units that the heuristic's size gives (see `units`). The largest z over all heuristics and both
sides, draw by draw, is the null of whatever heuristic fits best: a p-value from it (p_family) has paid for the search through
the catalogue (Westfall & Young 1993, single step).

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

from stages.heuristics.null.relabelled import Null, RelabelledNeuron, Relabellings
from stages.heuristics.settings import Nulls
from stages.lib.core.compiled import compiled
from stages.lib.heuristics.answer_sets import AnswerSets, find
from stages.lib.heuristics.scores import Sets
from stages.lib.heuristics.square import Square

GROUPS = ("operands", "result", "any")
MEASURES = ("raw", "corrected")
UNIT_OF_ANSWER_SETS = 0.1  # their size differs from draw to draw
KEPT = 1000  # draws whose scores are in memory at once, and whose means are taken


@dataclass(frozen=True, eq=False)
class Judged:
    """candidates: columns of the table nulls; bests: (draws, GROUPS, MEASURES) of the first draws; naming: correlation, p-value."""

    candidates: dict[str, np.ndarray]
    bests: np.ndarray
    naming: tuple[float, float]


def judged(
    square: Square,
    activations: np.ndarray,
    logits: np.ndarray,
    relabellings: Iterable[Relabellings],
    settings: Nulls,
    sets: AnswerSets,
) -> Judged:
    """Judge one neuron by relabellings, until its best score is reached too often.

    activations: (op1, op2) of the square; logits: (number,); relabellings: in steps (see steps_to).
    """
    neuron, steps = RelabelledNeuron(square, activations, logits, sets), iter(relabellings)
    null = neuron.null(next(steps))
    best = bests(square, null)
    tally = BestTally(square, null, settings.smallest_corrected)
    while tally.exceedances < settings.exceedances and (step := next(steps, None)):
        more = neuron.null(step)
        if tally.labellings + len(more.correlations) > KEPT + 1:
            tally.add(more)
        else:
            null += more
            tally = BestTally(square, null, settings.smallest_corrected)
    names = [*square.operands.names, *square.answers.names]
    if null.corrected.shape[2] > len(names):
        of_answers = find(activations.ravel()[square.cells] * logits[square.results], square.results, sets)
        names.append(of_answers.name if of_answers else "")
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

    The true labels count as one. null: the first labellings, from whose mean z is measured; side,
    number: (candidates,) which scores of `null` the candidates are.
    """

    def __init__(self, square: Square, null: Null, smallest: float):
        scores = null.corrected
        self.mean, self.unit = _mean(scores), units(square)[: scores.shape[2]]
        self.side, self.number = np.nonzero(scores[0] >= smallest)
        self.corrected = scores[0, self.side, self.number]
        self.z = ((scores[0] - self.mean) / self.unit)[self.side, self.number]
        self.deviation = scores[:, self.side, self.number].std(0, dtype=np.float64)
        self.labellings, self.reached, self.reached_by_any = 0, 0, np.zeros(len(self.z), np.int64)
        self.add(null)

    def add(self, null: Null) -> None:
        """Count more labellings, whose scores do not enter the means."""
        scores = null.corrected
        self.labellings += len(scores)
        self.reached = self.reached + (scores[:, self.side, self.number] >= self.corrected).sum(0)
        largest = _largest(scores, self.mean, self.unit)
        self.reached_by_any += (largest[:, None] >= self.z - 1e-9).sum(0)

    @property
    def exceedances(self) -> float:
        """How many relabellings reach the neuron's best z; infinite without a candidate."""
        return float(self.reached_by_any.min()) - 1 if len(self.z) else np.inf

    def columns(self) -> dict[str, np.ndarray]:
        """The columns of the table nulls, but for the heuristic's name."""
        return {
            "side": np.array(["top", "bottom"], object)[self.side], "corrected": self.corrected,
            "null_corrected": self.mean[self.side, self.number],
            "null_deviation": self.deviation,
            "z": self.z,
            "p_value": self.reached / self.labellings,
            "p_family": self.reached_by_any / self.labellings,
            "draws": np.full(len(self.z), self.labellings - 1),
        }  # fmt: skip


@compiled()
def _mean(scores):
    """Mean over draws, (2, heuristics) float64."""
    total = np.zeros(scores.shape[1:])
    for draw in range(len(scores)):
        for side in range(2):
            for number in range(scores.shape[2]):
                total[side, number] += scores[draw, side, number]
    return total / len(scores)


@compiled()
def _largest(scores, mean, unit):
    """The largest z of each draw (draws,)."""
    largest = np.full(len(scores), -np.inf)
    for draw in range(len(scores)):
        for side in range(2):
            for number in range(scores.shape[2]):
                largest[draw] = max(largest[draw], (scores[draw, side, number] - mean[side, number]) / unit[number])
    return largest


@lru_cache(maxsize=8)
def units(square: Square) -> np.ndarray:
    """What z is measured in, of operands' heuristics, answers' and a set of results."""
    groups = square.operands, square.answers
    return np.concatenate([*(deviations(group.sets, group.share) for group in groups), [UNIT_OF_ANSWER_SETS]])


def deviations(of: Sets, share: np.ndarray) -> np.ndarray:
    """The deviation (sets,) of a score above chance if values came first, all cells of a value or none, at random.

    A set of s equal values, a share p of all cells, then scores p on average with variance p (1 - p) / s. Values of unequal
    weight count as (sum of cells)^2 / (sum of squared cells) equal ones. No relabelled operand varies more, and unlike a
    deviation that is measured on the draws, this one does not depend on them.
    """
    squares = [np.bincount(values).astype(np.float64) ** 2 for values in of.values] + [np.ones(of.values.shape[1])]
    parts = [slice(start, end) for start, end in pairwise(of.starts)]
    weights = np.array([squares[quantity][of.members[part]].sum() for quantity, part in zip(of.quantity, parts, strict=True)])
    return np.sqrt(share / (1 - share) * weights) / of.k


def bests(square: Square, found: Null) -> np.ndarray:
    """The best score of any heuristic, (draws, GROUPS, MEASURES). A set of results has no raw score of its own."""
    split, end = len(square.operands.names), len(square.operands.names) + len(square.answers.names)
    share = np.concatenate([square.operands.share, square.answers.share]).astype(np.float32)
    raw = found.corrected[:, :, :end] * (1 - share) + share
    parts = [
        (raw[:, :, :split], found.corrected[:, :, :split]),
        (raw[:, :, split:], found.corrected[:, :, split:]),
    ]
    best = np.array([[scores.max((1, 2), initial=-1) for scores in part] for part in parts])  # (groups, measures, draws)
    return np.concatenate([best, best.max(0, keepdims=True)]).transpose(2, 0, 1)
