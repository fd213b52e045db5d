"""Benchmark heuristics: scores of the whole catalogue, and relabellings of the operands."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.heuristics.discovery.search import search
from stages.heuristics.discovery_search import Language
from stages.heuristics.null_distribution import p_values, relabelled
from stages.heuristics.settings import PermutationTests, Scores
from stages.lib.core import environment, hdf5_store
from stages.lib.core.settings import load
from stages.lib.core.vocabulary import OPERATORS
from stages.lib.heuristics import scores
from stages.lib.heuristics.grid import OperandGrid
from stages.lib.sql.database import Database
from stages.lib.subject import Subject
from tests.bench.timing import median

SUBJECT = "abacus"


def match() -> None:
    """Score 3,200 random neurons for the paper's whole catalogue over 300 x 300 sums, both sides.

    Bar: 40 s.
    """
    grid = _grid("add")
    random = np.random.default_rng(0)
    maps = random.standard_normal((3200, len(grid.cells)), dtype=np.float32).astype(np.float16)
    logits = random.standard_normal((3200, 1000), dtype=np.float32)

    def score(neuron: int) -> None:
        activations = hdf5_store.widen(maps[neuron])
        scores.scores(activations, grid.operands.sets)
        scores.scores(activations * logits[neuron][grid.results], grid.answers.sets)

    def all_neurons() -> None:
        with ThreadPoolExecutor(environment.workers()) as pool:
            list(pool.map(score, range(len(maps))))

    [seconds] = median(1, all_neurons)
    heuristics = len(grid.operands.names) + len(grid.answers.names)
    size = f"3,200 neurons x {heuristics} heuristics x {len(grid.cells)} cells"
    print(f"match: {size}, top and bottom: {seconds:.1f} s (bar 40)")


def relabel() -> None:
    """Time 1,000 relabellings of a sample of the subject's neurons, and estimate all of them."""
    settings, sets = load(PermutationTests), load(Scores).answer_sets
    votes = Subject.named(SUBJECT).value_logits()
    steps = p_values.steps_to(1000, settings.first_draws)
    whole, sample = 0.0, 16
    for operator in OPERATORS:
        grid = _grid(operator)
        layers = grid.activations.layers
        labels = [relabelled.permutations(grid, step, settings.seed) for step in steps]
        some: list[tuple[int, np.ndarray, np.ndarray]] = []
        for layer in layers:
            some += grid.neurons(layer, votes, range(sample))

        def judge(
            neuron: tuple[int, np.ndarray, np.ndarray],
            grid: OperandGrid = grid,
            labels: list[relabelled.Relabellings] = labels,
        ) -> None:
            p_values.judged(grid, neuron[1], neuron[2], labels, settings, sets)

        start = time.perf_counter()
        with ThreadPoolExecutor(environment.workers()) as pool:
            list(pool.map(judge, some))
        seconds = time.perf_counter() - start
        each = seconds / len(some)
        whole += each * len(layers) * grid.activations.axes["neuron"]
        figure = f"{each:.2f} s per neuron for 1,000 draws, {seconds:.0f} s for {len(some)}"
        print(f"relabel: {operator}: {figure}")
    print(f"relabel: all neurons of {SUBJECT}: {whole / 60:.0f} min")


def discover() -> None:
    """Search the shortest predicate of 100 neurons over 300 x 300 sums. Bar: 10 ms a map."""
    grid = _grid("add")
    language = Language(grid, load(Scores).least_cells)
    subject = Subject.named(SUBJECT)
    neurons = grid.neurons(2, subject.value_logits(), range(100))
    training = language.order[: language.training]
    maps = [activations.ravel()[grid.cells][training] for _, activations, _ in neurons]
    search(maps[0], language.space, 0.0)  # compiles
    times = []
    for values in maps:
        start = time.process_time()
        search(values, language.space, 0.0)
        times.append(time.process_time() - start)
    print(f"discover: {1000 * np.median(times):.1f} ms a map of {len(grid.cells):,} cells")


def permutation_tests() -> None:
    """Compare a relabelling that sorts a neuron's maps anew in every draw with the stage's way."""
    sets, draws, votes = load(Scores).answer_sets, 60, Subject.named(SUBJECT).value_logits()
    for operator in OPERATORS:
        grid = _grid(operator)
        labels = relabelled.permutations(grid, range(draws + 1), load(PermutationTests).seed)
        _, *maps = grid.neurons(grid.activations.layers[-1], votes, range(1))[0]
        seconds = median(
            5,
            partial(_sorted_anew, grid, labels, *maps),
            partial(_by_tables, grid, labels, *maps, sets),
        )
        slow, fast = (each / (draws + 1) * 1e3 for each in seconds)
        figure = f"{slow:.2f} ms per draw by sorting, {fast:.2f} ms, {slow / fast:.1f} x"
        print(f"permutation_tests: {operator}: {figure}")


def _sorted_anew(
    grid: OperandGrid, labels: relabelled.Relabellings, activations: np.ndarray, logits: np.ndarray
) -> None:
    for row, column in zip(*labels, strict=True):
        values = activations[row[grid.op1], column[grid.op2]]
        scores.scores(values, grid.operands.sets)
        scores.scores(values * logits[grid.results], grid.answers.sets)


def _by_tables(
    grid: OperandGrid,
    labels: relabelled.Relabellings,
    activations: np.ndarray,
    logits: np.ndarray,
    sets: Any,
) -> None:
    relabelled.RelabelledNeuron(grid, activations, logits, sets).null(labels)


def _grid(operator: str) -> OperandGrid:
    catalogue = pl.read_parquet("data/heuristics/heuristics.parquet").filter("usable")
    database = Database({"cells": [Path("data/corpus/cells.parquet")]}, threads=1)
    return OperandGrid(
        database,
        catalogue,
        hdf5_store.LayerStore(Path(f"data/{SUBJECT}/store/activations/{operator}.h5")),
        load(Scores).least_cells,
    )
