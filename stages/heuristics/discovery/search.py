"""Search the grammar for the predicate that describes a map in the fewest bits.

A predicate predicts a map by two means, inside and outside. Its description length is that of the
predicate, plus samples / 2 * log2(error / variance) for the map. `samples` is the number of operand
labels, of op1 and of op2, rather than the number of cells. Neighbouring cells are not independent,
and under the null of relabelled operands only the labels are exchangeable.

All atoms are tried. Conjunctions are searched by turns, at first on a random sample of the cells.
From the best atom of each quantity, a range and a remainder, the best second atom is searched among
the cells inside. The best of these pairs are improved: the first atom is searched anew within the
second, until the description gets no shorter, at last on all cells. Within a conjunction, a long
range is searched from coarse to fine, one end at a time.
"""

from typing import NamedTuple

import numpy as np

from stages.heuristics.discovery import grammar
from stages.heuristics.discovery.grammar import View
from stages.lib.core.compiled import compiled

# Share of the variance below which an error counts as rounding: maps are stored in float16.
ROUNDING = 1e-6
EXHAUSTIVE = 60  # codes; longer ranges of a second atom are searched from coarse to fine
COARSE = 24  # starts and ends of the coarse search
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


class Found(NamedTuple):
    """A predicate.

    atoms: (2, 3) int64 of view, lowest and highest code; the view is NONE if there is no second
    atom, or no predicate at all; bits: of the predicate; share: explained share of the variance;
    gain: bits by which the predicate shortens the description of the map.
    """

    atoms: np.ndarray
    bits: float
    share: float
    gain: float


def space(quantities: np.ndarray, made: list[View], samples: int, least: int) -> Space:
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
        quantities.max(1) + 1,
        quantity,
        np.array([view.size for view in made]),
        2 * quantity + is_range,
        codes,
        grammar.bits(made),
        float(samples),
        float(least),
    )


def search(values: np.ndarray, within: Space, budget: float) -> tuple[Found, Found]:
    """Return the predicate of shortest description, and the best atom of at most `budget` bits.

    values: (cells,) the map on the space's cells.
    """
    deviations = values.astype(np.float64)
    deviations -= deviations.mean()
    total = float(deviations @ deviations)
    if not total > 0:
        nothing = Found(np.full((2, 3), NONE), 0.0, 0.0, 0.0)
        return nothing, nothing
    best, short = _search(deviations.astype(np.float32), total, budget, within)
    return Found(*best), Found(*short)


@compiled()
def _search(deviations, total, budget, within):
    atoms, shares = _atoms(deviations, total, within)
    families = np.max(within.families) + 1
    seeds, seed_gain = np.full((families, 3), -1), np.full(families, -np.inf)
    best, short = np.full((2, 3), -1), np.full((2, 3), -1)
    best_bits = best_share = best_gain = 0.0
    short_bits = short_share = 0.0
    for view in range(len(within.size)):
        for kind in range(2):
            share, bits = shares[view, kind], within.bits[view, kind] + 1
            gain = bits_saved(share, bits, within.samples)
            family = within.families[view]
            if share > 0 and gain > seed_gain[family]:
                seed_gain[family], seeds[family] = gain, atoms[view, kind]
            if gain > best_gain:
                best_gain, best_share, best_bits = gain, share, bits
                best[0] = atoms[view, kind]
            if bits <= budget and share > short_share:
                short_share, short_bits = share, bits
                short[0] = atoms[view, kind]
    pair, bits, share, gain = _conjunction(deviations, total, seeds, within)
    if gain > best_gain:
        best_gain, best_share, best_bits = gain, share, bits
        best[:] = pair
    short_gain = bits_saved(short_share, short_bits, within.samples)
    return (best, best_bits, best_share, best_gain), (short, short_bits, short_share, short_gain)


@compiled()
def bits_saved(share, bits, samples):
    """Return by how many bits a predicate shortens the description of a map."""
    return samples / 2 * np.log2(1 / max(1 - share, ROUNDING)) - bits


@compiled()
def _atoms(deviations, total, within):
    """Return the best value and range of each view, (views, 2, 3), and their shares, (views, 2)."""
    sums = sums_by_value(deviations, within)
    return _best(sums, within.counts, len(deviations), total, 100_000, within)


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
def _conjunction(deviations, total, seeds, within):
    """Return the best conjunction: its atoms, bits, share and gain; seeds: (n, 3) first atoms."""
    sample = deviations[:SAMPLE] - deviations[:SAMPLE].mean()
    of_sample = 0.0
    for deviation in sample:
        of_sample += deviation * deviation
    pairs, gains = np.full((len(seeds), 2, 3), -1), np.full(len(seeds), -np.inf)
    for number in range(len(seeds)):
        if seeds[number, 0] >= 0 and of_sample > 0:
            pairs[number], _, _, gains[number] = _turn(sample, of_sample, seeds[number], 1, within)
    best, best_gain = seeds[0], -np.inf
    for _ in range(IMPROVED):
        number = np.argmax(gains)
        if gains[number] > -np.inf:
            first = pairs[number, 1].copy()
            pair, _, _, gain = _turn(sample, of_sample, first, TURNS, within)
            if gain > best_gain:
                best, best_gain = pair[0].copy(), gain
            gains[number] = -np.inf
    if best_gain == -np.inf:
        return pairs[0], 0.0, 0.0, -np.inf
    if len(sample) == len(deviations):
        return _turn(deviations, total, best, 1, within)
    return _turn(deviations, total, best, TURNS, within)


@compiled()
def _turn(deviations, total, seed, turns, within):
    """Search a second atom within a first, then the first anew within the second, and so on.

    Returns the atoms, bits, share and gain of the conjunction.
    """
    pair, best, first = np.full((2, 3), -1), np.full((2, 3), -1), seed.copy()
    best_bits = best_share = 0.0
    best_gain = -np.inf
    sums, counts = np.zeros(within.counts.shape), np.zeros(within.counts.shape)
    for _ in range(turns):
        _inside(deviations, first, within, sums, counts)
        atoms, shares = _best(sums, counts, len(deviations), total, EXHAUSTIVE, within)
        first_bits = within.bits[first[0], int(first[1] < first[2])]
        gain, bits, share = -np.inf, 0.0, 0.0
        for view in range(len(within.size)):
            for kind in range(2):
                if shares[view, kind] > 0:
                    both = first_bits + within.bits[view, kind]  # one bit more, and one less
                    gained = bits_saved(shares[view, kind], both, within.samples)
                    if gained > gain:
                        gain, bits, share = gained, both, shares[view, kind]
                        pair[0], pair[1] = first, atoms[view, kind]
        if gain <= best_gain + 1e-9:
            break
        best[:] = pair
        best_gain, best_bits, best_share = gain, bits, share
        first = pair[1].copy()
    return best, best_bits, best_share, best_gain


@compiled()
def _inside(deviations, atom, within, sums, counts):
    """Add up deviations and cells by value of each quantity, in the cells that satisfy an atom."""
    sums[:], counts[:] = 0, 0
    codes, values = within.codes[atom[0]], within.values
    inside = (codes >= atom[1]) & (codes <= atom[2])
    own, number = within.quantity[atom[0]], 0
    cells = np.empty(len(deviations), np.uint32)
    for cell in range(len(deviations)):  # without a branch, which would often be mispredicted
        cells[number] = cell
        number += inside[values[cell, own]]
    for cell in cells[:number]:
        deviation = deviations[cell]
        op1, op2, result, relation = values[cell]
        sums[0, op1] += deviation
        sums[1, op2] += deviation
        sums[2, result] += deviation
        sums[3, relation] += deviation
        counts[0, op1] += 1
        counts[1, op2] += 1
        counts[2, result] += 1
        counts[3, relation] += 1


@compiled()
def _best(sums, counts, cells, total, exhaustive, within):
    """Return the best value and range of each view, and their explained shares.

    sums, counts: (4, values) of the cells that count as inside; cells: number of all cells.
    """
    views = len(within.size)
    atoms, shares = np.full((views, 2, 3), -1), np.zeros((views, 2))
    length = np.max(within.size) + 1
    s, n = np.zeros(length), np.zeros(length)  # running totals by code
    for view in range(views):
        size, quantity = within.size[view], within.quantity[view]
        s[: size + 1], n[: size + 1] = 0, 0
        for value in range(within.lengths[quantity]):
            if counts[quantity, value]:
                code = within.codes[view, value]
                s[code + 1] += sums[quantity, value]
                n[code + 1] += counts[quantity, value]
        for code in range(size):
            s[code + 1] += s[code]
            n[code + 1] += n[code]
        scale = cells / total
        value, low = _best_value(s, n, size, cells, within.least)
        atoms[view, 0] = view, low, low
        shares[view, 0] = value * scale
        if size > 2:
            if size <= exhaustive:
                value, low, high = _best_range(s, n, size, cells, within.least)
            else:
                value, low, high = _coarse_to_fine(s, n, size, cells, within.least)
            atoms[view, 1] = view, low, high
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


def holds(quantities: np.ndarray, found: Found, within: Space) -> np.ndarray:
    """Return which cells satisfy a predicate: (cells,) bool.

    quantities: (4, cells) of op1, op2, result and relations of any cells.
    """
    satisfied = np.ones(quantities.shape[1], bool)
    for view, low, high in found.atoms:
        if view != NONE:
            codes = within.codes[view][quantities[within.quantity[view]]]
            satisfied &= (codes >= low) & (codes <= high)
    return satisfied
