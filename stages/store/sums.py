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

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import polars as pl

from stages.lib.core import machine
from stages.lib.core.compiled import compiled

KEYS = ["operator", "layer", "neuron"]
LAYERS_AT_ONCE = 4  # that are being written
AT_ONCE = 16  # neurons, whose values fit in a processor's cache
LANES = 16  # numbers compared at once
PIECE = 128  # numbers that numpy's pairwise summation adds up without halving them
SCHEMA = {
    "operator": pl.String, "layer": pl.Int16, "neuron": pl.Int32, "prompts": pl.Int64, "total": pl.Float64, "smallest": pl.Float32,
    "largest": pl.Float32, "cells": pl.Int64, "mean": pl.Float64, "variance": pl.Float64,
}  # fmt: skip


def while_writing(
    write: Callable[[int], None],
    operator: str,
    activations: dict[int, np.ndarray],
    results: np.ndarray,
) -> pl.DataFrame:
    """Write every layer by write(layer), and return the table's rows, as of_block does.

    While a layer waits for the disk, others are prepared and added up.
    """
    with ThreadPoolExecutor(min(LAYERS_AT_ONCE, machine.threads())) as threads:
        written = threads.map(write, activations)
        rows = of_block(operator, activations, results)
        list(written)  # raises what a thread has raised
    return rows


def of_block(
    operator: str,
    activations: dict[int, np.ndarray],
    results: np.ndarray,
) -> pl.DataFrame:
    """Return the table's rows of a block of prompts, with as many threads as a worker has.

    activations: layer -> (neurons, rows, columns), as stored; results: (rows, columns), -1 for
    none.
    """
    cells = np.flatnonzero(results >= 0)
    maps = [block.reshape(len(block), -1) for block in activations.values()]
    parts = [block[i : i + AT_ONCE] for block in maps for i in range(0, len(block), AT_ONCE)]
    with ThreadPoolExecutor(machine.threads()) as threads:
        sums = list(threads.map(lambda part: _of_neurons(part, cells), parts))
    total, smallest, largest, mean, variance = np.concatenate(sums, axis=1)
    columns = {
        "operator": pl.repeat(operator, len(total), eager=True),
        "layer": np.repeat(list(activations), [len(block) for block in maps]),
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

    values: (neurons, prompts) float16 or float32; cells: the prompts that are cells.
    """
    sums = np.empty((5, len(values)))
    if values.dtype == np.float16:
        _add_up(values.view(np.uint16), _every_float16(), cells, sums)
    else:
        _add_up(values, None, cells, sums)
    return sums


@cache
def _every_float16() -> np.ndarray:
    """Return all numbers of float16 by their bits, as float32."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


@compiled()
def _add_up(values, numbers, cells, sums):
    """Write each neuron's sums, (5, neurons); means over no cells are NaN.

    Numbers are added as numpy adds those of several neurons, to the last digit: all of a neuron's
    pairwise, those of cells from the first to the last. numbers: those that values stand for, or
    None. Only one neuron's float32 are kept: threads would wait for the memory of more.
    """
    row = np.empty(values.shape[1], np.float32)
    for neuron in range(len(values)):
        for i in range(len(row)):
            row[i] = values[neuron, i] if numbers is None else numbers[values[neuron, i]]
        sums[0, neuron] = 0.0 + _pairwise(row)  # 0, never -0: either is least
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
    """Return the smallest number. Several are compared at once."""
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
    """Add up numbers in float64 in the order of numpy's pairwise summation."""
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
    """The table of blocks that are parts of the same squares, each as of_block makes it.

    Means and variances are put together from those of the blocks and the blocks' distances from the common mean (Chan, Golub and
    LeVeque 1979), so that no large sums of squares are subtracted from each other.
    """
    squares: dict[str, list[pl.DataFrame]] = {}
    for block in blocks:
        squares.setdefault(block["operator"][0], []).append(block)
    tables = [
        _square(of).with_columns(operator=pl.lit(operator))
        for operator, of in sorted(squares.items())
    ]
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
    sums = {
        "prompts": prompts.sum(0),
        "total": total.sum(0),
        "smallest": smallest.min(0),
        "largest": largest.max(0),
        "cells": cells.sum(0),
    }
    made = (
        blocks[0]
        .select("layer", "neuron")
        .with_columns(**{name: pl.Series(of) for name, of in sums.items()})
    )
    return made.with_columns(
        mean=pl.Series(mean).fill_nan(None), variance=pl.Series(variance).fill_nan(None)
    )
