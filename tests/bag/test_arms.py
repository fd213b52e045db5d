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
    return LayerHeuristics(
        seed % 3, [f"h{i}" for i in range(heuristics)], scores, effects
    ), rng.random(heuristics) < 0.5


@pytest.mark.parametrize("seed", SEEDS)
def test_heuristic_neurons_are_ranked_by_score_or_count_and_controls_are_others(seed: int):
    layer, about = random_layer(seed)
    neurons = range(layer.scores.shape[1])
    mine = [n for n in neurons if layer.scores[about, n].any()]
    elsewhere = [n for n in neurons if layer.scores[~about, n].any()]
    best = {n: max(layer.scores[about, n]) for n in mine}
    count = {n: int((layer.scores[about, n] > 0).sum()) for n in mine}
    for most in (1, 4, 100):
        arms = {
            arm: units.tolist()
            for arm, units in neurons_by_arm(layer, about, most, (1, seed)).items()
        }
        assert tuple(arms) == ARMS
        assert arms["heuristic"] == sorted(mine, key=lambda n: (-best[n], n))[:most]
        assert arms["count"] == sorted(mine, key=lambda n: (-count[n], -best[n], n))[:most]
        for arm, among in (
            ("control", set(elsewhere) - set(mine)),
            ("contaminated", set(elsewhere)),
        ):
            assert len(set(arms[arm])) == len(arms[arm]) == min(len(arms["heuristic"]), len(among))
            assert set(arms[arm]) <= among
        assert not set(arms["matched"]) & set(mine)


@pytest.mark.parametrize("seed", SEEDS)
def test_partners_have_the_nearest_effect_that_is_free(seed: int):
    layer, about = random_layer(seed)
    arms = neurons_by_arm(layer, about, 30, (1, seed))
    mine = layer.scores[about].any(axis=0)
    free = set(np.flatnonzero(~mine & ~np.isnan(layer.effects)).tolist())
    partners = iter(arms["matched"].tolist())
    for neuron in arms["heuristic"]:
        if free and not np.isnan(layer.effects[neuron]):
            partner = next(partners)
            distance = {n: abs(layer.effects[n] - layer.effects[neuron]) for n in free}
            assert distance[partner] == min(distance.values())
            free.remove(partner)
    assert next(partners, None) is None


def test_a_contaminated_control_holds_associated_neurons():
    """As often as they are among those that stand for something else: here half of them."""
    scores = np.zeros((2, 40), np.float32)
    scores[0, :20] = scores[1, 10:30] = 0.5
    layer, about = LayerHeuristics(0, ["a", "b"], scores, np.zeros(40)), np.array([True, False])
    drawn = [neurons_by_arm(layer, about, 5, (0, pair)) for pair in range(200)]
    share = np.mean(np.array([arms["contaminated"] for arms in drawn]) < 20)
    assert share == pytest.approx(0.5, abs=4 * 0.5 / 1000**0.5)
    assert {n for arms in drawn for n in arms["control"]} == set(range(20, 30))


def test_the_seed_decides_and_nothing_else():
    layer, about = random_layer(1)
    first, again, other = (
        neurons_by_arm(layer, about, 100, seed) for seed in ((0, 1), (0, 1), (0, 2))
    )
    assert all(np.array_equal(first[arm], again[arm]) for arm in ARMS)
    assert all(np.array_equal(first[arm], other[arm]) for arm in ("heuristic", "count", "matched"))
    assert any(not np.array_equal(first[arm], other[arm]) for arm in ("control", "contaminated"))
    assert len(first["heuristic"]) > 3


@pytest.mark.parametrize("about", [True, False])
def test_a_prompt_of_all_heuristics_or_of_none_has_arms_without_neurons(about: bool):
    layer, _ = random_layer(2)
    arms = neurons_by_arm(layer, np.full(len(layer.heuristics), about), 10, (0, 0))
    assert (len(arms["heuristic"]) > 0) == about
    assert [len(arms[arm]) for arm in ("control", "contaminated")] == [0, 0]
