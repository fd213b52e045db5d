"""One operator's operand grid: its cells, its heuristics as sets, and the maps of its neurons."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from stages.lib.core.hdf5_store import LayerStore, widen
from stages.lib.core.vocabulary import Operator
from stages.lib.heuristics import answer_tokens
from stages.lib.heuristics.members import listed, members
from stages.lib.heuristics.names import Heuristic, parse
from stages.lib.heuristics.scores import Sets, sets
from stages.lib.sql.database import Database

# a neuron's number, activations over the grid (op1, op2), and value logits (results,)
Neuron = tuple[int, np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Group:
    """Heuristics that are scored on the same map, in the order of `sets`.

    names, kinds, quantities: (heuristics,) text; share: (heuristics,) share of cells covered, 0 to
    1.
    """

    names: np.ndarray
    kinds: np.ndarray
    quantities: np.ndarray
    share: np.ndarray
    sets: Sets


class OperandGrid:
    """The cells of a store: those of its prompts that have an answer, in order of op1, then op2.

    shape: (op1, op2) of the grid; cells: (cells,) flat locations on the grid; op1, op2, results:
    (cells,) int32; stretches: runs of neighbouring cells in a row, (stretches + 1, 3) uint32 of
    first cell, op1 and first op2, and at last the end; operands: heuristics scored on activations;
    answers: heuristics of the result, scored on contributions, activation times value logit of the
    cell's answer.

    If the model predicts one of several tokens of an answer, `answers` also has heuristics of the
    number that this token stands for (see answer_tokens.py).
    """

    def __init__(
        self,
        database: Database,
        catalogue: pl.DataFrame,
        activations: LayerStore,
        least_cells: int = 1,
    ):
        """Read the cells, and find which of them each heuristic covers.

        database: has the table `cells`; activations: one operator's store; least_cells: heuristics
        that fewer cells satisfy, or fail to satisfy, are left out.
        """
        self.activations = activations
        self.operator: Operator = activations.attributes["operator"]
        results = activations.columns["result"]
        self.shape = results.shape
        self.cells = np.flatnonzero(results.ravel() >= 0)
        self.results = results.ravel()[self.cells].astype(np.int32)
        op1, op2 = np.indices(results.shape, np.int32).reshape(2, -1)
        self.op1, self.op2 = op1[self.cells], op2[self.cells]
        self.stretches = self._stretches()
        heuristics, numbers = listed(catalogue, self.operator), answer_tokens.numbers(activations)
        if numbers is not None:
            names = answer_tokens.names(heuristics, self.operator, int(numbers.max()))
            heuristics += map(parse, names)
        known = answered(database, self.operator, results)
        satisfied = members(database, self.operator, heuristics, numbers)[:, known]
        quantities = np.array([heuristic.quantity for heuristic in heuristics])
        sizes = satisfied.sum(1)  # may be 0, if the model answers some cells only
        usable = (sizes >= least_cells) & (len(self.cells) - sizes >= least_cells)
        if numbers is not None:
            own = np.flatnonzero(quantities == "asked")
            usable[own] &= _is_first(satisfied[own])
        of_result = np.isin(quantities, ["result", "asked"])
        of_operands = np.flatnonzero(usable & ~of_result)
        self.operands = _group(
            heuristics, satisfied, of_operands, {"op1": self.op1, "op2": self.op2}
        )
        of_answers = np.flatnonzero(usable & of_result)
        self.answers = _group(heuristics, satisfied, of_answers, {"result": self.results})

    def _stretches(self) -> np.ndarray:
        is_first = (np.diff(self.cells, prepend=-2) != 1) | (self.op2 == 0)
        first = np.flatnonzero(is_first)
        starts = np.stack([first, self.op1[first], self.op2[first]], axis=1)
        return np.concatenate([starts, [[len(self.cells), 0, 0]]]).astype(np.uint32)

    @cached_property
    def places(self) -> np.ndarray:
        """Return where cells get activations from when operands are relabelled.

        These are the flat locations of all pairs of operands that cells have, in a random order.
        """
        locations = np.arange(self.shape[0] * self.shape[1], dtype=np.int32).reshape(self.shape)
        pairs = locations[np.ix_(np.unique(self.op1), np.unique(self.op2))]
        return np.random.default_rng(0).permutation(pairs.ravel())

    def layer(self, layer: int, value_logits: LayerStore, at_once: int) -> Iterator[list[Neuron]]:
        """Yield a layer's neurons, `at_once` at a time in memory."""
        for first in range(0, self.activations.axes["neuron"], at_once):
            yield self.neurons(layer, value_logits, range(first, first + at_once))

    def neurons(self, layer: int, value_logits: LayerStore, numbers: range) -> list[Neuron]:
        """Return those of these neurons that the layer has.

        If the model predicts one token of several, their value logits are expanded to one per
        result.
        """
        part = slice(numbers.start, numbers.stop)
        maps = widen(self.activations.read(layer, part, slice(None)))
        logits = value_logits.read(layer, part, slice(None)).astype(np.float32)
        result_numbers = answer_tokens.numbers(self.activations)
        if result_numbers is not None:
            logits = logits[:, result_numbers.clip(min=0)]
        return list(zip(numbers[: len(maps)], maps, logits, strict=True))


def answered(database: Database, operator: str, results: np.ndarray) -> np.ndarray:
    """Return for which of an operator's cells a store has an answer: (cells,) bool.

    database: has the table `cells`, in order of op1, then op2; results: (op1, op2) of the store, -1
    for none.
    """
    query = "select op1, op2 from cells where operator = $operator order by op1, op2"
    op1, op2 = database.sql(query, operator=operator).pl().to_numpy().T
    inside = (op1 < results.shape[0]) & (op2 < results.shape[1])
    inside[inside] = results[op1[inside], op2[inside]] >= 0
    return inside


def _is_first(satisfied: np.ndarray) -> np.ndarray:
    """Return which sets of cells are equal to none before them; satisfied: (sets, cells) bool."""
    _, first = np.unique(np.packbits(satisfied, axis=1), axis=0, return_index=True)
    is_first = np.zeros(len(satisfied), bool)
    is_first[first] = True
    return is_first


def _group(
    heuristics: list[Heuristic],
    satisfied: np.ndarray,
    indices: np.ndarray,
    values: dict[str, np.ndarray],
) -> Group:
    selected = [heuristics[i] for i in indices]
    quantities = np.array([heuristic.quantity for heuristic in selected], object)
    # the number that the predicted token stands for is a function of the result
    keys = np.where(quantities == "asked", "result", quantities)
    made, order = sets(satisfied[indices], keys.tolist(), values)
    return Group(
        names=np.array([heuristic.name for heuristic in selected], object)[order],
        kinds=np.array([heuristic.kind for heuristic in selected], object)[order],
        quantities=quantities[order],
        share=made.k / satisfied.shape[1],
        sets=made,
    )
