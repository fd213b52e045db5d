"""Hits of the result's heuristics under relabellings of the operands.

These heuristics are scored on contributions: activation times value logit of the cell's answer. So
every relabelling has another map, whose cells are in another order.
"""

from typing import NamedTuple

import numpy as np

from stages.heuristics.null_distribution.buckets import advance, arrange, workspace
from stages.lib.core.compiled import compiled
from stages.lib.heuristics.answer_sets import AnswerSets, covering
from stages.lib.heuristics.grid import OperandGrid
from stages.lib.heuristics.scores import members_of


class AnswerHits(NamedTuple):
    """What answer_hits returns.

    hits: (draws, 2 sides, heuristics) float64, ties counted in part; set_scores: (draws,) score
    above chance of the set of results found on each map, 0 if none is; correlations: (draws,) of
    activation and value logit.
    """

    hits: np.ndarray
    set_scores: np.ndarray
    correlations: np.ndarray


class WeightedMap(NamedTuple):
    """A neuron on the cells of an operator.

    activations: (op1, op2) of the operand grid; weights: (cells,) float32, the scaled value logit
    of each cell's answer; stretches: see OperandGrid.
    """

    activations: np.ndarray
    weights: np.ndarray
    stretches: np.ndarray


class SetSearch(NamedTuple):
    """How a set of results is found on a map.

    sizes: (results,) cells with each result; first_cells, most, covers: see `covering`; most is 0
    if no sets are searched for.
    """

    sizes: np.ndarray
    first_cells: int
    most: int
    covers: float


def answer_hits(
    grid: OperandGrid,
    activations: np.ndarray,
    logits: np.ndarray,
    labels: tuple[np.ndarray, np.ndarray],
    sets: AnswerSets,
) -> AnswerHits:
    """Count the hits of one neuron's contributions under relabellings.

    activations: (op1, op2); logits: (results,); labels: rows (draws, op1) and columns (draws, op2),
    see `permutations`.
    """
    heuristics, cells, draws = grid.answers.sets, len(grid.cells), len(labels[0])
    hits = AnswerHits(np.zeros((draws, 2, len(heuristics.k))), np.zeros(draws), np.zeros(draws))
    sizes, first_cells = np.bincount(grid.results), min(sets.first_cells, cells - 1)
    stops = [heuristics.k, cells - heuristics.k]
    most = 0
    if grid.operator in sets.operators:
        stops.append(np.array([first_cells]))
        most = sets.results
    weights = logits[grid.results]
    largest = np.abs(activations).max() * np.abs(weights).max()
    weights = np.ldexp(weights, -np.frexp(largest)[1])  # contributions are then at most 1
    _count_hits(
        WeightedMap(activations, weights, grid.stretches),
        labels,
        heuristics,
        SetSearch(sizes, first_cells, most, sets.covers),
        workspace(grid.results, np.concatenate(stops)),
        hits,
    )
    return hits


@compiled()
def _count_hits(neuron, labels, heuristics, search, space, hits):
    """Fill `hits`, one relabelling after the other."""
    weights = neuron.weights
    n, exact = len(weights), weights.astype(np.float64)
    weight, square_weights = exact.sum(), (exact * exact).sum()
    for draw in range(len(hits.hits)):
        _relabel(neuron, labels[0][draw], labels[1][draw], space.values)
        total, squares, products = _weigh(space.values, weights)
        scale = (squares - total * total / n) * (square_weights - weight * weight / n)
        if scale > 1e-12 * squares * square_weights:
            hits.correlations[draw] = (products - total * weight / n) / np.sqrt(scale)
        arrange(space)
        _hits_of_heuristics(space, heuristics, hits.hits[draw])
        if search.most:
            hits.set_scores[draw] = _set_score(search, space)


@compiled()
def _relabel(neuron, row, column, values):
    """Fill values (cells,) with the activations that a relabelling moves there."""
    stretches = neuron.stretches
    for number in range(len(stretches) - 1):
        start, end = stretches[number, 0], stretches[number + 1, 0]
        source = neuron.activations[row[stretches[number, 1]]]
        columns = column[stretches[number, 2] :]
        for i in range(end - start):
            values[start + i] = source[columns[i]]


@compiled(fastmath={"reassoc"})
def _weigh(values, weights):
    """Multiply values by weights (cells,) in place.

    Returns the sums of the values, of their squares and of the products. The order of the sums is
    whichever is fast: they are float64, and the result is kept as float32, which hides the order.
    """
    total = squares = products = 0.0
    for cell in range(len(values)):
        value, product = np.float64(values[cell]), values[cell] * weights[cell]
        values[cell] = product
        total += value
        squares += value * value
        products += np.float64(product)
    return total, squares, products


@compiled()
def _hits_of_heuristics(space, heuristics, hits):
    """Fill hits (2, heuristics): the cells of each heuristic among its first and its last k cells.

    The last k cells are those that are not among the first n - k, so one pass over the stops, which
    rise as k does, finds both.
    """
    n, stops = len(space.answers), space.stops
    pairs = np.zeros(space.table.shape[1], space.table.dtype)
    segment, top, bottom = 0, 0, len(heuristics.k) - 1
    for stop in range(len(stops.k)):
        segment = advance(space, stop, segment, pairs)
        k, share = stops.k[stop], stops.before[stop] / stops.ties[stop]
        while top < len(heuristics.k) and heuristics.k[top] == k:
            hits[0, top] = _covered(pairs, space.half, share, members_of(heuristics, top))
            top += 1
        while bottom >= 0 and n - heuristics.k[bottom] == k:
            first = _covered(pairs, space.half, share, members_of(heuristics, bottom))
            hits[1, bottom] = heuristics.k[bottom] - first
            bottom -= 1


@compiled()
def _covered(pairs, half, share, members):
    """Count the cells before a stop, and a share of its ties, that belong to a heuristic.

    pairs: (answers,), see buckets.py; members: the heuristic's answers.
    """
    both, before, lower = np.uint64(0), np.uint64(0), np.uint64((1 << half) - 1)
    for i in range(len(members)):
        pair = np.uint64(pairs[members[i]])
        both += pair
        before += pair & lower
    tied = (both - before) >> np.uint64(half)
    return np.int64(before) + share * np.int64(tied)


@compiled()
def _set_score(search, space):
    """Score, above chance, the set of results that covers this map's first cells."""
    results = len(search.sizes)
    pairs = np.zeros(results, space.table.dtype)
    stop = np.searchsorted(space.stops.k, search.first_cells)
    advance(space, stop, 0, pairs)
    before, tied = pairs & ((1 << space.half) - 1), pairs >> space.half
    counts = before.astype(np.int64) * space.stops.ties[stop]
    counts += tied.astype(np.int64) * space.stops.before[stop]
    covered = covering(counts, search.most, search.covers)
    k, n = search.sizes[covered].sum(), len(space.answers)
    if k in (0, n):
        return 0.0
    is_member = np.zeros(results, np.uint32)
    is_member[covered] = 1
    return (_hits_of_set(is_member, k, space) / k - k / n) / (1 - k / n)


@compiled()
def _hits_of_set(is_member, k, space):
    """Count the first k cells whose result belongs to a set; is_member: (results,) 0 or 1.

    The cells in the bucket of the k-th cell are ties, and count in part.
    """
    last = np.searchsorted(space.ends, k)
    before = np.int64(space.ends[last - 1]) if last else 0
    inside = ties = np.uint32(0)
    for cell in range(len(space.answers)):
        belongs = is_member[space.answers[cell]]
        inside += belongs * np.uint32(space.buckets[cell] < last)
        ties += belongs * np.uint32(space.buckets[cell] == last)
    return inside + (k - before) / (space.ends[last] - before) * ties
