"""Measure the first MLP's activations on single numbers (Fig. 13 of the study).

A number stands in the place of the first operand. Later tokens cannot affect it, so prompts end
after it. For numbers of several tokens, the activation at the last one counts.

Table token_activations: activations of the first layer's neurons at the first operand
    subject     VARCHAR   the model
    layer       SMALLINT  decoder layer, always 0
    neuron      INTEGER   neuron of the layer's MLP, from 0
    number      INTEGER   the first operand, from 0 to the largest operand
    activation  FLOAT     activation after the MLP's non-linearity (gated: act(gate) * up)
"""

import sys

import numpy as np
import polars as pl

from stages.circuit import recording
from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.model import checkpoint
from stages.lib.settings import Passes
from stages.lib.subject import Subject

LAYER = 0


def main(name: str) -> None:
    """Measure and write one model's activations."""
    subject = Subject.named(name)
    prompts = _prompts(subject)
    loaded, passes = (
        checkpoint.from_settings(subject.settings),
        subject.settings.passes or load(Passes),
    )
    activations = np.empty((loaded.architecture.neurons, len(prompts)), np.float32)
    lengths = prompts["tokens"].list.len().to_numpy()
    with progress.bar(total=len(prompts), desc=f"tokens {name}", unit="prompt") as bar:
        for length in np.unique(lengths):
            own = lengths == length
            tokens = np.array(prompts["tokens"].filter(own).to_list(), np.int64)
            activations[:, own] = recording.neurons(loaded, tokens, LAYER, passes.prompts).T
            bar.update(len(tokens))
    neuron, number = (axis.ravel() for axis in np.indices(activations.shape, dtype=np.int32))
    columns = {
        "neuron": neuron,
        "number": prompts["op1"].to_numpy()[number],
        "activation": activations.ravel(),
    }
    keys = [pl.lit(subject.name).alias("subject"), pl.lit(LAYER, pl.Int16).alias("layer")]
    table = pl.DataFrame(columns).select(*keys, *columns)
    write_table(table, subject.path("neurons/token_activations.parquet"))


def _prompts(subject: Subject) -> pl.DataFrame:
    """Return one prompt for each first operand, up to its last token: op1 and tokens."""
    prompts = subject.table("store/prompts.parquet")
    first_operator = pl.col("operator") == subject.settings.operators[0]
    smallest = pl.col("op2") == pl.col("op2").min()
    own = prompts.filter(first_operator, smallest)
    tokens = pl.col("tokens").list.head(pl.col("op1_position") + 1)
    return own.select(pl.col("op1").cast(pl.Int32), tokens).sort("op1")


if __name__ == "__main__":
    main(sys.argv[1])
