"""Which neurons are silenced for one prompt, by arm, against brute force on random layers."""

import numpy as np
import pytest

from stages.bag.arms import ARMS, LayerHeuristics, neurons_by_arm

SEEDS = range(25)


def random_layer(seed: int) -> tuple[LayerHeuristics, np.ndarray]:
    """Return a random layer, and which of its heuristics a prompt satisfies.

    Scores are often equal, and some neurons have no effect.
    """
    rng = np.random.default_rng(seed)
    heuristics, neurons = int(rng.integers(1, 9)), int(rng.integers(5, 60))
    stands = rng.random((heuristics, neurons)) < rng.choice([0.05, 0.2, 0.6])
    scores = np.where(stands, rng.choice([0.4, 0.5, 0.75], stands.shape), 0).astype(np.float32)
    effects = rng.normal(size=neurons).round(1)
    effects[rng.random(neurons) < 0.1] = np.nan
    names = list("abcdefgh")[:heuristics]
    return LayerHeuristics(seed % 3, names, scores, effects), rng.random(heuristics) < 0.5


@pytest.mark.parametrize("seed", SEEDS)
def test_heuristic_neurons_are_ranked_by_score_or_count_and_controls_are_others(seed: int):
    layer, about = random_layer(seed)
    own = layer.scores[about]
    best, count = own.max(axis=0, initial=0), (own > 0).sum(axis=0)
    mine = set(np.flatnonzero(own.any(axis=0)).tolist())
    elsewhere = set(np.flatnonzero(layer.scores[~about].any(axis=0)).tolist())
    for most in (1, 4, 100):
        arms = neurons_by_arm(layer, about, most, (1, seed))
        assert tuple(arms) == ARMS
        by_score = sorted(mine, key=lambda n: (-best[n], n))[:most]
        assert arms["heuristic"].tolist() == by_score
        by_count = sorted(mine, key=lambda n: (-count[n], -best[n], n))[:most]
        assert arms["count"].tolist() == by_count
        for arm, among in (("control", elsewhere - mine), ("contaminated", elsewhere)):
            drawn = set(arms[arm].tolist())
            assert len(drawn) == len(arms[arm]) == min(len(by_score), len(among))
            assert drawn <= among
        assert not mine.intersection(arms["matched"].tolist())


@pytest.mark.parametrize("seed", SEEDS)
def test_partners_have_the_nearest_effect_that_is_free(seed: int):
    layer, about = random_layer(seed)
    arms = neurons_by_arm(layer, about, 30, (1, seed))
    mine = layer.scores[about].any(axis=0)
    free = np.flatnonzero(~mine & ~np.isnan(layer.effects))
    partners = iter(arms["matched"].tolist())
    for neuron in arms["heuristic"]:
        if len(free) and not np.isnan(layer.effects[neuron]):
            distances = np.abs(layer.effects[free] - layer.effects[neuron])
            partner = next(partners)
            assert partner in free[distances == distances.min()]
            free = free[free != partner]
    assert next(partners, None) is None


def test_a_contaminated_control_holds_associated_neurons():
    """As often as they are among those that stand for something else: here half of them."""
    scores = np.zeros((2, 40), np.float32)
    scores[0, :20] = scores[1, 10:30] = 0.5
    layer, about = LayerHeuristics(0, ["a", "b"], scores, np.zeros(40)), np.array([True, False])
    contaminated, control = [], []
    for pair in range(200):
        arms = neurons_by_arm(layer, about, 5, (0, pair))
        contaminated += arms["contaminated"].tolist()
        control += arms["control"].tolist()
    assert len(contaminated) == 1000
    assert np.mean(np.array(contaminated) < 20) == pytest.approx(0.5, abs=4 * 0.5 / 1000**0.5)
    assert set(control) == set(range(20, 30))


def test_the_seed_decides_and_nothing_else():
    layer, about = random_layer(1)
    first = neurons_by_arm(layer, about, 100, (0, 1))
    np.testing.assert_equal(neurons_by_arm(layer, about, 100, (0, 1)), first)
    other = neurons_by_arm(layer, about, 100, (0, 2))
    changed = {arm for arm in ARMS if not np.array_equal(first[arm], other[arm])}
    assert changed
    assert changed <= {"control", "contaminated"}
    assert len(first["heuristic"]) > 3


@pytest.mark.parametrize("about", [True, False])
def test_a_prompt_of_all_heuristics_or_of_none_has_arms_without_neurons(about: bool):
    layer, _ = random_layer(2)
    arms = neurons_by_arm(layer, np.full(len(layer.heuristics), about), 10, (0, 0))
    assert (len(arms["heuristic"]) > 0) == about
    assert len(arms["control"]) == len(arms["contaminated"]) == 0
