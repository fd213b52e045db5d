"""Describe every neuron's activation map by its strongest Fourier components.

This needs no catalogue of heuristics. The map covers all prompts of the operand grid, with an
answer or without, and its mean is subtracted. For n operands, a component depends on
f1 * op1 / n + f2 * op2 / n. f2 = 0 is a neuron of op1 alone, f1 = f2 is a neuron of the sum, and
f1 = -f2 is a neuron of the difference. Frequencies are integers. So a period that does not divide
n, such as 7, is spread over the nearest frequencies.

Table spectra: the strongest Fourier components of each neuron's activation map
    subject     VARCHAR   the model
    operator    VARCHAR   add, subtract, multiply or divide
    layer       SMALLINT  decoder layer, from 0
    neuron      INTEGER   neuron of the layer's MLP, from 0; a neuron whose map is constant has no
                          row
    rank        INTEGER   rank of the component, 1 for the strongest
    frequency1  INTEGER   number of periods along op1 in the grid, 0 to half of the operands
    frequency2  INTEGER   number of periods along op2 in the grid; negative if the phase falls with
                          op2; (f1, f2) and (-f1, -f2) are the same component and listed once
    period1     FLOAT     length of a period along op1, operands / |frequency1|; null if frequency1
                          is 0
    period2     FLOAT     length of a period along op2, operands / |frequency2|; null if frequency2
                          is 0
    share       FLOAT     share of the map's variance, 0 to 1; all components together have 1
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import polars as pl

from stages.heuristics.fourier.frequencies import FrequencyPairs
from stages.heuristics.fourier.spectrum import spectrum
from stages.heuristics.settings import Spectra
from stages.lib.core import environment, progress
from stages.lib.core.hdf5_store import widen
from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.subject import Subject

SCHEMA = {
    "subject": pl.String,
    "operator": pl.String,
    "layer": pl.Int16,
    "neuron": pl.Int32,
    "rank": pl.Int32,
    "frequency1": pl.Int32,
    "frequency2": pl.Int32,
    "period1": pl.Float32,
    "period2": pl.Float32,
    "share": pl.Float32,
}


def main(name: str) -> None:
    subject, settings = Subject.named(name), load(Spectra)
    step = settings.neurons_at_once
    frames = [pl.DataFrame(schema=SCHEMA)]
    for activations in subject.activation_stores():
        operator, neurons = activations.attributes["operator"], activations.axes["neuron"]
        pairs = FrequencyPairs.from_shape((activations.axes["op1"], activations.axes["op2"]))
        parts = list(product(activations.layers, range(0, neurons, step)))

        def measured(part: tuple[int, int], activations=activations, pairs=pairs) -> pl.DataFrame:
            layer, first = part
            maps = widen(activations.read(layer, slice(first, first + step), slice(None)))
            frame = spectrum(maps, pairs, settings.components)
            return frame.with_columns(pl.col("neuron") + first, layer=layer)

        title = f"spectra {name} {operator}"
        with ThreadPoolExecutor(environment.workers()) as pool:
            in_order = pool.map(measured, parts)
            for frame in progress.bar(in_order, total=len(parts), desc=title, unit="part"):
                whole = frame.with_columns(subject=pl.lit(name), operator=pl.lit(operator))
                frames.append(whole.select(list(SCHEMA)).cast(SCHEMA))  # type: ignore[arg-type]
    table = pl.concat(frames).sort("operator", "layer", "neuron", "rank")
    write_table(table, subject.path("heuristics/spectra.parquet"))


if __name__ == "__main__":
    main(sys.argv[1])
