"""Runs a subject over the whole operand square and writes down what it sees; decides nothing.

Beside the tables below there is means.h5: every component's mean activation by operator and position, what mean ablation puts in its
place. Activations are those of the kept layers. Prompts of a row share their prefix, which is computed once.

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
    number   SMALLINT  a one-token number
    logit    FLOAT     value vector · unembedding of the number (final-norm gain folded in, unembedding centred over the vocabulary)
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib import store
from stages.lib.ask import Said
from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.model import checkpoint, value_logits
from stages.lib.settings import Machine, Passes
from stages.lib.subject import Subject
from stages.store import grid
from stages.store.settings import Dump


def main(name: str) -> None:
    subject = Subject.named(name)
    chosen = subject.settings
    prompts, numbers = subject.table("store/prompts.parquet"), subject.table("store/numbers.parquet")
    loaded = checkpoint.of(chosen, load(Machine))
    attributes = {
        "subject": name, "source": chosen.source, "revision": chosen.revision, **checkpoint.fingerprint(chosen.source),
        "limit": str(len(numbers) - 1), "convention": "activation after the non-linearity (gated: act(gate) * up), last position",
    }  # fmt: skip
    dumping = Dumping(loaded, chosen.kept_layers(len(loaded.architecture.layers)), load(Dump), load(Passes).prompts_per_pass, attributes)
    means: dict[str, grid.Means] = {}
    predictions = []
    with progress.bar(total=len(prompts), desc=f"dump {name}", unit="prompt") as bar:
        for operator in chosen.operators:
            square = PromptSquare(operator, prompts.filter(operator=operator))
            means[operator] = grid.Means.zeros(loaded, square.tokens.shape[2])
            answers = dumping.write(square, subject.path(f"store/activations/{operator}.h5"), means[operator], bar)
            predictions.append(square.predictions(answers, numbers))
    write_table(pl.concat(predictions).sort("operator", "op1", "op2"), subject.path("store/predictions.parquet"))
    _write_means(subject.path("store/means.h5"), means, attributes)
    _write_value_logits(subject.path("store/value_logits.h5"), loaded, numbers, attributes)


class PromptSquare:
    """One operator's prompts as arrays over (op1, op2)."""

    def __init__(self, operator: str, prompts: pl.DataFrame):
        self.operator = operator
        self.prompts = prompts.sort("op1", "op2")
        side = self.prompts["op1"].n_unique()
        self.shape = (side, len(prompts) // side)
        positions = len(self.prompts["tokens"][0])
        self.tokens = self.prompts["tokens"].list.to_array(positions).to_numpy().reshape(*self.shape, positions).astype(np.int64)
        self.answers = self.prompts["answer_token"].fill_null(-1).to_numpy().reshape(self.shape).astype(np.int64)
        self.results = self.prompts["result"].fill_null(-1).to_numpy().reshape(self.shape)

    def predictions(self, said: list[Said], numbers: pl.DataFrame) -> pl.DataFrame:
        """The cells' rows of the table `predictions`."""
        measured = {
            name: np.concatenate([getattr(part, name) for part in said])
            for name in ("predicted", "answer_logit", "max_logit", "answer_probability")
        }
        return (
            self.prompts.select("subject", "operator", "op1", "op2", "answer_token")
            .with_columns(**{name: pl.Series(values) for name, values in measured.items()})
            .filter(pl.col("answer_token").is_not_null())
            .with_columns(
                correct=pl.col("predicted") == pl.col("answer_token"),
                predicted=pl.col("predicted").cast(pl.Int32).replace_strict(numbers["token"], numbers["number"], default=None),
            )
            .select("subject", "operator", "op1", "op2", "predicted", "correct", "answer_logit", "max_logit", "answer_probability")
        )


@dataclass(frozen=True)
class Dumping:
    """How the squares of a subject are written down. layers: those kept; attributes: provenance, stored on the files."""

    loaded: checkpoint.Checkpoint
    layers: list[int]
    settings: Dump
    prompts_per_pass: int
    attributes: dict[str, str]

    def write(self, square: PromptSquare, path: Path, means: grid.Means, bar: progress.Bar) -> list[Said]:
        """Streams a square into its store, a block of rows at a time, and adds to its means; returns what the subject says."""
        rows, columns = square.shape
        dtype, block_rows = self.settings.store_dtype, max(1, min(rows, self.settings.cells_per_block // columns))
        axes = {"neuron": self.loaded.architecture.neurons, "op1": rows, "op2": columns}
        buffers = {layer: np.empty((axes["neuron"], block_rows, columns), dtype) for layer in self.layers}
        chunk, of = (self.settings.neurons_per_chunk, block_rows, columns), {**self.attributes, "operator": square.operator}
        said = []
        with store.writing(path) as file:
            writer = store.LayerWriter(file, self.layers, axes, dtype, chunk, of, columns={"result": square.results})
            for start in range(0, rows, block_rows):
                part = slice(start, min(start + block_rows, rows))
                into = {layer: buffer[:, : part.stop - start] for layer, buffer in buffers.items()}
                rows_at_once = max(1, self.prompts_per_pass // columns)
                for answers in grid.run(self.loaded, square.tokens[part], square.answers[part], rows_at_once, into, means):
                    said.append(answers)
                    bar.update(len(answers.predicted))
                for layer, block in into.items():
                    writer.write(layer, start, block)
        return said


def _write_means(path: Path, means: dict[str, grid.Means], attributes: dict[str, str]) -> None:
    """/neurons (operator, layer, position, neuron), /heads (…, head, head width), /residual (…, width): grid.Means by operator, float32."""
    arrays = {name: np.stack([getattr(m, name) / m.prompts for m in means.values()]) for name in ("neurons", "heads", "residual")}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    store.write_array(path, arrays, {**attributes, "operators": ", ".join(means)})


def _write_value_logits(path: Path, loaded: checkpoint.Checkpoint, numbers: pl.DataFrame, attributes: dict[str, str]) -> None:
    logits = value_logits.value_logits(loaded, numbers["token"].to_list())
    with store.writing(path) as file:
        axes = {"neuron": logits.shape[1], "number": logits.shape[2]}
        convention = "value vector · unembedding; final-norm gain folded in, unembedding centred over the vocabulary"
        writer = store.LayerWriter(
            file, list(range(len(logits))), axes, "float32", (64, logits.shape[2]), {**attributes, "convention": convention}
        )
        for layer, values in enumerate(logits):
            writer.write(layer, 0, values)


if __name__ == "__main__":
    main(sys.argv[1])
