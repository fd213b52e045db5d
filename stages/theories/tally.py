"""Keeps the score of theories: how much of the held-out variance each explains, neuron by neuron, and of what they write together."""

from collections.abc import Iterator
from functools import cache

import numpy as np

from stages.theories.settings import TheoryFits

Key = tuple[int, str, int, str]  # layer, theory, parameters, kind: "" or relabelled


class Tally:
    """Sums over blocks of neurons. choices: theory -> terms to choose from; cells: those that are scored."""

    def __init__(self, choices: dict[str, int], cells: int, settings: TheoryFits):
        self.choices, self.cells, self.settings = choices, cells, settings
        self.errors: dict[Key, list[np.ndarray]] = {}  # of each neuron: error, variance
        self.written: dict[Key, np.ndarray] = {}  # (3, cells): what neurons write of the answer's logit, left of it by a theory, by means

    def add(self, key: Key, values: np.ndarray, said: np.ndarray, centre: np.ndarray, votes: np.ndarray) -> None:
        """Some neurons; each array (neurons, cells): their values, what is said of them, their means in training (neurons, 1), and how much
        they vote for each cell's answer."""
        left = values - said
        around = values - values.mean(1, keepdims=True) if self.cells else values
        self.errors.setdefault(key, []).append(np.stack([(left**2).sum(1), (around**2).sum(1)]))
        here = np.stack([(x * votes).sum(0) for x in (values, left, values - centre)])
        self.written[key] = self.written.get(key, 0) + here

    def rows(self) -> Iterator[tuple]:
        """Rows of theory_fits, from `layer` on: each layer's, and those of all layers together."""
        layers = sorted({layer for layer, *_ in self.errors})
        for layer, chosen in [*((layer, [layer]) for layer in layers), *([(None, layers)] if layers else [])]:
            for theory, choices in self.choices.items():
                for budget in self.settings.budgets:
                    keys, nulls = ([(one, theory, budget, kind) for one in chosen] for kind in ("", "relabelled"))
                    neurons = self._activation(keys).shape[1]
                    for what, of in (("activation", self._activation), ("logit", self._logit), ("written", self._written)):
                        samples = of(keys)
                        value, interval, null = _share(samples), self._interval(samples), _share(of(nulls))
                        yield (layer, theory, budget, what, value, *interval, null, choices, neurons, self.cells)

    def _activation(self, keys: list[Key]) -> np.ndarray:
        """Error and variance (2, neurons)."""
        return np.concatenate([part for key in keys for part in self.errors[key]], axis=1)

    def _logit(self, keys: list[Key]) -> np.ndarray:
        """Squares of the error, and of what is written around its mean, (2, cells)."""
        written, left, _ = np.sum([self.written[key] for key in keys], axis=0)
        return np.stack([left**2, (written - (written.mean() if self.cells else 0)) ** 2])

    def _written(self, keys: list[Key]) -> np.ndarray:
        """Squares of the error, and of that of the neurons' means, (2, cells)."""
        _, left, varying = np.sum([self.written[key] for key in keys], axis=0)
        return np.stack([left**2, varying**2])

    def _interval(self, samples: np.ndarray) -> tuple[float | None, float | None]:
        """Of the share, neurons or cells being drawn again."""
        if _share(samples) is None:
            return None, None
        half = (1 - self.settings.fit_confidence) / 2
        error, variance = (_weights(samples.shape[1], self.settings.fit_replicates, self.settings.fit_seed) @ samples.T).T
        low, high = np.quantile(1 - error / np.maximum(variance, np.finfo(float).tiny), [half, 1 - half])
        return float(low), float(high)


@cache
def _weights(count: int, replicates: int, seed: int) -> np.ndarray:
    """How often each replicate draws each of so many samples, (replicates, samples)."""
    return np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), replicates).astype(np.float64)


def _share(samples: np.ndarray) -> float | None:
    """1 - error / variance of samples (2, …); None where nothing varies."""
    error, variance = samples.sum(1)
    return float(1 - error / variance) if variance > 0 else None
