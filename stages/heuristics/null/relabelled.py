"""The null of heuristics: what a neuron scores when the operands are relabelled at random.

Rows and columns of its square of activations are permuted, the cells, their answers and the value logits are not. The map keeps
what it owes to op1, to op2 and to both, and loses what it owes to the numbers that they stand for. Cells are always the
valid ones; the values put there come from the whole square, which the store holds. All neurons of an operator are given the same
relabellings; number 0 changes nothing and counts as one of them, so that p-values are exact (Phipson & Smyth 2010). Ties are
broken at random, or count as they would on average: broken by op1 they would look like heuristics about op1, with the true labels
more than with others.
"""

from dataclasses import dataclass

import numpy as np

from stages.heuristics.null.answers import answer_hits
from stages.heuristics.null.operands import operand_hits
from stages.lib.core.compiled import compiled
from stages.lib.heuristics.answer_sets import AnswerSets
from stages.lib.heuristics.scores import descending
from stages.lib.heuristics.square import Square

Relabellings = tuple[np.ndarray, np.ndarray]


def permutations(square: Square, draws: range, *seed: int) -> Relabellings:
    """Return some relabellings of the operands that cells have, by their numbers; number 0 changes nothing.

    A relabelling depends on its number and the seed alone, so that any of them can be made without the others. Returns rows
    (draws, op1) and columns (draws, op2), uint32.
    """
    used = np.unique(square.op1), np.unique(square.op2)
    labels = [np.tile(np.arange(length, dtype=np.uint32), (len(draws), 1)) for length in square.shape]
    for place, draw in enumerate(draws):
        random = np.random.default_rng([*seed, draw, *square.operator.encode()])
        for label, operands in zip(labels, used, strict=True):
            if draw:
                label[place, operands] = random.permutation(operands)
    return labels[0], labels[1]


@dataclass(frozen=True, eq=False)
class Null:
    """One neuron's scores above chance under relabellings; the first is the neuron itself.

    corrected: (draws, 2 sides, heuristics) float32, operands' heuristics before answers', then the set of results at the top if the
    operator has one; correlations: (draws,) of activation and value logit of the cell's answer.
    """

    corrected: np.ndarray
    correlations: np.ndarray

    def __add__(self, other: "Null") -> "Null":
        return Null(np.concatenate([self.corrected, other.corrected]), np.concatenate([self.correlations, other.correlations]))


class RelabelledNeuron:
    """One neuron, to be relabelled. activations: (op1, op2) of the square; logits: (number,); sets: whether and how sets are found."""

    def __init__(self, square: Square, activations: np.ndarray, logits: np.ndarray, sets: AnswerSets):
        self.square, self.activations, self.logits, self.sets = square, activations, logits, sets
        self.order = square.places[descending(activations.ravel()[square.places])]  # ties in an order that knows no operand
        ranks = np.zeros(activations.size, np.uint32)
        ranks[self.order] = np.arange(len(self.order))
        self.ranks = ranks.reshape(activations.shape)

    def null(self, labels: Relabellings) -> Null:
        """Its scores under these relabellings."""
        groups = self.square.operands, self.square.answers
        found = answer_hits(self.square, self.activations, self.logits, labels, self.sets)
        hits = operand_hits(self.square, self.ranks, self.order, labels), found.hits
        split, end = len(groups[0].names), len(groups[0].names) + len(groups[1].names)
        corrected = np.zeros((len(labels[0]), 2, end + (self.square.operator in self.sets.operators)), np.float32)
        for group, hit, part in zip(groups, hits, (slice(split), slice(split, end)), strict=True):
            _above_chance(hit, group.sets.k, group.share, corrected[:, :, part])
        corrected[:, 0, end:] = found.set_scores[:, None]
        return Null(corrected, found.correlations)


@compiled()
def _above_chance(hits, k, share, corrected):
    """Fills scores above chance (draws, 2, sets)."""
    for draw in range(len(hits)):
        for side in range(2):
            for number in range(len(k)):
                corrected[draw, side, number] = (hits[draw, side, number] / k[number] - share[number]) / (1 - share[number])
