"""Describes every neuron's activation map by its strongest waves: a description that needs no catalogue of heuristics.

The map is the whole square of prompts, with an answer or without, less its mean. A wave depends on f1 · op1 / n + f2 · op2 / n for n
operands: f2 = 0 is a neuron of op1 alone, f1 = f2 one of the sum, f1 = -f2 one of the difference. Frequencies are whole numbers, so a
period that does not divide n (7, say) is spread over the frequencies nearest to it.

Table spectra: the strongest waves of each neuron's activation map
    subject     VARCHAR   the model
    operator    VARCHAR   add, subtract, multiply or divide
    layer       SMALLINT  decoder layer, from 0
    neuron      INTEGER   neuron of the layer's MLP, from 0; one whose map is constant has no row
    place       INTEGER   1 for the strongest wave
    frequency1  INTEGER   waves along op1 in the square, 0 to half of the operands
    frequency2  INTEGER   waves along op2; negative where they run the other way; (f1, f2) and (-f1,
                          -f2) are one wave, listed once
    period1     FLOAT     operands / |frequency1|, the length of a wave along op1; null where the frequency is 0
    period2     FLOAT     operands / |frequency2|, the length of a wave along op2; null where the frequency is 0
    share       FLOAT     share of the map's variance, 0 to 1; all waves together have 1
"""

import sys

import numpy as np
import polars as pl

from stages.heuristics.settings import Spectra
from stages.heuristics.waves.fourier import FrequencyPairs, strongest
from stages.lib.core import progress
from stages.lib.core.layered import widen
from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.subject import Subject

SCHEMA = {
    "subject": pl.String, "operator": pl.String, "layer": pl.Int16, "neuron": pl.Int32,
    "place": pl.Int32, "frequency1": pl.Int32, "frequency2": pl.Int32,
    "period1": pl.Float32, "period2": pl.Float32, "share": pl.Float32,
}  # fmt: skip
ROUNDING = np.finfo(np.float32).eps  # a smaller share is rounding, not a wave


def main(name: str) -> None:
    subject, settings = Subject.named(name), load(Spectra)
    frames = [pl.DataFrame(schema=SCHEMA)]
    for activations in subject.squares():
        operator, neurons = activations.attributes["operator"], activations.axes["neuron"]
        pairs = FrequencyPairs.of((activations.axes["op1"], activations.axes["op2"]))
        with progress.bar(total=neurons * len(activations.layers), desc=f"spectra {name} {operator}", unit="neuron") as bar:
            for layer in activations.layers:
                for first in range(0, neurons, settings.neurons_at_once):
                    maps = widen(activations.read(layer, slice(first, first + settings.neurons_at_once), slice(None)))
                    bar.update(len(maps))
                    found = spectrum(maps, pairs, settings.components).with_columns(
                        pl.col("neuron") + first, subject=pl.lit(name), operator=pl.lit(operator), layer=layer
                    )
                    frames.append(found.select(pl.col(column).cast(kind) for column, kind in SCHEMA.items()))
    write_table(pl.concat(frames).sort("operator", "layer", "neuron", "place"), subject.path("heuristics/spectra.parquet"))


def spectrum(maps: np.ndarray, pairs: FrequencyPairs, components: int) -> pl.DataFrame:
    """The strongest waves of maps (neurons, op1, op2) float32: columns neuron, from 0, and those from `place` on."""
    varied = np.flatnonzero((maps != maps[:, :1, :1]).any(axis=(1, 2)))
    maps = maps[varied]
    maps -= maps.mean(axis=(1, 2), dtype=np.float64, keepdims=True).astype(np.float32)
    shares = pairs.powers(maps)
    shares /= shares.sum(1, dtype=np.float64, keepdims=True).astype(np.float32)
    chosen = [strongest(of_neuron, components) for of_neuron in shares]
    chosen = [which[of_neuron[which] > ROUNDING] for which, of_neuron in zip(chosen, shares, strict=True)]
    which = np.concatenate([np.zeros(0, int), *chosen])
    neuron = np.repeat(np.arange(len(varied)), [len(of_neuron) for of_neuron in chosen])
    columns = {
        "neuron": varied[neuron],
        "place": np.concatenate([np.zeros(0, int), *(np.arange(1, len(of_neuron) + 1) for of_neuron in chosen)]),
        "share": shares[neuron, which],
    }
    for number, (operands, frequencies) in enumerate(zip(pairs.shape, pairs.frequencies[which].T, strict=True), 1):
        columns[f"frequency{number}"] = frequencies
        with np.errstate(divide="ignore"):
            columns[f"period{number}"] = operands / np.abs(frequencies)
    periods = pl.col("period1", "period2")
    return pl.DataFrame(columns).with_columns(pl.when(periods.is_finite()).then(periods))


if __name__ == "__main__":
    main(sys.argv[1])
