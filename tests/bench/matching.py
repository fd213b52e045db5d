"""Benchmarks of heuristics: scores of the whole catalogue, and relabellings of the operands."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl

from stages.heuristics.null import p_values, relabelled
from stages.heuristics.settings import Nulls, Scores
from stages.lib.core import layered, machine
from stages.lib.core.settings import load
from stages.lib.core.words import OPERATORS
from stages.lib.heuristics import scores
from stages.lib.heuristics.square import Square
from stages.lib.sql.database import Database
from stages.lib.subject import Subject
from tests.bench.timing import median

SUBJECT = "abacus"


def match() -> None:
    """Scores of 3,200 random neurons for the paper's whole catalogue over the 300 x 300 sums, both sides. Bar: 40 s."""
    square = _square("add")
    random = np.random.default_rng(0)
    maps = random.standard_normal((3200, len(square.cells)), dtype=np.float32).astype(np.float16)
    logits = random.standard_normal((3200, 1000), dtype=np.float32)

    def score(neuron: int) -> None:
        activations = layered.widen(maps[neuron])
        scores.scores(activations, square.operands.sets)
        scores.scores(activations * logits[neuron][square.results], square.answers.sets)

    def all_neurons() -> None:
        with ThreadPoolExecutor(machine.workers()) as pool:
            list(pool.map(score, range(len(maps))))

    [seconds] = median(1, all_neurons)
    heuristics = len(square.operands.names) + len(square.answers.names)
    print(
        f"match: 3,200 neurons x {heuristics} heuristics x {len(square.cells)} cells, top and bottom: {seconds:.1f} s (bar 40)"
    )


def relabel() -> None:
    """1,000 relabellings of a sample of the subject's neurons, and what that makes for all of them."""
    settings, sets = load(Nulls), load(Scores).answer_sets
    votes = Subject.named(SUBJECT).votes()
    whole, sample = 0.0, 16
    for operator in OPERATORS:
        square = _square(operator)
        layers = square.activations.layers
        labels = [
            relabelled.permutations(square, step, settings.seed)
            for step in p_values.steps_to(1000, settings.first_draws)
        ]
        some = [one for layer in layers for one in square.neurons(layer, votes, range(sample))]

        def judge(
            one: tuple[int, np.ndarray, np.ndarray],
            square: Square = square,
            labels: list[relabelled.Relabellings] = labels,
        ) -> None:
            p_values.judged(square, one[1], one[2], labels, settings, sets)

        def sampled(some: list = some, judge: Callable = judge) -> None:
            with ThreadPoolExecutor(machine.workers()) as pool:
                list(pool.map(judge, some))

        start = time.perf_counter()
        sampled()
        seconds = time.perf_counter() - start
        neurons = len(layers) * square.activations.axes["neuron"]
        whole += seconds / len(some) * neurons
        print(
            f"relabel: {operator}: {seconds / len(some):.2f} s per neuron for 1,000 draws, {seconds:.0f} s for {len(some)}"
        )
    print(f"relabel: all neurons of {SUBJECT}: {whole / 60:.0f} min")


def nulls() -> None:
    """A relabelling of one neuron: both maps sorted and walked along anew in every draw, against what the stage does."""
    sets, draws, votes = load(Scores).answer_sets, 60, Subject.named(SUBJECT).votes()
    for operator in OPERATORS:
        square = _square(operator)
        labels = relabelled.permutations(square, range(draws + 1), load(Nulls).seed)
        _, activations, logits = square.neurons(square.activations.layers[-1], votes, range(1))[0]

        def sorted_anew(
            square: Square = square,
            labels: relabelled.Relabellings = labels,
            of: tuple = (activations, logits),
        ) -> None:
            for row, column in zip(*labels, strict=True):
                values = of[0][row[square.op1], column[square.op2]]
                scores.scores(values, square.operands.sets)
                scores.scores(values * of[1][square.results], square.answers.sets)

        def by_tables(
            square: Square = square,
            labels: relabelled.Relabellings = labels,
            of: tuple = (activations, logits),
        ) -> None:
            relabelled.RelabelledNeuron(square, *of, sets).null(labels)

        slow, fast = (seconds / (draws + 1) * 1e3 for seconds in median(5, sorted_anew, by_tables))
        print(
            f"nulls: {operator}: {slow:.2f} ms per draw by sorting, {fast:.2f} ms, {slow / fast:.1f} x"
        )


def _square(operator: str) -> Square:
    catalogue = pl.read_parquet("data/heuristics/heuristics.parquet").filter("usable")
    database = Database({"cells": [Path("data/corpus/cells.parquet")]}, threads=1)
    return Square(
        database,
        catalogue,
        layered.LayerStore(Path(f"data/{SUBJECT}/store/activations/{operator}.h5")),
        load(Scores).least_cells,
    )
