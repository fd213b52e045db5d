"""Theories of numbers in a stream: planted curves are found, noise is not, and least squares is numpy's."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.theories import bases
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
    """Vectors that are some curve of a number, in random directions, with noise of this size (the curve's own is 1) in each cell."""
    random = np.random.default_rng(3)
    numbers, training = random.integers(0, SIDE, CELLS), np.arange(CELLS) % 5 > 0
    terms = {
        "helix": bases.helix(np.arange(SIDE), SETTINGS.periods),
        "circle": bases.circles(np.arange(SIDE), [10]),
        "line": bases.line(np.arange(SIDE)),
        "polynomial": bases.polynomial(np.arange(SIDE), 8),
        "lookup": np.eye(SIDE),
        "nothing": np.zeros((SIDE, 1)),
    }[curve]
    of_number = (terms / np.maximum(terms.std(0), 1e-9)) @ random.normal(
        size=(terms.shape[1], WIDTH)
    )
    of_number -= of_number.mean(0)
    of_number /= max(of_number.std(), 1e-9)
    return SplitVectors.draw(
        5 + of_number[numbers] + noise * random.normal(size=(CELLS, WIDTH)),
        numbers,
        training,
        SETTINGS,
    )


def scores(curve: str, noise: float = 0.0) -> Iterator[Score]:
    return NumberTheories(split(curve, noise), SETTINGS).scores()


def explained(curve: str, noise: float = 0.0) -> dict[str, tuple[float, float | None]]:
    return {row.theory: (row.explained, row.explained_new) for row in scores(curve, noise)}


def test_a_planted_helix_is_a_helix_and_less_of_anything_smaller():
    found = {row.theory: row for row in scores("helix")}
    assert (
        found["helix"].parameters == found["pca"].parameters == found["polynomial"].parameters == 8
    )  # the sine of period 2 is 0
    assert found["helix"].explained == pytest.approx(1)
    assert found["helix"].explained_new == pytest.approx(1)
    assert found["number"].explained == found["pca"].explained == pytest.approx(1)
    for part in ("circles", "circle", "line"):
        assert found[part].explained < 0.98
    assert found["circles"].explained > found["circle"].explained
    assert found["other_periods"].explained < 0.7
    assert found["helix"].shuffled < 0.15
    assert found["helix"].shuffled_most < 0.3


def test_a_number_without_order_is_known_by_heart_alone():
    """A mean for each number explains all of it on cells of numbers that were seen, and no theory anything of numbers that were not."""
    found = explained("lookup")
    assert found["number"] == (pytest.approx(1), None)
    for theory in ("helix", "circles", "circle", "line", "polynomial"):
        assert found[theory][0] < 0.2
        assert found[theory][1] < 0.05


@pytest.mark.parametrize(
    ("curve", "theory"), [("line", "line"), ("polynomial", "polynomial"), ("circle", "circle")]
)
def test_other_curves_are_what_they_are(curve: str, theory: str):
    found = {row.theory: row for row in scores(curve, 0.1)}
    assert found[theory].explained == pytest.approx(
        1 / (1 + 0.1**2), abs=0.01
    )  # noise is not explained
    if curve == "circle":
        assert (found["circle"].period, found["circle"].parameters) == (10, 2)
        assert found["line"].explained < 0.1


def test_noise_is_not_explained():
    for theory, (share, new) in explained("nothing", 1.0).items():
        if theory != "pca":  # which looks at the vectors themselves
            assert share < 0.02, theory
            assert new is None or new < 0.02, theory


def test_what_does_not_vary_has_nothing_to_explain():
    assert not split("nothing").varies
    assert split("nothing", 1e-3).varies


def test_replacements_are_what_theories_say_of_the_prompts_behind_the_sample():
    whole = split("helix", 0.3)
    sample = 1200
    part = SplitVectors.draw(whole.vectors, whole.numbers, whole.training[:sample], SETTINGS)
    said = dict(NumberTheories(part, SETTINGS).predictions())
    behind, numbers = whole.vectors[sample:], whole.numbers[sample:]
    fitted = fit(bases.helix(part.distinct, SETTINGS.periods), part.distinct, part.train)
    np.testing.assert_allclose(said["helix"], fitted.values[numbers])
    of_train = part.vectors[:sample][part.training], part.numbers[:sample][part.training]
    for row, number in zip(said["number"], numbers, strict=True):
        np.testing.assert_allclose(row, of_train[0][of_train[1] == number].mean(0))
    errors = {theory: ((values - behind) ** 2).mean() for theory, values in said.items()}
    assert errors["helix"] < errors["circles"] < errors["shuffled"]
    assert errors["another"] > 1  # of another number, so as far off as two numbers are apart
    assert errors["pca"] < errors["shuffled"]
    assert all(values.shape == behind.shape for values in said.values())


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 30))
def test_fit_is_numpys_least_squares_over_cells(seed: int, terms: int, numbers: int):
    random = np.random.default_rng(seed)
    of = random.integers(0, numbers, 80)
    vectors, every = random.normal(size=(80, 3)), np.arange(numbers)
    table = random.normal(size=(numbers, terms))
    table[:, -1] = table[:, 0]  # a term that follows from another adds nothing
    fitted = fit(table, every, Numbered.group(vectors, of))
    design = np.concatenate([np.ones((80, 1)), table[of]], axis=1)
    solution, _, rank, _ = np.linalg.lstsq(design, vectors)
    np.testing.assert_allclose(fitted.values[of], design @ solution, atol=1e-6)
    assert fitted.rank == rank - 1
    others, carry = random.normal(size=(40, 3)), random.integers(0, numbers, 40)
    expected = (
        1 - ((others - fitted.values[carry]) ** 2).sum() / ((others - others.mean(0)) ** 2).sum()
    )
    assert Numbered.group(others, carry).explained(every, fitted.values) == pytest.approx(expected)


def test_a_number_never_seen_gets_the_mean_of_all():
    vectors, numbers = np.arange(12.0).reshape(6, 2), np.array([1, 1, 3, 3, 3, 7])
    fitted = fit_means(np.array([0, 1, 3, 7]), Numbered.group(vectors, numbers))
    np.testing.assert_allclose(
        fitted.values, [vectors.mean(0), vectors[:2].mean(0), vectors[2:5].mean(0), vectors[5]]
    )
    assert fitted.rank == 2


def test_numbers_below_a_limit_are_looked_at_alone():
    whole = split("polynomial", 0.2)
    small = SplitVectors.draw(whole.vectors, whole.numbers, whole.training, SETTINGS, below=60)
    assert small.distinct.tolist() == list(range(60))
    chosen = whole.numbers < 60
    again = SplitVectors.draw(
        whole.vectors[chosen], whole.numbers[chosen], whole.training[chosen], SETTINGS
    )
    assert list(NumberTheories(small, SETTINGS).scores()) == list(
        NumberTheories(again, SETTINGS).scores()
    )


def test_streams_are_replaced_where_a_number_stands_and_a_layer_follows():
    assert [level for level in range(4) if Site("op1", "op1").replaceable(level, 3)] == [0, 1, 2]
    assert [level for level in range(4) if Site("last", "result").replaceable(level, 3)] == [1, 2]
    assert not any(Site("last", "op1").replaceable(level, 3) for level in range(4))
