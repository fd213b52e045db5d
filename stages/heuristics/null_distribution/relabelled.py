"""Score a neuron again with its operands relabelled at random: the null of the permutation tests.

A relabelling permutes the rows and columns of the neuron's activations over the operand grid.
Cells, their answers and the value logits stay. So the map keeps what depends on op1, on op2 and on
both, and loses what depends on the numbers that they stand for.

Only cells with an answer are scored, but their new activations may come from any prompt of the
grid. All neurons of an operator get the same relabellings. Number 0 changes nothing and counts as
one of them, which makes p-values exact (Phipson & Smyth 2010). Ties are broken at random, or count
as they would on average. If ties were in the order of op1, they would look like heuristics of op1,
and more often so with the true labels.
"""

from dataclasses import dataclass

import numpy as np

from stages.heuristics.null_distribution.answers import answer_hits
from stages.heuristics.null_distribution.operands import operand_hits
from stages.lib.core.compiled import compiled
from stages.lib.heuristics.answer_sets import AnswerSets
from stages.lib.heuristics.grid import OperandGrid
from stages.lib.heuristics.scores import descending

Relabellings = tuple[np.ndarray, np.ndarray]


def permutations(grid: OperandGrid, draws: range, *seed: int) -> Relabellings:
    """Return relabellings of the operands that cells have, by their numbers.

    A relabelling depends on its number and the seed alone, so any of them can be made without the
    others. Number 0 changes nothing. Returns rows (draws, op1) and columns (draws, op2), uint32.
    """
    used = np.unique(grid.op1), np.unique(grid.op2)
    rows, columns = (
        np.tile(np.arange(size, dtype=np.uint32), (len(draws), 1)) for size in grid.shape
    )
    for index, draw in enumerate(draws):
        random = np.random.default_rng([*seed, draw, *grid.operator.encode()])
        for label, operands in zip((rows, columns), used, strict=True):
            if draw:
                label[index, operands] = random.permutation(operands)
    return rows, columns


@dataclass(frozen=True, eq=False)
class Null:
    """One neuron's scores under relabellings, the first of which is number 0.

    chance_corrected: (draws, 2 sides, heuristics) float32, of the operands' heuristics, then the
    result's, then, if the operator has sets of results, the set found on each map, at the top.
    correlations: (draws,) of activation and value logit of the cell's answer.
    """

    chance_corrected: np.ndarray
    correlations: np.ndarray

    def __add__(self, other: "Null") -> "Null":
        return Null(
            np.concatenate([self.chance_corrected, other.chance_corrected]),
            np.concatenate([self.correlations, other.correlations]),
        )


class RelabelledNeuron:
    """A neuron whose operands can be relabelled."""

    def __init__(
        self, grid: OperandGrid, activations: np.ndarray, logits: np.ndarray, sets: AnswerSets
    ):
        """Rank the activations.

        activations: (op1, op2) of the operand grid; logits: (results,) value logits; sets: how sets
        of results are found.
        """
        self.grid, self.activations, self.logits = grid, activations, logits
        self.sets = sets
        shuffled = grid.places  # ties keep this order, which does not depend on operands
        self.order = shuffled[descending(activations.ravel()[shuffled])]
        ranks = np.zeros(activations.size, np.uint32)
        ranks[self.order] = np.arange(len(self.order))
        self.ranks = ranks.reshape(activations.shape)

    def null(self, labels: Relabellings) -> Null:
        """Return the neuron's scores under these relabellings."""
        grid = self.grid
        operands, answers = grid.operands, grid.answers
        of_operands = operand_hits(grid, self.ranks, self.order, labels)
        of_answers = answer_hits(grid, self.activations, self.logits, labels, self.sets)
        split, end = len(operands.names), len(operands.names) + len(answers.names)
        whole = end + (grid.operator in self.sets.operators)
        chance_corrected = np.zeros((len(labels[0]), 2, whole), np.float32)
        _correct(of_operands, operands.sets.k, operands.share, chance_corrected[:, :, :split])
        _correct(of_answers.hits, answers.sets.k, answers.share, chance_corrected[:, :, split:end])
        chance_corrected[:, 0, end:] = of_answers.set_scores[:, None]
        return Null(chance_corrected, of_answers.correlations)


@compiled()
def _correct(hits, k, share, chance_corrected):
    """Fill the chance-corrected scores (draws, 2, heuristics) of these hits."""
    for draw in range(len(hits)):
        for side in range(2):
            for number in range(len(k)):
                score, chance = hits[draw, side, number] / k[number], share[number]
                chance_corrected[draw, side, number] = (score - chance) / (1 - chance)
