"""Add up each neuron's activations while a dump still holds them, so that no store is read again.

Table neuron_sums: sums, extremes, mean and variance of every neuron's activations
    subject   VARCHAR   the model
    operator  VARCHAR   add, subtract, multiply or divide
    layer     SMALLINT  decoder layer, from 0
    neuron    INTEGER   neuron of the layer's MLP, from 0
    prompts   BIGINT    number of prompts of the operand grid
    total     DOUBLE    sum of the activations over these prompts
    smallest  FLOAT     smallest activation over these prompts
    largest   FLOAT     largest activation over these prompts
    cells     BIGINT    number of prompts that are cells, that is, have a one-token answer
    mean      DOUBLE    mean activation over the cells; null if there are no cells
    variance  DOUBLE    variance of the activation over the cells; null if there are no cells
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import polars as pl

from stages.lib.core import environment
from stages.lib.core.compiled import compiled

LAYERS_AT_ONCE = 4  # written at the same time
AT_ONCE = 16  # neurons, whose values fit in a processor's cache
LANES = 16  # numbers compared at once
PIECE = 128  # most numbers that numpy's pairwise summation adds up without halving them
SCHEMA = {
    "operator": pl.String,
    "layer": pl.Int16,
    "neuron": pl.Int32,
    "prompts": pl.Int64,
    "total": pl.Float64,
    "smallest": pl.Float32,
    "largest": pl.Float32,
    "cells": pl.Int64,
    "mean": pl.Float64,
    "variance": pl.Float64,
}


def while_writing(
    write: Callable[[int], None],
    operator: str,
    activations: dict[int, np.ndarray],
    results: np.ndarray,
) -> pl.DataFrame:
    """Call write(layer) for every layer, and return the table's rows, as of_block does.

    While one layer waits for the disk, others are prepared and added up.
    """
    with ThreadPoolExecutor(min(LAYERS_AT_ONCE, environment.threads())) as threads:
        written = threads.map(write, activations)
        rows = of_block(operator, activations, results)
        list(written)  # raises the exception of a thread, if any
    return rows


def of_block(
    operator: str,
    activations: dict[int, np.ndarray],
    results: np.ndarray,
) -> pl.DataFrame:
    """Return the table's rows for a block of prompts, computed by all threads of a worker.

    activations: layer -> (neurons, rows, columns), as stored; results: (rows, columns), -1 where a
    prompt has no answer.
    """
    cells = np.flatnonzero(results >= 0)
    maps = [block.reshape(len(block), -1) for block in activations.values()]
    parts: list[np.ndarray] = []
    for block in maps:
        parts += [block[i : i + AT_ONCE] for i in range(0, len(block), AT_ONCE)]
    with ThreadPoolExecutor(environment.threads()) as threads:
        sums = list(threads.map(lambda part: _of_neurons(part, cells), parts))
    total, smallest, largest, mean, variance = np.concatenate(sums, axis=1)
    columns = {
        "operator": pl.repeat(operator, len(total), eager=True),
        "layer": np.repeat(list(activations), list(map(len, maps))),
        "neuron": np.concatenate([np.arange(len(block)) for block in maps]),
        "prompts": np.full(len(total), results.size),
        "total": total,
        "smallest": smallest,
        "largest": largest,
        "cells": np.full(len(total), len(cells)),
        "mean": mean,
        "variance": variance,
    }
    return pl.DataFrame(columns, schema=SCHEMA)


def _of_neurons(values: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Return total, smallest, largest, mean and variance of some neurons: (5, neurons) float64.

    values: (neurons, prompts), float16 or float32; cells: indices of the prompts that are cells.
    """
    sums = np.empty((5, len(values)))
    if values.dtype == np.float16:
        _add_up(values.view(np.uint16), _every_float16(), cells, sums)
    else:
        _add_up(values, None, cells, sums)
    return sums


@cache
def _every_float16() -> np.ndarray:
    """Return the float16 number of each 16-bit pattern, as float32."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


@compiled()
def _add_up(values, numbers, cells, sums):
    """Write each neuron's sums into `sums`, (5, neurons); means over no cells are NaN.

    numbers: the number that each value stands for, or None if values are numbers.
    The order of additions gives numpy's results to the last digit: all values pairwise, those of
    cells from the first to the last. Only one neuron is converted to float32 at a time: with more,
    threads would wait for memory.
    """
    row = np.empty(values.shape[1], np.float32)
    for neuron in range(len(values)):
        for i in range(len(row)):
            row[i] = values[neuron, i] if numbers is None else numbers[values[neuron, i]]
        sums[0, neuron] = 0.0 + _pairwise(row)  # 0, never -0, which compares equal
        sums[1, neuron] = 0.0 + _least(row)
        sums[2, neuron] = 0.0 - _least(-row)
        sums[3, neuron] = sums[4, neuron] = np.nan
        if len(cells):
            added = squares = 0.0
            for cell in cells:
                added += row[cell]
            mean = added / len(cells)
            for cell in cells:
                squares += (row[cell] - mean) ** 2
            sums[3, neuron], sums[4, neuron] = mean, squares / len(cells)


@compiled()
def _least(row):
    """Return the smallest number of a row, comparing several at once."""
    lanes = np.full(LANES, np.inf, np.float32)
    whole = len(row) - len(row) % LANES
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            number = row[start + lane]
            lanes[lane] = number if number < lanes[lane] else lanes[lane]
    least = lanes.min()
    for i in range(whole, len(row)):
        least = min(least, row[i])
    return least


@compiled()
def _pairwise(values):
    """Return the sum of numbers in float64, added in the order of numpy's pairwise summation."""
    n = len(values)
    if n > PIECE:
        half = n // 2 - n // 2 % 8
        return _pairwise(values[:half]) + _pairwise(values[half:])
    a = b = c = d = e = f = g = h = 0.0
    even = n - n % 8
    for i in range(0, even, 8):
        a += values[i]
        b += values[i + 1]
        c += values[i + 2]
        d += values[i + 3]
        e += values[i + 4]
        f += values[i + 5]
        g += values[i + 6]
        h += values[i + 7]
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for i in range(even, n):
        total += values[i]
    return total


def together(subject: str, blocks: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the table for a model from its blocks, as of_block returns them.

    Means and variances are combined from those of the blocks and the blocks' distances from the
    common mean (Chan, Golub and LeVeque 1979), so that no large sums of squares are subtracted.
    """
    by_operator: dict[str, list[pl.DataFrame]] = {}
    for block in blocks:
        by_operator.setdefault(block["operator"][0], []).append(block)
    tables = []
    for operator, own_blocks in sorted(by_operator.items()):
        tables.append(_combined(own_blocks).with_columns(operator=pl.lit(operator)))
    return pl.concat(tables).select(pl.lit(subject).alias("subject"), *SCHEMA)


def _combined(blocks: list[pl.DataFrame]) -> pl.DataFrame:
    """Combine the blocks of one operator."""

    def column(name: str) -> np.ndarray:  # (blocks, neurons)
        return np.stack([block[name].to_numpy() for block in blocks])

    cells = column("cells")
    with np.errstate(invalid="ignore"):  # no cell at all: 0 / 0
        weights = cells / cells.sum(0)
    means = np.where(cells, column("mean"), 0.0)
    variances = np.where(cells, column("variance"), 0.0)
    mean = (weights * means).sum(0)
    variance = (weights * (variances + (means - mean) ** 2)).sum(0)
    return blocks[0].with_columns(
        prompts=pl.Series(column("prompts").sum(0)),
        total=pl.Series(column("total").sum(0)),
        smallest=pl.Series(column("smallest").min(0)),
        largest=pl.Series(column("largest").max(0)),
        cells=pl.Series(cells.sum(0)),
        mean=pl.Series(mean).fill_nan(None),
        variance=pl.Series(variance).fill_nan(None),
    )
