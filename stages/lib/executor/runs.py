"""Carries out a table of interventions on a subject and writes what the model then says; decides nothing.

`python -m stages.lib.executor.runs CHAPTER/EXPERIMENT SUBJECT [CHAPTER/PAIRS]`, below data/<subject>/, reads
<chapter>/<experiment>_interventions.parquet, a table of pairs (by default circuit/pairs.parquet) and, for mean ablation, store/means.h5,
for values that the table brings along <chapter>/<experiment>_given.h5, and writes <chapter>/runs/<experiment>.parquet: every stage
<experiment>_runs is this file, and an experiment of your own needs no Python. An intervention at a token's place has no rows for pairs
without that token. Workers share what is to be done (stages/lib/units/work.py); stopped half-way, it goes on behind what is finished.

Table runs: what a subject says under interventions, one row per intervention and pair of prompts
    subject                     VARCHAR  the model
    experiment                  VARCHAR  whose table <experiment>_interventions numbers the interventions
    intervention                INTEGER  as there
    pair                        INTEGER  as in the table of pairs
    answer_logit                FLOAT    logit of the clean prompt's answer at the last position; logits are in steps of 2^-16
    counterfactual_logit        FLOAT    logit of the counterfactual prompt's answer
    max_logit                   FLOAT    largest logit
    mean_logit                  FLOAT    mean logit over the vocabulary; logits mean something only relative to it
    answer_probability          FLOAT    softmax probability of the clean prompt's answer, to 16 binary digits
    counterfactual_probability  FLOAT    of the counterfactual prompt's answer
    predicted                   INTEGER  the most likely token
    correct                     BOOLEAN  whether that is the clean prompt's answer
"""

import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib import model
from stages.lib.core import layered, machine, slots
from stages.lib.core.digest import digest
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table
from stages.lib.executor import canary, interventions, pairs
from stages.lib.executor import values as replacing
from stages.lib.executor.blocks import Block, PassSizes
from stages.lib.executor.executor import Executor
from stages.lib.executor.given import Given
from stages.lib.executor.measuring import Measured
from stages.lib.model import checkpoint
from stages.lib.settings import Runs
from stages.lib.subject import Subject
from stages.lib.units.parts import Parts
from stages.lib.units.pool import Report, silent
from stages.lib.units.queue import Unit
from stages.lib.units.work import carry_out

SCHEMA = {
    "subject": pl.String, "experiment": pl.String, "intervention": pl.Int32, "pair": pl.Int32, "answer_logit": pl.Float32,
    "counterfactual_logit": pl.Float32, "max_logit": pl.Float32, "mean_logit": pl.Float32, "answer_probability": pl.Float32,
    "counterfactual_probability": pl.Float32, "predicted": pl.Int32, "correct": pl.Boolean,
}  # fmt: skip


KINDS = ("neurons", "heads", "residual")  # of means


class RunsWork:
    """A table of interventions on one subject; who does none of it loads no weights.

    bundles: the blocks of each unit; parts: what is written of them.
    """

    counts, few = "run", 50_000

    def __init__(self, table_of: str, name: str, pairs_table: str = "circuit/pairs"):
        self.subject = Subject.named(name)
        settings = self.subject.settings.runs or load(Runs)
        chapter, self.experiment = table_of.split("/")
        inputs = [
            self.subject.path(f"{chapter}/{self.experiment}_interventions.parquet"),
            self.subject.path(f"{pairs_table}.parquet"),
        ]
        table, prompts = map(read_table, inputs)
        outline = checkpoint.outline(self.subject.settings)
        pairs.check(prompts, outline.architecture.vocabulary)
        wanted = interventions.read(table, outline.architecture, pairs.roles(prompts))
        table = table.cast({"replacement": pl.String})  # null alone has another type
        means = interventions.MEANS.keys() & {*table["replacement"]}
        self.means = self.subject.path("store/means.h5") if means else None
        inputs += [self.means] if self.means else []
        self.given = Given.of(table, inputs[0])
        inputs += [self.given.path] if self.given else []
        if self.given:
            self.given.check(wanted, outline.architecture)
        self.sizes = PassSizes(outline, settings.rows, settings.memory)
        self.blocks = self.sizes.plan(prompts, wanted, settings.runs_per_part)
        self.widths = slots.widths(layered.read_attributes(self.means)) if self.means else None
        positions = layered.read_array(self.means, "residual").shape[2] if self.means else 0
        if self.means:
            check_operators(self.means, [interventions.MEANS[name] for name in sorted(means)])
        for block in self.blocks:
            replacing.check(block.pairs, block.interventions, positions, self.widths, self.given)
        self.bundles = bundled(self.blocks, settings.runs_per_part)
        self.units = [
            Unit(
                f"interventions from {first.interventions[0].number} on",
                sum(block.runs for block in bundle),
                first.pairs.number.tobytes(),
            )
            for bundle in self.bundles
            for first in bundle[:1]
        ]
        weights, dtype = (
            checkpoint.fingerprint(self.subject.settings.source),
            self.subject.settings.dtype,
        )
        facts = (name, weights, dtype, settings, machine.device(), machine.passes(machine.RUNS))
        key = digest([*inputs, model, Path(__file__).parent], *facts)
        self.parts = Parts(self.subject.path(f"{chapter}/runs/{self.experiment}.parquet"), key)
        self.title = f"{self.experiment} {name}"

    @cached_property
    def executor(self) -> Executor:
        """The loaded model, once a few of its interventions were held against the plain way."""
        loaded = checkpoint.of(self.subject.settings, threads=1, whole=True)
        self.parts.admit(checkpoint.canary(loaded))
        means = read_means(self.means) if self.means else None
        executor = Executor(
            loaded,
            means,
            self.sizes.most_rows,
            self.sizes.memory,
            widths=self.widths,
            given=self.given,
        )
        canary.check(executor, self.blocks)
        return executor

    def missing(self) -> list[int]:
        return self.parts.missing(len(self.units))

    def do(self, number: int, report: Report = silent) -> None:
        executor = self.executor
        report(0)
        names = self.experiment, self.subject.name
        self.parts.write(number, rows(executor, self.bundles[number], *names, report))

    def finish(self) -> None:
        self.parts.finish(
            [[number] for number in range(len(self.units))], pl.DataFrame(schema=SCHEMA)
        )


def read_means(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Read means.h5: replacement (see MEANS) -> kind -> means (layers, positions, …)."""
    arrays = {kind: layered.read_array(path, kind) for kind in KINDS}
    means = {"mean": {kind: pooled(array) for kind, array in arrays.items()}}
    for place, operator in enumerate(operators_of(path)):
        means[f"mean_{operator}"] = {kind: array[place] for kind, array in arrays.items()}
    return means


def check_operators(path: Path, wanted: list[str | None]) -> None:
    """Raise InterventionError if means.h5 lacks an operator whose own mean is wanted."""
    known = operators_of(path)
    for operator in wanted:
        if operator is not None and operator not in known:
            problem = f"there is no mean of {operator} in {path}, only of {', '.join(known)}"
            way_out = "replace by mean, which is pooled over these"
            raise interventions.InterventionError(f"{problem}; {way_out}")


def operators_of(path: Path) -> list[str]:
    """Return the operators of means.h5, in the order of its first axis."""
    return layered.read_attributes(path).get("operators", "").split(", ")


def pooled(means: np.ndarray) -> np.ndarray:
    """Means over operators, each with equal weight, as in the study.

    means: (operators, layers, positions, …), NaN where an operator has no token in a slot.
    """
    return np.nanmean(means, 0) if np.isnan(means).any() else means.mean(0)


def bundled(blocks: Sequence[Block], most: int) -> list[list[Block]]:
    """What is written together: a block, or consecutive blocks of at most so many runs in all, where each is on a single pair."""
    bundles: list[list[Block]] = []
    free = 0
    for block in blocks:
        single = block.interventions[0].pair is not None
        if not single or block.runs > free:
            bundles.append([])
            free = most if single else 0
        bundles[-1].append(block)
        free -= block.runs
    return bundles


def rows(
    executor: Executor,
    blocks: Sequence[Block],
    experiment: str,
    subject: str,
    report: Report = silent,
) -> pl.DataFrame:
    """Return the rows of the table `runs` of some blocks, in order. report: is told of each batch."""
    frames = []
    for block in blocks:
        for batch, measured in executor.run(block):
            frames.append(_frame(batch, block.pairs, measured))
            report(len(batch) * len(block.pairs))
    constants = [pl.lit(subject).alias("subject"), pl.lit(experiment).alias("experiment")]
    whole = (
        pl.concat(frames)
        .with_columns(constants)
        .select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
    )
    return whole.sort("intervention", "pair")


def _frame(
    batch: Sequence[interventions.Intervention], of: pairs.PromptPairs, measured: Measured
) -> pl.DataFrame:
    columns = {name: values.ravel() for name, values in measured.stored().items()}
    numbers = np.array([one.number for one in batch])
    return pl.DataFrame({
        "intervention": np.repeat(numbers, len(of)), "pair": np.tile(of.number, len(batch)), **columns,
        "correct": (measured.predicted == of.answers).ravel(),
    })  # fmt: skip


def main(*of: str) -> None:
    try:
        carry_out(RunsWork, *of)
    except interventions.InterventionError as error:
        raise SystemExit(f"{' '.join(of)}: {error}") from None


if __name__ == "__main__":
    main(*sys.argv[1:])
