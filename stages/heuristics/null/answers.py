"""Hits of answers' heuristics under relabellings: of the map activation · value logit of the cell's answer, another one in every draw."""

from typing import NamedTuple

import numpy as np

from stages.heuristics.null.buckets import cut, sort_into_buckets, tabulate, take, walk, weigh, workspace
from stages.lib.core.compiled import compiled
from stages.lib.heuristics.answer_sets import AnswerSets, covering
from stages.lib.heuristics.scores import members_of
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
    """hits: (draws, 2 sides, sets); set_scores: (draws,) above chance; correlations: (draws,) of activations and logits."""

    hits: np.ndarray
    set_scores: np.ndarray
    correlations: np.ndarray


def answer_hits(
    square: Square, activations: np.ndarray, logits: np.ndarray, labels: tuple[np.ndarray, np.ndarray], sets: AnswerSets
) -> AnswerHits:
    """activations: (op1, op2); logits: (number,); labels: rows (draws, op1) and columns (draws, op2), see permutations."""
    of, n, draws = square.answers.sets, len(square.cells), len(labels[0])
    found = AnswerHits(np.zeros((draws, 2, len(of.k))), np.zeros(draws), np.zeros(draws))
    with_sets = square.operator in sets.operators
    answers = Answers(
        square.results.astype(np.uint32), np.bincount(square.results), min(sets.first_cells, n - 1), sets.results * with_sets, sets.covers
    )
    space = workspace(square.results, np.concatenate([of.k, n - of.k, np.full(int(with_sets), answers.first)]))
    weights = logits[square.results]
    largest = np.abs(activations).max() * np.abs(weights).max()
    weights = np.ldexp(weights, -np.frexp(largest)[1])  # contributions are then at most 1
    _relabelled((activations, weights, square.stretches), answers, of, labels, space, found)
    return found


@compiled()
def _relabelled(neuron, answers, of, labels, space, found):
    """Fills found. neuron: activations (op1, op2), weights (cells,) and stretches."""
    activations, weights, stretches = neuron
    n, exact = len(weights), weights.astype(np.float64)
    weight, square_weights = exact.sum(), (exact * exact).sum()
    for draw in range(len(found.hits)):
        take(activations, stretches, (labels[0][draw], labels[1][draw]), space.values)
        total, squares, products = weigh(space.values, weights)
        scale = (squares - total * total / n) * (square_weights - weight * weight / n)
        if scale > 1e-12 * squares * square_weights:
            found.correlations[draw] = (products - total * weight / n) / np.sqrt(scale)
        sort_into_buckets(space)
        tabulate(answers.results, cut(space), space)
        _hits_of_sets(space, of, n, found.hits[draw])
        if answers.most:
            found.set_scores[draw] = _set_score(answers, space)


@compiled()
def _hits_of_sets(space, of, n, found):
    """Fills found (2, sets): how many of each set's k cells are among the first k, and among the last k.

    The last k are those that are not among the first n - k, so one walk along the stops finds both.
    """
    seen, ties = np.zeros(space.table.shape[1], np.uint32), np.empty(space.table.shape[1], np.uint32)
    segment, top, bottom = 0, 0, len(of.k) - 1
    for number in range(len(space.stops)):
        segment = walk(space, number, segment, seen, ties)
        stop, share = space.stops[number], space.inside[number, 0] / space.inside[number, 1]
        while top < len(of.k) and of.k[top] == stop:
            found[0, top] = _covered(seen, ties, share, members_of(of, top))
            top += 1
        while bottom >= 0 and n - of.k[bottom] == stop:
            found[1, bottom] = of.k[bottom] - _covered(seen, ties, share, members_of(of, bottom))
            bottom -= 1


@compiled()
def _covered(seen, ties, share, members):
    """The cells seen, and a share of the ties, that belong to a set of answers."""
    before, here = np.uint32(0), np.uint32(0)
    for i in range(len(members)):  # unsigned of 32 bits throughout: three times as fast
        before = np.uint32(before + seen[members[i]])
        here = np.uint32(here + ties[members[i]])
    return before + share * here


@compiled()
def _set_score(answers, space):
    """Score above chance of the set of results that this map's first cells have."""
    seen, ties = np.zeros(len(answers.sizes), np.uint32), np.empty(len(answers.sizes), np.uint32)
    number = np.searchsorted(space.stops, answers.first)
    walk(space, number, 0, seen, ties)
    inside, of = space.inside[number]
    chosen = covering(seen * of + ties * inside, answers.most, answers.covers)
    k, n = answers.sizes[chosen].sum(), len(answers.results)
    if k in (0, n):
        return 0.0
    wanted = np.zeros(len(answers.sizes), np.uint32)
    wanted[chosen] = 1
    return (_hits(wanted, k, answers.results, space) / k - k / n) / (1 - k / n)


@compiled()
def _hits(wanted, k, results, space):
    """Cells of wanted answers among the first k; of those in the bucket in which the k-th lies, as many as there would be on average."""
    last = np.searchsorted(space.ends, k)
    before = np.int64(space.ends[last - 1]) if last else 0
    inside = ties = np.uint32(0)
    for cell in range(len(results)):
        inside += wanted[results[cell]] * np.uint32(space.buckets[cell] < last)
        ties += wanted[results[cell]] * np.uint32(space.buckets[cell] == last)
    return inside + (k - before) / (space.ends[last] - before) * ties
