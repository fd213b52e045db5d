"""Scores heuristics again with the operands relabelled at random: what of a neuron's scores is due to the numbers.

Stopped half-way, it goes on behind the last finished layer. null/relabelled.py says what the null is. Every neuron gets the draws
of the first look; more only a neuron with a candidate whose best score the draws before seldom reach. P-values smaller than every
`hopeless` share stay valid: to stop can only keep a neuron from having one.

Table nulls: candidates, pairs of neuron and heuristic clearly above chance, against relabelled operands
    subject         VARCHAR   the model
    operator        VARCHAR   add, subtract, multiply or divide
    layer           SMALLINT  decoder layer, from 0
    neuron          INTEGER   neuron of the layer's MLP, from 0
    heuristic       VARCHAR   as in scores
    side            VARCHAR   top or bottom
    corrected       FLOAT     as in scores, but ties, and answers' contributions within .2 percent, count by chance
    null_corrected  FLOAT     its mean under relabelling
    null_deviation  FLOAT     its standard deviation
    z               FLOAT     by how much the true labels score more, in units of the heuristic's size (stages/heuristics/null/p_values.py)
    p_value         DOUBLE    share of draws, the true labels among them, that score at least as much on this heuristic
    p_family        DOUBLE    share of draws whose largest z over all heuristics and sides of the neuron reaches this z
    draws           INTEGER   relabellings that the neuron got

Table null_shares: how many neurons reach a score with any heuristic, under each of the first draws
    subject     VARCHAR   the model
    operator    VARCHAR   add, subtract, multiply or divide
    layer       SMALLINT  decoder layer, from 0
    draw        INTEGER   number of the relabelling; 0 is the true labels
    quantities  VARCHAR   operands, result or any: whose heuristics
    measure     VARCHAR   raw (score) or corrected
    threshold   DOUBLE    the score
    neurons     INTEGER   neurons that reach it

Table naming: does a neuron fire where it names the answer?
    subject      VARCHAR   the model
    operator     VARCHAR   add, subtract, multiply or divide
    layer        SMALLINT  decoder layer, from 0
    neuron       INTEGER   neuron of the layer's MLP, from 0
    correlation  FLOAT     of activation and value logit of the cell's answer, over cells
    p_value      DOUBLE    share of draws, the true labels among them, whose correlation is at least as large
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from stages.heuristics import null
from stages.heuristics.null.p_values import GROUPS, MEASURES, Judged, judged
from stages.heuristics.null.relabelled import permutations
from stages.heuristics.settings import Nulls, Scores
from stages.lib import heuristics
from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table
from stages.lib.heuristics.square import Square
from stages.lib.parts import Parts, digest
from stages.lib.settings import Machine
from stages.lib.sql.database import Database
from stages.lib.subject import Subject

SCHEMAS = {
    "nulls": {
        "subject": pl.String, "operator": pl.String, "layer": pl.Int16, "neuron": pl.Int32, "heuristic": pl.String, "side": pl.String,
        "corrected": pl.Float32, "null_corrected": pl.Float32, "null_deviation": pl.Float32, "z": pl.Float32, "p_value": pl.Float64,
        "p_family": pl.Float64, "draws": pl.Int32,
    },
    "null_shares": {
        "subject": pl.String, "operator": pl.String, "layer": pl.Int16, "draw": pl.Int32, "quantities": pl.String, "measure": pl.String,
        "threshold": pl.Float64, "neurons": pl.Int32,
    },
    "naming": {
        "subject": pl.String, "operator": pl.String, "layer": pl.Int16, "neuron": pl.Int32, "correlation": pl.Float32,
        "p_value": pl.Float64,
    },
}  # fmt: skip


def main(name: str) -> None:
    subject, settings, scored = Subject.named(name), load(Nulls), load(Scores)
    catalogue = read_table("data/heuristics/heuristics.parquet").filter("usable")
    database = Database({"cells": [Path("data/corpus/cells.parquet")]}, threads=1)
    votes, stores = subject.votes(), list(subject.squares())
    inputs = [Path("data/heuristics/heuristics.parquet"), votes.path, *(store.path for store in stores)]
    key = digest([Path(__file__), null, heuristics, *inputs], settings, scored.answer_sets)
    parts = {table: Parts(subject.path(f"heuristics/{table}.parquet"), key) for table in SCHEMAS}
    todo = [(store, layer) for store in stores for layer in store.layers]
    missing = sorted({number for part in parts.values() for number in part.missing(len(todo))})
    with progress.bar(total=sum(store.axes["neuron"] for store, _ in todo), desc=f"nulls {name}", unit="neuron") as bar:
        bar.update(sum(store.axes["neuron"] for number, (store, _) in enumerate(todo) if number not in missing))
        square = None
        for number in missing:
            store, layer = todo[number]
            if square is None or square.activations is not store:
                square = Square(database, catalogue, store)
                labels = permutations(square, settings.draws[square.operator], settings.seed)
            judge = partial(judged, square, labels=labels, settings=settings, sets=scored.answer_sets)
            of = dict(_layer(square.neurons(layer, votes, settings.neurons_at_once), judge, load(Machine).threads, bar))
            keys: dict[str, str | int] = {"subject": name, "operator": square.operator, "layer": layer}
            for table, frame in tables(of, keys, settings).items():
                parts[table].write(number, frame)
    for table, part in parts.items():
        part.finish(len(todo), pl.DataFrame(schema=SCHEMAS[table]))


def _layer(
    neurons: Iterator[list[tuple[int, np.ndarray, np.ndarray]]], judge: Callable[..., Judged], threads: int, bar: progress.Bar
) -> Iterator[tuple[int, Judged]]:
    """Judges one layer's neurons. The next ones are read while some are judged, so that no thread waits for the slowest."""

    def one(neuron: int, activations: np.ndarray, logits: np.ndarray) -> tuple[int, Judged]:
        found = judge(activations=activations, logits=logits)
        bar.update()
        return neuron, found

    with ThreadPoolExecutor(threads) as pool:
        waiting: list[Future[tuple[int, Judged]]] = []
        for some in neurons:
            started, waiting = waiting, [pool.submit(one, *neuron) for neuron in some]
            yield from (future.result() for future in started)
        yield from (future.result() for future in waiting)


def tables(of: dict[int, Judged], keys: dict[str, str | int], settings: Nulls) -> dict[str, pl.DataFrame]:
    """The rows of one layer, by table. of: neuron -> what was found; keys: subject, operator and layer."""
    candidates = [pl.DataFrame(schema=SCHEMAS["nulls"])]
    for neuron, found in of.items():
        candidates.append(_frame("nulls", {**keys, "neuron": neuron}, found.candidates))
    bests = np.array([found.bests for found in of.values()])  # (neurons, draws, groups, measures)
    counts = [
        {"draw": draw, "quantities": group, "measure": measure, "threshold": threshold, "neurons": int(reached)}
        for g, group in enumerate(GROUPS)
        for m, measure in enumerate(MEASURES)
        for threshold in settings.thresholds
        for draw, reached in enumerate((bests[:, :, g, m] >= np.float32(threshold)).sum(0))
    ]
    correlations, p_values = zip(*(found.naming for found in of.values()), strict=True)
    naming = {"neuron": list(of), "correlation": list(correlations), "p_value": list(p_values)}
    return {
        "nulls": pl.concat(candidates).sort("neuron", "heuristic", "side"),
        "null_shares": _frame("null_shares", keys, {name: [row[name] for row in counts] for name in counts[0]}),
        "naming": _frame("naming", keys, naming),
    }


def _frame(table: str, keys: Mapping[str, str | int], columns: Mapping[str, Sequence | np.ndarray]) -> pl.DataFrame:
    schema = SCHEMAS[table]
    frame = pl.DataFrame(columns, schema={name: schema[name] for name in columns}, strict=False)
    return frame.select((pl.lit(keys[name]) if name in keys else pl.col(name)).cast(kind).alias(name) for name, kind in schema.items())


if __name__ == "__main__":
    main(sys.argv[1])
