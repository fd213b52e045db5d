"""Search for the shortest predicate that describes each neuron's activations, without a catalogue.

discovery/grammar.py defines the predicates and their bits, discovery/search.py the search. It sees
the activations of training cells alone. Each neuron is searched twice: as it is, and as a decoy,
with its operands relabelled at random. discovered.sql compares the two.

The search uses activations for predicates about results, too: contributions would add what the
neuron's value vector knows about results to what the neuron itself is about.

Table discovery_search: the predicate of shortest description of each neuron, and of its decoy
    subject             VARCHAR   the model
    operator            VARCHAR   add, subtract, multiply or divide
    layer               SMALLINT  decoder layer, from 0
    neuron              INTEGER   neuron of the layer's MLP, from 0
    predicate           VARCHAR   SQL condition on op1, op2 and result; null if no predicate makes
                                  the description of the activations shorter
    atoms               TINYINT   number of conditions that the predicate joins, 1 or 2; 0 if null
    bits                FLOAT     length of the predicate in bits; 0 if null
    gain                FLOAT     bits by which the predicate makes the description of the
                                  activations shorter, its own bits subtracted; at least 0
    decoy_gain          FLOAT     largest gain of any predicate with the operands relabelled
    explained_training  FLOAT     share of the variance of training cells that the predicate
                                  explains by two means, 0 to 1
    explained           FLOAT     share of the variance of held-out cells that the predicate
                                  explains; below 0 is worse than predicting the mean; null if they
                                  do not vary
    same_as             VARCHAR   heuristic of the catalogue that the same cells satisfy; null if
                                  the catalogue has none
    catalogue           VARCHAR   heuristic of the catalogue that explains the largest share of the
                                  variance of training cells
    catalogue_bits      FLOAT     bits that select a heuristic of the catalogue, log2 of its size
    catalogue_gain      FLOAT     gain of this heuristic; may be negative
    catalogue_explained FLOAT     share of the variance of held-out cells that this heuristic
                                  explains; null if they do not vary
    short               VARCHAR   predicate of at most catalogue_bits bits that explains the largest
                                  share of the variance of training cells
    short_explained     FLOAT     share of the variance of held-out cells that this short predicate
                                  explains; null if they do not vary
"""

import hashlib
import sys
from functools import lru_cache
from math import log2
from pathlib import Path

import numpy as np
import polars as pl

from stages.heuristics import discovery
from stages.heuristics.discovery import grammar
from stages.heuristics.discovery.search import (
    NONE,
    Found,
    bits_saved,
    holds,
    search,
    space,
    sums_by_value,
)
from stages.heuristics.grids import CELLS, OperandGrids
from stages.heuristics.null_distribution.relabelled import permutations
from stages.heuristics.settings import PermutationTests, Scores
from stages.lib import heuristics
from stages.lib.core.compiled import compiled
from stages.lib.core.digest import digest
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table
from stages.lib.heuristics.grid import Group, OperandGrid
from stages.lib.heuristics.scores import members_of
from stages.lib.subject import Subject
from stages.lib.units.parts import Parts
from stages.lib.units.pool import Report, silent
from stages.lib.units.work import carry_out

SCHEMA = {
    "subject": pl.String,
    "operator": pl.String,
    "layer": pl.Int16,
    "neuron": pl.Int32,
    "predicate": pl.String,
    "atoms": pl.Int8,
    "bits": pl.Float32,
    "gain": pl.Float32,
    "decoy_gain": pl.Float32,
    "explained_training": pl.Float32,
    "explained": pl.Float32,
    "same_as": pl.String,
    "catalogue": pl.String,
    "catalogue_bits": pl.Float32,
    "catalogue_gain": pl.Float32,
    "catalogue_explained": pl.Float32,
    "short": pl.String,
    "short_explained": pl.Float32,
}
QUANTITIES = ("op1", "op2", "result")


class DiscoveryWork:
    """The search of one model's neurons."""

    counts, few = "neuron", 100

    def __init__(self, name: str):
        self.subject, scores = Subject.named(name), load(Scores)
        self.seed = load(PermutationTests).seed
        self.grids = OperandGrids(self.subject, scores.neurons_per_unit, scores.least_cells)
        self.units, self.title = self.grids.units, f"discovery_search {name}"
        sources = [Path(__file__), discovery, heuristics, *self.grids.inputs]
        key = digest(sources, scores.least_cells, self.seed)
        self.parts = Parts(self.subject.path("heuristics/discovery_search.parquet"), key)
        self.language = lru_cache(1)(lambda grid: Language(grid, scores.least_cells))

    def missing(self) -> list[int]:
        return self.parts.missing(len(self.units))

    def do(self, number: int, report: Report = silent) -> None:
        grid, layer, neurons = self.grids.read(number)
        rows = []
        for neuron, activations, _ in neurons:
            relabelled = permutations(grid, range(neuron + 1, neuron + 2), self.seed)
            row = self.language(grid).row(activations, relabelled)
            keys = {"subject": self.subject.name, "operator": grid.operator, "layer": layer}
            rows.append(keys | {"neuron": neuron} | row)
            report(1)
        self.parts.write(number, pl.DataFrame(rows, SCHEMA).sort("neuron"))

    def finish(self) -> None:
        self.parts.finish(self.grids.layers(), pl.DataFrame(schema=SCHEMA))


class Language:
    """What can be said about the cells of one operator: the grammar, and the catalogue.

    training, held_out: indices of cells, in random order; quantities: (4, cells) of op1, op2,
    result and relations.
    """

    def __init__(self, grid: OperandGrid, least_cells: int):
        self.grid = grid
        relations = grammar.relations(grid.op1, grid.op2)
        self.quantities = np.stack([grid.op1, grid.op2, grid.results, relations])
        in_training = _in_training(grid)
        shuffled = np.random.default_rng(0).permutation(len(grid.cells))
        self.training = shuffled[in_training[shuffled]]
        self.held_out = shuffled[~in_training[shuffled]]
        values = self.quantities.max(1, initial=0).tolist()
        self.views = grammar.views(dict(zip(QUANTITIES, values[:3], strict=True)))
        labels = len(np.unique(grid.op1)) + len(np.unique(grid.op2))
        of_training = self.quantities[:, self.training]
        self.space = space(of_training, self.views, labels, least_cells)
        self.catalogue = Catalogue(self)

    def row(self, activations: np.ndarray, relabelled: tuple[np.ndarray, np.ndarray]) -> dict:
        """Return a neuron's columns of the table.

        activations: (op1, op2) of the operand grid; relabelled: (1, op1) and (1, op2) labels.
        """
        values = activations.ravel()[self.grid.cells]
        (rows,), (columns,) = relabelled
        decoy = activations[rows[self.grid.op1], columns[self.grid.op2]]
        budget = self.catalogue.bits
        best, short = search(values[self.training], self.space, budget)
        of_decoy, _ = search(decoy[self.training], self.space, budget)
        inside = holds(self.quantities, best, self.space)
        catalogue, of_catalogue, named = self.catalogue.best(values[self.training])
        return {
            "predicate": self.text(best),
            "atoms": int((best.atoms[:, 0] != NONE).sum()),
            "bits": best.bits,
            "gain": best.gain,
            "decoy_gain": of_decoy.gain,
            "explained_training": best.share,
            "explained": self.explained(values, inside),
            "same_as": self.catalogue.names_by_cells.get(_cells_digest(inside)),
            "catalogue": catalogue,
            "catalogue_bits": budget,
            "catalogue_gain": bits_saved(of_catalogue, budget, self.space.samples),
            "catalogue_explained": self.explained(values, named),
            "short": self.text(short),
            "short_explained": self.explained(values, holds(self.quantities, short, self.space)),
        }

    def text(self, found: Found) -> str | None:
        """Return a predicate in SQL, first operand first; None if it has no atom."""
        atoms = [atom for atom in sorted(found.atoms.tolist()) if atom[0] != NONE]
        texts = [self.views[view].text(low, high) for view, low, high in atoms]
        return " and ".join(texts) or None

    def explained(self, values: np.ndarray, inside: np.ndarray) -> float | None:
        """Return the share of held-out variance that the means of training cells explain.

        values: (cells,); inside: (cells,) bool. None if the held-out cells do not vary.
        """
        share = _explained(values, inside, self.training, self.held_out)
        return None if np.isnan(share) else round(share, 6) + 0.0


class Catalogue:
    """The catalogue's heuristics as sets of cells.

    bits: log2 of the number of heuristics; names_by_cells: digest of a set of cells -> name.
    """

    def __init__(self, language: Language):
        self.language, grid = language, language.grid
        self.names: list[str] = []
        self.quantity: list[int] = []
        self.members: list[np.ndarray] = []  # values of the quantity, or indices of cells
        self._add(grid.operands, grid, [0, 1])
        self._add(grid.answers, grid, [2])
        self.bits = log2(max(1, len(self.names)))
        training = language.training
        length = language.space.counts.shape[1]
        self.of_values = np.zeros((len(self.names), 3, length))  # 1: value satisfies heuristic
        self.other: dict[int, np.ndarray] = {}  # heuristic -> which training cells satisfy it
        sizes = np.zeros(len(self.names))
        self.names_by_cells: dict[bytes, str] = {}
        for number, name in enumerate(self.names):
            inside = self.cells(number)
            self.names_by_cells.setdefault(_cells_digest(inside), name)
            sizes[number] = inside[training].sum()
            if self.quantity[number] == NONE:
                self.other[number] = inside[training]
            else:
                self.of_values[number, self.quantity[number], self.members[number]] = 1
        self.of_values = self.of_values.reshape(len(self.names), -1)
        outside = len(training) - sizes
        least = language.space.least
        usable = (sizes >= least) & (outside >= least)
        scale = np.where(usable, sizes * outside / max(1, len(training)), np.inf)
        self.scale = scale

    def _add(self, group: Group, grid: OperandGrid, quantities: list[int]) -> None:
        """Add a group's heuristics; quantities: those of the group's sets."""
        for number, name in enumerate(group.names):
            own = group.sets.quantity[number]
            self.names.append(name)
            self.quantity.append([*quantities, NONE][own])
            self.members.append(members_of(group.sets, number))

    def cells(self, number: int) -> np.ndarray:
        """Return which cells satisfy a heuristic: (cells,) bool."""
        quantity, members = self.quantity[number], self.members[number]
        if quantity == NONE:
            inside = np.zeros(len(self.language.grid.cells), bool)
            inside[members] = True
            return inside
        satisfied = np.zeros(self.language.space.counts.shape[1], bool)
        satisfied[members] = True
        return satisfied[self.language.quantities[quantity]]

    def best(self, values: np.ndarray) -> tuple[str | None, float, np.ndarray]:
        """Return the name of the heuristic that explains the largest share, the share, its cells.

        values: (cells,) of training cells.
        """
        if not self.names or not len(values):
            return None, 0.0, np.zeros(len(self.language.grid.cells), bool)
        deviations = values - values.mean(dtype=np.float64)
        by_value = sums_by_value(deviations, self.language.space)[:3]
        sums = self.of_values @ by_value.ravel()
        for number, inside in self.other.items():
            sums[number] = deviations[inside].sum()
        explained = sums**2 / self.scale
        number = int(explained.argmax())
        total = float(deviations @ deviations)
        share = float(explained[number]) / total if total > 0 else 0.0
        return self.names[number], share, self.cells(number)


def _in_training(grid: OperandGrid) -> np.ndarray:
    """Return which cells our own models may train on: (cells,) bool."""
    cells = read_table(CELLS, columns=["operator", "op1", "op2", "split"])
    cells = cells.filter(operator=grid.operator, split="train")
    op1, op2 = cells["op1"].to_numpy(), cells["op2"].to_numpy()
    on_grid = (op1 < grid.shape[0]) & (op2 < grid.shape[1])
    training = np.zeros(grid.shape, bool)
    training[op1[on_grid], op2[on_grid]] = True
    return training.ravel()[grid.cells]


def _cells_digest(inside: np.ndarray) -> bytes:
    return hashlib.blake2b(np.packbits(inside).tobytes(), digest_size=16).digest()


@compiled()
def _explained(values, inside, training, held_out):
    """Predict held-out cells by the means of training cells, inside and outside; see explained."""
    sums, counts = np.zeros(2), np.zeros(2)
    for cell in training:
        side = int(inside[cell])
        sums[side] += values[cell]
        counts[side] += 1
    means = sums / np.maximum(counts, 1)
    mean = 0.0
    for cell in held_out:
        mean += values[cell]
    mean /= max(1, len(held_out))
    error = variance = 0.0
    for cell in held_out:
        error += (values[cell] - means[int(inside[cell])]) ** 2
        variance += (values[cell] - mean) ** 2
    if variance == 0:
        return np.nan
    return 1 - error / variance


def main(name: str) -> None:
    carry_out(DiscoveryWork, name)


if __name__ == "__main__":
    main(sys.argv[1])
