"""Average each late neuron's activation over the cells whose result has a digit, or that carry.

Only discovery cells count, which steering does not run on.

Table digit_means: mean activations of late neurons by a digit of the result
    subject   VARCHAR   the model
    operator  VARCHAR   add, subtract, multiply or divide
    place     VARCHAR   digit of the result: ones or tens; asked, the digit that the model predicts,
                        if it predicts one of several; or carry, for addition and subtraction
    layer     SMALLINT  late layer, from 0
    digit     INTEGER   value of the digit, 0 to 9, results below 10 have no tens; for carry 1 if
                        the ones carry into the tens (add) or borrow from them (subtract), else 0
    cells     INTEGER   number of discovery cells whose result has the digit
    means     FLOAT[]   mean activation over these cells of each neuron, from neuron 0
    shares    FLOAT[]   share of each neuron's variance over all discovery cells with such a digit
                        that the digit explains, 0 to 1; the same for all digits
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.lib.core.hdf5_store import LayerStore, widen
from stages.lib.core.tables import write_table
from stages.lib.heuristics import answer_tokens
from stages.lib.sql.database import Database
from stages.lib.subject import Subject

SCHEMA: dict[str, Any] = {
    "subject": pl.String,
    "operator": pl.String,
    "place": pl.String,
    "layer": pl.Int16,
    "digit": pl.Int32,
    "cells": pl.Int32,
    "means": pl.List(pl.Float32),
    "shares": pl.List(pl.Float32),
}
CARRIES = {"add": lambda op1, op2: op1 + op2 >= 10, "subtract": lambda op1, op2: op1 < op2}
AT_ONCE = 64  # neurons in memory


def main(name: str) -> None:
    """Average one model's activations."""
    subject = Subject.named(name)
    first, layers = subject.table("circuit/late_layers.parquet")[["first_layer", "layers"]].row(0)
    late = range(layers if first is None else first, layers)
    database = Database({"cells": [Path("data/corpus/cells.parquet")]}, threads=1)
    frames = [pl.DataFrame(schema=SCHEMA)]
    for store in subject.activation_stores():
        discovery = discovery_cells(database, store)
        digits = {place: every[discovery] for place, every in digits_of(store).items()}
        for layer in sorted(set(late) & set(store.layers)) if digits else ():
            frames += averaged(store, layer, discovery, digits)
    table = pl.concat(frames).with_columns(subject=pl.lit(name))
    keys = ["operator", "place", "layer", "digit"]
    write_table(table.sort(keys), subject.path("bag/digit_means.parquet"))


def discovery_cells(database: Database, store: LayerStore) -> np.ndarray:
    """Return which cells of a store's grid are discovery cells: (op1, op2) bool."""
    operator = store.attributes["operator"]
    query = """
        select op1, op2 from cells
        where operator = $operator and split_of(operator, op1, op2) = 'discovery'
        order by op1, op2"""
    op1, op2 = database.sql(query, operator=operator).pl().to_numpy().T
    results = store.columns["result"]
    inside = (op1 < results.shape[0]) & (op2 < results.shape[1])
    split = np.zeros(results.shape, bool)
    split[op1[inside], op2[inside]] = True
    return split & (results >= 0)


def digits_of(store: LayerStore) -> dict[str, np.ndarray]:
    """Return each cell's digit at each place: (op1, op2) of the grid, -1 where there is none.

    A model whose predicted token stands for a number above 9 has no places.
    """
    results, numbers = store.columns["result"], answer_tokens.numbers(store)
    if numbers is None:
        tens = np.where(results >= 10, results // 10 % 10, -1)
        digits = {"ones": results % 10, "tens": tens}
    elif numbers.max() < 10:
        digits = {"asked": numbers[np.minimum(results, len(numbers) - 1)]}
    else:
        return {}
    carry = CARRIES.get(store.attributes["operator"])
    if carry:
        op1, op2 = np.indices(results.shape)
        digits["carry"] = carry(op1 % 10, op2 % 10).astype(np.int64)
    return {place: np.where(results >= 0, every, -1) for place, every in digits.items()}


def averaged(
    store: LayerStore, layer: int, discovery: np.ndarray, digits: dict[str, np.ndarray]
) -> Iterator[pl.DataFrame]:
    """Yield the rows of each place for one layer.

    discovery: (op1, op2) bool; digits: place -> the digit of each discovery cell.
    """
    blocks = []
    for first in range(0, store.axes["neuron"], AT_ONCE):
        values = widen(store.read(layer, slice(first, first + AT_ONCE), slice(None)))
        values = values[:, discovery].astype(np.float64)
        blocks.append({place: by_digit(values, own) for place, own in digits.items()})
    for place in digits:
        means, counts, shares = zip(*(block[place] for block in blocks), strict=True)
        joined = np.round(np.concatenate(means, axis=1), 6) + 0.0
        columns = {
            "digit": np.arange(10),
            "cells": counts[0],
            "means": joined,
            "shares": np.tile(np.round(np.concatenate(shares), 6) + 0.0, (10, 1)),
        }
        operator = {"operator": store.attributes["operator"]}
        keys = {"subject": "", **operator, "place": place, "layer": layer}
        table = pl.DataFrame(columns).with_columns(**{key: pl.lit(v) for key, v in keys.items()})
        if place == "carry":
            table = table.filter(pl.col("digit") < 2)
        yield table.select(list(SCHEMA)).cast(SCHEMA)  # type: ignore[arg-type]


def by_digit(values: np.ndarray, digits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means (10, neurons), cells (10,) and explained shares (neurons,).

    values: (neurons, cells); digits: (cells,), -1 for a cell that does not count. A digit without
    cells has means of 0.
    """
    own, digits = values[:, digits >= 0], digits[digits >= 0]
    is_digit = (digits == np.arange(10)[:, None]).astype(np.float64)
    counts = is_digit.sum(1).astype(np.int32)
    means = is_digit @ own.T / np.maximum(counts, 1)[:, None]
    total = own.var(axis=1) if own.size else np.zeros(len(own))
    mean = own.mean(axis=1) if own.size else total
    between = counts @ np.square(means - mean) / max(counts.sum(), 1)
    shares = np.divide(between, total, out=np.zeros_like(total), where=total > 0)
    return means, counts, shares


if __name__ == "__main__":
    main(sys.argv[1])
