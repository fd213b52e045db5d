"""Runs a subject over the whole operand square and writes down what it sees; decides nothing.

Beside the tables below there is means.h5: every component's mean activation by operator and
position. Mean ablation puts in its place the mean over operators, each with equal weight. Where
prompts differ in length, it has slots in the place of positions (stages/lib/core/slots.py), a mean
is that of the prompts that have a token there, and attributes say how many tokens the longest
operands have. Activations are those of the kept layers. Prompts of a row share their prefix, which
is computed once. Workers share blocks of rows (stages/lib/units/work.py); stopped half-way, it goes
on behind those that are finished.

Table predictions: what the subject answers to each cell
    subject             VARCHAR   the model
    operator            VARCHAR   add, subtract, multiply or divide
    op1                 INTEGER   first operand
    op2                 INTEGER   second operand
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
    op1         INTEGER   first operand
    op2         INTEGER   second operand
    result      INTEGER   the answer; null where the prompt has none of one token, so that it is no cell
    activation  FLOAT     the MLP's value behind its non-linearity (gated: act(gate) * up), stored as float16

Table value_logits: which numbers each neuron's value vector votes for (lazy, from HDF5)
    subject  VARCHAR   the model
    layer    SMALLINT  decoder layer, from 0
    neuron   INTEGER   neuron of the layer's MLP, from 0
    number   INTEGER   a one-token number; of subjects with answer_token what one token of an answer
                       stands for, such as a digit
    logit    FLOAT     value vector · unembedding of the number (final-norm gain folded in, unembedding centred over the vocabulary)
"""

import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.lib import ask, model
from stages.lib.core import chunks, layered, machine, progress, shards
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
from stages.store.rectangles import PromptSquare, Rectangle

SAID = {"predicted": pl.Int32, "max_logit": pl.Float32, "answer_logit": pl.Float32, "answer_probability": pl.Float32}


class DumpWork:
    """The squares of one subject, in blocks of rows."""

    counts, few = "prompt", 2_000

    def __init__(self, name: str):
        plan = self.plan = DumpPlan(name)
        subject, self.units, self.title = plan.subject, plan.units, f"dump {name}"
        self.prompts_per_pass = (subject.settings.passes or load(Passes)).prompts
        inputs = [subject.path(f"store/{table}.parquet") for table in ("prompts", "numbers")]
        code = [model, ask, grid, rectangles, sums, chunks, layered, shards, dump_files, dump_plan]
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
        facts = (plan.attributes, plan.layers, [*plan.squares], dtype, layout, portions)
        key = digest([*inputs, *code, Path(__file__)], *facts)
        self.parts = Parts(subject.path("store/predictions.parquet"), key)

    @property
    def files(self) -> DumpFiles:
        """What units write beside their parts."""
        return DumpFiles(self.plan, self.parts)

    @cached_property
    def loaded(self) -> checkpoint.Checkpoint:
        loaded = checkpoint.of(self.plan.subject.settings, threads=machine.threads())
        self.parts.admit(checkpoint.canary(loaded))
        return loaded

    @cached_property
    def sharing(self) -> grid.Sharing:
        """How prompts of a row share what is computed of their first tokens."""
        widths, squares = self.plan.widths, self.plan.squares.values()
        ways = {grid.sharing(self.loaded, square.largest(widths).tokens) for square in squares}
        slowest = min(ways, key=lambda way: way.value)
        if slowest is grid.Sharing.NONE:
            problem = "this model cannot go on behind the first tokens of a row of prompts"
            progress.say(f"{self.title}: {problem}: whole prompts are run")
        return slowest

    @cached_property
    def votes(self) -> Any:
        """What value vectors are multiplied with."""
        return value_logits.directions(self.loaded, self.plan.numbers["token"].to_list())

    def missing(self) -> list[int]:
        unsaid = set(self.parts.missing(len(self.units)))
        return [number for number in range(len(self.units)) if number in unsaid or not all(file.exists() for file in self.files.of(number))]

    def do(self, number: int, report: Report = silent) -> None:
        if number < len(self.plan.blocks):
            said = self._run(number, report)
        else:
            logits = value_logits.of_layer(self.loaded.architecture.layers[number - len(self.plan.blocks)], self.votes)
            layered.write_array(self.files.logits(number), {"logits": logits}, {}, shared=True)
            said = pl.DataFrame(schema=SAID)
        self.parts.write(number, said)

    def _run(self, number: int, report: Report) -> pl.DataFrame:
        """Runs a block of rows: its activations become a shard of each layer, its sums a store; what the subject says is returned."""
        plan, files = self.plan, self.files
        square, chosen = plan.blocks[number]
        rows = slice(chosen.start, chosen.stop)
        into = {layer: np.empty(tuple(plan.axes(square, len(chosen)).values()), plan.settings.store_dtype) for layer in plan.layers}
        means = grid.Means.zeros(self.loaded, plan.slots)
        report(0)  # the model is loaded: prompts begin
        predictions = []
        for some in self._predictions(square, rows, into, means):
            predictions.append(some)
            report(len(some))
        said = pl.concat(predictions).sort("place").select(*SAID)
        layered.write_array(files.sums(number), {name: getattr(means, name) for name in grid.SUMS}, {}, shared=True)
        self._write(number, into, square.results[rows])
        if plan.sharded:
            listed = [shards.listed(files.shard(number, layer), square.operator, layer, chosen) for layer in plan.layers]
            write_table(pl.DataFrame(listed), files.listed(number), shared=True)
        return said

    def _write(
        self,
        number: int,
        activations: dict[int, np.ndarray],
        results: np.ndarray,
    ) -> None:
        """Write a block's layers, a shard each, and its neurons' sums."""
        square, _ = self.plan.blocks[number]

        def write(layer: int) -> None:
            with layered.writing(self.files.shard(number, layer), shared=True) as file:
                writer = self.plan.writer(file, [layer], square, results)
                writer.write(layer, 0, activations[layer])

        rows = sums.while_writing(write, square.operator, activations, results)
        write_table(rows, self.files.neuron_sums(number), shared=True)

    def _predictions(
        self,
        square: PromptSquare,
        rows: slice,
        activations: dict[int, np.ndarray],
        means: grid.Means,
    ) -> Iterator[pl.DataFrame]:
        """Yield the predictions for prompts of some rows, a pass at a time, and their places.

        Fills `activations` and adds to `means`.
        """
        for rectangle in square.rectangles(rows, self.plan.widths):
            positions = rectangle.tokens.shape[2]
            whole = rectangle.tokens[:, :, 0].size == (rows.stop - rows.start) * square.shape[1]
            in_place = whole and positions == self.plan.slots
            added = means if in_place else grid.Means.zeros(self.loaded, positions)
            per_prompt = grid.bytes_per_prompt(self.loaded, rectangle.tokens, self.sharing)
            fitting = max(1, self.plan.settings.memory_of_pass // per_prompt)
            prompts = min(self.prompts_per_pass, fitting)
            for piece in rectangle.pieces(prompts):
                yield from self._piece(square, rows, piece, prompts, activations, added)
            if not in_place:
                means.add(added, rectangle.slots)

    def _piece(
        self,
        square: PromptSquare,
        rows: slice,
        piece: Rectangle,
        prompts: int,
        activations: dict[int, np.ndarray],
        means: grid.Means,
    ) -> Iterator[pl.DataFrame]:
        """Run a part of a rectangle, at most so many prompts in a pass."""
        at = np.ix_(piece.rows, piece.columns)
        if piece.consecutive:
            row, column = piece.rows[0], piece.columns[0]
            window = np.s_[:, row : piece.rows[-1] + 1, column : piece.columns[-1] + 1]
            parts = {layer: block[window] for layer, block in activations.items()}
        else:
            shape = piece.tokens.shape[:2]
            parts = {i: np.empty((len(b), *shape), b.dtype) for i, b in activations.items()}
        row_places = (piece.rows[:, None] * square.shape[1] + piece.columns).ravel()
        passes = grid.run(
            self.loaded,
            piece.tokens,
            square.answers[rows][at],
            max(1, prompts // len(piece.columns)),
            parts,
            means,
            sharing=self.sharing,
        )
        first = 0
        for predicted in passes:
            columns = {name: getattr(predicted, name) for name in SAID}
            frame = pl.DataFrame(columns, schema=SAID)
            places = row_places[first : first + len(frame)]
            first += len(frame)
            yield frame.with_columns(place=places)
        if not piece.consecutive:
            for layer, block in activations.items():
                block[:, piece.rows[:, None], piece.columns] = parts[layer]

    def finish(self) -> None:
        self.files.put_together()
        self.parts.remove()


def main(name: str) -> None:
    carry_out(DumpWork, name)


if __name__ == "__main__":
    main(sys.argv[1])
