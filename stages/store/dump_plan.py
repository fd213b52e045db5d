"""What there is to dump of a subject: its squares of prompts, cut into blocks of rows, and what is written on every store."""

from typing import Any

import numpy as np

from stages.lib.core.layered import LayerWriter
from stages.lib.core.settings import load
from stages.lib.core.slots import OPERANDS
from stages.lib.model import checkpoint
from stages.lib.subject import Subject
from stages.lib.units.queue import Unit
from stages.store.rectangles import PromptSquare, asked_attribute
from stages.store.settings import Dump


class DumpPlan:
    """Which units of work a dump has.

    squares: operator -> its prompts; blocks: a square and some of its rows; units: each block, then the value logits of each layer.
    widths: tokens of the longest operands, None where all prompts have one length; slots: positions of the longest prompt.
    sharded: whether a square is too large for one file. Raises ModelError or PromptError where the model cannot be asked them.
    """

    def __init__(self, name: str):
        self.subject, self.settings = Subject.named(name), load(Dump)
        chosen = self.subject.settings
        prompts, self.numbers = self.subject.table("store/prompts.parquet"), self.subject.table("store/numbers.parquet")
        outline = checkpoint.outline(chosen)
        self.neurons, self.depth = outline.architecture.neurons, len(outline.architecture.layers)
        self.layers = chosen.kept_layers(self.depth)
        self.weights = checkpoint.fingerprint(chosen.source)
        self.attributes = {
            "subject": name, "source": chosen.source, "revision": chosen.revision, **self.weights,
            "limit": str(len(self.numbers) - 1), "convention": "activation after the non-linearity (gated: act(gate) * up), last position",
            **asked_attribute(prompts, self.numbers, chosen.answer_token),
        }  # fmt: skip
        self.squares = {operator: PromptSquare(operator, prompts.filter(operator=operator)) for operator in chosen.operators}
        every = [square.widths for square in self.squares.values() if square.widths]
        self.widths = {operand: max(of[operand] for of in every) for operand in OPERANDS} if every else None
        self.slots = max(square.slots(self.widths) for square in self.squares.values())
        for square in self.squares.values():
            checkpoint.knows(outline, np.append(square.tokens.ravel(), square.answers.ravel()))
        self.prompts_per_block = self.settings.prompts_per_block(len(self.layers) * self.neurons, chosen.dtype)
        self.blocks = [(square, rows) for square in self.squares.values() for rows in square.blocks(self.prompts_per_block)]
        self.units = [
            Unit(f"{square.operator}, op1 {rows[0]} to {rows[-1]}", len(rows) * square.shape[1], square.operator)
            for square, rows in self.blocks
        ]
        self.units += [Unit(f"value logits of layer {layer}", 0, "value logits") for layer in range(self.depth)]
        largest = max(len(self.layers) * self.neurons * square.answers.size for square in self.squares.values())
        self.sharded = largest * np.dtype(self.settings.store_dtype).itemsize > self.settings.largest_file_mib << 20

    def axes(self, square: PromptSquare, rows: int) -> dict[str, int]:
        """The axes of a store of so many rows of a square."""
        return {"neuron": self.neurons, "op1": rows, "op2": square.shape[1]}

    def writer(self, file: Any, layers: list[int], square: PromptSquare, results: np.ndarray) -> LayerWriter:
        """Writes activations of some layers. results: (op1, op2), those of the rows that the file is of."""
        block = square.blocks(self.prompts_per_block)[0]
        chunk = (self.settings.neurons_per_chunk, len(block), square.shape[1])
        of = {**self.attributes, "operator": square.operator}
        return LayerWriter(file, layers, self.axes(square, len(results)), self.settings.store_dtype, chunk, of, columns={"result": results})
