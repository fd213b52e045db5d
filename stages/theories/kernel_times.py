"""Time the functions that describe neurons' maps: python -m stages.theories.kernel_times 300 add

`bag check` runs this program to estimate the stages that use these functions. The arguments are the
number of operands and an operator. The map is random, that of a neuron with a range and a digit.
The catalogue has the settings' ranges, remainders and patterns, which are nearly all of it.

Prints a JSON object with the fields of KernelTimes (stages/store/kernels.py).
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

from stages.corpus.settings import Cells
from stages.heuristics.discovery import grammar
from stages.heuristics.discovery.search import search, space
from stages.heuristics.fourier.fit import SplitCells, explain, indicators, waves
from stages.heuristics.fourier.frequencies import FrequencyPairs
from stages.heuristics.fourier.spectrum import spectrum
from stages.heuristics.null_distribution.p_values import judged, steps_to
from stages.heuristics.null_distribution.relabelled import Relabellings, permutations
from stages.heuristics.settings import PermutationTests, Scores, Spectra
from stages.lib.core.hdf5_store import LayerStore
from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.core.vocabulary import OPERATORS, Operator
from stages.lib.heuristics.catalogue_grid import Heuristics
from stages.lib.heuristics.grid import OperandGrid
from stages.lib.heuristics.names import moduli, parse, patterns, ranges
from stages.lib.heuristics.scores import scores, strengths
from stages.lib.sql.database import Database
from stages.store.answers import answers_on_grid
from stages.store.timing import repeated
from stages.theories.pursuit import pursue
from stages.theories.settings import TheoryFits

CATALOGUE = ["operator", "heuristic", "kind", "quantity", "predicate"]
BRIEFLY = 0.2  # seconds of CPU time of a measurement
LABELS = 3  # of a neuron
TERMS = 500  # in a theory's dictionary, on average
PREDICATE_BITS = 10.0  # of the short predicate
TRAINING = 0.9  # share of the cells


def measured(side: int, operator: Operator) -> dict[str, float]:
    """Return the seconds of each function for a map over a grid of `side` operands."""
    with tempfile.TemporaryDirectory() as folder:
        grid = synthetic_grid(side, operator, Path(folder))
    random = np.random.default_rng(0)
    activations = random_map(side, random)
    logits = random.standard_normal(int(grid.results.max()) + 1, dtype=np.float32)
    return {
        "cells": len(grid.cells),
        "grid": side * side,
        "scores": _timed(lambda: _score(grid, activations, logits)),
        "draw": _draw_seconds(grid, activations, logits),
        "spectrum": _spectrum_seconds(side, random),
        "search": _timed(_search(grid, activations)),
        "explained": _timed(_explained(grid, activations)),
        "fits": _fit_seconds(random),
    }


class AnswersOnly:
    """What OperandGrid reads of a store, without activations."""

    def __init__(self, operator: Operator, results: np.ndarray):
        self.attributes, self.columns = {"operator": operator}, {"result": results}


def synthetic_grid(side: int, operator: Operator, folder: Path) -> OperandGrid:
    """Return an operator's grid without a store. folder: for the table of its cells."""
    results = answers_on_grid(operator, range(side), load(Cells).largest_answer)
    op1, op2 = np.nonzero(results >= 0)
    values = {"op1": op1, "op2": op2, "result": results[op1, op2]}
    cells = pl.DataFrame(values).with_columns(pl.all().cast(pl.Int32), operator=pl.lit(operator))
    write_table(cells, folder / "cells.parquet")
    heuristics = map(parse, _names(cells, operator))
    rows = [(operator, each.name, each.kind, each.quantity, each.predicate) for each in heuristics]
    catalogue = pl.DataFrame(rows, CATALOGUE, orient="row")
    with Database({"cells": [folder / "cells.parquet"]}, threads=1) as database:
        store = cast(LayerStore, AnswersOnly(operator, results))
        return OperandGrid(database, catalogue, store, load(Scores).least_cells)


def _names(cells: pl.DataFrame, operator: Operator) -> list[str]:
    """Return the names of ranges, remainders and patterns of each quantity."""
    settings = load(Heuristics)
    grid = settings.grids[settings.grid]
    names: list[str] = []
    for quantity in ("op1", "op2", "result"):
        largest = int(cells[quantity].to_numpy().max())
        names += ranges(quantity, largest, grid.range_lengths[operator], True)
        names += moduli(quantity, grid.moduli)
        names += patterns(quantity, grid.patterns)
    return names


def random_map(side: int, random: np.random.Generator) -> np.ndarray:
    """Return the activations of a random neuron, (op1, op2) float32, rounded as in a store.

    As many neurons of trained models, it is active for a range of op1 + op2, and for some last
    digits of op1.
    """
    op1, op2 = np.indices((side, side))
    centre, phase = random.uniform(0.3, 1.7) * side, random.uniform(0, 2 * np.pi)
    distance = (op1 + op2 - centre) / (0.2 * side)
    inputs = 4 * np.exp(-(distance**2)) + 2 * np.cos(np.pi * op1 / 5 + phase) - 2
    inputs += 0.3 * random.standard_normal((side, side))
    return (inputs / (1 + np.exp(-inputs))).astype(np.float16).astype(np.float32)


def _timed(run: Callable[[], object]) -> float:
    run()  # which compiles
    return repeated(run, BRIEFLY)


def _score(grid: OperandGrid, activations: np.ndarray, logits: np.ndarray) -> None:
    values = activations.ravel()[grid.cells]
    for own, group in ((values, grid.operands), (values * logits[grid.results], grid.answers)):
        scores(own, group.sets)
        strengths(own, group.sets)


def _draw_seconds(grid: OperandGrid, activations: np.ndarray, logits: np.ndarray) -> float:
    """Return the seconds of a relabelling, from a neuron that gets all of the first round."""
    settings, sets = load(PermutationTests), load(Scores).answer_sets
    never_enough = settings.model_copy(update={"exceedances": settings.most_draws})
    numbers = steps_to(settings.least_draws, settings.first_draws)
    steps = [permutations(grid, step, settings.seed, 0) for step in numbers]
    drawn = 0

    def relabellings() -> Iterator[Relabellings]:
        nonlocal drawn
        for labels in steps:
            drawn += len(labels[0])
            yield labels

    def run() -> None:
        judged(grid, activations, logits, relabellings(), never_enough, sets)

    run()
    each = drawn  # fewer than all if no heuristic is a candidate
    return repeated(run, BRIEFLY) / each


def _spectrum_seconds(side: int, random: np.random.Generator) -> float:
    settings, pairs = load(Spectra), FrequencyPairs.from_shape((side, side))
    maps = np.stack([random_map(side, random) for _ in range(settings.neurons_at_once)])
    return _timed(lambda: spectrum(maps, pairs, settings.components)) / len(maps)


def _search(grid: OperandGrid, activations: np.ndarray) -> Callable[[], object]:
    order = np.random.default_rng(0).permutation(len(grid.cells))
    training = order[: int(TRAINING * len(order))]
    relations = grammar.relations(grid.op1, grid.op2)
    quantities = np.stack([grid.op1, grid.op2, grid.results, relations])
    ends = quantities.max(1)[:3].tolist()
    views = grammar.views(dict(zip(("op1", "op2", "result"), ends, strict=True)))
    labels = len(np.unique(grid.op1)) + len(np.unique(grid.op2))
    within = space(quantities[:, training], views, labels, load(Scores).least_cells)
    values = activations.ravel()[grid.cells[training]]
    return lambda: search(values, within, PREDICATE_BITS)


def _explained(grid: OperandGrid, activations: np.ndarray) -> Callable[[], object]:
    order = np.random.default_rng(0).permutation(len(grid.cells))
    training, pairs = int(TRAINING * len(order)), FrequencyPairs.from_shape(grid.shape)
    cells = SplitCells(grid.shape, order, grid.op1[order], grid.op2[order], training)
    values = activations[cells.op1, cells.op2].astype(np.float64)
    remainders = [cells.op1 % divisor == 0 for divisor in range(2, 2 + LABELS)]
    satisfied = np.stack(remainders)

    def run() -> None:
        explain(indicators(satisfied), values, training)
        explain(waves(values, cells, pairs, LABELS), values, training)

    return run


def _fit_seconds(random: np.random.Generator) -> float:
    settings = load(TheoryFits)
    terms = random.standard_normal((TERMS, settings.train_cells))
    terms /= np.linalg.norm(terms, axis=1, keepdims=True)
    maps = random.standard_normal((settings.neurons_at_once, settings.train_cells))
    gram = terms @ terms.T

    def run() -> None:
        for _ in pursue(gram, maps @ terms.T, settings.budgets):
            pass

    return 3 * _timed(run) / len(maps)


def main(arguments: list[str]) -> None:
    side, operator = arguments
    if operator not in OPERATORS:
        raise SystemExit(f"unknown operator {operator!r}; operators: {', '.join(OPERATORS)}")
    times: dict[str, Any] = measured(int(side), operator)
    print(json.dumps(times))


if __name__ == "__main__":
    main(sys.argv[1:])
