"""Theories of how a number stands in a stream, each fitted to the same vectors and scored on others."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stages.theories import bases
from stages.theories.numbered import Fitted, Numbered, by_number, fit
from stages.theories.settings import Helix


class Site(NamedTuple):
    """Where a number is looked for: the role of the token, and which number of the cell."""

    position: str
    quantity: str

    def replaceable(self, level: int, layers: int) -> bool:
        """Whether the stream there is to be replaced: the operand's own token, or the answer at the last one, in front of some layer. What
        enters the first layer at the last position is the same in all prompts."""
        own = self.position == self.quantity or (self.quantity == "result" and level > 0)
        return own and level < layers


SITES = (Site("op1", "op1"), Site("op2", "op2"), Site("last", "op1"), Site("last", "op2"), Site("last", "result"))


class Scored(NamedTuple):
    """A row of helix_fits, from `theory` on."""

    theory: str
    parameters: int
    period: float | None
    explained: float
    explained_new: float | None
    shuffled: float | None = None
    shuffled_most: float | None = None


@dataclass(frozen=True, eq=False)
class Told:
    """Vectors that carry a number, split, and every theory of them.

    vectors: (sample and more, width), numbers: of each; every: the numbers there are, rising; train, held_out, known, new: parts of the
    sample; the last two have no number in common.
    """

    vectors: np.ndarray
    numbers: np.ndarray
    training: np.ndarray
    settings: Helix
    every: np.ndarray
    is_new: np.ndarray

    @classmethod
    def of(cls, vectors: np.ndarray, numbers: np.ndarray, training: np.ndarray, settings: Helix, below: int | None = None) -> "Told":
        """vectors: (sample and more, width), numbers: of each; training: (sample,); below: leaves out what has other numbers."""
        if below is not None:
            chosen = numbers < below
            vectors, numbers, training = vectors[chosen], numbers[chosen], training[chosen[: len(training)]]
        every = np.unique(numbers)
        drawn = np.random.default_rng(settings.helix_seed).permutation(every)[: len(every) * settings.new_numbers_percent // 100]
        return cls(vectors, numbers, training, settings, every, np.isin(numbers[: len(training)], drawn))

    def _part(self, chosen: np.ndarray) -> Numbered:
        size = len(self.training)
        return Numbered.of(self.vectors[:size][chosen], self.numbers[:size][chosen])

    @cached_property
    def train(self) -> Numbered:
        return self._part(self.training)

    @cached_property
    def held_out(self) -> Numbered:
        return self._part(~self.training)

    @cached_property
    def known(self) -> Numbered:
        return self._part(self.training & ~self.is_new)

    @cached_property
    def new(self) -> Numbered:
        return self._part(self.is_new)

    @cached_property
    def terms(self) -> dict[str, np.ndarray]:
        """Terms (every number, terms) of each theory that is a function of the number."""
        helix = bases.helix(self.every, self.settings.periods)
        return {
            "helix": helix,
            "circles": bases.circles(self.every, self.settings.periods),
            "line": bases.line(self.every),
            "polynomial": bases.polynomial(self.every, helix.shape[1]),
        }

    def sizes(self) -> tuple[int, int]:
        """How many numbers there are in training, and how many held-out cells."""
        return len(self.train.numbers), int((~self.training).sum())

    @cached_property
    def varies(self) -> bool:
        """Whether there is anything to explain, and to learn it from."""
        return len(self.train.numbers) > 1 and len(self.held_out.numbers) > 1 and self.held_out.varies

    def rows(self) -> Iterator[Scored]:
        """What each theory explains."""
        for theory, terms in self.terms.items():
            fitted = fit(terms, self.every, self.train)
            nulls = [self._score(fit(terms[order], self.every, self.train)) for order in self._orders()]
            new = self._score_new(fit(terms, self.every, self.known))
            yield Scored(theory, fitted.rank, None, self._score(fitted), new, *_summary(nulls))
        yield from self._others()

    def _others(self) -> Iterator[Scored]:
        (period, circle), explained = self._circle(self.train), self._score
        nulls = [explained(self._circle(self.train, order)[1]) for order in self._orders()]
        new = self._score_new(self._circle(self.known)[1])
        yield Scored("circle", circle.rank, period, explained(circle), new, *_summary(nulls))
        size = self.terms["helix"].shape[1]
        yield Scored("pca", size, None, self._projected(self.training, ~self.training, size), self._pca_new(size))
        drawn = [bases.helix(self.every, periods) for periods in self._periods()]
        draws = [explained(fit(terms, self.every, self.train)) for terms in drawn]
        new_draws = [self._score_new(fit(terms, self.every, self.known)) for terms in drawn]
        average = float(np.mean([x for x in new_draws if x is not None])) if None not in new_draws else None
        mean, high = _summary(draws)
        yield Scored("other_periods", size, None, mean, average, None, high)
        every = by_number(self.every, self.train)
        yield Scored("number", every.rank, None, explained(every), None)

    def replacements(self) -> Iterator[tuple[str, np.ndarray]]:
        """What each theory puts in place of the vectors behind the sample, (more, width); `shuffled` is the helix of shuffled numbers,
        `another` the mean of the number of another cell."""
        size = len(self.training)
        numbers, every = self.numbers[size:], by_number(self.every, self.train)
        generator = np.random.default_rng(self.settings.helix_seed)
        fitted = {theory: fit(terms, self.every, self.train) for theory, terms in self.terms.items()}
        fitted["circle"] = self._circle(self.train)[1]
        fitted["number"] = every
        fitted["shuffled"] = fit(self.terms["helix"][self._orders()[0]], self.every, self.train)
        for theory, one in fitted.items():
            yield theory, one.values[np.searchsorted(self.every, numbers)]
        of_train = self.numbers[:size][self.training]
        other = np.array([generator.choice(apart if len(apart := of_train[of_train != n]) else of_train) for n in numbers], int)
        yield "another", every.values[np.searchsorted(self.every, other)]
        centre, directions = self._directions(self.training, self.terms["helix"].shape[1])
        yield "pca", centre + (self.vectors[size:] - centre) @ directions @ directions.T

    def _score(self, fitted: Fitted) -> float:
        return self.held_out.explained(self.every, fitted.values)

    def _score_new(self, fitted: Fitted) -> float | None:
        return self.new.explained(self.every, fitted.values) if len(self.new.numbers) > 1 and self.new.varies else None

    def _orders(self) -> list[np.ndarray]:
        generator = np.random.default_rng(self.settings.helix_seed)
        return [generator.permutation(len(self.every)) for _ in range(self.settings.shuffles)]

    def _periods(self) -> list[np.ndarray]:
        """As many periods as the helix has, as often as there are shufflings, evenly on a logarithmic scale."""
        generator, (low, high) = np.random.default_rng(self.settings.helix_seed), np.log([2, self.settings.longest_period])
        return [np.exp(generator.uniform(low, high, len(self.settings.periods))) for _ in range(self.settings.shuffles)]

    def _circle(self, to: Numbered, order: np.ndarray | slice = slice(None)) -> tuple[float, Fitted]:
        """The period whose circle fits best, and its fit."""
        fits = {period: fit(bases.circles(self.every, [period])[order], self.every, to) for period in self.settings.periods}
        best = max(fits, key=lambda period: to.explained(self.every, fits[period].values))
        return best, fits[best]

    def _directions(self, chosen: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """The mean of these vectors of the sample, and their first principal directions (width, size)."""
        vectors = self.vectors[: len(self.training)][chosen]
        centre = vectors.mean(0)
        around = vectors - centre
        return centre, np.linalg.eigh(around.T @ around)[1][:, ::-1][:, :size]

    def _projected(self, fitted_on: np.ndarray, scored_on: np.ndarray, size: int) -> float:
        """What the principal directions of some vectors explain of others."""
        centre, directions = self._directions(fitted_on, size)
        vectors = self.vectors[: len(self.training)][scored_on]
        left = (vectors - centre) - (vectors - centre) @ directions @ directions.T
        return 1 - float((left**2).sum() / ((vectors - vectors.mean(0)) ** 2).sum())

    def _pca_new(self, size: int) -> float | None:
        return self._projected(self.training & ~self.is_new, self.is_new, size) if len(self.new.numbers) > 1 and self.new.varies else None


def _summary(scores: list[float]) -> tuple[float, float]:
    """Mean and largest."""
    return float(np.mean(scores)), max(scores)
