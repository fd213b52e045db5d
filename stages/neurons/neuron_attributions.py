"""Estimates the effect of every neuron that neuron_interventions patches one by one, from gradients: attribution patching.

Table neuron_attributions: first-order estimates of neuron effects, to be held against the exact ones
    subject      VARCHAR   the model
    layer        SMALLINT  decoder layer, from 0
    neuron       INTEGER   neuron of the layer's MLP, from 0
    position     VARCHAR   role of the token at which it would be patched
    pair         INTEGER   as in pairs
    attribution  FLOAT     gradient · (counterfactual - clean activation) of half the logit difference, counterfactual answer - answer
"""

import sys

import numpy as np
import polars as pl

from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.executor import pairs
from stages.lib.executor.executor import Executor
from stages.lib.model import checkpoint
from stages.lib.settings import Runs
from stages.lib.subject import Subject
from stages.neurons.gradients import attributions

SCHEMA = {"subject": pl.String, "layer": pl.Int16, "neuron": pl.Int32, "position": pl.String, "pair": pl.Int32, "attribution": pl.Float32}


def main(name: str) -> None:
    subject = Subject.named(name)
    settings = subject.settings.runs or load(Runs)
    patched = subject.table("neurons/neuron_interventions.parquet").filter(pl.col("component") == "neuron")
    sites = patched.select("layer", "position").unique().sort("layer", "position").rows()
    prompts = subject.table("circuit/pairs.parquet").filter(pl.col("split").is_in(patched["split"].unique().to_list()))
    loaded = checkpoint.of(subject.settings, whole=True)
    executor = Executor(loaded, None, settings.rows, settings.memory)
    frames = [pl.DataFrame(schema=SCHEMA)]
    for group in progress.bar(executor.sizes.groups(prompts), desc=f"attributions {name}", unit="group"):
        found = attributions(executor.values(group), sites)
        frames += [_frame(name, layer, role, group, values.float().cpu().numpy()) for (layer, role), values in found.items()]
    write_table(pl.concat(frames).sort("layer", "position", "neuron", "pair"), subject.path("neurons/neuron_attributions.parquet"))


def _frame(subject: str, layer: int, role: str, of: pairs.PromptPairs, values: np.ndarray) -> pl.DataFrame:
    """Rows of one site; values: (pairs, neurons)."""
    columns = {
        "neuron": np.tile(np.arange(values.shape[1]), len(of)),
        "pair": np.repeat(of.number, values.shape[1]),
        "attribution": values.ravel(),
    }
    constants = [pl.lit(subject).alias("subject"), pl.lit(layer).alias("layer"), pl.lit(role).alias("position")]
    return pl.DataFrame(columns).with_columns(constants).select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())


if __name__ == "__main__":
    main(sys.argv[1])
