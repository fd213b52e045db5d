"""The files that each unit of a dump leaves, and the whole stores that are made of them."""

from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib.core import layered, shards
from stages.lib.core import slots as layouts
from stages.lib.core.layered import LayerStore, LayerWriter
from stages.lib.core.tables import read_table, write_table
from stages.lib.units.parts import Parts
from stages.store import grid, sums
from stages.store.dump_plan import DumpPlan
from stages.store.rectangles import PromptSquare


class DumpFiles:
    """What units wrote beside their parts. A unit is a number: its place among the plan's."""

    def __init__(self, plan: DumpPlan, parts: Parts):
        self.plan, self.parts = plan, parts

    def shard(self, number: int, layer: int) -> Path:
        """A layer's activations of a block."""
        return self.parts.beside(number, f".{layer}.h5")

    def sums(self, number: int) -> Path:
        """Sums over a block's prompts, of which means are made."""
        return self.parts.beside(number, ".sums.h5")

    def neuron_sums(self, number: int) -> Path:
        """Sums of each neuron over a block's cells."""
        return self.parts.beside(number, ".neurons")

    def listed(self, number: int) -> Path:
        """A block's rows of the manifest."""
        return self.parts.beside(number, ".manifest")

    def logits(self, number: int) -> Path:
        """A layer's value logits."""
        return self.parts.beside(number, ".h5")

    def of(self, number: int) -> list[Path]:
        """All that a unit writes besides its part."""
        if number >= len(self.plan.blocks):
            return [self.logits(number)]
        written = [*(self.shard(number, layer) for layer in self.plan.layers), self.sums(number), self.neuron_sums(number)]
        return [*written, *[self.listed(number)] * self.plan.sharded]

    def put_together(self) -> None:
        """Makes the dump's outputs, a layer of a block at a time in memory; squares too large for one file stay in shards."""
        self._write_activations()
        self._write_means()
        self._write_value_logits()
        blocks = [read_table(self.neuron_sums(number)) for number in range(len(self.plan.blocks))]
        write_table(sums.together(self.plan.subject.name, blocks), self._output("neuron_sums.parquet"))
        predictions = [
            square.predictions(pl.concat(map(self.parts.read, numbers)), self.plan.numbers) for square, numbers in self._blocks_of_squares()
        ]
        write_table(pl.concat(predictions).sort("operator", "op1", "op2"), self.parts.output)
        if self.plan.sharded:  # last: units whose shards are gone count as missing
            self._deliver(self._output("activations"))

    def _output(self, name: str) -> Path:
        return self.plan.subject.path(f"store/{name}")

    def _blocks_of_squares(self) -> Iterator[tuple[PromptSquare, list[int]]]:
        """Each square, and the numbers of its blocks."""
        for square in self.plan.squares.values():
            yield square, [number for number, (of, _) in enumerate(self.plan.blocks) if of is square]

    def _write_activations(self) -> None:
        if self.plan.sharded:
            return
        for square, numbers in self._blocks_of_squares():
            with layered.writing(self._output(f"activations/{square.operator}.h5")) as file:
                writer = self.plan.writer(file, self.plan.layers, square, square.results)
                for number in numbers:
                    for layer in self.plan.layers:
                        block = LayerStore(self.shard(number, layer))
                        writer.write(layer, self.plan.blocks[number][1].start, block.read(layer, slice(None), slice(None)))

    def _write_means(self) -> None:
        of_squares = [[self._mean(name, numbers, square) for name in grid.SUMS] for square, numbers in self._blocks_of_squares()]
        arrays = {name: np.stack(of) for name, of in zip(grid.SUMS, zip(*of_squares, strict=True), strict=True)}
        operators = {"operators": ", ".join(self.plan.squares), **layouts.attributes(self.plan.widths)}
        layered.write_array(self._output("means.h5"), arrays, self.plan.attributes | operators)

    def _mean(self, name: str, numbers: list[int], square: PromptSquare) -> np.ndarray:
        """/neurons (operator, layer, position, neuron), /heads (…, head, head width), /residual (…, width): means by operator, float32."""
        total = reduce(np.add, (layered.read_array(self.sums(number), name) for number in numbers))
        counts = square.slot_counts(self.plan.widths, self.plan.slots)
        with np.errstate(invalid="ignore"):  # a slot in which no prompt of the operator has a token
            return (total / counts[(slice(None), *[None] * (total.ndim - 2))]).astype(np.float32)

    def _write_value_logits(self) -> None:
        plan, convention = self.plan, "value vector · unembedding; final-norm gain folded in, unembedding centred over the vocabulary"
        with layered.writing(self._output("value_logits.h5")) as file:
            layers, axes = list(range(plan.depth)), {"neuron": plan.neurons, "number": len(plan.numbers)}
            of = {**plan.attributes, "convention": convention}
            writer = LayerWriter(file, layers, axes, "float32", (64, len(plan.numbers)), of)
            for layer in layers:
                writer.write(layer, 0, layered.read_array(self.logits(len(plan.blocks) + layer), "logits"))

    def _deliver(self, folder: Path) -> None:
        """Moves the shards to where the manifest, written last, says they are."""
        manifest = pl.concat([read_table(self.listed(number)) for number in range(len(self.plan.blocks))])
        for number, (square, rows) in enumerate(self.plan.blocks):
            for layer in self.plan.layers:
                place = folder / shards.name_of(square.operator, layer, rows.start)
                place.parent.mkdir(parents=True, exist_ok=True)
                self.shard(number, layer).replace(place)
        write_table(manifest.sort("operator", "layer", "first"), folder / shards.MANIFEST)
