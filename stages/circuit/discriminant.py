"""Linear discriminant analysis: the linear probe in closed form.

One linear layer from features x to one score per answer c, the log posterior of Gaussian classes that share a covariance:
    score_c(x) = w_c · x + b_c,   w_c = S⁻¹ μ_c,   b_c = -½ μ_c' S⁻¹ μ_c + log π_c
μ_c: the class's mean, π_c: its share, S: the covariance within classes, shrunk towards a multiple of the identity. The
study's probe is the same map found by gradient descent (Adam, 20 epochs); this one has no steps, no learning rate and no
order of examples, so nothing can stop early, and the same data give the same probe. Where answers differ in covariance,
descent can find a better map: the accuracy is a lower bound of what a linear map can read.
"""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Probe:
    """weights: (classes, width), biases: (classes,), classes: (classes,) the labels of the rows; float64."""

    weights: torch.Tensor
    biases: torch.Tensor
    classes: torch.Tensor

    def accuracy(self, features: torch.Tensor, labels: torch.Tensor) -> float:
        """Share of examples whose best score is their label's; a label never trained on counts as missed.

        features: (examples, width) float64, labels: (examples,).
        """
        best = torch.addmm(self.biases, features, self.weights.T).argmax(1)
        return float((self.classes[best] == labels).double().mean())


def fit(features: torch.Tensor, labels: torch.Tensor, shrinkage: float, gram: torch.Tensor | None = None) -> Probe:
    """The probe of these examples: features (examples, width) float64, labels (examples,) integers.

    shrinkage, 0 to 1: share of S that is the identity times the mean variance, so that S can be inverted. gram: features.T
    @ features, where it is known. Examples should be centred, which keeps the sums exact.
    """
    classes, members, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums = torch.zeros((len(classes), features.shape[1]), dtype=features.dtype, device=features.device)
    means = sums.index_add_(0, members, features) / counts[:, None]
    gram = features.T @ features if gram is None else gram
    within = (gram - means.T @ (means * counts[:, None])) / max(1, len(labels) - len(classes))
    mean_variance = within.diagonal().mean()
    total_variance = gram.diagonal().mean() / len(labels)
    if mean_variance <= 1e-12 * total_variance or total_variance == 0:  # no spread within classes: the nearest mean wins
        within, mean_variance = torch.zeros_like(within), torch.ones_like(mean_variance)
    shrunk = (1 - shrinkage) * within + shrinkage * mean_variance * torch.eye(len(within), dtype=within.dtype, device=within.device)
    weights = torch.linalg.solve(shrunk, means.T).T  # (classes, width)
    biases = (counts / len(labels)).log() - (weights * means).sum(1) / 2
    return Probe(weights, biases, classes)


def probe(features: np.ndarray, labels: list[np.ndarray], tests: int, shrinkage: float, device: torch.device | str = "cpu") -> list[float]:
    """Accuracy of a probe per labelling of the same features, on the first `tests` examples after training on the others.

    features: (examples, width) of any float type; labels: of (examples,) each.
    """
    whole = torch.from_numpy(features).to(device).double()
    centred = whole - whole[tests:].mean(0)
    train, test = centred[tests:], centred[:tests]
    gram = train.T @ train
    accuracies = []
    for each in labels:
        known = torch.from_numpy(each).to(device)
        accuracies.append(fit(train, known[tests:], shrinkage, gram).accuracy(test, known[:tests]))
    return accuracies
