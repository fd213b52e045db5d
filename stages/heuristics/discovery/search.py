"""Search the grammar for the predicate that describes a map in the fewest bits.

A predicate predicts a map by two means, inside and outside. Its description length is that of the
predicate, plus samples / 2 * log2(error / variance) for the map. `samples` is the number of operand
labels, of op1 and of op2, rather than the number of cells. Neighbouring cells are not independent,
and under the null of relabelled operands only the labels are exchangeable.

All atoms are tried. Conjunctions are searched by turns, at first on a random sample of the cells.
From the best atoms, one range or remainder of each quantity, the best second atom is searched among
the cells inside. The best of these pairs are improved: the first atom is searched anew within the
second, until the description gets no shorter, at last on all cells. Within a conjunction, a long
range is searched from coarse to fine, one end at a time.
"""

from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np

from stages.heuristics.discovery import grammar
from stages.heuristics.discovery.grammar import QuantityView
from stages.lib.core.compiled import compiled

STEPS_OF_MAP = 1 << 24  # the largest value of a map as a whole number; float32 has 24 bits
# Share of the variance below which an error counts as rounding: maps are stored in float16.
ROUNDING = 1e-6
EXHAUSTIVE = 25  # codes; longer ranges of a second atom are searched from coarse to fine
COARSE = 16  # starts and ends of the coarse search
LONG = 100_000  # codes that no range reaches: all ranges are tried
SEEDS = 5  # first atoms that are tried
SAMPLE = 10_000  # cells on which conjunctions are searched at first
IMPROVED = 2  # pairs of atoms that are improved on the sample
TURNS = 6  # most searches of one atom within the other
NONE = -1  # the view of an atom that a predicate lacks


class Space(NamedTuple):
    """The cells that are searched, and the grammar.

    values: (cells, 4) uint16 of op1, op2, result and relations; counts: (4, values) cells of each
    value; lengths: (4,) number of values; quantity, size, families: (views,); families tells which
    atoms compete to be a first atom; codes: (views, values) uint16; bits: (views, 2); samples,
    least: counts. The order of the cells is random, since the first are a sample of all.
    """

    values: np.ndarray
    counts: np.ndarray
    lengths: np.ndarray
    quantity: np.ndarray
    size: np.ndarray
    families: np.ndarray
    codes: np.ndarray
    bits: np.ndarray
    samples: float
    least: float


class Predicate(NamedTuple):
    """A predicate.

    atoms: (2, 3) int64 of view, lowest and highest code; the view is NONE if there is no second
    atom, or no predicate at all; bits: of the predicate; share: explained share of the variance;
    gain: bits by which the predicate shortens the description of the map.
    """

    atoms: np.ndarray
    bits: float
    share: float
    gain: float


NOTHING = Predicate(np.full((2, 3), NONE), 0.0, 0.0, 0.0)
NO_PAIR = NOTHING._replace(gain=-np.inf)  # the gain of a conjunction may be negative


def space(quantities: np.ndarray, made: list[QuantityView], samples: int, least: int) -> Space:
    """Prepare the search.

    quantities: (4, cells) of op1, op2, result and relations, in random order; made: the views;
    samples: number of operand labels; least: fewest cells inside, and outside, of a predicate.
    """
    names = ["op1", "op2", "result", grammar.BOTH]
    length = max(len(view.codes) for view in made)
    codes = np.zeros((len(made), length), np.uint16)
    for row, view in zip(codes, made, strict=True):
        row[: len(view.codes)] = view.codes
    quantity = np.array([names.index(view.quantity) for view in made])
    is_range = np.array([view.step > 0 for view in made])
    counts = [np.bincount(values, minlength=length) for values in quantities]
    return Space(
        np.ascontiguousarray(quantities.T, np.uint16),
        np.array(counts, np.float64),
        quantities.max(1, initial=0) + 1,
        quantity,
        np.array([view.size for view in made]),
        2 * quantity + is_range,
        codes,
        grammar.bits(made),
        float(samples),
        float(least),
    )


def search(values: np.ndarray, within: Space, budget: float) -> tuple[Predicate, Predicate]:
    """Return the predicate of shortest description, and the best atom of at most `budget` bits.

    values: (cells,) the map on the space's cells.
    """
    deviations, total = centred(values)
    if not total > 0:
        return NOTHING, NOTHING
    sums = sums_by_value(deviations, within)
    atoms, shares = best_atoms(sums, within.counts, len(deviations), total, LONG, within)
    bits = within.bits + 1
    gains = np.where(shares > 0, bits_saved(shares, bits, within.samples), -np.inf)
    best = NOTHING
    view, kind = np.unravel_index(gains.argmax(), gains.shape)
    if gains[view, kind] > 0:
        best = _single(atoms, shares, bits, gains, view, kind)
    in_budget = np.where(bits <= budget, shares, 0.0)
    view, kind = np.unravel_index(in_budget.argmax(), in_budget.shape)
    short = NOTHING
    if in_budget[view, kind] > 0:
        short = _single(atoms, shares, bits, gains, view, kind)
    pair = _conjunction(deviations, total, _seeds(atoms, gains, within), within)
    return (pair if pair.gain > best.gain else best), short


def bits_saved(share, bits, samples):
    """Return by how many bits a predicate shortens the description of a map.

    share: of the variance that it explains; bits: of the predicate; samples: number of labels.
    """
    return samples / 2 * np.log2(1 / np.maximum(1 - share, ROUNDING)) - bits


def centred(values: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the deviations from the mean, as whole numbers, and their sum of squares.

    The largest value is STEPS_OF_MAP. Sums of whole numbers are exact in any order. So predicates
    of equal cells tie on every processor, and the first of them is taken.
    """
    largest = float(np.abs(values).max(initial=0))
    if not largest > 0:
        return np.zeros(len(values)), 0.0
    whole = np.rint(values.astype(np.float64) / largest * STEPS_OF_MAP)
    deviations = whole - np.rint(whole.sum() / len(whole))
    return deviations, float(np.square(deviations).sum())


def _single(
    atoms: np.ndarray,
    shares: np.ndarray,
    bits: np.ndarray,
    gains: np.ndarray,
    view: np.intp,
    kind: np.intp,
) -> Predicate:
    both = np.full((2, 3), NONE)
    both[0] = atoms[view, kind]
    measures = (float(table[view, kind]) for table in (bits, shares, gains))
    return Predicate(both, *measures)


def _seeds(atoms: np.ndarray, gains: np.ndarray, within: Space) -> list[np.ndarray]:
    """Return the best atoms, at most one of each family, best first."""
    best: list[tuple[float, np.ndarray]] = []
    for family in np.unique(within.families):
        views = np.flatnonzero(within.families == family)
        number, kind = np.unravel_index(gains[views].argmax(), (len(views), 2))
        if gains[views[number], kind] > -np.inf:
            best.append((gains[views[number], kind], atoms[views[number], kind]))
    best.sort(key=itemgetter(0), reverse=True)
    return [atom for _, atom in best[:SEEDS]]


def _conjunction(
    deviations: np.ndarray, total: float, seeds: list[np.ndarray], within: Space
) -> Predicate:
    """Return the best conjunction that is found from these first atoms."""
    sample, of_sample = deviations, total
    if len(deviations) > SAMPLE:
        sample, of_sample = centred(deviations[:SAMPLE])
    if not of_sample > 0:
        return NO_PAIR
    pairs = [_improved(sample, of_sample, seed, 1, within) for seed in seeds]
    pairs.sort(key=attrgetter("gain"), reverse=True)
    for pair in pairs[:IMPROVED]:
        first, second = pair.atoms
        pairs.append(_improved(sample, of_sample, second, TURNS, within, first))
    best = max(pairs, key=attrgetter("gain"), default=NO_PAIR)
    return _improved(deviations, total, best.atoms[0], TURNS, within)


def _improved(
    deviations: np.ndarray,
    total: float,
    first: np.ndarray,
    turns: int,
    within: Space,
    previous: np.ndarray = NOTHING.atoms[0],
) -> Predicate:
    """Search a second atom within a first, then the first anew within the second, and so on.

    previous: the atom within which `first` was the best. Returns NO_PAIR if there is no
    second atom.
    """
    best = NO_PAIR
    for _ in range(turns):
        if first[0] == NONE:
            break
        sums, counts = _inside(deviations, first, within)
        atoms, shares = best_atoms(sums, counts, len(deviations), total, EXHAUSTIVE, within)
        # one bit for the number of atoms, and one less for their order
        bits = within.bits[first[0], int(first[1] < first[2])] + within.bits
        gains = np.where(shares > 0, bits_saved(shares, bits, within.samples), -np.inf)
        view, kind = np.unravel_index(gains.argmax(), gains.shape)
        gain, second = float(gains[view, kind]), atoms[view, kind]
        if gain <= best.gain + 1e-9:
            break
        pair = np.array([first, second])
        best = Predicate(pair, float(bits[view, kind]), float(shares[view, kind]), gain)
        if (second == previous).all():
            break  # each is the best within the other
        previous, first = first, second
    return best


@compiled()
def sums_by_value(deviations, within):
    """Add up a map's deviations by value of each quantity: (cells,) to (4, values)."""
    sums, values = np.zeros(within.counts.shape), within.values
    for cell in range(len(deviations)):
        deviation = deviations[cell]
        sums[0, values[cell, 0]] += deviation
        sums[1, values[cell, 1]] += deviation
        sums[2, values[cell, 2]] += deviation
        sums[3, values[cell, 3]] += deviation
    return sums


@compiled()
def _inside(deviations, atom, within):
    """Add up deviations and cells by value of each quantity, in the cells that satisfy an atom.

    Returns two arrays (4, values).
    """
    sums, counts = np.zeros(within.counts.shape), np.zeros(within.counts.shape)
    codes, values = within.codes[atom[0]], within.values
    inside = np.zeros(len(codes), np.uint8)
    for value in range(len(codes)):
        inside[value] = atom[1] <= codes[value] <= atom[2]
    own, number = within.quantity[atom[0]], 0
    cells = np.empty(len(deviations), np.uint32)
    for cell in range(len(deviations)):  # without a branch, which would often be mispredicted
        cells[number] = cell
        number += inside[values[cell, own]]
    for i in range(number):
        cell = cells[i]
        deviation = deviations[cell]
        op1, op2, result, relation = (
            values[cell, 0],
            values[cell, 1],
            values[cell, 2],
            values[cell, 3],
        )
        sums[0, op1] += deviation
        sums[1, op2] += deviation
        sums[2, result] += deviation
        sums[3, relation] += deviation
        counts[0, op1] += 1
        counts[1, op2] += 1
        counts[2, result] += 1
        counts[3, relation] += 1
    return sums, counts


@compiled()
def best_atoms(sums, counts, cells, total, exhaustive, within):
    """Return the best value and range of each view, and their explained shares.

    sums, counts: (4, values) of the cells that count as inside; cells: number of all cells.
    """
    views = len(within.size)
    atoms, shares = np.full((views, 2, 3), -1), np.zeros((views, 2))
    length = np.max(within.size) + 1
    s, n = np.zeros(length), np.zeros(length)  # running totals by code
    for view in range(views):
        size, quantity = within.size[view], within.quantity[view]
        s.fill(0)
        n.fill(0)
        for value in range(within.lengths[quantity]):
            code = within.codes[view, value]
            s[code + 1] += sums[quantity, value]
            n[code + 1] += counts[quantity, value]
        for code in range(size):
            s[code + 1] += s[code]
            n[code + 1] += n[code]
        scale = cells / total
        value, low = _best_value(s, n, size, cells, within.least)
        atoms[view, 0, 0], atoms[view, 0, 1], atoms[view, 0, 2] = view, low, low
        shares[view, 0] = value * scale
        if size > 2:
            if size <= exhaustive:
                value, low, high = _best_range(s, n, size, cells, within.least)
            else:
                value, low, high = _coarse_to_fine(s, n, size, cells, within.least)
            atoms[view, 1, 0], atoms[view, 1, 1], atoms[view, 1, 2] = view, low, high
            shares[view, 1] = value * scale
    return atoms, shares


@compiled()
def _explained(s, n, cells, least):
    """Return s^2 / (n (cells - n)), proportional to the explained variance; 0 if cells are few."""
    if n < least or cells - n < least:
        return 0.0
    return s * s / (n * (cells - n))


@compiled()
def _best_value(s, n, size, cells, least):
    best, low = 0.0, 0
    for code in range(size):
        value = _explained(s[code + 1] - s[code], n[code + 1] - n[code], cells, least)
        if value > best:
            best, low = value, code
    return best, low


@compiled()
def _best_range(s, n, size, cells, least):
    """Return the best of all ranges of two codes or more."""
    best, low, high = 0.0, 0, 1
    for start in range(size - 1):
        for end in range(start + 1, size):
            inside, number = s[end + 1] - s[start], n[end + 1] - n[start]
            if number >= least and cells - number >= least:
                scale = number * (cells - number)
                if inside * inside > best * scale:
                    best, low, high = inside * inside / scale, start, end
    return best, low, high


@compiled()
def _coarse_to_fine(s, n, size, cells, least):
    """Search a coarse grid of ranges, then move one end at a time to its best place."""
    step = -(-size // COARSE)
    best, low, high = 0.0, 0, size - 1
    for start in range(0, size, step):
        for end in range(min(start + step, size) - 1, size, step):
            value = _explained(s[end + 1] - s[start], n[end + 1] - n[start], cells, least)
            if end > start and value > best:
                best, low, high = value, start, end
    improves = True
    while improves:
        improves = False
        for end in range(low + 1, size):
            value = _explained(s[end + 1] - s[low], n[end + 1] - n[low], cells, least)
            if value > best:
                best, high, improves = value, end, True
        for start in range(high):
            value = _explained(s[high + 1] - s[start], n[high + 1] - n[start], cells, least)
            if value > best:
                best, low, improves = value, start, True
    return best, low, high


def holds(quantities: np.ndarray, predicate: Predicate, within: Space) -> np.ndarray:
    """Return which cells satisfy a predicate: (cells,) bool.

    quantities: (4, cells) of op1, op2, result and relations of any cells.
    """
    satisfied = np.ones(quantities.shape[1], bool)
    for view, low, high in predicate.atoms:
        if view != NONE:
            codes = within.codes[view][quantities[within.quantity[view]]]
            satisfied &= (codes >= low) & (codes <= high)
    return satisfied
