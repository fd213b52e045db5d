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
from tqdm import tqdm

from stages.lib.files import write_table
from stages.lib.model import checkpoint, pairs
from stages.lib.model.attribution import attributions
from stages.lib.model.executor import Executor
from stages.lib.params.machine import Machine
from stages.lib.params.sections import load
from stages.lib.params.subjects import Runs
from stages.lib.subject import Subject

SCHEMA = {"subject": pl.String, "layer": pl.Int16, "neuron": pl.Int32, "position": pl.String, "pair": pl.Int32, "attribution": pl.Float32}


def main(name: str) -> None:
    subject, settings = Subject.named(name), load(Runs)
    patched = subject.table("neuron_interventions.parquet").filter(pl.col("component") == "neuron")
    sites = patched.select("layer", "position").unique().sort("layer", "position").rows()
    prompts = subject.table("pairs.parquet").filter(pl.col("split").is_in(patched["split"].unique().to_list()))
    loaded = checkpoint.of(subject.settings, load(Machine))
    executor = Executor(loaded, None, settings.rows_per_pass, settings.memory_mib << 20)
    frames = [pl.DataFrame(schema=SCHEMA)]
    for group in tqdm(executor.groups(prompts), desc=f"attributions {name}", unit="group"):
        found = attributions(executor.values(group), sites)
        frames += [_frame(name, layer, role, group, values.float().cpu().numpy()) for (layer, role), values in found.items()]
    write_table(pl.concat(frames).sort("layer", "position", "neuron", "pair"), subject.path("neuron_attributions.parquet"))


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
