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
    side                VARCHAR   top or bottom: whether activations are larger or smaller, on
                                  average, where the predicate holds; null without a predicate
    explained_training  FLOAT     share of the variance of training cells that the predicate
                                  explains by two means, 0 to 1
    explained           FLOAT     share of the variance of held-out cells that the predicate
                                  explains; below 0 is worse than predicting the mean; null if they
                                  do not vary
    sum_explained       FLOAT     share of the variance of held-out cells that the predicate's two
                                  conditions explain as a sum of two terms, three coefficients
                                  fitted to training cells; null unless there are two, or if the
                                  held-out cells do not vary
    same_as             VARCHAR   heuristic of the catalogue that the same cells satisfy, or exactly
                                  the other cells; null if the catalogue has none
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
    NOTHING,
    Predicate,
    bits_saved,
    centred,
    holds,
    search,
    space,
    sums_by_value,
)
from stages.heuristics.grids import CELLS, OperandGrids
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
    "side": pl.String,
    "explained_training": pl.Float32,
    "explained": pl.Float32,
    "sum_explained": pl.Float32,
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
        key = digest(
            [Path(__file__), discovery, heuristics, *self.grids.inputs],
            scores.least_cells,
            self.seed,
        )
        self.parts = Parts(self.subject.path("heuristics/discovery_search.parquet"), key)
        self.language = lru_cache(1)(lambda grid: Language(grid, scores.least_cells))

    def missing(self) -> list[int]:
        return self.parts.missing(len(self.units))

    def do(self, number: int, report: Report = silent) -> None:
        grid, layer, neurons = self.grids.read(number)
        rows = []
        for neuron, activations, _ in neurons:
            random = np.random.default_rng([self.seed, layer, neuron])
            row = self.language(grid).row(activations, random)
            keys = {"subject": self.subject.name, "operator": grid.operator, "layer": layer}
            rows.append(keys | {"neuron": neuron} | row)
            report(1)
        self.parts.write(number, pl.DataFrame(rows, SCHEMA).sort("neuron"))

    def finish(self) -> None:
        self.parts.finish(self.grids.layers(), pl.DataFrame(schema=SCHEMA))


class Language:
    """What can be said about the cells of one operator: the grammar, and the catalogue.

    order: (cells,) the grid's cells in random order, training cells first; training: their number;
    quantities: (4, cells) of op1, op2, result and relations, in this order.
    """

    def __init__(self, grid: OperandGrid, least_cells: int):
        in_training = _in_training(grid)
        shuffled = np.random.default_rng(0).permutation(len(grid.cells))
        first, last = shuffled[in_training[shuffled]], shuffled[~in_training[shuffled]]
        self.order, self.training = np.concatenate([first, last]), len(first)
        self.places = grid.cells[self.order]
        relations = grammar.relations(grid.op1, grid.op2)
        quantities = np.stack([grid.op1, grid.op2, grid.results, relations])
        self.quantities = quantities[:, self.order]
        largest = dict(zip(QUANTITIES, quantities.max(1, initial=0).tolist(), strict=False))
        self.views = grammar.views(largest)
        self.operands = np.unique(grid.op1), np.unique(grid.op2)
        labels = len(self.operands[0]) + len(self.operands[1])
        of_training = self.quantities[:, : self.training]
        self.space = space(of_training, self.views, labels, least_cells)
        self.catalogue = Catalogue(grid, self)

    def row(self, activations: np.ndarray, random: np.random.Generator) -> dict:
        """Return a neuron's columns of the table.

        activations: (op1, op2) of the operand grid; random: relabels the operands of the decoy.
        """
        values = activations.ravel()[self.places]
        relabelled = activations.copy()
        rows, columns = self.operands
        relabelled[rows] = relabelled[random.permutation(rows)]
        relabelled[:, columns] = relabelled[:, random.permutation(columns)]
        decoy = relabelled.ravel()[self.places[: self.training]]
        budget = self.catalogue.bits
        best, short = search(values[: self.training], self.space, budget)
        of_decoy, _ = search(decoy, self.space, budget)
        inside = holds(self.quantities, best, self.space)
        catalogue, of_catalogue = self.catalogue.best(values[: self.training])
        by_catalogue = self.catalogue.mask(catalogue)
        by_short = self._holds(short)
        return {
            "predicate": self.text(best),
            "atoms": int((best.atoms[:, 0] != NONE).sum()),
            "bits": best.bits,
            "gain": best.gain,
            "decoy_gain": of_decoy.gain,
            "side": _side(values, inside) if best.gain > 0 else None,
            "explained_training": best.share,
            "explained": self.explained(values, inside),
            "sum_explained": self.sum_explained(values, best),
            "same_as": self.catalogue.names_by_cells.get(_cells_digest(inside)),
            "catalogue": self.catalogue.names[catalogue] if self.catalogue.names else None,
            "catalogue_bits": budget,
            "catalogue_gain": bits_saved(of_catalogue, budget, self.space.samples),
            "catalogue_explained": self.explained(values, by_catalogue),
            "short": self.text(short),
            "short_explained": self.explained(values, by_short),
        }

    def text(self, predicate: Predicate) -> str | None:
        """Return a predicate in SQL, first operand first; None if it has no atom."""
        atoms = [atom for atom in sorted(predicate.atoms.tolist()) if atom[0] != NONE]
        texts = [self.views[view].text(low, high) for view, low, high in atoms]
        return " and ".join(texts) or None

    def explained(self, values: np.ndarray, inside: np.ndarray) -> float | None:
        """Return the share of held-out variance that the means of training cells explain.

        values, inside: (cells,), inside is bool. None if the held-out cells do not vary.
        """
        sums, counts = _totals(values, inside, self.training)
        return self._share(values, inside, sums / np.maximum(counts, 1))

    def sum_explained(self, values: np.ndarray, predicate: Predicate) -> float | None:
        """Return the share of held-out variance that both conditions explain as a sum.

        This is the control of a conjunction: with one coefficient more, it lacks the product. None
        without two conditions, or if the held-out cells do not vary.
        """
        if (predicate.atoms[:, 0] == NONE).any():
            return None
        first, second = (
            self._holds(predicate._replace(atoms=np.stack([atom, NOTHING.atoms[1]])))
            for atom in predicate.atoms
        )
        group = first + 2 * second
        sums, counts = _totals(values, group, self.training)
        weights = np.sqrt(counts)
        design = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1]])
        means = sums / np.maximum(counts, 1)
        terms = np.linalg.lstsq(design * weights[:, None], means * weights)[0]
        return self._share(values, group, design @ terms)

    def _share(self, values: np.ndarray, group: np.ndarray, predicted: np.ndarray) -> float | None:
        share = _explained(values, group, predicted, self.training)
        return None if np.isnan(share) else round(share, 6) + 0.0

    def _holds(self, predicate: Predicate) -> np.ndarray:
        return holds(self.quantities, predicate, self.space)


class Catalogue:
    """The catalogue's heuristics as sets of cells.

    names: those of the heuristics; bits: log2 of their number; cells: (heuristics, cells) bool;
    names_by_cells: digest of a set of cells, or of all other cells -> name.
    """

    def __init__(self, grid: OperandGrid, language: Language):
        self.names: list[str] = []
        masks = []
        for group in (grid.operands, grid.answers):
            self.names += group.names.tolist()
            masks += _masks(group, language.order)
        self.cells = np.array(masks, bool).reshape(len(masks), len(language.order))
        self.bits = log2(max(1, len(self.names)))
        self.names_by_cells: dict[bytes, str] = {}
        for name, inside in zip(self.names, self.cells, strict=True):
            self.names_by_cells.setdefault(_cells_digest(inside), name)
        for name, inside in zip(self.names, self.cells, strict=True):
            self.names_by_cells.setdefault(_cells_digest(~inside), name)
        self.space, training = language.space, language.training
        # what a heuristic is about: a quantity's values, or cells
        self.lists = _lists([grid.operands, grid.answers], language)
        sizes = self.cells[:, :training].sum(1)
        outside = training - sizes
        usable = (sizes >= self.space.least) & (outside >= self.space.least)
        self.scale = np.where(usable, sizes * outside / max(1, training), np.inf)

    def best(self, values: np.ndarray) -> tuple[int, float]:
        """Return the heuristic that explains the largest share of variance, and this share.

        values: (cells,) of training cells.
        """
        deviations, total = centred(values)
        if not total > 0 or not self.names:
            return 0, 0.0
        by_value = sums_by_value(deviations, self.space)[:3].ravel()
        sums = _add_up(np.concatenate([by_value, deviations]), *self.lists)
        explained = sums**2 / self.scale
        number = int(explained.argmax())
        return number, float(explained[number]) / total

    def mask(self, number: int) -> np.ndarray:
        """Return which cells satisfy a heuristic; none if the catalogue is empty."""
        return self.cells[number] if self.names else np.zeros(self.cells.shape[1], bool)


def _masks(group: Group, order: np.ndarray) -> list[np.ndarray]:
    """Return which cells, in this order, satisfy each heuristic of a group."""
    masks = []
    for number in range(len(group.names)):
        quantity, members = group.sets.quantity[number], members_of(group.sets, number)
        if quantity == len(group.sets.values):
            inside = np.zeros(len(order), bool)
            inside[members] = True
        else:
            satisfied = np.zeros(group.sets.largest + 1, bool)
            satisfied[members] = True
            inside = satisfied[group.sets.values[quantity]]
        masks.append(inside[order])
    return masks


def _lists(groups: list[Group], language: Language) -> tuple[np.ndarray, np.ndarray]:
    """Return what Catalogue.best adds up for each heuristic: starts (heuristics + 1,) and indices.

    An index is of op1's values, op2's, the result's, or of training cells, one after the other.
    """
    length = language.space.counts.shape[1]
    place = np.full(len(language.order), -1)  # of a cell of the grid among training cells
    place[language.order[: language.training]] = np.arange(language.training)
    lists, first = [], 0
    for group in groups:
        for number in range(len(group.names)):
            quantity, members = int(group.sets.quantity[number]), members_of(group.sets, number)
            if quantity == len(group.sets.values):
                own = place[members]
                lists.append(own[own >= 0] + len(QUANTITIES) * length)
            else:
                lists.append(members.astype(np.int64) + (first + quantity) * length)
        first += len(group.sets.values)
    starts = np.cumsum([0, *map(len, lists)])
    return starts, np.concatenate([np.zeros(0, np.int64), *lists])


@compiled()
def _add_up(terms, starts, indices):
    """Add up the terms of each heuristic: (heuristics,); see _lists."""
    sums = np.zeros(len(starts) - 1)
    for number in range(len(sums)):
        for i in range(starts[number], starts[number + 1]):
            sums[number] += terms[indices[i]]
    return sums


def _in_training(grid: OperandGrid) -> np.ndarray:
    """Return which cells our own models may train on: (cells,) bool."""
    cells = read_table(CELLS, columns=["operator", "op1", "op2", "split"])
    cells = cells.filter(operator=grid.operator, split="train")
    op1, op2 = cells["op1"].to_numpy(), cells["op2"].to_numpy()
    on_grid = (op1 < grid.shape[0]) & (op2 < grid.shape[1])
    training = np.zeros(grid.shape, bool)
    training[op1[on_grid], op2[on_grid]] = True
    return training.ravel()[grid.cells]


def _side(values: np.ndarray, inside: np.ndarray) -> str:
    """Return whether values are larger, on average, inside (top) or outside (bottom)."""
    return "top" if values @ inside > values.mean() * inside.sum() else "bottom"


def _cells_digest(inside: np.ndarray) -> bytes:
    return hashlib.blake2b(np.packbits(inside).tobytes(), digest_size=16).digest()


@compiled()
def _totals(values, group, training):
    """Add up the values of training cells, and count them, by group: two arrays (4,)."""
    sums, counts = np.zeros(4), np.zeros(4)
    for cell in range(training):
        sums[int(group[cell])] += values[cell]
        counts[int(group[cell])] += 1
    return sums, counts


@compiled()
def _explained(values, group, predicted, training):
    """Return the share of held-out variance that predictions by group explain."""
    mean = values[training:].astype(np.float64).mean() if training < len(values) else 0.0
    error = variance = 0.0
    for cell in range(training, len(values)):
        error += (values[cell] - predicted[int(group[cell])]) ** 2
        variance += (values[cell] - mean) ** 2
    if variance == 0:
        return np.nan
    return 1 - error / variance


def main(name: str) -> None:
    carry_out(DiscoveryWork, name)


if __name__ == "__main__":
    main(sys.argv[1])
