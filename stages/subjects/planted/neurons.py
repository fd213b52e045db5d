"""Draw a bag of heuristics at random: the function that each neuron of the planted model computes.

A feature is a function of one quantity: op1, op2 or the result. A neuron is a weighted sum of
features. Some neurons write the answer: those of a heuristic for each ten consecutive results, and
those of one for each last digit. So a correct answer gets the vote of two heuristics: each adds
`planted.vote` to its logit. This module does not know how a model is built (see model.py).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import polars as pl

from stages.lib.core.vocabulary import QUANTITIES
from stages.lib.heuristics.catalogue_grid import Grid
from stages.lib.heuristics.names import Heuristic, moduli, parse, patterns, ranges
from stages.lib.sql.database import Database
from stages.subjects.settings import Planted

KNOWN = ("add", "subtract")  # operators of the planted model
STEPS = 128  # values are multiples of 1 / STEPS, with which float32 has nearly no rounding errors


class PlantingError(SystemExit):
    """Settings that cannot be planted; if uncaught, it ends the program with status 1."""


@dataclass(frozen=True)
class Feature:
    """A function of a quantity.

    values: of the numbers 0, 1, …; named: whether a vote along the feature is for the answer 0, 1,
    …, None if it is for no answer.
    """

    quantity: str
    values: np.ndarray
    named: np.ndarray | None = None


@dataclass(frozen=True)
class Neuron:
    """A weighted sum of features.

    grade, noise, heuristics: as in the table `planted_truth`; weights: feature -> weight.
    names: the feature along which the neuron's output votes for answers, if any.
    vote: the size of this vote, as a share of `planted.vote`.
    """

    grade: str
    noise: float
    heuristics: tuple[str, ...]
    weights: dict[int, float]
    names: int | None
    vote: float = 0.0


@dataclass(frozen=True)
class Candidate:
    """A heuristic, and which values of its quantity satisfy it: (largest + 1,) bool."""

    heuristic: Heuristic
    values: np.ndarray


class PlantedBag:
    """The features and neurons of the planted model.

    largest: quantity -> its largest value.
    """

    def __init__(self, settings: Planted, largest_operand: int):
        self.settings = settings
        ends = (largest_operand, largest_operand, 2 * largest_operand)
        self.largest = dict(zip(QUANTITIES, ends, strict=True))
        self.rng = np.random.default_rng(settings.seed)
        self.features: list[Feature] = []
        self.neurons: list[Neuron] = []

    def fill(self, grid: Grid, cells: pl.DataFrame, size: int) -> None:
        """Draw all neurons, at least `size`.

        cells: operator, op1, op2 and result of every cell. Raises PlantingError if there are too
        few heuristics.
        """
        self._add_voting(int(cells["result"].max()))  # type: ignore[arg-type]
        voting = {name for neuron in self.neurons for name in neuron.heuristics}
        candidates = self._candidates(grid, cells)
        deck = Deck([c for c in candidates if c.heuristic.name not in voting], self.rng)
        counts = self.settings.neurons
        self._add_inexact("partial", counts.partial, deck, self._partial)
        self._add_inexact("soft", counts.soft, deck, self._soft)
        exact = len(self.neurons)
        for _ in range(counts.exact):
            drawn = deck.draw()
            self._add("exact", 0.0, drawn, drawn.values.astype(float))
        self._add_mixtures(self.neurons[exact:])
        self._add_noise(max(counts.noise, size - len(self.neurons)))
        self.neurons = [self.neurons[i] for i in self.rng.permutation(len(self.neurons))]

    def _add(
        self,
        grade: str,
        noise: float,
        drawn: Candidate,
        values: np.ndarray,
        vote: float = 0.0,
    ) -> None:
        """Add a feature with these values, and a neuron that computes it."""
        feature = len(self.features)
        quantity, name = drawn.heuristic.quantity, drawn.heuristic.name
        named, names = (drawn.values, feature) if quantity == "result" else (None, None)
        self.features.append(Feature(quantity, values, named))
        self.neurons.append(Neuron(grade, noise, (name,), {feature: 1.0}, names, vote))

    def _add_voting(self, largest_answer: int) -> None:
        """Add the neurons that write the answer, `copies` for each heuristic."""
        copies = self.settings.copies
        tens = [f"result in {start}..{start + 9}" for start in range(0, largest_answer + 1, 10)]
        for candidate in satisfying([*tens, *patterns("result", ["..d"])], self.largest):
            self._add("exact", 0.0, candidate, candidate.values.astype(float), 1 / copies)
            self.neurons += self.neurons[-1:] * (copies - 1)

    def _add_inexact(
        self,
        grade: str,
        count: int,
        deck: "Deck",
        change: Callable[[Candidate, float], np.ndarray],
    ) -> None:
        """Add neurons with noise. change: returns the values of a heuristic with noise."""
        noises = self.settings.noises
        for i in range(count):
            noise = noises[i % len(noises)]
            drawn = deck.draw(noise)
            self._add(grade, noise, drawn, change(drawn, noise))

    def _candidates(self, grid: Grid, cells: pl.DataFrame) -> list[Candidate]:
        """Return the grid's heuristics that may be planted.

        For each operator, a heuristic must cover neither few nor most cells, and no other may cover
        the same cells.
        """
        lengths = [n for n in grid.range_lengths["add"] if n in grid.range_lengths["subtract"]]
        names: list[str] = []
        for quantity, end in self.largest.items():
            overlap = grid.operand_ranges_overlap or quantity == "result"
            names += ranges(quantity, end, lengths, overlap)
            names += moduli(quantity, grid.moduli)
            names += patterns(quantity, grid.patterns)
        candidates = satisfying(names, self.largest)
        suitable = np.ones(len(candidates), bool)
        present = np.zeros(len(candidates), bool)
        smallest, largest = self.settings.smallest_share, self.settings.largest_share
        for operator in KNOWN:
            shares, unique = _coverage(candidates, cells.filter(operator=operator), self.largest)
            inside = (shares >= smallest) & (shares <= largest)
            suitable &= (shares == 0) | (inside & unique)
            present |= shares > 0
        return list(compress(candidates, suitable & present))

    def _partial(self, drawn: Candidate, noise: float) -> np.ndarray:
        """Return a heuristic's values with a share `noise` left out."""
        covered = np.flatnonzero(drawn.values)
        values = drawn.values.astype(float)
        values[self.rng.choice(covered, round(noise * len(covered)), replace=False)] = 0
        return values

    def _soft(self, drawn: Candidate, noise: float) -> np.ndarray:
        """Return a heuristic's values with normal errors of standard deviation noise / 2.

        The edges of a range become ramps: `noise` times the range's length to either side.
        """
        values = drawn.values.astype(float)
        if drawn.heuristic.kind == "range":
            start, end = map(int, drawn.heuristic.parameters)
            numbers = np.arange(len(values))
            # distance to the nearer edge, negative outside
            inside = np.minimum(numbers - start, end - numbers) + 0.5
            values = np.clip(0.5 + inside / (2 * noise * (end - start + 1)), 0, 1)
        return _rounded(values + noise / 2 * self.rng.normal(size=len(values)))

    def _add_mixtures(self, exact: Sequence[Neuron]) -> None:
        """Add sums of two exact neurons of different quantities, no sum twice."""
        count = self.settings.neurons.mixture
        pairs: list[tuple[Neuron, Neuron]] = []
        for j, second in enumerate(exact):
            quantity = self._quantity(second)
            others = exact[:j]
            pairs += [(first, second) for first in others if self._quantity(first) != quantity]
        if len(pairs) < count:
            problem = f"only {len(pairs)} pairs of exact neurons have different quantities"
            raise PlantingError(f"planted.neurons.mixture: {problem}; lower it to {len(pairs)}")
        for pair in self.rng.choice(len(pairs), count, replace=False):
            first, second = pairs[pair]
            heuristics = first.heuristics + second.heuristics
            names = second.names if first.names is None else first.names
            weights = first.weights | second.weights
            self.neurons.append(Neuron("mixture", 0.0, heuristics, weights, names))

    def _quantity(self, neuron: Neuron) -> str:
        """Return the quantity of a neuron with one feature."""
        [feature] = neuron.weights
        return self.features[feature].quantity

    def _add_noise(self, count: int) -> None:
        """Add neurons that are normal functions of op1, op2 and the result, added up.

        They share `noise_functions` functions of each quantity, with different weights.
        """
        first = len(self.features)
        for quantity, end in self.largest.items():
            for _ in range(self.settings.noise_functions):
                self.features.append(Feature(quantity, _rounded(self.rng.normal(size=end + 1))))
        pool = range(first, len(self.features))
        for _ in range(count):
            weights = self.rng.normal(size=len(pool)) / np.sqrt(len(pool))
            by_feature = dict(zip(pool, weights.tolist(), strict=True))
            self.neurons.append(Neuron("noise", 1.0, (), by_feature, None))


class Deck:
    """Candidates in random order, dealt in turn from each kind and quantity."""

    def __init__(self, candidates: Sequence[Candidate], rng: np.random.Generator):
        groups: dict[tuple[str, str], list[Candidate]] = {}
        for i in rng.permutation(len(candidates)):
            heuristic = candidates[i].heuristic
            key = (heuristic.kind, heuristic.quantity)
            groups.setdefault(key, []).append(candidates[i])
        self.groups = [groups[key] for key in sorted(groups)]
        self.turn = 0

    def draw(self, share: float = 1.0) -> Candidate:
        """Remove and return the next candidate whose values, times `share`, are at least one."""
        for _ in self.groups:
            group = self.groups[self.turn % len(self.groups)]
            self.turn += 1
            for i, candidate in enumerate(group):
                if candidate.values.sum() * share >= 1:
                    return group.pop(i)
        raise PlantingError(
            "stages/subjects/params.yaml: planted.neurons asks for more neurons than there are "
            "heuristics; lower exact, partial or soft"
        )


def _coverage(
    candidates: list[Candidate],
    cells: pl.DataFrame,
    largest: dict[str, int],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of one operator's cells that each heuristic covers, and if no other does.

    cells: of the operator; returned: (candidates,) float64 and (candidates,) bool.
    """
    occurrences = {}
    for quantity, end in largest.items():
        occurrences[quantity] = np.bincount(cells[quantity].to_numpy(), minlength=end + 1)
    covered, sets = [], []
    for candidate in candidates:
        quantity = candidate.heuristic.quantity
        counts = occurrences[quantity]
        covered.append(counts @ candidate.values)
        sets.append((quantity, (candidate.values & (counts > 0)).tobytes()))
    times = Counter(sets)
    unique = np.array([times[covered_set] == 1 for covered_set in sets])
    return np.array(covered) / len(cells), unique


def satisfying(names: Sequence[str], largest: dict[str, int]) -> list[Candidate]:
    """Return heuristics of one quantity, by name, with the values that satisfy them.

    largest: quantity -> its largest value.
    """
    heuristics = list(map(parse, names))
    predicates = ", ".join(f'{h.predicate} as "{i}"' for i, h in enumerate(heuristics))
    query = f"""
        select op1 as n, {predicates}
        from (
            select n as op1, n as op2, n as result
            from (select unnest(range($end))::integer as n)
        )
        order by n
    """
    table = Database({}, threads=1).sql(query, end=max(largest.values()) + 1).pl()
    candidates = []
    for i, heuristic in enumerate(heuristics):
        values = table[str(i)].to_numpy()[: largest[heuristic.quantity] + 1]
        candidates.append(Candidate(heuristic, values))
    return candidates


def _rounded(values: np.ndarray) -> np.ndarray:
    return np.round(values * STEPS) / STEPS
