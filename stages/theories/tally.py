"""Score theories of neurons: the share of the held-out variance that each explains.

Scores cover single neurons' activations, and the sum that the neurons write to the answer's logit.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from stages.theories.settings import TheoryFits


class Key(NamedTuple):
    """A fit to one layer's neurons. kind: "" for the real maps, or "relabelled" for the control.

    parameters: None for a theory whose terms a table names.
    """

    layer: int
    theory: str
    parameters: int | None
    kind: str


class Length(NamedTuple):
    """How long a theory's description is.

    parameters: terms per neuron, and choices: terms in the dictionary, as in theory_fits
    bits: layer -> mean bits of a neuron
    """

    theory: str
    parameters: int | None
    choices: int | None
    bits: dict[int, float]


class Tally:
    """Sums over blocks of neurons, and the rows of theory_fits that follow from them.

    lengths: of each theory with each budget; cells: number of held-out cells;
    errors: fit -> blocks of squared error and variance (2, neurons);
    written: fit -> (3, cells) what the layer's neurons write to the answer's logit, the error of
    the fit in it, and the error of each neuron's mean in it.
    """

    def __init__(self, lengths: list[Length], cells: int, settings: TheoryFits):
        self.lengths, self.cells, self.settings = lengths, cells, settings
        self.errors: dict[Key, list[np.ndarray]] = {}
        self.written: dict[Key, np.ndarray] = {}

    def add(
        self,
        key: Key,
        values: np.ndarray,
        predictions: np.ndarray,
        means: np.ndarray,
        value_logits: np.ndarray,
    ) -> None:
        """Add a block of neurons.

        values, predictions: (neurons, cells) activations, and what the fit predicts of them
        means: (neurons, 1) mean activations over training cells
        value_logits: (neurons, cells) what one unit of activation adds to the cell's answer
        """
        error = values - predictions
        around = values - values.mean(1, keepdims=True) if self.cells else values
        sums = np.stack([(error**2).sum(1), (around**2).sum(1)])
        self.errors.setdefault(key, []).append(sums)
        parts = [values, error, values - means]
        logits = np.stack([(part * value_logits).sum(0) for part in parts])
        self.written[key] = self.written.get(key, 0) + logits

    def rows(self) -> Iterator[tuple]:
        """Yield rows of theory_fits, from `layer` on: each layer's, then those of all layers."""
        layers = sorted({key.layer for key in self.errors})
        for layer in layers:
            yield from self._rows(layer, [layer])
        if layers:
            yield from self._rows(None, layers)

    def _rows(self, layer: int | None, layers: list[int]) -> Iterator[tuple]:
        measures = {
            "activation": self._activation,
            "logit": self._logit,
            "written": self._written,
        }
        for theory, parameters, choices, bits in self.lengths:
            fits = [Key(number, theory, parameters, "") for number in layers]
            controls = [key._replace(kind="relabelled") for key in fits]
            neurons = self._activation(fits).shape[1]
            length = sum(bits[number] for number in layers) / len(layers)
            for what, measure in measures.items():
                samples = measure(fits)
                value, interval = _share(samples), self._interval(samples)
                control = _share(measure(controls))
                counts = length, choices, neurons, self.cells
                yield (layer, theory, parameters, what, value, *interval, control, *counts)

    def _activation(self, keys: list[Key]) -> np.ndarray:
        """Return squared error and variance of each neuron, (2, neurons)."""
        blocks: list[np.ndarray] = []
        for key in keys:
            blocks += self.errors[key]
        return np.concatenate(blocks, axis=1)

    def _logit(self, keys: list[Key]) -> np.ndarray:
        """Return squared error and variance of the written logit, (2, cells)."""
        written, error, _ = np.sum([self.written[key] for key in keys], axis=0)
        mean = written.mean() if self.cells else 0
        return np.stack([error**2, (written - mean) ** 2])

    def _written(self, keys: list[Key]) -> np.ndarray:
        """Return squared errors of the fit and of the neurons' means, (2, cells)."""
        _, error, error_of_means = np.sum([self.written[key] for key in keys], axis=0)
        return np.stack([error**2, error_of_means**2])

    def _interval(self, samples: np.ndarray) -> tuple[float | None, float | None]:
        """Return the bootstrap interval of the share, over neurons or cells."""
        if _share(samples) is None:
            return None, None
        settings = self.settings
        half = (1 - settings.fit_confidence) / 2
        weights = _weights(samples.shape[1], settings.fit_replicates, settings.fit_seed)
        error, variance = (weights @ samples.T).T
        shares = 1 - error / np.maximum(variance, np.finfo(float).tiny)
        low, high = np.quantile(shares, [half, 1 - half])
        return float(low), float(high)


@cache
def _weights(count: int, replicates: int, seed: int) -> np.ndarray:
    """Draw how often each bootstrap replicate takes each sample, (replicates, samples)."""
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(count, np.full(count, 1 / count), replicates)
    return drawn.astype(np.float64)


def _share(samples: np.ndarray) -> float | None:
    """Return 1 - error / variance of samples (2, samples); None where nothing varies."""
    error, variance = samples.sum(1)
    return float(1 - error / variance) if variance > 0 else None
