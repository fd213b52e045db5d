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
from stages.lib.units.work import carry_out
from stages.store import dump_files, dump_plan, grid, rectangles, sums
from stages.store.dump_files import DumpFiles
from stages.store.dump_plan import DumpPlan
from stages.store.rectangles import PromptSquare

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
        # float64 is rounded when stored: any number of prompts in a pass gives the same bytes.
        portions = None if dtype == "float64" else self.prompts_per_pass
        facts = (plan.attributes, plan.layers, [*plan.squares], dtype, plan.settings, portions)
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

    def do(self, number: int) -> None:
        if number < len(self.plan.blocks):
            said = self._run(number)
        else:
            logits = value_logits.of_layer(self.loaded.architecture.layers[number - len(self.plan.blocks)], self.votes)
            layered.write_array(self.files.logits(number), {"logits": logits}, {}, shared=True)
            said = pl.DataFrame(schema=SAID)
        self.parts.write(number, said)

    def _run(self, number: int) -> pl.DataFrame:
        """Runs a block of rows: its activations become a shard of each layer, its sums a store; what the subject says is returned."""
        plan, files = self.plan, self.files
        square, chosen = plan.blocks[number]
        rows = slice(chosen.start, chosen.stop)
        into = {layer: np.empty(tuple(plan.axes(square, len(chosen)).values()), plan.settings.store_dtype) for layer in plan.layers}
        means = grid.Means.zeros(self.loaded, plan.slots)
        said = pl.concat(self._said(square, rows, into, means)).sort("place").select(*SAID)
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

    def _said(self, square: PromptSquare, rows: slice, into: dict[int, np.ndarray], means: grid.Means) -> Iterator[pl.DataFrame]:
        """What the subject says to prompts of some rows, and their places among them; fills `into` and adds to `means`."""
        for one in square.rectangles(rows, self.plan.widths):
            at = np.ix_(one.rows, one.columns)
            whole = one.tokens.shape == (rows.stop - rows.start, square.shape[1], self.plan.slots)
            parts = into if whole else {layer: np.empty((len(of), *one.tokens.shape[:2]), of.dtype) for layer, of in into.items()}
            sums_here = means if whole else grid.Means.zeros(self.loaded, one.tokens.shape[2])
            rows_at_once = max(1, self.prompts_per_pass // len(one.columns))
            answers = square.answers[rows][at]
            said = list(
                grid.run(
                    self.loaded,
                    one.tokens,
                    answers,
                    rows_at_once,
                    parts,
                    sums_here,
                    sharing=self.sharing,
                )
            )
            if not whole:
                for layer, of in into.items():
                    of[:, one.rows[:, None], one.columns] = parts[layer]
                means.add(sums_here, one.slots)
            columns = {name: np.concatenate([getattr(part, name) for part in said]) for name in SAID}
            yield pl.DataFrame(columns, schema=SAID).with_columns(place=(one.rows[:, None] * square.shape[1] + one.columns).ravel())

    def finish(self) -> None:
        self.files.put_together()
        self.parts.remove()


def main(name: str) -> None:
    carry_out(DumpWork, name)


if __name__ == "__main__":
    main(sys.argv[1])
