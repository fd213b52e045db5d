"""One operator's square of prompts: its cells, its heuristics as sets, and the maps of its neurons."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from stages.lib.core.layered import LayerStore, widen
from stages.lib.core.words import Operator
from stages.lib.heuristics import asked
from stages.lib.heuristics.members import listed, members
from stages.lib.heuristics.names import Heuristic, parse
from stages.lib.heuristics.scores import Sets, sets
from stages.lib.sql.database import Database

Neuron = tuple[int, np.ndarray, np.ndarray]  # number, activations over the square (op1, op2), value logits (result,)


@dataclass(frozen=True, eq=False)
class Group:
    """Heuristics that are scored on the same map. names, kinds, quantities: (heuristics,); share: (heuristics,) of cells covered."""

    names: np.ndarray
    kinds: np.ndarray
    quantities: np.ndarray
    share: np.ndarray
    sets: Sets


class Square:
    """The cells of a store: those of its prompts that have an answer, in order of op1, then op2.

    shape: (op1, op2) of the square; cells: (cells,) which of its prompts; op1, op2, results: (cells,) int32; stretches: runs of cells
    that are neighbours in a row, (stretches + 1, 3) uint32 of first cell, op1 and first op2, the last one the end; operands: heuristics
    scored on activations; answers: heuristics of the result, scored on activation · value logit of the cell's answer. Where not the
    whole answer is asked for, answers has those of the number asked for, too, and value logits are by result all the same. Heuristics
    that fewer than least_cells of the cells satisfy, or do not satisfy, are left out.
    """

    def __init__(
        self,
        database: Database,
        catalogue: pl.DataFrame,
        activations: LayerStore,
        least_cells: int = 1,
    ):
        self.activations = activations
        self.operator: Operator = activations.attributes["operator"]
        results = activations.columns["result"]
        self.shape = results.shape
        self.cells = np.flatnonzero(results.ravel() >= 0)
        self.results = results.ravel()[self.cells].astype(np.int32)
        self.op1, self.op2 = (axis.ravel()[self.cells].astype(np.int32) for axis in np.indices(results.shape))
        first = np.flatnonzero((np.diff(self.cells, prepend=-2) != 1) | (self.op2 == 0))
        ends = np.array([[len(self.cells), 0, 0]])
        self.stretches = np.concatenate([np.stack([first, self.op1[first], self.op2[first]], axis=1), ends]).astype(np.uint32)
        heuristics, numbers = listed(catalogue, self.operator), asked.numbers(activations)
        if numbers is not None:
            heuristics += [parse(name) for name in asked.names(heuristics, self.operator, int(numbers.max()))]
        satisfied = members(database, self.operator, heuristics, numbers)[:, answered(database, self.operator, results)]
        sizes = satisfied.sum(1)  # a subject that answers fewer cells may leave a heuristic none
        some = (sizes >= least_cells) & (len(self.cells) - sizes >= least_cells)
        if numbers is not None:
            own = np.flatnonzero([heuristic.quantity == "asked" for heuristic in heuristics])
            some[own] &= _first_of_its_kind(satisfied[own])
        of_result = np.array([heuristic.quantity in ("result", "asked") for heuristic in heuristics])
        self.operands = _group(heuristics, satisfied, np.flatnonzero(some & ~of_result), {"op1": self.op1, "op2": self.op2})
        self.answers = _group(heuristics, satisfied, np.flatnonzero(some & of_result), {"result": self.results})

    @cached_property
    def places(self) -> np.ndarray:
        """Which of its prompts cells get activations from when operands are relabelled: all pairs of theirs, in a random order."""
        pairs = np.arange(self.shape[0] * self.shape[1], dtype=np.int32).reshape(self.shape)
        return np.random.default_rng(0).permutation(pairs[np.ix_(np.unique(self.op1), np.unique(self.op2))].ravel())

    def layer(self, layer: int, votes: LayerStore, at_once: int) -> Iterator[list[Neuron]]:
        """One layer's neurons, so many at a time in memory."""
        for first in range(0, self.activations.axes["neuron"], at_once):
            yield self.neurons(layer, votes, range(first, first + at_once))

    def neurons(self, layer: int, votes: LayerStore, chosen: range) -> list[Neuron]:
        """Some neurons of one layer, those of them that there are."""
        part = slice(chosen.start, chosen.stop)
        squares = widen(self.activations.read(layer, part, slice(None)))
        logits = votes.read(layer, part, slice(None)).astype(np.float32)
        if (numbers := asked.numbers(self.activations)) is not None:
            logits = logits[:, numbers.clip(min=0)]
        return list(zip(chosen[: len(squares)], squares, logits, strict=True))


def answered(database: Database, operator: str, results: np.ndarray) -> np.ndarray:
    """Which of the table's cells of an operator, in order of op1, then op2, a store has an answer for; results: (op1, op2), -1 for none."""
    listed = database.sql("select op1, op2 from cells where operator = $operator order by op1, op2", operator=operator).pl()
    op1, op2 = listed["op1"].to_numpy(), listed["op2"].to_numpy()
    inside = (op1 < results.shape[0]) & (op2 < results.shape[1])
    inside[inside] = results[op1[inside], op2[inside]] >= 0
    return inside


def _first_of_its_kind(satisfied: np.ndarray) -> np.ndarray:
    """Which sets of cells (sets, cells) none before them is equal to."""
    first = np.zeros(len(satisfied), bool)
    first[np.unique(np.packbits(satisfied, axis=1), axis=0, return_index=True)[1]] = True
    return first


def _group(heuristics: list[Heuristic], satisfied: np.ndarray, chosen: np.ndarray, values: dict[str, np.ndarray]) -> Group:
    quantities_of = [heuristics[i].quantity for i in chosen]
    made, order = sets(satisfied[chosen], ["result" if of == "asked" else of for of in quantities_of], values)
    picked = [heuristics[i] for i in chosen[order]]
    names, kinds, quantities = (np.array([getattr(h, of) for h in picked], dtype=object) for of in ("name", "kind", "quantity"))
    return Group(names, kinds, quantities, made.k / satisfied.shape[1], made)
