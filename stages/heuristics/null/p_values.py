"""What relabelling says of one neuron: how surprising its scores are.

Heuristics differ in what they score by chance and in how much that varies, so scores are compared as z: what a score has above
its mean under relabelling, in units that the heuristic's size gives (see `units`). The largest z over all heuristics and both
sides, draw by draw, is the null of whatever heuristic fits best: a p-value from it (p_family) has paid for the search through
the catalogue (Westfall & Young 1993, single step).
"""

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


@dataclass(frozen=True, eq=False)
class Judged:
    """candidates: columns of the table nulls; bests: (draws, GROUPS, MEASURES) of the first draws; naming: correlation, p-value."""

    candidates: dict[str, np.ndarray]
    bests: np.ndarray
    naming: tuple[float, float]


def judged(square: Square, activations: np.ndarray, logits: np.ndarray, labels: Relabellings, settings: Nulls, sets: AnswerSets) -> Judged:
    """Judges one neuron. activations: (op1, op2) of the square; logits: (number,); labels: relabellings, see permutations."""
    neuron, looks = RelabelledNeuron(square, activations, logits, sets), [look.draws + 1 for look in settings.looks]
    found = neuron.null(_between(labels, 0, looks[0]))
    best = bests(square, found)
    chosen = candidates(square, found, settings.smallest_corrected)
    for look, stop in zip(settings.looks, [*looks[1:], None], strict=True):
        if len(chosen["z"]) == 0 or chosen["p_family"].min() > look.hopeless or len(found.correlations) == len(labels[0]):
            break
        found += neuron.null(_between(labels, len(found.correlations), stop))
        chosen = candidates(square, found, settings.smallest_corrected)
    names = [*square.operands.names, *square.answers.names]
    if found.corrected.shape[2] > len(names):
        of_answers = find(activations.ravel()[square.cells] * logits[square.results], square.results, sets)
        names.append(of_answers.name if of_answers else "")
    chosen["heuristic"] = np.array(names, object)[chosen.pop("number")]
    as_large = found.correlations >= found.correlations[0]
    return Judged(chosen, best, (float(found.correlations[0]), float(as_large.mean())))


def _between(labels: Relabellings, first: int, stop: int | None) -> Relabellings:
    return labels[0][first:stop], labels[1][first:stop]


def candidates(square: Square, found: Null, smallest: float) -> dict[str, np.ndarray]:
    """The heuristics clearly above chance, by number, side and what relabelling says of them."""
    scores = found.corrected
    mean = _mean(scores)
    unit = units(square)[: scores.shape[2]]
    largest = _largest(scores, mean, unit)
    side, number = np.nonzero(scores[0] >= smallest)
    z = ((scores[0] - mean) / unit)[side, number]
    return {
        "number": number, "side": np.array(["top", "bottom"], object)[side], "corrected": scores[0, side, number],
        "null_corrected": mean[side, number],
        "null_deviation": scores[:, side, number].std(0, dtype=np.float64), "z": z,
        "p_value": (scores[:, side, number] >= scores[0, side, number]).mean(0),
        "p_family": (largest[:, None] >= z - 1e-9).mean(0), "draws": np.full(len(z), len(scores) - 1),
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
    parts = [(raw[:, :, :split], found.corrected[:, :, :split]), (raw[:, :, split:], found.corrected[:, :, split:])]
    best = np.array([[scores.max((1, 2), initial=-1) for scores in part] for part in parts])  # (groups, measures, draws)
    return np.concatenate([best, best.max(0, keepdims=True)]).transpose(2, 0, 1)
