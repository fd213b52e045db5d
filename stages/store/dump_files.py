"""Name the files that each unit of a dump leaves, and assemble them into the stores of a model."""

from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib.core import hdf5_store, shards
from stages.lib.core import slots as layouts
from stages.lib.core.hdf5_store import LayerStore, LayerWriter
from stages.lib.core.tables import read_table, write_table
from stages.lib.units.parts import Parts
from stages.store import grid, sums
from stages.store.dump_plan import DumpPlan
from stages.store.rectangles import PromptGrid

CONVENTION = (
    "value vector · unembedding; final-norm gain folded in, unembedding centred over the vocabulary"
)
NEURONS_PER_CHUNK = 64  # of value_logits.h5


class DumpFiles:
    """The files that units write besides their parts. A unit is named by its index in the plan."""

    def __init__(self, plan: DumpPlan, parts: Parts):
        self.plan, self.parts = plan, parts

    def shard(self, unit: int, layer: int) -> Path:
        """Return the file of a layer's activations in a block."""
        return self.parts.beside(unit, f".{layer}.h5")

    def sums(self, unit: int) -> Path:
        """Return the file of sums over a block's prompts, from which means are computed."""
        return self.parts.beside(unit, ".sums.h5")

    def neuron_sums(self, unit: int) -> Path:
        """Return the file of each neuron's sums over a block's prompts and cells."""
        return self.parts.beside(unit, ".neurons")

    def listed(self, unit: int) -> Path:
        """Return the file of a block's rows of the manifest."""
        return self.parts.beside(unit, ".manifest")

    def logits(self, unit: int) -> Path:
        """Return the file of a layer's value logits."""
        return self.parts.beside(unit, ".h5")

    def expected(self, unit: int) -> list[Path]:
        """Return all files that a unit writes besides its part."""
        if unit >= len(self.plan.blocks):
            return [self.logits(unit)]
        written = [self.shard(unit, layer) for layer in self.plan.layers]
        written += [self.sums(unit), self.neuron_sums(unit)]
        if self.plan.sharded:
            written.append(self.listed(unit))
        return written

    def put_together(self) -> None:
        """Write the dump's outputs, with one layer of a block in memory at a time.

        Activations that are too large for one file stay in the shards of the units.
        """
        self._write_activations()
        self._write_means()
        self._write_value_logits()
        units = range(len(self.plan.blocks))
        neuron_sums = sums.together(
            self.plan.subject.name,
            map(read_table, map(self.neuron_sums, units)),
        )
        write_table(neuron_sums, self._output("neuron_sums.parquet"))
        predictions = []
        for prompts, own_units in self._grids():
            parts = pl.concat(map(self.parts.read, own_units))
            predictions.append(prompts.predictions(parts, self.plan.numbers))
        write_table(pl.concat(predictions).sort("operator", "op1", "op2"), self.parts.output)
        if self.plan.sharded:  # last: units whose shards are gone count as missing
            self._deliver(self._output("activations"))

    def _output(self, name: str) -> Path:
        return self.plan.subject.path(f"store/{name}")

    def _grids(self) -> Iterator[tuple[PromptGrid, list[int]]]:
        """Yield each operator's prompts, and the units of their blocks."""
        for prompts in self.plan.grids.values():
            blocks = enumerate(self.plan.blocks)
            yield prompts, [unit for unit, block in blocks if block.prompts is prompts]

    def _write_activations(self) -> None:
        if self.plan.sharded:
            return
        for prompts, units in self._grids():
            with hdf5_store.writing(self._output(f"activations/{prompts.operator}.h5")) as file:
                writer = self.plan.writer(file, self.plan.layers, prompts, prompts.results)
                for unit in units:
                    first = self.plan.blocks[unit].rows.start
                    for layer in self.plan.layers:
                        shard = LayerStore(self.shard(unit, layer))
                        writer.write(layer, first, shard.read(layer, slice(None), slice(None)))

    def _write_means(self) -> None:
        grids = list(self._grids())
        arrays = {}
        for name in grid.SUMS:
            arrays[name] = np.stack([self._mean(name, units, prompts) for prompts, units in grids])
        operators = {"operators": ", ".join(self.plan.grids)}
        attributes = self.plan.attributes | operators | layouts.attributes(self.plan.widths)
        hdf5_store.write_array(self._output("means.h5"), arrays, attributes)

    def _mean(self, name: str, units: list[int], prompts: PromptGrid) -> np.ndarray:
        """Return an operator's means over prompts, float32; for means.h5 they are stacked.

        name: neurons, (layer, position, neuron); heads, (layer, position, head, head width);
        residual, (layer, position, width).
        """
        total = reduce(np.add, (hdf5_store.read_array(self.sums(unit), name) for unit in units))
        counts = prompts.slot_counts(self.plan.widths, self.plan.slots)
        counts = counts.reshape(-1, *[1] * (total.ndim - 2))  # along the positions of total
        with np.errstate(invalid="ignore"):  # a slot in which no prompt of the operator has a token
            return (total / counts).astype(np.float32)

    def _write_value_logits(self) -> None:
        plan, numbers = self.plan, len(self.plan.numbers)
        with hdf5_store.writing(self._output("value_logits.h5")) as file:
            writer = LayerWriter(
                file,
                list(range(plan.depth)),
                {"neuron": plan.neurons, "number": numbers},
                "float32",
                (NEURONS_PER_CHUNK, numbers),
                {**plan.attributes, "convention": CONVENTION},
            )
            for layer in range(plan.depth):
                file_of_layer = self.logits(len(plan.blocks) + layer)
                writer.write(layer, 0, hdf5_store.read_array(file_of_layer, "logits"))

    def _deliver(self, folder: Path) -> None:
        """Move the shards to the paths that the manifest names; write the manifest last."""
        listed = map(self.listed, range(len(self.plan.blocks)))
        manifest = pl.concat(map(read_table, listed))
        for unit, block in enumerate(self.plan.blocks):
            for layer in self.plan.layers:
                name = shards.name_of(block.prompts.operator, layer, block.rows.start)
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                self.shard(unit, layer).replace(path)
        write_table(manifest.sort("operator", "layer", "first"), folder / shards.MANIFEST)
