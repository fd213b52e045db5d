"""The null of heuristics: what a neuron scores when the operands are relabelled at random.

Rows and columns of its square of activations are permuted, the cells, their answers and the value logits are not. The map keeps
what it owes to op1, to op2 and to both, and loses what it owes to the numbers that they stand for. Cells are always the
valid ones; the values put there come from the whole square, which the store holds. All neurons of an operator are given the same
relabellings; number 0 changes nothing and counts as one of them, so that p-values are exact (Phipson & Smyth 2010). Ties are
broken at random: broken by op1 they would look like heuristics about op1, with the true labels more than with others.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from stages.lib.heuristics.answer_sets import AnswerSets
from stages.lib.heuristics.scores import BUCKETS, DIGIT, answer_set, descending, falling, hits, running_total
from stages.lib.heuristics.square import Square

Relabellings = tuple[np.ndarray, np.ndarray]


def permutations(square: Square, draws: int, seed: int) -> Relabellings:
    """Relabellings 0..draws of the operands that cells have: rows (draws + 1, op1), columns (draws + 1, op2) int32; 0 is none."""
    random = np.random.default_rng([seed, *square.operator.encode()])
    drawn = []
    for length, used in zip(square.shape, (np.unique(square.op1), np.unique(square.op2)), strict=True):
        labels = np.tile(np.arange(length, dtype=np.int32), (draws + 1, 1))
        for draw in range(1, draws + 1):
            labels[draw, used] = random.permutation(used)
        drawn.append(labels)
    return drawn[0], drawn[1]


@dataclass(frozen=True, eq=False)
class Null:
    """One neuron's scores above chance under relabellings; the first is the neuron itself.

    corrected: (draws, 2 sides, heuristics), operands' heuristics before answers', then the set of results at the top if the operator
    has one; correlations: (draws,) of activation and value logit of the cell's answer.
    """

    corrected: np.ndarray
    correlations: np.ndarray

    def __add__(self, other: "Null") -> "Null":
        return Null(np.concatenate([self.corrected, other.corrected]), np.concatenate([self.correlations, other.correlations]))


def null(square: Square, activations: np.ndarray, logits: np.ndarray, rows: np.ndarray, columns: np.ndarray, sets: AnswerSets) -> Null:
    """The null of a neuron, for these relabellings. activations: (op1, op2); logits: (number,)."""
    operands, answers = square.operands, square.answers
    found = [np.zeros((len(rows), 2, len(group.names)), np.int32) for group in (operands, answers)]
    set_scores, correlations = np.zeros(len(rows)), np.zeros(len(rows))
    prompts = np.random.default_rng(0).permutation(activations.size).astype(np.int32)
    ranks = np.empty(activations.size, np.int32)
    ranks[prompts[descending(activations.ravel()[prompts])]] = np.arange(activations.size)
    ranked = (activations, ranks.reshape(activations.shape))
    numbers = answers.sets._replace(values=np.arange(answers.sets.largest + 1, dtype=np.int32)[None])
    with_sets = square.operator in sets.operators
    limits = (min(sets.first_cells, len(square.cells)), sets.results if with_sets else 0, sets.covers)
    cells = (square.op1, square.op2, square.results)
    relabelled(ranked, logits[square.results], cells, rows, columns, operands.sets, numbers, limits, tuple(found), set_scores, correlations)
    corrected = [(hit / group.sets.k - group.share) / (1 - group.share) for hit, group in zip(found, (operands, answers), strict=True)]
    if with_sets:
        corrected.append(np.stack([set_scores, np.zeros(len(rows))], axis=1)[:, :, None])
    return Null(np.concatenate(corrected, axis=2).astype(np.float32), correlations)


@njit(nogil=True, cache=True)
def relabelled(ranked, weights, cells, rows, columns, operands, answers, limits, found, set_scores, correlations):
    """Fills found[0] and found[1], hits (draws, 2, sets) of operands and answers, set_scores and correlations (draws,).

    ranked: activations and their ranks (op1, op2), 0 for the largest; weights: (cells,) value logits of the answers.
    """
    activations, ranks = ranked
    op1, op2, results = cells
    n, sizes, bits = len(op1), np.bincount(results), bits_of(results.max())
    order, values, places = np.empty(n, np.int32), np.empty(n, np.float32), shuffled(n)
    keys, spare = np.empty(n, np.uint32), np.empty(n, np.uint32)
    for draw in range(len(rows)):
        row, column = rows[draw], columns[draw]
        ranked_cells = np.full(ranks.size, -1, np.int32)
        for cell in range(n):
            values[cell] = activations[row[op1[cell]], column[op2[cell]]]
            ranked_cells[ranks[row[op1[cell]], column[op2[cell]]]] = cell
        place = 0
        for cell in ranked_cells:
            if cell >= 0:
                order[place] = cell
                place += 1
        hits(order, operands, found[0][draw])
        correlations[draw] = correlation(values, weights)
        for cell in range(n):
            values[cell] *= weights[cell]
        results_in_order(values, results, bits, places, keys, spare)
        hits(keys, answers, found[1][draw])
        if limits[1]:
            set_scores[draw] = set_score(keys, sizes, limits)


@njit(nogil=True, cache=True)
def shuffled(n):
    """0..n-1 in a random order, always the same."""
    np.random.seed(0)
    return np.random.permutation(n).astype(np.int32)


@njit(nogil=True, cache=True)
def bits_of(number):
    """Bits that numbers up to this one take, at least 10: what a key of 32 bits has beside two digits to sort by."""
    bits = 10
    while number >> bits:
        bits += 1
    return bits


@njit(nogil=True, cache=True)
def results_in_order(values, results, bits, places, keys, spare):
    """Fills `keys` with the results of the cells, in order of their values (cells,), largest first, ties by place.

    A key holds a value's upper bits and the result below, so that one array is sorted instead of two. With 10 bits for the
    result, values are told apart to 14 significant bits; stored activations have 11.
    """
    as_bits = values.view(np.int32)
    low, high = np.zeros(BUCKETS, np.int32), np.zeros(BUCKETS, np.int32)
    below, first, second = np.uint32((1 << bits) - 1), np.uint32(bits), np.uint32(bits + DIGIT)
    for cell in range(len(values)):
        key = (falling(as_bits[cell]) & ~below) | np.uint32(results[cell])
        keys[places[cell]] = key
        low[(key >> first) & np.uint32(BUCKETS - 1)] += 1
        high[key >> second] += 1
    running_total(low)
    running_total(high)
    for i in range(len(keys)):
        bucket = (keys[i] >> first) & np.uint32(BUCKETS - 1)
        spare[low[bucket]] = keys[i]
        low[bucket] += 1
    for i in range(len(keys)):
        bucket = spare[i] >> second
        keys[high[bucket]] = spare[i] & below
        high[bucket] += 1


@njit(nogil=True, cache=True)
def set_score(ordered, sizes, limits):
    """Score above chance of the set of results that this order's first cells have."""
    first, most, covers = limits
    chosen = np.zeros(most, np.int64)
    number, score = answer_set(ordered, sizes, first, most, covers, chosen)
    share = sizes[chosen[:number]].sum() / len(ordered)
    return (score - share) / (1 - share) if share < 1 else 0.0


@njit(nogil=True, cache=True)
def correlation(first, second):
    """Pearson's correlation of two arrays, 0 where one of them is constant."""
    n, a, b, aa, bb, ab = len(first), 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(n):
        x, y = np.float64(first[i]), np.float64(second[i])
        a += x
        b += y
        aa += x * x
        bb += y * y
        ab += x * y
    scale = (aa - a * a / n) * (bb - b * b / n)
    return (ab - a * b / n) / np.sqrt(scale) if scale > 1e-12 * aa * bb else 0.0
