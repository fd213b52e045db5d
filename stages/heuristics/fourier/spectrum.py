"""Select the strongest Fourier components of neurons' maps."""

import numpy as np
import polars as pl

from stages.heuristics.fourier.frequencies import FrequencyPairs, strongest

ROUNDING = np.finfo(np.float32).eps  # a smaller share is a rounding error


def spectrum(maps: np.ndarray, pairs: FrequencyPairs, components: int) -> pl.DataFrame:
    """Return the strongest components of some maps.

    maps: (neurons, op1, op2) float32; components: how many of each neuron. Returns the columns
    neuron (from 0), rank, share, frequency1, period1, frequency2 and period2.
    """
    varied = np.flatnonzero((maps != maps[:, :1, :1]).any(axis=(1, 2)))
    maps = maps[varied]
    maps -= maps.mean(axis=(1, 2), dtype=np.float64, keepdims=True).astype(np.float32)
    shares = pairs.powers(maps)
    shares /= shares.sum(1, dtype=np.float64, keepdims=True).astype(np.float32)
    none = np.zeros(0, int)
    rows = [(none, none, none, np.zeros(0, np.float32))]  # if every map is constant
    for neuron, own in zip(varied, shares, strict=True):
        largest = strongest(own, components)
        largest = largest[own[largest] > ROUNDING]
        places = np.arange(1, len(largest) + 1)
        rows.append((np.full_like(places, neuron), places, largest, own[largest]))
    neurons, places, largest, share = map(np.concatenate, zip(*rows, strict=True))
    columns = {"neuron": neurons, "rank": places, "share": share}
    for index, operands in enumerate(pairs.shape):
        frequency = pairs.frequencies[largest, index]
        with np.errstate(divide="ignore"):
            period = operands / np.abs(frequency)
        columns |= {f"frequency{index + 1}": frequency, f"period{index + 1}": period}
    periods = pl.col("period1", "period2")
    return pl.DataFrame(columns).with_columns(pl.when(periods.is_finite()).then(periods))
