"""Theories of how the residual stream encodes a number, all fitted and scored on the same vectors.

`SplitVectors` holds the vectors of one site and splits them into training, held-out and new
numbers. `NumberTheories` fits every theory to the training vectors, scores it on the others, and
predicts the vectors of the prompts that an experiment patches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stages.theories import bases
from stages.theories.numbered import Fitted, Numbered, fit, fit_means
from stages.theories.settings import Helix


class Site(NamedTuple):
    """A token whose residual stream may encode a number.

    position: role of the token, op1, op2 or last; quantity: the number, op1, op2 or result.
    """

    position: str
    quantity: str

    def replaceable(self, level: int, layers: int) -> bool:
        """Return whether the experiment patches the residual stream that enters this layer.

        It patches an operand at the operand's own token, and the result at the last token. The
        last token enters the first layer with the same vector in all prompts. No layer reads the
        stream at level `layers`.
        """
        own = self.position == self.quantity or (self.quantity == "result" and level > 0)
        return own and level < layers


SITES = (
    Site("op1", "op1"),
    Site("op2", "op2"),
    Site("last", "op1"),
    Site("last", "op2"),
    Site("last", "result"),
)


class Score(NamedTuple):
    """How well a theory predicts held-out vectors: the columns of helix_fits from `theory` on."""

    theory: str
    parameters: int
    period: float | None
    explained: float
    explained_new: float | None
    shuffled: float | None = None
    shuffled_most: float | None = None


@dataclass(frozen=True, eq=False)
class SplitVectors:
    """Vectors of the residual stream, each with its number, split for fitting and scoring.

    The first vectors are the sample, on which theories are fitted and scored. The others belong to
    the prompts that the experiment patches.

    vectors: (sample + patched, width)
    numbers: (sample + patched,) the number of each vector
    training: (sample,) True for training vectors, False for held-out ones
    is_new: (sample,) True for vectors whose numbers the second fit does not see
    """

    vectors: np.ndarray
    numbers: np.ndarray
    training: np.ndarray
    is_new: np.ndarray

    @classmethod
    def draw(
        cls,
        vectors: np.ndarray,
        numbers: np.ndarray,
        training: np.ndarray,
        settings: Helix,
        below: int | None = None,
    ) -> "SplitVectors":
        """Draw the numbers that the second fit does not see.

        below: keeps only vectors whose number is smaller; None keeps all.
        """
        if below is not None:
            small = numbers < below
            training = training[small[: len(training)]]
            vectors, numbers = vectors[small], numbers[small]
        distinct = np.unique(numbers)
        count = len(distinct) * settings.new_numbers_percent // 100
        new = np.random.default_rng(settings.helix_seed).permutation(distinct)[:count]
        return cls(vectors, numbers, training, np.isin(numbers[: len(training)], new))

    @cached_property
    def distinct(self) -> np.ndarray:
        """The distinct numbers of all vectors, rising."""
        return np.unique(self.numbers)

    @property
    def sample(self) -> np.ndarray:
        """The vectors of the sample (sample, width)."""
        return self.vectors[: len(self.training)]

    @cached_property
    def train(self) -> Numbered:
        """The vectors of the first fit."""
        return self._group(self.training)

    @cached_property
    def held_out(self) -> Numbered:
        """The vectors that score the first fit."""
        return self._group(~self.training)

    @cached_property
    def known(self) -> Numbered:
        """The vectors of the second fit, whose numbers are not new."""
        return self._group(self.training & ~self.is_new)

    @cached_property
    def new(self) -> Numbered:
        """The vectors that score the second fit, whose numbers it does not see."""
        return self._group(self.is_new)

    def _group(self, rows: np.ndarray) -> Numbered:
        return Numbered.group(self.sample[rows], self.numbers[: len(self.training)][rows])

    @cached_property
    def varies(self) -> bool:
        """Whether there are at least two numbers to fit and to score, and variance to explain."""
        several = len(self.train.numbers) > 1 and len(self.held_out.numbers) > 1
        return several and self.held_out.varies

    def sizes(self) -> tuple[int, int]:
        """Return the number of distinct training numbers, and of held-out vectors."""
        return len(self.train.numbers), int((~self.training).sum())


@dataclass(frozen=True, eq=False)
class Directions:
    """Principal components of some vectors. centre: their mean (width,); axes: (width, size)."""

    centre: np.ndarray
    axes: np.ndarray

    @classmethod
    def fit(cls, vectors: np.ndarray, size: int) -> "Directions":
        """Fit the `size` first principal components."""
        centre = vectors.mean(0)
        around = vectors - centre
        return cls(centre, np.linalg.eigh(around.T @ around)[1][:, ::-1][:, :size])

    def offsets(self, vectors: np.ndarray) -> np.ndarray:
        """Return the projections, less the mean, of vectors (vectors, width)."""
        return (vectors - self.centre) @ self.axes @ self.axes.T

    def explained(self, vectors: np.ndarray) -> float:
        """Return 1 - error / variance of the projections of these vectors."""
        left = (vectors - self.centre) - self.offsets(vectors)
        return 1 - float((left**2).sum() / ((vectors - vectors.mean(0)) ** 2).sum())


class NumberTheories:
    """Every theory of the number at one site.

    terms: theory -> its terms (distinct numbers, terms), for theories that are linear in terms;
    orders: permutations of the distinct numbers, one per shuffle, for the controls.
    """

    def __init__(self, split: SplitVectors, settings: Helix):
        self.split, self.settings, self.distinct = split, settings, split.distinct
        helix = bases.helix(self.distinct, settings.periods)
        self.helix_terms = helix.shape[1]
        self.terms = {
            "helix": helix,
            "circles": bases.circles(self.distinct, settings.periods),
            "line": bases.line(self.distinct),
            "polynomial": bases.polynomial(self.distinct, self.helix_terms),
        }
        generator = np.random.default_rng(settings.helix_seed)
        count = len(self.distinct)
        self.orders = [generator.permutation(count) for _ in range(settings.shuffles)]

    def scores(self) -> Iterator[Score]:
        """Yield the score of each theory."""
        for theory, terms in self.terms.items():
            yield self._score_terms(theory, terms)
        yield self._score_circle()
        yield self._score_pca()
        yield self._score_other_periods()
        means = fit_means(self.distinct, self.split.train)
        yield Score("number", means.rank, None, self._explained(means), None)

    def _score_terms(self, theory: str, terms: np.ndarray) -> Score:
        fitted = self._fit(terms, self.split.train)
        controls = [self._fit(terms[order], self.split.train) for order in self.orders]
        new = self._explained_new(self._fit(terms, self.split.known))
        summary = _mean_and_largest(map(self._explained, controls))
        return Score(theory, fitted.rank, None, self._explained(fitted), new, *summary)

    def _score_circle(self) -> Score:
        period, circle = self._fit_circle(self.split.train)
        controls = [self._fit_circle(self.split.train, order)[1] for order in self.orders]
        new = self._explained_new(self._fit_circle(self.split.known)[1])
        summary = _mean_and_largest(map(self._explained, controls))
        return Score("circle", circle.rank, period, self._explained(circle), new, *summary)

    def _score_pca(self) -> Score:
        """Score principal components, as many as the helix has terms.

        They see the held-out vector itself, not its number.
        """
        split, size = self.split, self.helix_terms
        fitted = Directions.fit(split.sample[split.training], size)
        explained, new = fitted.explained(split.sample[~split.training]), None
        if self._new_varies:
            fitted = Directions.fit(split.sample[split.training & ~split.is_new], size)
            new = fitted.explained(split.sample[split.is_new])
        return Score("pca", size, None, explained, new)

    def _score_other_periods(self) -> Score:
        """Score helices of random periods: the mean over draws, and the best draw."""
        draws = [bases.helix(self.distinct, periods) for periods in self._random_periods()]
        fits = [self._fit(terms, self.split.train) for terms in draws]
        mean, best = _mean_and_largest(map(self._explained, fits))
        new = None
        if self._new_varies:
            without_new = [self._fit(terms, self.split.known) for terms in draws]
            new, _ = _mean_and_largest(map(self._explained_of_new, without_new))
        parameters = max(fitted.rank for fitted in fits)
        return Score("other_periods", parameters, None, mean, new, None, best)

    def predictions(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each theory's predictions (patched, width) for the vectors after the sample.

        `shuffled` is the helix of shuffled numbers. `another` is the mean vector of a different
        number, drawn from the training vectors.
        """
        patched = slice(len(self.split.training), None)
        numbers, train = self.split.numbers[patched], self.split.train
        means = fit_means(self.distinct, train)
        fits = {theory: self._fit(terms, train) for theory, terms in self.terms.items()}
        fits["circle"] = self._fit_circle(train)[1]
        fits["number"] = means
        fits["shuffled"] = self._fit(self.terms["helix"][self.orders[0]], train)
        for theory, fitted in fits.items():
            yield theory, self._at(fitted, numbers)
        yield "another", self._at(means, self._draw_other_numbers(numbers))
        directions = Directions.fit(self.split.sample[self.split.training], self.helix_terms)
        yield "pca", directions.centre + directions.offsets(self.split.vectors[patched])

    def _at(self, fitted: Fitted, numbers: np.ndarray) -> np.ndarray:
        return fitted.values[np.searchsorted(self.distinct, numbers)]

    def _draw_other_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Draw, for each of these numbers, the number of a training vector that differs from it."""
        generator = np.random.default_rng(self.settings.helix_seed)
        training = self.split.numbers[: len(self.split.training)][self.split.training]
        drawn = np.zeros(len(numbers), int)
        for prompt, number in enumerate(numbers):
            others = training[training != number]
            drawn[prompt] = generator.choice(others if len(others) else training)
        return drawn

    def _fit(self, terms: np.ndarray, vectors: Numbered) -> Fitted:
        return fit(terms, self.distinct, vectors)

    def _fit_circle(
        self, vectors: Numbered, order: np.ndarray | slice = slice(None)
    ) -> tuple[float, Fitted]:
        """Return the period of the best circle, and its fit. order: shuffles the numbers."""
        fits = {}
        for period in self.settings.periods:
            fits[period] = self._fit(bases.circles(self.distinct, [period])[order], vectors)
        best = max(fits, key=lambda period: vectors.explained(self.distinct, fits[period].values))
        return best, fits[best]

    def _random_periods(self) -> Iterator[np.ndarray]:
        """Draw as many periods as the helix has, log-uniformly, once per shuffle."""
        generator = np.random.default_rng(self.settings.helix_seed)
        low, high = np.log([2, self.settings.longest_period])
        for _ in range(self.settings.shuffles):
            yield np.exp(generator.uniform(low, high, len(self.settings.periods)))

    def _explained(self, fitted: Fitted) -> float:
        return self.split.held_out.explained(self.distinct, fitted.values)

    def _explained_new(self, fitted: Fitted) -> float | None:
        return self._explained_of_new(fitted) if self._new_varies else None

    def _explained_of_new(self, fitted: Fitted) -> float:
        return self.split.new.explained(self.distinct, fitted.values)

    @property
    def _new_varies(self) -> bool:
        return len(self.split.new.numbers) > 1 and self.split.new.varies


def _mean_and_largest(scores: Iterator[float]) -> tuple[float, float]:
    listed = list(scores)
    return float(np.mean(listed)), max(listed)
