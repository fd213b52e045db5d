"""A subject's neurons on every operator's square, in units of some neurons of one layer."""

from pathlib import Path

from stages.lib.core.tables import read_table
from stages.lib.heuristics.square import Neuron, Square
from stages.lib.sql.database import Database
from stages.lib.subject import Subject
from stages.lib.units.queue import Unit


class Squares:
    """units: in order of operator, layer and neuron; inputs: the files that all is read from."""

    def __init__(self, subject: Subject, neurons_per_unit: int, least_cells: int):
        self._stores, self._votes = list(subject.squares()), subject.votes()
        self._square: Square | None = None
        self._least_cells = least_cells
        self._places: list[tuple[int, int, range]] = []  # of each unit: store, layer, neurons
        self.units: list[Unit] = []
        for place, store in enumerate(self._stores):
            operator, neurons = store.attributes["operator"], store.axes["neuron"]
            for layer in store.layers:
                for first in range(0, neurons, neurons_per_unit):
                    chosen = range(first, min(first + neurons_per_unit, neurons))
                    self._places.append((place, layer, chosen))
                    self.units.append(Unit(f"{operator}, layer {layer}, neurons {chosen[0]} to {chosen[-1]}", len(chosen), operator))
        catalogue = Path("data/heuristics/heuristics.parquet")
        self._catalogue = read_table(catalogue).filter("usable")
        self.inputs = [catalogue, Path("data/corpus/cells.parquet"), self._votes.path, *(store.path for store in self._stores)]

    def of(self, number: int) -> tuple[Square, int, list[Neuron]]:
        """A unit's square, made anew where the last unit's was another, its layer and its neurons."""
        place, layer, chosen = self._places[number]
        store = self._stores[place]
        if self._square is None or self._square.activations is not store:
            database = Database({"cells": [Path("data/corpus/cells.parquet")]}, threads=1)
            self._square = Square(database, self._catalogue, store, self._least_cells)
        return self._square, layer, self._square.neurons(layer, self._votes, chosen)

    def layers(self) -> list[list[int]]:
        """The numbers of the units of each operator's layers."""
        found: dict[tuple[int, int], list[int]] = {}
        for number, (place, layer, _) in enumerate(self._places):
            found.setdefault((place, layer), []).append(number)
        return list(found.values())
