"""Dump what a model computes for every prompt of the grid: activations, predictions and means.

Next to the tables below, this stage writes means.h5: the mean activation of every component by
operator and position. Mean ablation writes the average of these means over the operators, each with
equal weight. If prompts differ in length, means.h5 has slots instead of positions
(stages/lib/core/slots.py): a mean is over the prompts that have a token in the slot, and attributes
give the number of tokens of the longest operands.

Activations are those of the layers that the model's entry keeps. The prompts of a row share a
prefix, which is computed once. Workers share blocks of rows (stages/lib/units/work.py). A run that
is stopped resumes after the blocks that are finished.

Table predictions: the model's prediction for each cell
    subject             VARCHAR  the model
    operator            VARCHAR  add, subtract, multiply or divide
    op1                 INTEGER  first operand
    op2                 INTEGER  second operand
    predicted           INTEGER  the number that the most likely next token stands for; null if it
                                 stands for no number
    correct             BOOLEAN  whether the most likely next token is the answer
    answer_logit        FLOAT    logit of the answer
    max_logit           FLOAT    largest logit of the vocabulary
    answer_probability  FLOAT    softmax probability of the answer over the whole vocabulary, 0 to 1

Table activations: every neuron's activation at the last position, over the whole operand grid
    (read lazily from HDF5)
    subject     VARCHAR   the model
    operator    VARCHAR   add, subtract, multiply or divide
    layer       SMALLINT  decoder layer, from 0
    neuron      INTEGER   neuron of the layer's MLP, from 0
    op1         INTEGER   first operand
    op2         INTEGER   second operand
    result      INTEGER   the answer; null if the prompt has no one-token answer, so that it is no
                          cell
    activation  FLOAT     the neuron's value after the MLP's non-linearity (gated: act(gate) * up),
                          stored as float16

Table value_logits: direct logit attribution of each neuron's output weights to each number
    (read lazily from HDF5)
    subject  VARCHAR   the model
    layer    SMALLINT  decoder layer, from 0
    neuron   INTEGER   neuron of the layer's MLP, from 0
    number   INTEGER   a one-token number; for a model with answer_token, what one token of an
                       answer stands for, such as a digit
    logit    FLOAT     value vector · unembedding of the number (final-norm gain folded in,
                       unembedding centred over the vocabulary)
"""

import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.lib import ask, model
from stages.lib.core import chunks, environment, hdf5_store, progress, shards, slots
from stages.lib.core.digest import digest
from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.model import checkpoint, value_logits
from stages.lib.settings import Passes
from stages.lib.units.parts import Parts
from stages.lib.units.pool import Report, silent
from stages.lib.units.work import carry_out
from stages.store import dump_files, dump_plan, grid, rectangles, sums
from stages.store.dump_files import DumpFiles
from stages.store.dump_plan import DumpPlan
from stages.store.rectangles import PromptGrid, Rectangle

SCHEMA = {
    "predicted": pl.Int32,
    "max_logit": pl.Float32,
    "answer_logit": pl.Float32,
    "answer_probability": pl.Float32,
}


class DumpWork:
    """The dump of one model: a unit of work for each block of rows and for each layer's logits."""

    counts, few = "prompt", 2_000

    def __init__(self, name: str):
        plan = self.plan = DumpPlan(name)
        subject, self.units, self.title = plan.subject, plan.units, f"dump {name}"
        self.prompts_per_pass = (subject.settings.passes or load(Passes)).prompts
        inputs = [subject.path(f"store/{table}.parquet") for table in ("prompts", "numbers")]
        code = [
            model,
            ask,
            grid,
            rectangles,
            sums,
            chunks,
            hdf5_store,
            slots,
            shards,
            dump_files,
            dump_plan,
        ]
        dtype = subject.settings.dtype
        settings, passes = plan.settings, (self.prompts_per_pass, plan.settings.memory_of_pass)
        # float64 is rounded when stored: any number of prompts in a pass gives the same bytes.
        portions = None if dtype == "float64" else passes
        layout = (
            plan.prompts_per_block,
            settings.neurons_per_chunk,
            settings.store_dtype,
            plan.sharded,
        )
        facts = (plan.attributes, plan.layers, [*plan.grids], dtype, layout, portions)
        key = digest([*inputs, *code, Path(__file__)], *facts)
        self.parts = Parts(subject.path("store/predictions.parquet"), key)

    @property
    def files(self) -> DumpFiles:
        """The files that units write besides their parts."""
        return DumpFiles(self.plan, self.parts)

    @cached_property
    def loaded(self) -> checkpoint.Checkpoint:
        loaded = checkpoint.from_settings(self.plan.subject.settings, threads=environment.threads())
        self.parts.admit(checkpoint.parity_digest(loaded))
        return loaded

    @cached_property
    def sharing(self) -> grid.Sharing:
        """How the prompts of a row share the computation of their first tokens."""
        widths, grids = self.plan.widths, self.plan.grids.values()
        ways = {grid.sharing(self.loaded, prompts.largest(widths).tokens) for prompts in grids}
        slowest = min(ways, key=lambda way: way.value)
        if slowest is grid.Sharing.NONE:
            problem = "this model cannot continue a shared prefix; whole prompts are run"
            progress.say(f"{self.title}: {problem}, which takes longer")
        return slowest

    @cached_property
    def number_directions(self) -> Any:
        """The direction of each number's logit in the residual stream, (numbers, width)."""
        return value_logits.directions(self.loaded, self.plan.numbers["token"].to_list())

    def missing(self) -> list[int]:
        files = self.files
        without_part = set(self.parts.missing(len(self.units)))
        missing = []
        for unit in range(len(self.units)):
            whole = all(file.exists() for file in files.expected(unit))
            if unit in without_part or not whole:
                missing.append(unit)
        return missing

    def do(self, number: int, report: Report = silent) -> None:
        if number < len(self.plan.blocks):
            predictions = self._run(number, report)
        else:
            layer = self.loaded.architecture.layers[number - len(self.plan.blocks)]
            logits = value_logits.of_layer(layer, self.number_directions)
            hdf5_store.write_array(self.files.logits(number), {"logits": logits}, {}, shared=True)
            predictions = pl.DataFrame(schema=SCHEMA)
        self.parts.write(number, predictions)

    def _run(self, unit: int, report: Report) -> pl.DataFrame:
        """Run a block of rows, write its activations and sums, and return its predictions."""
        plan, files = self.plan, self.files
        prompts, block_rows = plan.blocks[unit]
        rows = slice(block_rows.start, block_rows.stop)
        shape = tuple(plan.axes(prompts, len(block_rows)).values())
        dtype = plan.settings.store_dtype
        activations = {layer: np.empty(shape, dtype) for layer in plan.layers}
        means = grid.Means.zeros(self.loaded, plan.slots)
        report(0)  # the model is loaded: prompts begin
        passes = []
        for predictions in self._predictions(prompts, rows, activations, means):
            passes.append(predictions)
            report(len(predictions))
        totals = {name: getattr(means, name) for name in grid.SUMS}
        hdf5_store.write_array(files.sums(unit), totals, {}, shared=True)
        self._write(unit, activations, prompts.results[rows])
        if plan.sharded:
            listed = []
            for layer in plan.layers:
                shard = files.shard(unit, layer)
                listed.append(shards.listed(shard, prompts.operator, layer, block_rows))
            write_table(pl.DataFrame(listed), files.listed(unit), shared=True)
        return pl.concat(passes).sort("place").select(*SCHEMA)

    def _write(
        self,
        unit: int,
        activations: dict[int, np.ndarray],
        results: np.ndarray,
    ) -> None:
        """Write a block's activations, one file per layer, and each neuron's sums."""
        prompts = self.plan.blocks[unit].prompts

        def write(layer: int) -> None:
            with hdf5_store.writing(self.files.shard(unit, layer), shared=True) as file:
                writer = self.plan.writer(file, [layer], prompts, results)
                writer.write(layer, 0, activations[layer])

        rows = sums.while_writing(write, prompts.operator, activations, results)
        write_table(rows, self.files.neuron_sums(unit), shared=True)

    def _predictions(
        self,
        prompts: PromptGrid,
        rows: slice,
        activations: dict[int, np.ndarray],
        means: grid.Means,
    ) -> Iterator[pl.DataFrame]:
        """Yield the predictions for the prompts of some rows, one table for each forward pass.

        The column `place` is the prompt's index among those of these rows. Fills `activations`
        and adds to `means`.
        """
        for rectangle in prompts.rectangles(rows, self.plan.widths):
            positions = rectangle.tokens.shape[2]
            whole = rectangle.prompts == (rows.stop - rows.start) * prompts.shape[1]
            in_place = whole and positions == self.plan.slots
            added = means if in_place else grid.Means.zeros(self.loaded, positions)
            per_prompt = grid.bytes_per_prompt(self.loaded, rectangle.tokens, self.sharing)
            fitting = max(1, self.plan.settings.memory_of_pass // per_prompt)
            in_pass = min(self.prompts_per_pass, fitting)
            for piece in rectangle.pieces(in_pass):
                yield from self._piece(prompts, rows, piece, in_pass, activations, added)
            if not in_place:
                means.add(added, rectangle.slots)

    def _piece(
        self,
        prompts: PromptGrid,
        rows: slice,
        piece: Rectangle,
        in_pass: int,
        activations: dict[int, np.ndarray],
        means: grid.Means,
    ) -> Iterator[pl.DataFrame]:
        """Run a part of a rectangle, with at most `in_pass` prompts in a forward pass."""
        targets = _targets(activations, piece)
        places = (piece.rows[:, None] * prompts.shape[1] + piece.columns).ravel()
        passes = grid.run(
            self.loaded,
            piece.tokens,
            prompts.answers[rows][np.ix_(piece.rows, piece.columns)],
            max(1, in_pass // len(piece.columns)),
            targets,
            means,
            sharing=self.sharing,
        )
        first = 0
        for predicted in passes:
            columns = {name: getattr(predicted, name) for name in SCHEMA}
            frame = pl.DataFrame(columns, schema=SCHEMA)
            yield frame.with_columns(place=places[first : first + len(frame)])
            first += len(frame)
        if not piece.consecutive:
            for layer, block in activations.items():
                block[:, piece.rows[:, None], piece.columns] = targets[layer]

    def finish(self) -> None:
        self.files.put_together()
        self.parts.remove()


def _targets(activations: dict[int, np.ndarray], piece: Rectangle) -> dict[int, np.ndarray]:
    """Return arrays for a piece's activations by layer: (neurons, its rows, its columns).

    They are views of `activations`, or new arrays if the piece has gaps.
    """
    if not piece.consecutive:
        shape = piece.tokens.shape[:2]
        return {i: np.empty((len(b), *shape), b.dtype) for i, b in activations.items()}
    row, column = piece.rows[0], piece.columns[0]
    window = np.s_[:, row : piece.rows[-1] + 1, column : piece.columns[-1] + 1]
    return {layer: block[window] for layer, block in activations.items()}


def main(name: str) -> None:
    carry_out(DumpWork, name)


if __name__ == "__main__":
    main(sys.argv[1])
