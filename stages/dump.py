"""Runs a subject over the whole operand square and writes down what it sees; decides nothing.

Reads data/<subject>/prompts.parquet, numbers.parquet and the subject's weights; writes into data/<subject>/:
activations/<operator>.h5 (every kept layer's neurons at the last position), predictions.parquet (each cell's answer),
means.h5 (every component's mean activation by operator and position, what mean ablation puts in its place) and
value_logits.h5. Prompts of a row share their prefix, which is computed once.

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
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib import progress, store
from stages.lib.files import write_table
from stages.lib.model import checkpoint, grid, lens
from stages.lib.model.asking import Said
from stages.lib.params.sections import load
from stages.lib.params.subjects import Dump, load_subject


def main(subject: str) -> None:
    chosen, dump = load_subject(subject), load(Dump)
    folder = Path("data") / subject
    prompts = pl.read_parquet(folder / "prompts.parquet")
    numbers = pl.read_parquet(folder / "numbers.parquet")
    loaded = checkpoint.load(chosen.source, chosen.dtype, dump.device, dump.threads)
    layers = chosen.kept_layers(len(loaded.architecture.layers))
    attributes = {
        "subject": subject, "source": chosen.source, "revision": chosen.revision, **checkpoint.fingerprint(chosen.source),
        "limit": str(len(numbers) - 1), "convention": "activation after the non-linearity (gated: act(gate) * up), last position",
    }  # fmt: skip
    means: dict[str, grid.Means] = {}
    predictions = []
    with progress.bar(total=len(prompts), desc=f"dump {subject}", unit="prompt") as bar:
        for operator in chosen.operators:
            square = Square(prompts.filter(pl.col("operator") == operator))
            means[operator] = grid.Means.zeros(loaded, square.tokens.shape[2])
            path = folder / "activations" / f"{operator}.h5"
            answers = dump_operator(loaded, square, layers, dump, path, {**attributes, "operator": operator}, means[operator], bar)
            predictions.append(square.predictions(answers, numbers))
    write_table(pl.concat(predictions).sort("operator", "op1", "op2"), folder / "predictions.parquet")
    _write_means(folder / "means.h5", means, attributes)
    _write_value_logits(folder / "value_logits.h5", loaded, numbers, attributes)


class Square:
    """One operator's prompts as arrays over (op1, op2)."""

    def __init__(self, prompts: pl.DataFrame):
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


def dump_operator(
    loaded: checkpoint.Checkpoint,
    square: Square,
    layers: list[int],
    settings: Dump,
    path: Path,
    attributes: dict[str, str],
    means: grid.Means,
    bar: progress.Bar,
) -> list[Said]:
    """Streams one square into its store, a block of rows at a time; returns what the subject says."""
    rows, columns = square.shape
    block_rows = max(1, min(rows, settings.cells_per_block // columns))
    pass_rows = max(1, settings.prompts_per_pass // columns)
    axes = {"neuron": loaded.architecture.neurons, "op1": rows, "op2": columns}
    buffers = {layer: np.empty((axes["neuron"], block_rows, columns), settings.store_dtype) for layer in layers}
    said = []
    with store.writing(path) as file:
        chunk = (settings.neurons_per_chunk, block_rows, columns)
        writer = store.LayerWriter(file, layers, axes, settings.store_dtype, chunk, attributes, {"result": square.results})
        for start in range(0, rows, block_rows):
            part = slice(start, min(start + block_rows, rows))
            into = {layer: buffer[:, : part.stop - start] for layer, buffer in buffers.items()}
            for answers in grid.run(loaded, square.tokens[part], square.answers[part], pass_rows, into, means):
                said.append(answers)
                bar.update(len(answers.predicted))
            for layer, block in into.items():
                writer.write(layer, start, block)
    return said


def _write_means(path: Path, means: dict[str, grid.Means], attributes: dict[str, str]) -> None:
    """/neurons (operator, layer, position, neuron), /heads (…, head, head width), /residual (…, width): grid.Means by operator."""
    arrays = {name: np.stack([getattr(m, name) / m.prompts for m in means.values()]) for name in ("neurons", "heads", "residual")}
    store.write_array(path, arrays, {**attributes, "operators": ", ".join(means)})


def _write_value_logits(path: Path, loaded: checkpoint.Checkpoint, numbers: pl.DataFrame, attributes: dict[str, str]) -> None:
    logits = lens.value_logits(loaded, numbers["token"].to_list())
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
