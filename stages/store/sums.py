"""Sums over each neuron's activations, made while a dump still holds them, so that nobody has to read a store again for them.

Table neuron_sums: every neuron's activations over the whole square, added up
    subject      VARCHAR   the model
    operator     VARCHAR   add, subtract, multiply or divide
    layer        SMALLINT  decoder layer, from 0
    neuron       INTEGER   neuron of the layer's MLP, from 0
    prompts      BIGINT    prompts of the square
    total        DOUBLE    sum of the activations
    smallest     FLOAT     smallest activation
    largest      FLOAT     largest activation
    cells        BIGINT    prompts that have an answer of one token, that is, cells
    mean         DOUBLE    mean activation over the cells; null where there is none
    variance     DOUBLE    variance of the activation over the cells; null where there is none
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl

from stages.lib.core import machine
from stages.lib.core.layered import widen

KEYS = ["operator", "layer", "neuron"]
AT_ONCE = 64  # neurons
SCHEMA = {
    "operator": pl.String, "layer": pl.Int16, "neuron": pl.Int32, "prompts": pl.Int64, "total": pl.Float64, "smallest": pl.Float32,
    "largest": pl.Float32, "cells": pl.Int64, "mean": pl.Float64, "variance": pl.Float64,
}  # fmt: skip


def of_block(operator: str, into: dict[int, np.ndarray], results: np.ndarray) -> pl.DataFrame:
    """Return the table's rows of a block of prompts, with as many threads as a worker has.

    into: layer -> (neurons, rows, columns), as stored; results: (rows, columns), -1 for none.
    """
    cells = results >= 0
    with ThreadPoolExecutor(machine.threads()) as threads:
        frames = [
            threads.submit(_of_neurons, operator, layer, first, block, cells)
            for layer, block in into.items()
            for first in range(0, len(block), AT_ONCE)
        ]
    return pl.concat([frame.result() for frame in frames])


def _of_neurons(
    operator: str,
    layer: int,
    first: int,
    block: np.ndarray,
    cells: np.ndarray,
) -> pl.DataFrame:
    """Return the rows of AT_ONCE neurons from `first` on.

    block: (neurons, rows, columns); cells: (rows, columns).
    """
    values = widen(block[first : first + AT_ONCE]).astype(np.float64)
    neurons = len(values)
    total, smallest, largest = values.sum((1, 2)), values.min((1, 2)), values.max((1, 2))
    kept = values[:, cells]  # (neurons, cells)
    mean = kept.mean(1) if kept.size else np.full(neurons, np.nan)
    kept -= mean[:, None]
    np.square(kept, out=kept)
    columns = {
        "operator": [operator] * neurons,
        "layer": [layer] * neurons,
        "neuron": np.arange(first, first + neurons),
        "prompts": [cells.size] * neurons,
        "total": total,
        "smallest": smallest + 0.0,  # 0, never -0: either is least
        "largest": largest + 0.0,
        "cells": [kept.shape[1]] * neurons,
        "mean": mean,
        "variance": kept.mean(1) if kept.size else mean,
    }
    return pl.DataFrame(columns, schema=SCHEMA)


def together(subject: str, blocks: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """The table of blocks that are parts of the same squares, each as of_block makes it.

    Means and variances are put together from those of the blocks and the blocks' distances from the common mean (Chan, Golub and
    LeVeque 1979), so that no large sums of squares are subtracted from each other.
    """
    squares: dict[str, list[pl.DataFrame]] = {}
    for block in blocks:
        squares.setdefault(block["operator"][0], []).append(block)
    tables = [_square(of).with_columns(operator=pl.lit(operator)) for operator, of in sorted(squares.items())]
    return pl.concat(tables).select(pl.lit(subject).alias("subject"), *SCHEMA)


def _square(blocks: list[pl.DataFrame]) -> pl.DataFrame:
    prompts, total, smallest, largest, cells, means, variances = (
        np.stack([block[name].to_numpy() for block in blocks]) for name in list(SCHEMA)[len(KEYS) :]
    )  # (blocks, neurons)
    with np.errstate(invalid="ignore"):  # no cell at all: 0 / 0
        weights = cells / cells.sum(0)
    means, variances = np.where(cells, means, 0.0), np.where(cells, variances, 0.0)
    mean = (weights * means).sum(0)
    variance = (weights * (variances + (means - mean) ** 2)).sum(0)
    sums = {"prompts": prompts.sum(0), "total": total.sum(0), "smallest": smallest.min(0), "largest": largest.max(0), "cells": cells.sum(0)}
    made = blocks[0].select("layer", "neuron").with_columns(**{name: pl.Series(of) for name, of in sums.items()})
    return made.with_columns(mean=pl.Series(mean).fill_nan(None), variance=pl.Series(variance).fill_nan(None))
