"""Run a table of interventions on a model and write its predictions; decide nothing.

    python -m stages.lib.executor.runs CHAPTER/EXPERIMENT SUBJECT [CHAPTER/PAIRS]

All files are below data/<subject>/. It reads

* <chapter>/<experiment>_interventions.parquet,
* a table of pairs, by default circuit/pairs.parquet,
* store/means.h5 for mean ablation,
* <chapter>/<experiment>_given.h5 for external values,

and writes <chapter>/runs/<experiment>.parquet. Every stage <experiment>_runs is this file, so that
an experiment of your own needs no Python. An intervention at a location has no rows for pairs
without that location. Workers share the work (stages/lib/units/work.py); an interrupted run
continues after its last finished unit.

Table runs: predictions of a model under interventions, one row per intervention and pair of prompts
    subject                     VARCHAR  the model
    experiment                  VARCHAR  the experiment, which numbers its interventions in the
                                         table <experiment>_interventions
    intervention                INTEGER  number of the intervention in that table, from 0
    pair                        INTEGER  number of the pair in the table of pairs, from 0
    answer_logit                FLOAT    logit of the clean prompt's answer at the last position, in
                                         steps of 2^-16; only differences between logits have a
                                         meaning
    counterfactual_logit        FLOAT    logit of the counterfactual prompt's answer at the last
                                         position, in steps of 2^-16
    max_logit                   FLOAT    largest logit of the vocabulary at the last position, in
                                         steps of 2^-16
    mean_logit                  FLOAT    mean logit over the vocabulary at the last position, in
                                         steps of 2^-16
    answer_probability          FLOAT    softmax probability of the clean prompt's answer, 0 to 1,
                                         to 16 binary digits
    counterfactual_probability  FLOAT    softmax probability of the counterfactual prompt's answer,
                                         0 to 1, to 16 binary digits
    predicted                   INTEGER  token with the largest logit, numbered from 0
    correct                     BOOLEAN  whether the predicted token is the clean prompt's answer
"""

import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib import model
from stages.lib.core import environment, hdf5_store, slots
from stages.lib.core.digest import digest
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table
from stages.lib.executor import interventions, pairs, parity_check, shortcuts
from stages.lib.executor import values as replacing
from stages.lib.executor.blocks import Block, PassSizes
from stages.lib.executor.executor import Executor
from stages.lib.executor.external_values import Given
from stages.lib.executor.layer_passes import LayerPasses
from stages.lib.executor.measuring import Measured
from stages.lib.model import checkpoint
from stages.lib.settings import Runs
from stages.lib.subject import Subject
from stages.lib.units.parts import Parts
from stages.lib.units.pool import Report, silent
from stages.lib.units.queue import Unit
from stages.lib.units.work import carry_out

SCHEMA = {
    "subject": pl.String,
    "experiment": pl.String,
    "intervention": pl.Int32,
    "pair": pl.Int32,
    "answer_logit": pl.Float32,
    "counterfactual_logit": pl.Float32,
    "max_logit": pl.Float32,
    "mean_logit": pl.Float32,
    "answer_probability": pl.Float32,
    "counterfactual_probability": pl.Float32,
    "predicted": pl.Int32,
    "correct": pl.Boolean,
}
KINDS = ("neurons", "heads", "residual")  # of means


class RunsWork:
    """A table of interventions on one model. Weights are loaded only where units are done.

    bundles: the blocks of each unit; parts: what units write. Progress counts layer passes, since
    some runs of a table take many times as long as others.
    """

    counts, few = "layer pass", 50_000

    def __init__(self, table_of: str, name: str, pairs_table: str = "circuit/pairs"):
        self.subject = Subject.named(name)
        settings = self.subject.settings.runs or load(Runs)
        chapter, self.experiment = table_of.split("/")
        self.title = f"{self.experiment} {name}"
        table_path = self.subject.path(f"{chapter}/{self.experiment}_interventions.parquet")
        pairs_path = self.subject.path(f"{pairs_table}.parquet")
        self.inputs = [table_path, pairs_path]
        table, prompts = read_table(table_path), read_table(pairs_path)
        outline = checkpoint.outline(self.subject.settings)
        pairs.check(prompts, outline.architecture.vocabulary)
        wanted = interventions.read(table, outline.architecture, pairs.roles(prompts))
        table = table.cast({"replacement": pl.String})  # a column of nulls has another type
        positions = self._read_means({*table["replacement"]})
        self.given = Given.for_table(table, table_path)
        if self.given:
            self.inputs.append(self.given.path)
            self.given.check(wanted, outline.architecture)
        self.sizes = PassSizes(outline, settings.rows, settings.memory)
        self.blocks = self.sizes.plan(prompts, wanted, settings.runs_per_part)
        for block in self.blocks:
            patches = block.pairs, block.interventions
            replacing.check(*patches, positions, self.widths, self.given)
        self.bundles = bundled(self.blocks, settings.runs_per_part)
        passes = LayerPasses.for_model(outline.architecture)
        self.units = [_unit(bundle, passes) for bundle in self.bundles]
        weights = checkpoint.fingerprint(self.subject.settings.source)
        facts = (name, weights, self.subject.settings.dtype, settings)
        machine = environment.device(), environment.passes()
        key = digest([*self.inputs, model, slots, Path(__file__).parent], *facts, *machine)
        output = self.subject.path(f"{chapter}/runs/{self.experiment}.parquet")
        self.parts = Parts(output, key)

    def _read_means(self, replacements: set[str | None]) -> int:
        """Note where the means are and which slots they have; return how many positions.

        Without a mean among the replacements it is 0. Raises InterventionError if an operator's
        mean is missing.
        """
        self.means, self.widths = None, None
        wanted = sorted(interventions.MEANS.keys() & replacements)
        if not wanted:
            return 0
        self.means = self.subject.path("store/means.h5")
        self.inputs.append(self.means)
        self.widths = slots.widths(hdf5_store.read_attributes(self.means))
        check_operators(self.means, [interventions.MEANS[name] for name in wanted])
        return hdf5_store.read_array(self.means, "residual").shape[2]

    @cached_property
    def executor(self) -> Executor:
        """The loaded model, after a few interventions agreed with plain forward passes."""
        loaded = checkpoint.from_settings(self.subject.settings, threads=1, whole=True)
        self.parts.admit(checkpoint.parity_digest(loaded))
        executor = Executor(
            loaded,
            read_means(self.means) if self.means else None,
            self.sizes.most_rows,
            self.sizes.memory,
            widths=self.widths,
            given=self.given,
            remembered=shortcuts.kept(loaded, self.subject.settings.source),
        )
        parity_check.check(executor, self.blocks, self.parts.folder / "notes")
        return executor

    def missing(self) -> list[int]:
        return self.parts.missing(len(self.units))

    def do(self, number: int, report: Report = silent) -> None:
        executor = self.executor
        report(0)
        names = self.experiment, self.subject.name
        self.parts.write(number, rows(executor, self.bundles[number], *names, report))

    def finish(self) -> None:
        groups = [[number] for number in range(len(self.units))]
        self.parts.finish(groups, pl.DataFrame(schema=SCHEMA))


def _unit(bundle: Sequence[Block], passes: LayerPasses) -> Unit:
    """Return the unit of work of some blocks; units on the same pairs are one group."""
    first = bundle[0]
    name = f"interventions from {first.interventions[0].number} on"
    size = sum(passes.count(block.pairs, block.interventions) for block in bundle)
    return Unit(name, size, first.pairs.number.tobytes())


def read_means(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Read means.h5: replacement (see MEANS) -> kind -> means (layers, positions, …)."""
    arrays = {kind: hdf5_store.read_array(path, kind) for kind in KINDS}
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
    return hdf5_store.read_attributes(path).get("operators", "").split(", ")


def pooled(means: np.ndarray) -> np.ndarray:
    """Return means over operators, each with equal weight, as in the heuristics study.

    means: (operators, layers, positions, …), NaN where an operator has no token in a slot.
    """
    return np.nanmean(means, 0) if np.isnan(means).any() else means.mean(0)


def bundled(blocks: Sequence[Block], most: int) -> list[list[Block]]:
    """Group blocks that are written together.

    Consecutive blocks on a single pair each are grouped, up to `most` runs; any other block is
    alone.
    """
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
    """Return the rows of the table `runs` for some blocks.

    report: called with the layer passes of each batch.
    """
    passes = LayerPasses.for_model(executor.checkpoint.architecture)
    frames = []
    for block in blocks:
        for batch, measured in executor.run(block):
            frames.append(_frame(batch, block.pairs, measured))
            report(passes.count(block.pairs, batch))
    constants = {"subject": pl.lit(subject), "experiment": pl.lit(experiment)}
    columns = [pl.col(name).cast(kind) for name, kind in SCHEMA.items()]
    table = pl.concat(frames).with_columns(**constants).select(columns)
    return table.sort("intervention", "pair")


def _frame(
    batch: Sequence[interventions.Intervention], prompts: pairs.PromptPairs, measured: Measured
) -> pl.DataFrame:
    numbers = np.array([intervention.number for intervention in batch])
    return pl.DataFrame(
        {
            "intervention": np.repeat(numbers, len(prompts)),
            "pair": np.tile(prompts.number, len(batch)),
            **{name: values.ravel() for name, values in measured.stored().items()},
            "correct": (measured.predicted == prompts.answers).ravel(),
        }
    )


def main(*arguments: str) -> None:
    try:
        carry_out(RunsWork, *arguments)
    except interventions.InterventionError as error:
        raise SystemExit(f"{' '.join(arguments)}: {error}") from None


if __name__ == "__main__":
    main(*sys.argv[1:])
