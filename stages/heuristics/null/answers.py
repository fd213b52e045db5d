"""Hits of answers' heuristics under relabellings: of the map activation · value logit of the cell's answer, another one in every draw."""

from typing import NamedTuple

import numpy as np
from numba import njit

from stages.heuristics.null.buckets import count_keys, cut, settle, spread, take, weigh, workspace
from stages.lib.heuristics.answer_sets import AnswerSets, covering
from stages.lib.heuristics.scores import hits_of_values
from stages.lib.heuristics.square import Square


class Answers(NamedTuple):
    """The answers of a square's cells. results: (cells,) uint32; sizes: (results,) how many cells have each.

    first, most, covers: as in AnswerSets; most is 0 where sets of results are not looked for.
    """

    results: np.ndarray
    sizes: np.ndarray
    first: int
    most: int
    covers: float


class AnswerHits(NamedTuple):
    """hits: (draws, 2 sides, sets) int32; set_scores: (draws,) above chance; correlations: (draws,) of activations and logits."""

    hits: np.ndarray
    set_scores: np.ndarray
    correlations: np.ndarray


def answer_hits(
    square: Square, activations: np.ndarray, logits: np.ndarray, labels: tuple[np.ndarray, np.ndarray], sets: AnswerSets
) -> AnswerHits:
    """activations: (op1, op2); logits: (number,); labels: rows (draws, op1) and columns (draws, op2), see permutations."""
    of, n, draws = square.answers.sets, len(square.cells), len(labels[0])
    found = AnswerHits(np.zeros((draws, 2, len(of.k)), np.int32), np.zeros(draws), np.zeros(draws))
    with_sets = square.operator in sets.operators
    answers = Answers(
        square.results.astype(np.uint32), np.bincount(square.results), min(sets.first_cells, n), sets.results * with_sets, sets.covers
    )
    stops = [of.k, n - of.k, np.full(int(with_sets and answers.first < n), answers.first)]
    space = workspace(n, answers.sizes.size - 1, np.unique(np.concatenate(stops)))
    weights = logits[square.results]
    largest = np.abs(activations).max() * np.abs(weights).max()
    weights = np.ldexp(weights, -np.frexp(largest)[1])  # contributions are then at most 1
    _relabelled((activations, weights, square.stretches), answers, of, labels, space, found)
    return found


@njit(nogil=True, cache=True)
def _relabelled(neuron, answers, of, labels, space, found):
    """Fills found. neuron: activations (op1, op2), weights (cells,) and stretches."""
    activations, weights, stretches = neuron
    n, values = len(weights), space.keys.view(np.float32)
    exact = weights.astype(np.float64)
    weight, square_weights = exact.sum(), (exact * exact).sum()
    np.random.seed(0)
    for draw in range(len(found.hits)):
        take(activations, stretches, (labels[0][draw], labels[1][draw]), values)
        total, squares, products = weigh(values, weights)
        scale = (squares - total * total / n) * (square_weights - weight * weight / n)
        if scale > 1e-12 * squares * square_weights:
            found.correlations[draw] = (products - total * weight / n) / np.sqrt(scale)
        count_keys(space)
        cut(space)
        spread(answers.results, space)
        settle(space)
        hits_of_values(space.items, of, 0, found.hits[draw])
        if answers.most:
            found.set_scores[draw] = _set_score(answers, space)


@njit(nogil=True, cache=True)
def _set_score(answers, space):
    """Score above chance of the set of results that this map's first cells have."""
    chosen = covering(space.items[: answers.first], len(answers.sizes), answers.most, answers.covers)
    k, n = answers.sizes[chosen].sum(), len(answers.results)
    if k in (0, n):
        return 0.0
    wanted = np.zeros(len(answers.sizes), np.uint32)
    wanted[chosen] = 1
    return (_hits(wanted, k, answers.results, space) / k - k / n) / (1 - k / n)


@njit(nogil=True, cache=True)
def _hits(wanted, k, results, space):
    """Cells of wanted answers among the first k; ties at the k-th place count as they would on average."""
    bucket, place, shift = 0, np.int64(0), np.uint32(space.shift)
    while place + space.counts[bucket] <= k:
        place += space.counts[bucket]
        bucket += 1
    inside, number, near = 0, 0, np.empty(space.counts[bucket], np.uint32)
    for cell in range(len(results)):
        inside += wanted[results[cell]] * np.uint32(space.keys[cell] >> shift < bucket)
    for cell in range(len(results)):
        if space.keys[cell] >> shift == bucket:
            near[number] = space.keys[cell] << np.uint32(1) | wanted[results[cell]]
            number += 1
    near.sort()
    last = near[k - place - 1] >> np.uint32(1) if k > place else np.uint32(0)
    before, ties, wanted_ties = 0, 0, 0
    for key in near:
        before += key >> np.uint32(1) < last
        inside += (key >> np.uint32(1) < last) * (key & np.uint32(1))
        ties += key >> np.uint32(1) == last
        wanted_ties += (key >> np.uint32(1) == last) * (key & np.uint32(1))
    return inside + (k - place - before) / max(ties, 1) * wanted_ties
