"""Fit a linear probe in closed form, by linear discriminant analysis.

The probe is one linear layer from features x to a score for each answer c: the log posterior of
Gaussian classes that share a covariance:
    score_c(x) = w_c · x + b_c,   w_c = S⁻¹ μ_c,   b_c = -½ μ_c' S⁻¹ μ_c + log π_c
μ_c is the class's mean, π_c its share, and S the covariance within classes, shrunk towards a
multiple of the identity. The study fits the same map by gradient descent (Adam, 20 epochs). The
closed form has no steps, no learning rate and no order of examples, so the same data always give
the same probe. If answers differ in covariance, gradient descent can find a better map: the
accuracy is a lower bound of what a linear map can read.
"""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Probe:
    """Hold a linear probe.

    weights: (classes, width) float64; biases: (classes,) float64; classes: (classes,) label of each
    row.
    """

    weights: torch.Tensor
    biases: torch.Tensor
    classes: torch.Tensor

    def accuracy(self, features: torch.Tensor, labels: torch.Tensor) -> float:
        """Return the share of examples whose label has the best score.

        features: (examples, width) float64; labels: (examples,). A label that the probe was not
        trained on counts as wrong.
        """
        best = torch.addmm(self.biases, features, self.weights.T).argmax(1)
        return float((self.classes[best] == labels).double().mean())


def fit(
    features: torch.Tensor,
    labels: torch.Tensor,
    shrinkage: float,
    gram: torch.Tensor | None = None,
) -> Probe:
    """Return the probe of these examples.

    features: (examples, width) float64, centred, which keeps the sums exact.
    labels: (examples,) integers.
    shrinkage: share of S that is the identity times the mean variance, 0 to 1; above 0, S can be
    inverted.
    gram: features.T @ features, if it is known.
    """
    classes, members, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    means = features.new_zeros((len(classes), features.shape[1]))
    means = means.index_add_(0, members, features) / counts[:, None]
    if gram is None:
        gram = features.T @ features
    within = (gram - means.T @ (means * counts[:, None])) / max(1, len(labels) - len(classes))
    mean_variance = within.diagonal().mean()
    total_variance = gram.diagonal().mean() / len(labels)
    if mean_variance <= 1e-12 * total_variance or total_variance == 0:
        # no spread within classes: the nearest mean has the best score
        within, mean_variance = torch.zeros_like(within), torch.ones_like(mean_variance)
    identity = torch.eye(len(within), dtype=within.dtype, device=within.device)
    shrunk = (1 - shrinkage) * within + shrinkage * mean_variance * identity
    weights = torch.linalg.solve(shrunk, means.T).T  # (classes, width)
    biases = (counts / len(labels)).log() - (weights * means).sum(1) / 2
    return Probe(weights, biases, classes)


def probe(
    features: np.ndarray,
    labels: list[np.ndarray],
    tests: int,
    shrinkage: float,
    device: torch.device | str = "cpu",
) -> list[float]:
    """Return the test accuracy of a probe for each labelling of the same features.

    features: (examples, width) of any float type; labels: arrays (examples,); tests: number of
    examples at the start that are tested; the probe is trained on all others.
    """
    whole = torch.from_numpy(features).to(device).double()
    centred = whole - whole[tests:].mean(0)
    train, test = centred[tests:], centred[:tests]
    gram = train.T @ train
    accuracies = []
    for each in labels:
        known = torch.from_numpy(each).to(device)
        fitted = fit(train, known[tests:], shrinkage, gram)
        accuracies.append(fitted.accuracy(test, known[:tests]))
    return accuracies
