"""Shows single number tokens to the neurons of the first MLP (the study's Fig. 13).

A number stands where the first operand does; what follows cannot reach it, so the prompts are cut off behind it. Of numbers of several
tokens the last one is looked at.

Table token_activations: activation of the first layer's neurons at the first operand
    subject     VARCHAR   the model
    layer       SMALLINT  decoder layer, 0
    neuron      INTEGER   neuron of the layer's MLP, from 0
    number      INTEGER   the number the token stands for, 0 to the largest operand
    activation  FLOAT     the MLP's value behind its non-linearity (gated: act(gate) * up)
"""

import sys

import numpy as np
import polars as pl

from stages.circuit import streams
from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.model import checkpoint
from stages.lib.settings import Passes
from stages.lib.subject import Subject

LAYER = 0


def main(name: str) -> None:
    subject = Subject.named(name)
    prompts = (
        subject.table("store/prompts.parquet")
        .filter(pl.col("operator") == subject.settings.operators[0], pl.col("op2") == pl.col("op2").min())
        .select(pl.col("op1").cast(pl.Int32), pl.col("tokens").list.head(pl.col("op1_position") + 1))
        .sort("op1")
    )
    loaded, passes = checkpoint.of(subject.settings), subject.settings.passes or load(Passes)
    activations = np.empty((loaded.architecture.neurons, len(prompts)), np.float32)
    lengths = prompts["tokens"].list.len().to_numpy()
    for length in np.unique(lengths):
        tokens = np.array(prompts["tokens"].filter(lengths == length).to_list(), np.int64)  # (numbers, positions up to op1)
        activations[:, lengths == length] = streams.neurons(loaded, tokens, LAYER, passes.prompts).T
    neuron, number = (axis.ravel() for axis in np.indices(activations.shape, dtype=np.int32))
    table = pl.DataFrame({"neuron": neuron, "number": prompts["op1"].to_numpy()[number], "activation": activations.ravel()})
    keys = [pl.lit(subject.name).alias("subject"), pl.lit(LAYER, pl.Int16).alias("layer")]
    write_table(table.select(*keys, "neuron", "number", "activation"), subject.path("neurons/token_activations.parquet"))


if __name__ == "__main__":
    main(sys.argv[1])
