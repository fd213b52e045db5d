"""Plan a model's dump: the prompts of each operator, blocks of rows, and layout of the stores."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from stages.lib.core.hdf5_store import LayerWriter
from stages.lib.core.settings import load
from stages.lib.core.slots import OPERANDS
from stages.lib.model import checkpoint
from stages.lib.subject import Subject
from stages.lib.units.queue import Unit
from stages.store.rectangles import PromptGrid, asked_attribute
from stages.store.settings import Dump

CONVENTION = "activation after the non-linearity (gated: act(gate) * up), last position"


class DumpBlock(NamedTuple):
    """Some consecutive rows, that is values of op1, of one operator's grid of prompts."""

    prompts: PromptGrid
    rows: range


class DumpPlan:
    """Describe the units of work of a dump, and what its files have in common.

    grids: operator -> its prompts.
    units: one for each of `blocks`, then one for the value logits of each layer.
    widths: operand -> tokens of the longest one; None if all prompts have the same form.
    slots: positions of the longest prompt.
    sharded: whether an operator's activations are too large for one file.
    Raises ModelError or PromptError if the model cannot read the prompts.
    """

    def __init__(self, name: str):
        self.subject, self.settings = Subject.named(name), load(Dump)
        model = self.subject.settings
        prompts = self.subject.table("store/prompts.parquet")
        self.numbers = self.subject.table("store/numbers.parquet")
        outline = checkpoint.outline(model)
        self.neurons, self.depth = outline.architecture.neurons, len(outline.architecture.layers)
        self.layers = model.kept_layers(self.depth)
        self.weights = checkpoint.fingerprint(model.source)
        self.attributes = {
            "subject": name,
            "source": model.source,
            "revision": model.revision,
            **self.weights,
            "limit": str(len(self.numbers) - 1),
            "convention": CONVENTION,
            **asked_attribute(prompts, self.numbers, model.answer_token),
        }
        self.grids: dict[str, PromptGrid] = {}
        for operator in model.operators:
            grid = PromptGrid(operator, prompts.filter(operator=operator))
            checkpoint.knows(outline, np.append(grid.tokens.ravel(), grid.answers.ravel()))
            self.grids[operator] = grid
        grids = self.grids.values()
        self.widths = _widest([grid.widths for grid in grids if grid.widths])
        self.slots = max(grid.slots(self.widths) for grid in grids)
        values = len(self.layers) * self.neurons  # of each prompt
        self.prompts_per_block = self.settings.prompts_per_block(values, model.dtype)
        self.blocks: list[DumpBlock] = []
        for grid in grids:
            ranges = grid.blocks(self.prompts_per_block)
            self.blocks += [DumpBlock(grid, rows) for rows in ranges]
        self.units = [*map(_unit, self.blocks), *map(_unit_of_logits, range(self.depth))]
        value_bytes = np.dtype(self.settings.store_dtype).itemsize
        largest = values * max(grid.answers.size for grid in grids) * value_bytes
        self.sharded = largest > self.settings.largest_file_mib << 20

    def axes(self, prompts: PromptGrid, rows: int) -> dict[str, int]:
        """Return the axes, name -> length, of a store with `rows` rows of a grid of prompts."""
        return {"neuron": self.neurons, "op1": rows, "op2": prompts.shape[1]}

    def writer(
        self,
        file: Any,
        layers: list[int],
        prompts: PromptGrid,
        results: np.ndarray,
    ) -> LayerWriter:
        """Return the writer of some layers' activations to an open HDF5 file.

        results: (rows, op2), the answers to the prompts of the file's rows, -1 for none.
        """
        first_block = prompts.blocks(self.prompts_per_block)[0]
        return LayerWriter(
            file,
            layers,
            self.axes(prompts, len(results)),
            self.settings.store_dtype,
            (self.settings.neurons_per_chunk, len(first_block), prompts.shape[1]),
            {**self.attributes, "operator": prompts.operator},
            columns={"result": results},
        )


def _widest(widths: list[Mapping[str, int]]) -> dict[str, int] | None:
    """Return the tokens of the longest operands over all operators, or None if there are none."""
    if not widths:
        return None
    return {operand: max(width[operand] for width in widths) for operand in OPERANDS}


def _unit(block: DumpBlock) -> Unit:
    operator, rows = block.prompts.operator, block.rows
    size = len(rows) * block.prompts.shape[1]
    return Unit(f"{operator}, op1 {rows[0]} to {rows[-1]}", size, operator)


def _unit_of_logits(layer: int) -> Unit:
    return Unit(f"value logits of layer {layer}", 0, "value logits")
