"""Runs a subject over the whole operand square and writes down what it sees; decides nothing.

Beside the tables below there is means.h5: every component's mean activation by operator and position, what mean ablation puts in its
place. Where prompts differ in length, it has slots in the place of positions (stages/lib/core/slots.py), a mean is that of the prompts
that have a token there, and attributes say how many tokens the longest operands have. Activations are those of the kept layers. Prompts
of a row share their prefix, which is computed once. Workers share blocks of rows (stages/lib/units/work.py); stopped half-way, it goes
on behind those that are finished.

Table predictions: what the subject answers to each cell
    subject             VARCHAR   the model
    operator            VARCHAR   add, subtract, multiply or divide
    op1                 SMALLINT  first operand
    op2                 SMALLINT  second operand
    predicted           INTEGER   the number of the most likely next token, null where that is no number
    correct             BOOLEAN   whether the most likely next token is the answer
    answer_logit        FLOAT     logit of the answer
    max_logit           FLOAT     largest logit
    answer_probability  FLOAT     softmax probability of the answer over the whole vocabulary

Table activations: every neuron's activation at the last position, over the whole square (lazy, from HDF5)
    subject     VARCHAR   the model
    operator    VARCHAR   add, subtract, multiply or divide
    layer       SMALLINT  decoder layer, from 0
    neuron      INTEGER   neuron of the layer's MLP, from 0
    op1         SMALLINT  first operand
    op2         SMALLINT  second operand
    result      INTEGER   the answer; null where the prompt has none of one token, so that it is no cell
    activation  FLOAT     the MLP's value behind its non-linearity (gated: act(gate) * up), stored as float16

Table value_logits: which numbers each neuron's value vector votes for (lazy, from HDF5)
    subject  VARCHAR   the model
    layer    SMALLINT  decoder layer, from 0
    neuron   INTEGER   neuron of the layer's MLP, from 0
    number   SMALLINT  a one-token number; of subjects with answer_token what one token of an answer stands for, such as a digit
    logit    FLOAT     value vector · unembedding of the number (final-norm gain folded in, unembedding centred over the vocabulary)
"""

import sys
from collections.abc import Iterator
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.lib import ask, model, store
from stages.lib.core import progress
from stages.lib.core import slots as layouts
from stages.lib.core.settings import load
from stages.lib.core.slots import OPERANDS
from stages.lib.core.tables import read_table, write_table
from stages.lib.digest import digest
from stages.lib.model import checkpoint, value_logits
from stages.lib.settings import Passes
from stages.lib.store import layered, shards
from stages.lib.store.layered import LayerStore, LayerWriter
from stages.lib.subject import Subject
from stages.lib.units.parts import Parts
from stages.lib.units.queue import Unit
from stages.lib.units.work import carry_out
from stages.store import grid, rectangles, sums
from stages.store.rectangles import PromptSquare, asked_attribute
from stages.store.settings import Dump

SAID = {"predicted": pl.Int32, "max_logit": pl.Float32, "answer_logit": pl.Float32, "answer_probability": pl.Float32}


class DumpWork:
    """The squares of one subject, in blocks of rows."""

    counts, few = "prompt", 2_000

    def __init__(self, name: str):
        self.subject, self.settings = Subject.named(name), load(Dump)
        chosen = self.subject.settings
        self.prompts_per_pass = (chosen.passes or load(Passes)).prompts
        inputs = [self.subject.path(f"store/{table}.parquet") for table in ("prompts", "numbers")]
        prompts, self.numbers = self.subject.table("store/prompts.parquet"), self.subject.table("store/numbers.parquet")
        self.outline = checkpoint.outline(chosen)
        self.architecture = self.outline.architecture
        self.layers = chosen.kept_layers(len(self.architecture.layers))
        weights = checkpoint.fingerprint(chosen.source)
        self.attributes = {
            "subject": name, "source": chosen.source, "revision": chosen.revision, **weights,
            "limit": str(len(self.numbers) - 1), "convention": "activation after the non-linearity (gated: act(gate) * up), last position",
            **asked_attribute(prompts, self.numbers, chosen.answer_token),
        }  # fmt: skip
        self.squares = {operator: PromptSquare(operator, prompts.filter(operator=operator)) for operator in chosen.operators}
        every = [square.widths for square in self.squares.values() if square.widths]
        self.widths = {operand: max(of[operand] for of in every) for operand in OPERANDS} if every else None
        self.slots = max(square.slots(self.widths) for square in self.squares.values())
        for square in self.squares.values():
            checkpoint.knows(self.outline, np.append(square.tokens.ravel(), square.answers.ravel()))
        self.blocks = [(square, rows) for square in self.squares.values() for rows in square.blocks(self.settings.cells_per_block)]
        self.units = [
            Unit(f"{square.operator}, op1 {rows[0]} to {rows[-1]}", len(rows) * square.shape[1], square.operator)
            for square, rows in self.blocks
        ]
        self.units += [Unit(f"value logits of layer {layer}", 0, "value logits") for layer in range(len(self.architecture.layers))]
        self.title = f"dump {name}"
        largest = max(len(self.layers) * self._neurons() * square.answers.size for square in self.squares.values())
        self.sharded = largest * np.dtype(self.settings.store_dtype).itemsize > self.settings.largest_file_mib << 20
        key = digest([*inputs, model, ask, grid, rectangles, sums, store, Path(__file__)], weights, self.subject, self.settings,
                     self.prompts_per_pass)  # fmt: skip
        self.parts = Parts(self.subject.path("store/predictions.parquet"), key)

    @cached_property
    def loaded(self) -> checkpoint.Checkpoint:
        loaded = checkpoint.of(self.subject.settings, threads=1)
        self.parts.admit(checkpoint.canary(loaded))
        return loaded

    @cached_property
    def shared(self) -> bool:
        """Whether prompts of a row share what is computed of their first tokens."""
        agreed = all(grid.shares(self.loaded, square.largest(self.widths).tokens) for square in self.squares.values())
        if not agreed:
            progress.say(f"{self.title}: this model cannot go on behind the first tokens of a row of prompts: whole prompts are run")
        return agreed

    @cached_property
    def votes(self) -> Any:
        """What value vectors are multiplied with."""
        return value_logits.directions(self.loaded, self.numbers["token"].to_list())

    def missing(self) -> list[int]:
        unsaid = set(self.parts.missing(len(self.units)))
        return [number for number in range(len(self.units)) if number in unsaid or not all(file.exists() for file in self._files(number))]

    def do(self, number: int) -> None:
        if number < len(self.blocks):
            said = self._run(number)
        else:
            logits = value_logits.of_layer(self.loaded.architecture.layers[number - len(self.blocks)], self.votes)
            layered.write_array(self._logits(number), {"logits": logits}, {}, shared=True)
            said = pl.DataFrame(schema=SAID)
        self.parts.write(number, said)

    def _run(self, number: int) -> pl.DataFrame:
        """Runs a block of rows: its activations become a shard of each layer, its sums a store; what the subject says is returned."""
        square, chosen = self.blocks[number]
        rows = slice(chosen.start, chosen.stop)
        axes = {"neuron": self._neurons(), "op1": len(chosen), "op2": square.shape[1]}
        into = {layer: np.empty(tuple(axes.values()), self.settings.store_dtype) for layer in self.layers}
        means = grid.Means.zeros(self.loaded, self.slots)
        said = pl.concat(self._said(square, rows, into, means)).sort("place").select(*SAID)
        for layer, block in into.items():
            with layered.writing(self._shard(number, layer), shared=True) as file:
                self._writer(file, [layer], square, axes, square.results[rows]).write(layer, 0, block)
        layered.write_array(self._sums(number), {name: getattr(means, name) for name in grid.SUMS}, {}, shared=True)
        write_table(sums.of_block(square.operator, into, square.results[rows]), self._neuron_sums(number), shared=True)
        if self.sharded:
            listed = [shards.listed(self._shard(number, layer), square.operator, layer, chosen) for layer in self.layers]
            write_table(pl.DataFrame(listed), self._listed(number), shared=True)
        return said

    def _said(self, square: PromptSquare, rows: slice, into: dict[int, np.ndarray], means: grid.Means) -> Iterator[pl.DataFrame]:
        """What the subject says to prompts of some rows, and their places among them; fills `into` and adds to `means`."""
        for one in square.rectangles(rows, self.widths):
            at = np.ix_(one.rows, one.columns)
            whole = one.tokens.shape == (rows.stop - rows.start, square.shape[1], self.slots)
            parts = into if whole else {layer: np.empty((len(of), *one.tokens.shape[:2]), of.dtype) for layer, of in into.items()}
            sums_here = means if whole else grid.Means.zeros(self.loaded, one.tokens.shape[2])
            rows_at_once = max(1, self.prompts_per_pass // len(one.columns))
            answers = square.answers[rows][at]
            said = list(grid.run(self.loaded, one.tokens, answers, rows_at_once, parts, sums_here, share=self.shared))
            if not whole:
                for layer, of in into.items():
                    of[:, one.rows[:, None], one.columns] = parts[layer]
                means.add(sums_here, one.slots)
            columns = {name: np.concatenate([getattr(part, name) for part in said]) for name in SAID}
            yield pl.DataFrame(columns, schema=SAID).with_columns(place=(one.rows[:, None] * square.shape[1] + one.columns).ravel())

    def finish(self) -> None:
        """Puts the blocks of each square together, a layer of a block at a time in memory, or leaves them apart where they are large."""
        folder = self.subject.path("store/activations")
        predictions, means = [], []
        for operator, square in self.squares.items():
            numbers = [number for number, (of, _) in enumerate(self.blocks) if of is square]
            if not self.sharded:
                self._merge(square, numbers, folder / f"{operator}.h5")
            predictions.append(square.predictions(pl.concat(map(self.parts.read, numbers)), self.numbers))
            means.append([self._mean(name, numbers, square) for name in grid.SUMS])
        operators = {"operators": ", ".join(self.squares), **layouts.attributes(self.widths)}
        arrays = {name: np.stack(of) for name, of in zip(grid.SUMS, zip(*means, strict=True), strict=True)}
        layered.write_array(self.subject.path("store/means.h5"), arrays, self.attributes | operators)
        self._write_value_logits(self.subject.path("store/value_logits.h5"))
        blocks = [read_table(self._neuron_sums(number)) for number in range(len(self.blocks))]
        write_table(sums.together(self.subject.name, blocks), self.subject.path("store/neuron_sums.parquet"))
        write_table(pl.concat(predictions).sort("operator", "op1", "op2"), self.parts.output)
        if self.sharded:
            self._deliver(folder)
        self.parts.remove()

    def _merge(self, square: PromptSquare, numbers: list[int], path: Path) -> None:
        axes = {"neuron": self._neurons(), "op1": square.shape[0], "op2": square.shape[1]}
        with layered.writing(path) as file:
            writer = self._writer(file, self.layers, square, axes, square.results)
            for number in numbers:
                for layer in self.layers:
                    block = LayerStore(self._shard(number, layer))
                    writer.write(layer, self.blocks[number][1].start, block.read(layer, slice(None), slice(None)))

    def _deliver(self, folder: Path) -> None:
        """Moves the shards to where the manifest, written last, says they are."""
        manifest = pl.concat([read_table(self._listed(number)) for number in range(len(self.blocks))])
        for number, (square, rows) in enumerate(self.blocks):
            for layer in self.layers:
                place = folder / shards.name_of(square.operator, layer, rows.start)
                place.parent.mkdir(parents=True, exist_ok=True)
                self._shard(number, layer).replace(place)
        write_table(manifest.sort("operator", "layer", "first"), folder / shards.MANIFEST)

    def _write_value_logits(self, path: Path) -> None:
        a, convention = self.architecture, "value vector · unembedding; final-norm gain folded in, unembedding centred over the vocabulary"
        with layered.writing(path) as file:
            layers, axes = list(range(len(a.layers))), {"neuron": a.neurons, "number": len(self.numbers)}
            of = {**self.attributes, "convention": convention}
            writer = LayerWriter(file, layers, axes, "float32", (64, len(self.numbers)), of)
            for layer in layers:
                writer.write(layer, 0, layered.read_array(self._logits(len(self.blocks) + layer), "logits"))

    def _neurons(self) -> int:
        return self.architecture.neurons

    def _shard(self, number: int, layer: int) -> Path:
        return self.parts.beside(number, f".{layer}.h5")

    def _sums(self, number: int) -> Path:
        return self.parts.beside(number, ".sums.h5")

    def _neuron_sums(self, number: int) -> Path:
        return self.parts.beside(number, ".neurons")

    def _listed(self, number: int) -> Path:
        return self.parts.beside(number, ".manifest")

    def _logits(self, number: int) -> Path:
        return self.parts.beside(number, ".h5")

    def _files(self, number: int) -> list[Path]:
        """What a unit writes besides its part."""
        if number >= len(self.blocks):
            return [self._logits(number)]
        written = [*(self._shard(number, layer) for layer in self.layers), self._sums(number), self._neuron_sums(number)]
        return [*written, *[self._listed(number)] * self.sharded]

    def _writer(self, file: Any, layers: list[int], square: PromptSquare, axes: dict[str, int], results: np.ndarray) -> LayerWriter:
        chunk = (self.settings.neurons_per_chunk, len(square.blocks(self.settings.cells_per_block)[0]), square.shape[1])
        of = {**self.attributes, "operator": square.operator}
        return LayerWriter(file, layers, axes, self.settings.store_dtype, chunk, of, columns={"result": results})

    def _mean(self, name: str, numbers: list[int], square: PromptSquare) -> np.ndarray:
        """/neurons (operator, layer, position, neuron), /heads (…, head, head width), /residual (…, width): means by operator, float32."""
        parts = (layered.read_array(self._sums(number), name) for number in numbers)
        total = reduce(np.add, parts)
        counts = square.slot_counts(self.widths, self.slots)
        with np.errstate(invalid="ignore"):  # a slot in which no prompt of the operator has a token
            return (total / counts[(slice(None), *[None] * (total.ndim - 2))]).astype(np.float32)


def main(name: str) -> None:
    carry_out(DumpWork, name)


if __name__ == "__main__":
    main(sys.argv[1])
