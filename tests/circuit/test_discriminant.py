"""Linear probes of planted features."""

import numpy as np
import pytest
import torch

from stages.circuit import discriminant


def planted(
    spread: float, examples: int = 3000, answers: int = 40, width: int = 16
) -> tuple[np.ndarray, np.ndarray]:
    """Return features in which each answer is a random point, with correlated noise of `spread`."""
    generator = np.random.default_rng(1)
    labels = generator.integers(answers, size=examples)
    noise = (
        generator.normal(size=(examples, width)) @ generator.normal(size=(width, width)) * spread
    )
    return (generator.normal(size=(answers, width))[labels] + noise + 5).astype(
        np.float32
    ), labels * 3 + 7


def test_a_planted_linear_code_is_read_and_shuffled_answers_are_not():
    features, labels = planted(0.02)
    shuffled = np.random.default_rng(2).permutation(labels)
    real, control = discriminant.probe(features, [labels, shuffled], 600, 1e-3)
    assert real > 0.99
    assert control < 0.08  # 1 in 40, and noise


def test_the_scores_are_log_posteriors_of_gaussians_with_one_covariance():
    features, labels = planted(0.3, 2000, 4, 5)
    x, y = torch.from_numpy(features).double(), torch.from_numpy(labels)
    x = x - x.mean(0)
    probe = discriminant.fit(x, y, 1e-9)
    groups = [x[y == c] for c in probe.classes]
    within = sum((g - g.mean(0)).T @ (g - g.mean(0)) for g in groups) / (len(x) - len(groups))
    densities = torch.stack(
        [
            torch.distributions.MultivariateNormal(g.mean(0), within).log_prob(x)
            + np.log(len(g) / len(x))
            for g in groups
        ],
        1,
    )
    scores = x @ probe.weights.T + probe.biases
    torch.testing.assert_close(
        scores.log_softmax(1), densities.log_softmax(1), rtol=1e-4, atol=1e-4
    )


def test_an_answer_never_trained_on_is_missed():
    features, labels = planted(0.02, 1000, 4)
    labels[:100] = 10_000
    assert discriminant.probe(features, [labels], 100, 1e-3) == [0.0]


@pytest.mark.parametrize(
    "features",
    [np.zeros((40, 3)), np.repeat(np.eye(4), 10, axis=0)],
    ids=["constant", "no spread within answers"],
)
def test_features_without_spread_are_no_error(features: np.ndarray):
    order = np.random.default_rng(0).permutation(40)
    labels = np.repeat(np.arange(4), 10)
    [accuracy] = discriminant.probe(features[order].astype(np.float32), [labels[order]], 8, 1e-3)
    assert accuracy == 1 if features.any() else 0 <= accuracy < 1
