"""Divide a model's neurons, on every operator's grid, into units of work."""

from dataclasses import dataclass
from pathlib import Path

from stages.lib.core.tables import read_table
from stages.lib.heuristics.grid import Neuron, OperandGrid
from stages.lib.sql.database import Database
from stages.lib.subject import Subject
from stages.lib.units.queue import Unit

CELLS, CATALOGUE = Path("data/corpus/cells.parquet"), Path("data/heuristics/heuristics.parquet")


@dataclass(frozen=True)
class Location:
    """What a unit reads: index of the store, layer, and neurons."""

    store: int
    layer: int
    neurons: range


class OperandGrids:
    """A model's stores, and units of some neurons of one layer of a store.

    units: sorted by operator, layer and neuron; inputs: the files that are read.
    """

    def __init__(self, subject: Subject, neurons_per_unit: int, least_cells: int):
        self._stores, self._value_logits = list(subject.activation_stores()), subject.value_logits()
        self._grid: OperandGrid | None = None
        self._least_cells = least_cells
        self._locations: list[Location] = []
        self.units: list[Unit] = []
        for index, store in enumerate(self._stores):
            operator, neurons = store.attributes["operator"], store.axes["neuron"]
            for layer in store.layers:
                for first in range(0, neurons, neurons_per_unit):
                    part = range(first, min(first + neurons_per_unit, neurons))
                    self._locations.append(Location(index, layer, part))
                    title = f"{operator}, layer {layer}, neurons {part[0]} to {part[-1]}"
                    self.units.append(Unit(title, len(part), operator))
        self._catalogue = read_table(CATALOGUE).filter("usable")
        stores = [store.path for store in self._stores]
        self.inputs = [CATALOGUE, CELLS, self._value_logits.path, *stores]

    def read(self, unit: int) -> tuple[OperandGrid, int, list[Neuron]]:
        """Return a unit's grid, its layer and its neurons.

        The grid is kept until a unit of another operator is read.
        """
        location = self._locations[unit]
        store = self._stores[location.store]
        if self._grid is None or self._grid.activations is not store:
            database = Database({"cells": [CELLS]}, threads=1)
            self._grid = OperandGrid(database, self._catalogue, store, self._least_cells)
        neurons = self._grid.neurons(location.layer, self._value_logits, location.neurons)
        return self._grid, location.layer, neurons

    def layers(self) -> list[list[int]]:
        """Return the units of each layer of each operator."""
        units: dict[tuple[int, int], list[int]] = {}
        for unit, location in enumerate(self._locations):
            units.setdefault((location.store, location.layer), []).append(unit)
        return list(units.values())
