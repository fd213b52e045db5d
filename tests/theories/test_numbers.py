"""Test theories of numbers in the residual stream, on curves that are known, and on noise."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.theories import bases
from stages.theories.helix_fits import POSITIONS, OperatorFits, Prompts
from stages.theories.number_theories import NumberTheories, Score, Site, SplitVectors
from stages.theories.numbered import Numbered, fit, fit_means
from stages.theories.settings import Helix

SETTINGS = Helix(
    periods=[2, 5, 10, 100],
    prompts=1000,
    study_numbers=60,
    new_numbers_percent=20,
    shuffles=5,
    longest_period=80,
    helix_seed=0,
)
WIDTH, CELLS, SIDE = 12, 1500, 120


def split(curve: str, noise: float = 0.0) -> SplitVectors:
    """Return vectors that are a curve of a number in random directions.

    noise: its standard deviation in each cell; that of the curve is 1.
    """
    random = np.random.default_rng(3)
    numbers, training = random.integers(0, SIDE, CELLS), np.arange(CELLS) % 5 > 0
    every = np.arange(SIDE)
    terms = {
        "helix": bases.helix(every, SETTINGS.periods),
        "circle": bases.circles(every, [10]),
        "line": bases.line(every),
        "polynomial": bases.polynomial(every, 8),
        "lookup": np.eye(SIDE),
        "nothing": np.zeros((SIDE, 1)),
    }[curve]
    scaled = terms / np.maximum(terms.std(0), 1e-9)
    points = scaled @ random.normal(size=(terms.shape[1], WIDTH))
    points -= points.mean(0)
    points /= max(points.std(), 1e-9)
    vectors = 5 + points[numbers] + noise * random.normal(size=(CELLS, WIDTH))
    return SplitVectors.draw(vectors, numbers, training, SETTINGS)


def scores(curve: str, noise: float = 0.0) -> dict[str, Score]:
    """Return theory -> its score."""
    rows = NumberTheories(split(curve, noise), SETTINGS).scores()
    return {row.theory: row for row in rows}


def test_a_helix_is_explained_by_a_helix_and_less_by_its_parts():
    rows = scores("helix")
    for theory in ("helix", "pca", "polynomial"):
        assert rows[theory].parameters == 8  # the sine of period 2 is 0
    assert rows["helix"].explained == pytest.approx(1)
    assert rows["helix"].explained_new == pytest.approx(1)
    assert rows["number"].explained == rows["pca"].explained == pytest.approx(1)
    for theory in ("circles", "circle", "line"):
        assert rows[theory].explained < 0.98
    assert rows["circles"].explained > rows["circle"].explained
    assert rows["other_periods"].explained < 0.7
    assert rows["other_periods"].parameters == 9  # all sines count
    assert rows["helix"].shuffled < 0.15
    assert rows["helix"].shuffled_most < 0.3


def test_a_lookup_is_explained_only_by_means_of_numbers_that_were_seen():
    rows = scores("lookup")
    assert rows["number"].explained == pytest.approx(1)
    assert rows["number"].explained_new is None
    for theory in ("helix", "circles", "circle", "line", "polynomial"):
        assert rows[theory].explained < 0.2
        assert rows[theory].explained_new < 0.05


@pytest.mark.parametrize("curve", ["line", "polynomial", "circle"])
def test_a_curve_is_explained_by_its_own_theory(curve: str):
    rows = scores(curve, 0.1)
    explainable = 1 / (1 + 0.1**2)  # all but the noise
    assert rows[curve].explained == pytest.approx(explainable, abs=0.01)
    if curve == "circle":
        assert (rows["circle"].period, rows["circle"].parameters) == (10, 2)
        assert rows["line"].explained < 0.1


def test_noise_is_not_explained():
    rows = scores("nothing", 1.0)
    del rows["pca"]  # sees the vectors themselves
    for theory, row in rows.items():
        assert row.explained < 0.02, theory
        assert row.explained_new is None or row.explained_new < 0.02, theory


def test_vectors_vary_only_beyond_rounding():
    assert not split("nothing").varies
    assert split("nothing", 1e-3).varies


def test_predictions_are_those_of_the_prompts_after_the_sample():
    whole = split("helix", 0.3)
    sample = 1200
    part = SplitVectors.draw(whole.vectors, whole.numbers, whole.training[:sample], SETTINGS)
    predictions = dict(NumberTheories(part, SETTINGS).predictions())
    patched, numbers = whole.vectors[sample:], whole.numbers[sample:]
    fitted = fit(bases.helix(part.distinct, SETTINGS.periods), part.distinct, part.train)
    np.testing.assert_allclose(predictions["helix"], fitted.values[numbers])
    training = part.sample[part.training]
    training_numbers = part.numbers[:sample][part.training]
    for row, number in zip(predictions["number"], numbers, strict=True):
        np.testing.assert_allclose(row, training[training_numbers == number].mean(0))
    errors = {}
    for theory, values in predictions.items():
        assert values.shape == patched.shape
        errors[theory] = ((values - patched) ** 2).mean()
    assert errors["helix"] < errors["circles"] < errors["shuffled"]
    assert errors["another"] > 1  # as large as the distance of two numbers
    assert errors["pca"] < errors["shuffled"]


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 30))
def test_fit_equals_least_squares_over_cells(seed: int, terms: int, numbers: int):
    random = np.random.default_rng(seed)
    own = random.integers(0, numbers, 80)
    vectors, every = random.normal(size=(80, 3)), np.arange(numbers)
    table = random.normal(size=(numbers, terms))
    table[:, -1] = table[:, 0]  # a dependent term adds nothing
    fitted = fit(table, every, Numbered.group(vectors, own))
    design = np.concatenate([np.ones((80, 1)), table[own]], axis=1)
    solution, _, rank, _ = np.linalg.lstsq(design, vectors)
    np.testing.assert_allclose(fitted.values[own], design @ solution, atol=1e-6)
    assert fitted.rank == rank - 1
    others, their = random.normal(size=(40, 3)), random.integers(0, numbers, 40)
    error = ((others - fitted.values[their]) ** 2).sum()
    expected = 1 - error / ((others - others.mean(0)) ** 2).sum()
    explained = Numbered.group(others, their).explained(every, fitted.values)
    assert explained == pytest.approx(expected)


def test_an_unseen_number_gets_the_mean_of_all_vectors():
    vectors, numbers = np.arange(12.0).reshape(6, 2), np.array([1, 1, 3, 3, 3, 7])
    fitted = fit_means(np.array([0, 1, 3, 7]), Numbered.group(vectors, numbers))
    expected = [vectors.mean(0), vectors[:2].mean(0), vectors[2:5].mean(0), vectors[5]]
    np.testing.assert_allclose(fitted.values, expected)
    assert fitted.rank == 2


def test_numbers_below_a_limit_are_analysed_alone():
    whole = split("polynomial", 0.2)
    vectors, numbers, training = whole.vectors, whole.numbers, whole.training
    small = SplitVectors.draw(vectors, numbers, training, SETTINGS, below=60)
    assert small.distinct.tolist() == list(range(60))
    own = numbers < 60
    again = SplitVectors.draw(vectors[own], numbers[own], training[own], SETTINGS)
    first, second = (NumberTheories(part, SETTINGS).scores() for part in (small, again))
    assert list(first) == list(second)


@dataclass(frozen=True)
class Streams:
    """Residual streams of prompts in memory (levels, positions, prompts, width)."""

    values: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def at(self, level: int, position: int) -> np.ndarray:
        return self.values[level, position]


def operator_fits(largest: int) -> OperatorFits:
    """Return fits of two levels to random streams; op1 and op2 are 0..largest, results twice."""
    random = np.random.default_rng(1)
    training = np.arange(200) % 4 > 0
    op1, op2 = random.integers(0, largest + 1, (2, 240))
    numbers = {"op1": op1, "op2": op2, "result": op1 + op2}
    prompts = Prompts([], np.empty((240, 3)), numbers, training, np.arange(40))
    streams = Streams(random.normal(size=(2, len(POSITIONS), 240, 8)))
    return OperatorFits("s", "add", prompts, streams, SETTINGS)  # type: ignore[arg-type]


@pytest.mark.parametrize("largest", [SETTINGS.study_numbers - 1, SETTINGS.study_numbers])
def test_small_numbers_are_fitted_again_only_if_there_are_others(largest: int):
    fits = operator_fits(largest)
    predictions = {name: (pairs, values) for name, pairs, values in fits.fit_level(1)}
    assert not predictions  # no layer follows
    predictions = {name: (pairs, values) for name, pairs, values in fits.fit_level(0)}
    limit = SETTINGS.study_numbers
    sites: dict[tuple, dict[int | None, list]] = {}
    for _, _, level, position, quantity, below, *row in fits.rows:
        sites.setdefault((level, position, quantity), {None: [], limit: []})[below].append(row)
    assert len(sites) == 2 * 5
    for (_, _, quantity), rows in sites.items():
        whole, small = rows.values()
        assert len(whole) == len(small) > 0
        is_same = quantity != "result" and largest < limit
        assert (whole == small) == is_same
    names = {name for name in predictions if not name.endswith(" below")}
    assert names
    assert len(predictions) == 2 * len(names)
    for name in names:
        pairs, values = predictions[name]
        small_pairs, small_values = predictions[f"{name} below"]
        numbers = fits.prompts.numbers[name.split()[1]][200:]
        assert pairs.tolist() == list(range(40))
        assert small_pairs.tolist() == np.flatnonzero(numbers < limit).tolist()
        is_same = values.shape == small_values.shape and np.array_equal(values, small_values)
        assert is_same == (largest < limit)


def test_sites_are_patched_where_a_number_is_and_a_layer_follows():
    sites = [Site("op1", "op1"), Site("last", "result"), Site("last", "op1")]
    patched = [(*site, n) for site, n in product(sites, range(4)) if site.replaceable(n, 3)]
    operands = [("op1", "op1", n) for n in range(3)]
    assert patched == [*operands, ("last", "result", 1), ("last", "result", 2)]
