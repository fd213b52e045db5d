"""Carries out a table of interventions on a subject and writes what the model then says; decides nothing.

`python -m stages.lib.executor.runs CHAPTER/EXPERIMENT SUBJECT [CHAPTER/PAIRS]`, below data/<subject>/, reads
<chapter>/<experiment>_interventions.parquet, a table of pairs (by default circuit/pairs.parquet) and, for mean ablation, store/means.h5,
and writes <chapter>/runs/<experiment>.parquet: every stage <experiment>_runs is this file, and an experiment of your own needs
no Python. An intervention at a token's place has no rows for pairs without that token. Stopped half-way, it goes on behind the
last finished blocks of interventions.

Table runs: what a subject says under interventions, one row per intervention and pair of prompts
    subject                     VARCHAR  the model
    experiment                  VARCHAR  whose table <experiment>_interventions numbers the interventions
    intervention                INTEGER  as there
    pair                        INTEGER  as in the table of pairs
    answer_logit                FLOAT    logit of the clean prompt's answer at the last position
    counterfactual_logit        FLOAT    logit of the counterfactual prompt's answer
    max_logit                   FLOAT    largest logit
    mean_logit                  FLOAT    mean logit over the vocabulary; logits mean something only relative to it
    answer_probability          FLOAT    softmax probability of the clean prompt's answer
    counterfactual_probability  FLOAT    of the counterfactual prompt's answer
    predicted                   INTEGER  the most likely token
    correct                     BOOLEAN  whether that is the clean prompt's answer
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib import model, store
from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.executor import canary, interventions, pairs
from stages.lib.executor.blocks import Block
from stages.lib.executor.executor import Executor
from stages.lib.executor.measuring import Measured
from stages.lib.model import checkpoint
from stages.lib.parts import Parts, digest
from stages.lib.settings import Machine, Runs
from stages.lib.subject import Subject

SCHEMA = {
    "subject": pl.String, "experiment": pl.String, "intervention": pl.Int32, "pair": pl.Int32, "answer_logit": pl.Float32,
    "counterfactual_logit": pl.Float32, "max_logit": pl.Float32, "mean_logit": pl.Float32, "answer_probability": pl.Float32,
    "counterfactual_probability": pl.Float32, "predicted": pl.Int32, "correct": pl.Boolean,
}  # fmt: skip

TOGETHER = 10_000  # runs on single pairs that are written, and lost when interrupted, together


def main(table_of: str, name: str, pairs_table: str = "circuit/pairs") -> None:
    subject, settings, machine = Subject.named(name), load(Runs), load(Machine)
    chapter, experiment = table_of.split("/")
    inputs = [subject.path(f"{chapter}/{experiment}_interventions.parquet"), subject.path(f"{pairs_table}.parquet")]
    table, prompts = map(pl.read_parquet, inputs)
    means = None
    if "mean" in table["replacement"]:
        inputs.append(subject.path("store/means.h5"))
        means = {kind: store.read_array(inputs[-1], kind).mean(0) for kind in ("neurons", "heads", "residual")}  # pooled over operators
    loaded = checkpoint.of(subject.settings, machine)
    wanted = interventions.read(table, loaded.architecture, pairs.roles(prompts))
    executor = Executor(loaded, means, settings.rows_per_pass, settings.memory_mib << 20)
    blocks = executor.plan(prompts, wanted)
    canary.check(executor, blocks)
    key = digest(
        [*inputs, model, Path(__file__).parent], checkpoint.fingerprint(subject.settings.source), subject, settings, machine.device
    )
    parts = Parts(subject.path(f"{chapter}/runs/{experiment}.parquet"), key)
    bundles = bundled(blocks)
    missing = parts.missing(len(bundles))
    sizes = [sum(block.runs for block in bundle) for bundle in bundles]
    with progress.bar(total=sum(sizes), desc=f"{experiment} {name}", unit="run", unit_scale=True) as bar:
        bar.update(sum(sizes) - sum(sizes[number] for number in missing))
        for number in missing:
            parts.write(number, rows(executor, bundles[number], experiment, name, bar))
    parts.finish(len(bundles), pl.DataFrame(schema=SCHEMA))


def bundled(blocks: Sequence[Block]) -> list[list[Block]]:
    """What is written together: a block, or consecutive blocks on one pair each, for which a file would take longer than the runs."""
    bundles: list[list[Block]] = []
    free = 0
    for block in blocks:
        single = block.interventions[0].pair is not None
        if not single or block.runs > free:
            bundles.append([])
            free = TOGETHER if single else 0
        bundles[-1].append(block)
        free -= block.runs
    return bundles


def rows(executor: Executor, blocks: Sequence[Block], experiment: str, subject: str, bar: progress.Bar) -> pl.DataFrame:
    """The rows of the table `runs` of some blocks, in order."""
    frames = []
    for block in blocks:
        for batch, measured in executor.run(block):
            frames.append(_frame(batch, block.pairs, measured))
            bar.update(len(frames[-1]))
    constants = [pl.lit(subject).alias("subject"), pl.lit(experiment).alias("experiment")]
    whole = pl.concat(frames).with_columns(constants).select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
    return whole.sort("intervention", "pair")


def _frame(batch: Sequence[interventions.Intervention], of: pairs.PromptPairs, measured: Measured) -> pl.DataFrame:
    columns = {name: getattr(measured, name).ravel() for name in Measured.__dataclass_fields__}
    numbers = np.array([one.number for one in batch])
    return pl.DataFrame({
        "intervention": np.repeat(numbers, len(of)), "pair": np.tile(of.number, len(batch)), **columns,
        "correct": (measured.predicted == of.answers).ravel(),
    })  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
