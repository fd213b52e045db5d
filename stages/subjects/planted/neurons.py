"""A bag of heuristics, drawn at random: what each neuron of the planted subject shall compute. It knows no model.

A feature is a function of one quantity: op1, op2 or the result. A neuron is a weighted sum of features. Some neurons write
the answer: one heuristic for each ten results in a row and one for each last digit, so that a right answer gets two votes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from stages.lib.core.words import QUANTITIES
from stages.lib.heuristics.grid import Grid
from stages.lib.heuristics.names import Heuristic, moduli, parse, patterns, ranges
from stages.lib.sql.database import Database
from stages.subjects.settings import Planted

KNOWN = ("add", "subtract")  # operators
STEPS = 128  # a feature's values are multiples of 1 / STEPS, with which a model of float32 calculates nearly without error


class PlantingError(SystemExit):
    """Settings that cannot be planted; uncaught, it ends the program with its message and status 1."""


@dataclass(frozen=True)
class Feature:
    """A function of a quantity. values: of 0, 1, …; named: the results that value vectors along it name, of 0, 1, …, or none."""

    quantity: str
    values: np.ndarray
    named: np.ndarray | None = None


@dataclass(frozen=True)
class Neuron:
    """grade, noise, heuristics: as in the table `planted_truth`; weights: feature -> weight; names: the feature it writes into."""

    grade: str
    noise: float
    heuristics: tuple[str, ...]
    weights: dict[int, float]
    names: int | None
    vote: float = 0.0


@dataclass(frozen=True)
class Candidate:
    """A heuristic and the values of its quantity that satisfy it: (largest + 1,) bool."""

    heuristic: Heuristic
    values: np.ndarray


class PlantedBag:
    """Features, and neurons that are sums of them."""

    def __init__(self, settings: Planted, largest_operand: int):
        self.settings = settings
        self.largest = dict(
            zip(QUANTITIES, (largest_operand, largest_operand, 2 * largest_operand), strict=True)
        )
        self.rng = np.random.default_rng(settings.seed)
        self.features: list[Feature] = []
        self.neurons: list[Neuron] = []

    def fill(self, grid: Grid, cells: pl.DataFrame, size: int) -> None:
        """Draws all neurons, at least `size` of them; cells: operator, op1, op2 and result of every cell."""
        self._vote(int(cells["result"].max()))  # type: ignore[arg-type]
        voting = {heuristic for neuron in self.neurons for heuristic in neuron.heuristics}
        deck = Deck(
            [c for c in self._candidates(grid, cells) if c.heuristic.name not in voting], self.rng
        )
        counts = self.settings.neurons
        for grade, count, change in (
            ("partial", counts.partial, self._partial),
            ("soft", counts.soft, self._soft),
        ):
            for i in range(count):
                noise = self.settings.noises[i % len(self.settings.noises)]
                drawn = deck.draw(lambda c, noise=noise: c.values.sum() * noise >= 1)  # type: ignore[misc]
                self._add(grade, noise, drawn, change(drawn, noise))
        exact = len(self.neurons)
        for _ in range(counts.exact):
            drawn = deck.draw()
            self._add("exact", 0.0, drawn, drawn.values.astype(float))
        self._mix(self.neurons[exact:])
        self._noise(max(counts.noise, size - len(self.neurons)))
        self.neurons = [self.neurons[i] for i in self.rng.permutation(len(self.neurons))]

    def _add(
        self, grade: str, noise: float, drawn: Candidate, values: np.ndarray, vote: float = 0.0
    ) -> None:
        self.features.append(
            Feature(
                drawn.heuristic.quantity,
                values,
                drawn.values if drawn.heuristic.quantity == "result" else None,
            )
        )
        last = len(self.features) - 1
        names = last if drawn.heuristic.quantity == "result" else None
        self.neurons.append(Neuron(grade, noise, (drawn.heuristic.name,), {last: 1.0}, names, vote))

    def _vote(self, largest_answer: int) -> None:
        tens = [f"result in {start}..{start + 9}" for start in range(0, largest_answer + 1, 10)]
        for candidate in satisfying([*tens, *patterns("result", ["..d"])], self.largest):
            self._add(
                "exact", 0.0, candidate, candidate.values.astype(float), 1 / self.settings.copies
            )
            self.neurons += self.neurons[-1:] * (self.settings.copies - 1)

    def _candidates(self, grid: Grid, cells: pl.DataFrame) -> list[Candidate]:
        """Heuristics of the grid that cover neither few nor most cells of an operator, and the same cells as no other."""
        lengths = [n for n in grid.range_lengths["add"] if n in grid.range_lengths["subtract"]]
        names = [
            name
            for quantity, end in self.largest.items()
            for name in (
                *ranges(
                    quantity, end, lengths, grid.operand_ranges_overlap or quantity == "result"
                ),
                *moduli(quantity, grid.moduli),
                *patterns(quantity, grid.patterns),
            )
        ]
        candidates = satisfying(names, self.largest)
        kept, some = np.ones(len(candidates), bool), np.zeros(len(candidates), bool)
        for operator in KNOWN:
            columns = {q: cells.filter(operator=operator)[q].to_numpy() for q in QUANTITIES}
            counts = {
                q: np.bincount(columns[q], minlength=end + 1) for q, end in self.largest.items()
            }
            shares = np.array([counts[c.heuristic.quantity] @ c.values for c in candidates]) / len(
                columns["op1"]
            )
            sets = [
                (c.heuristic.quantity, (c.values & (counts[c.heuristic.quantity] > 0)).tobytes())
                for c in candidates
            ]
            alone = np.array([sets.count(one) == 1 for one in sets])
            inside = (shares >= self.settings.smallest_share) & (
                shares <= self.settings.largest_share
            )
            kept &= (shares == 0) | (inside & alone)
            some |= shares > 0
        return [c for c, keep in zip(candidates, kept & some, strict=True) if keep]

    def _partial(self, drawn: Candidate, noise: float) -> np.ndarray:
        """A share `noise` of the values is left out."""
        covered = np.flatnonzero(drawn.values)
        values = drawn.values.astype(float)
        values[self.rng.choice(covered, round(noise * len(covered)), replace=False)] = 0
        return values

    def _soft(self, drawn: Candidate, noise: float) -> np.ndarray:
        """Every value is off by a normal error of deviation noise / 2; edges of ranges are ramps, `noise` of the length to either side."""
        values = drawn.values.astype(float)
        if drawn.heuristic.kind == "range":
            start, end = map(int, drawn.heuristic.parameters)
            numbers = np.arange(len(values))
            inside = (
                np.minimum(numbers - start, end - numbers) + 0.5
            )  # distance to the nearer edge, negative outside
            values = np.clip(0.5 + inside / (2 * noise * (end - start + 1)), 0, 1)
        return _rounded(values + noise / 2 * self.rng.normal(size=len(values)))

    def _mix(self, exact: Sequence[Neuron]) -> None:
        """Sums of two exact heuristics of different quantities, no sum twice."""
        quantity = [
            self.features[feature].quantity for neuron in exact for feature in neuron.weights
        ]
        pairs = [(i, j) for j in range(len(exact)) for i in range(j) if quantity[i] != quantity[j]]
        if len(pairs) < self.settings.neurons.mixture:
            raise PlantingError(
                f"planted.neurons.mixture: only {len(pairs)} pairs of exact neurons have different quantities"
            )
        for pair in self.rng.choice(len(pairs), self.settings.neurons.mixture, replace=False):
            one, two = (exact[i] for i in pairs[pair])
            names = one.names if one.names is not None else two.names
            self.neurons.append(
                Neuron(
                    "mixture",
                    0.0,
                    one.heuristics + two.heuristics,
                    one.weights | two.weights,
                    names,
                )
            )

    def _noise(self, count: int) -> None:
        """Normal functions of op1, of op2 and of the result, added up: each neuron its own weights for the same few functions."""
        first = len(self.features)
        for quantity, end in self.largest.items():
            for _ in range(self.settings.noise_functions):
                self.features.append(Feature(quantity, _rounded(self.rng.normal(size=end + 1))))
        pool = range(first, len(self.features))
        for _ in range(count):
            weights = self.rng.normal(size=len(pool)) / np.sqrt(len(pool))
            self.neurons.append(
                Neuron("noise", 1.0, (), dict(zip(pool, weights.tolist(), strict=True)), None)
            )


class Deck:
    """Candidates in random order, dealt in turn from each kind and quantity."""

    def __init__(self, candidates: Sequence[Candidate], rng: np.random.Generator):
        groups: dict[tuple[str, str], list[Candidate]] = {}
        for i in rng.permutation(len(candidates)):
            groups.setdefault(
                (candidates[i].heuristic.kind, candidates[i].heuristic.quantity), []
            ).append(candidates[i])
        self.groups = [groups[key] for key in sorted(groups)]
        self.turn = 0

    def draw(self, accept: Callable[[Candidate], bool] = lambda _: True) -> Candidate:
        for _ in self.groups:
            group = self.groups[self.turn % len(self.groups)]
            self.turn += 1
            accepted = (i for i, candidate in enumerate(group) if accept(candidate))
            if (found := next(accepted, None)) is not None:
                return group.pop(found)
        raise PlantingError(
            "stages/subjects/params.yaml: planted.neurons asks for more neurons than there are heuristics; lower exact, partial or soft"
        )


def satisfying(names: Sequence[str], largest: dict[str, int]) -> list[Candidate]:
    """Heuristics of one quantity each, by name, with the values that satisfy them; largest: value of each quantity."""
    heuristics = [parse(name) for name in names]
    predicates = ", ".join(f'{h.predicate} as "{i}"' for i, h in enumerate(heuristics))
    numbers = (
        "select n as op1, n as op2, n as result from (select unnest(range($end))::integer as n)"
    )
    frame = (
        Database({}, threads=1)
        .sql(
            f"select op1 as n, {predicates} from ({numbers}) order by n",
            end=max(largest.values()) + 1,
        )
        .pl()
    )
    return [
        Candidate(h, frame[str(i)].to_numpy()[: largest[h.quantity] + 1])
        for i, h in enumerate(heuristics)
    ]


def _rounded(values: np.ndarray) -> np.ndarray:
    return np.round(values * STEPS) / STEPS
