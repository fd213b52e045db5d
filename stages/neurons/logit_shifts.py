"""Shift a neuron's activation by its standard deviation, and measure the logits of all numbers.

What a neuron promotes is usually read from its value vector and the unembedding (`value_logits`).
This stage measures it instead, after all later layers. Each neuron of `shifted_neurons` is shifted
up and down at the last position, alone, on a few evaluation prompts. Later layers respond to the
shift; everything before it, and all other positions, stay as they are.

Table logit_shifts: changes of all numbers' logits by one standard deviation of a neuron
    subject        VARCHAR   the model
    operator       VARCHAR   operator of the prompts: add, subtract, multiply or divide
    layer          SMALLINT  decoder layer, from 0
    neuron         INTEGER   neuron of the layer's MLP, from 0
    std            DOUBLE    size of the shift: standard deviation of the activation over the
                             operator's cells
    prompts        INTEGER   number of evaluation prompts
    scale          DOUBLE    mean factor of the final norm on these prompts, 1 / root mean square of
                             the last residual stream
    changes        FLOAT[]   change of each number's logit, from number 0: half the difference
                             between a shift up and a shift down, above its mean over numbers; mean
                             over prompts, in logits
    mean_square    FLOAT     mean square of the changes on single prompts, over numbers and prompts
    linearity      FLOAT     correlation over numbers of the changes by a shift up and a shift down,
                             -1 to 1; 1 if the logits are linear in the activation, null without any
                             change
    answer_change  FLOAT     change of the prompt's answer above the mean over numbers; mean over
                             prompts, in logits
"""

import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch.nn.functional import linear

from stages.lib import executor, model
from stages.lib.core import environment
from stages.lib.core.digest import digest
from stages.lib.core.settings import load
from stages.lib.executor import parity_check, shortcuts
from stages.lib.executor.blocks import Block, PassSizes
from stages.lib.executor.executor import Executor
from stages.lib.executor.external_values import Given
from stages.lib.executor.interventions import Intervention, Patch
from stages.lib.executor.layer_passes import LayerPasses
from stages.lib.executor.pairs import PromptPairs
from stages.lib.executor.rank_one import Moved, full_stream
from stages.lib.executor.values import Values
from stages.lib.model import checkpoint
from stages.lib.model.architecture import out_of
from stages.lib.model.norms import epsilon
from stages.lib.model.value_logits import centres
from stages.lib.settings import Runs
from stages.lib.subject import Subject
from stages.lib.units.parts import Parts
from stages.lib.units.pool import Report, silent
from stages.lib.units.queue import Unit
from stages.lib.units.work import carry_out
from stages.neurons.rounding import in_steps
from stages.neurons.settings import CausalVotes

SCHEMA: dict[str, Any] = {
    "subject": pl.String,
    "operator": pl.String,
    "layer": pl.Int16,
    "neuron": pl.Int32,
    "std": pl.Float64,
    "prompts": pl.Int32,
    "scale": pl.Float64,
    "changes": pl.List(pl.Float32),
    "mean_square": pl.Float32,
    "linearity": pl.Float32,
    "answer_change": pl.Float32,
}
UP, DOWN = "up", "down"


class Shifts(Given):
    """External values: the clean activations at the last position, each shifted up or down."""

    def __init__(self) -> None:
        self.path, self.rows = Path(), dict[int, int]()
        self.arrays: dict[tuple[int, str | None], np.ndarray] = {}

    def fill(self, values: Values, layer: int, sizes: np.ndarray) -> None:
        """Shift the clean activations of a layer.

        values: of the prompts; sizes: (neurons,) of the shifts.
        """
        clean = values.clean.neurons[layer][:, -1].double().cpu().numpy()
        self.arrays[layer, UP] = clean + sizes
        self.arrays[layer, DOWN] = clean - sizes
        self.rows = {number: row for row, number in enumerate(values.pairs.number.tolist())}

    def values(self, patch: Patch, pairs: np.ndarray) -> np.ndarray:
        return self.arrays[patch.layer, patch.given][self.rows_of(pairs)]


class NumberExecutor(Executor):
    """An executor that computes the logits of a few tokens alone, once they are set."""

    tokens: torch.Tensor | None = None

    @torch.no_grad()
    def token_logits(
        self, values: Values, interventions: Sequence[Intervention]
    ) -> Iterator[torch.Tensor]:
        """Yield logits of the set tokens, (interventions, prompts, tokens), of some at a time.

        interventions: each a patch of one neuron at the last position, and all alike.
        """
        assert self.tokens is not None
        patches = list(interventions[0].patches)
        values.prepare(patches)
        start = self._start(values, patches)
        size = self._copies(values.pairs, patches, start)
        for first in range(0, len(interventions), size):
            pieces, copies = self._logits(values, interventions[first : first + size], start)
            logits = torch.cat(list(pieces))[copies].double()
            yield logits if self.restarts else logits[..., self.tokens]

    def _unembedded(self, stream: torch.Tensor | Moved, copies: int) -> Iterator[torch.Tensor]:
        if self.tokens is None:
            return super()._unembedded(stream, copies)
        a = self.checkpoint.architecture
        last = a.final_norm(full_stream(stream)[:, :, -1])
        weight, bias = out_of(a.unembedding)[self.tokens], getattr(a.unembedding, "bias", None)
        logits = linear(last, weight, None if bias is None else bias[self.tokens])
        return iter([a.head(logits) if a.head else logits])


class Totals:
    """Sums over prompts of what shifts of some neurons change.

    rises, falls: (neurons, numbers) changes by a shift up, and from a shift down; squares,
    answers: (neurons,).
    """

    def __init__(self, neurons: int, numbers: int):
        self.prompts = 0
        self.rises, self.falls = np.zeros((2, neurons, numbers))
        self.squares, self.answers = np.zeros((2, neurons))

    def add(self, first: int, rises: np.ndarray, falls: np.ndarray, answers: np.ndarray) -> None:
        """Add the neurons from `first` on.

        rises, falls: (neurons, prompts, numbers), above their mean over numbers; answers:
        (prompts,) the number that is each prompt's answer.
        """
        part = slice(first, first + len(rises))
        changes = (rises + falls) / 2
        self.rises[part] += rises.sum(1)
        self.falls[part] += falls.sum(1)
        self.squares[part] += np.square(changes).mean(-1).sum(1)
        self.answers[part] += changes[:, np.arange(len(answers)), answers].sum(1)

    def columns(self) -> dict[str, np.ndarray]:
        """Return the columns of the table that are measured."""
        count = max(self.prompts, 1)
        product = (self.rises * self.falls).sum(-1)
        lengths = np.square(self.rises).sum(-1) * np.square(self.falls).sum(-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            linearity = product / np.sqrt(lengths)
        return {
            "prompts": np.full(len(self.squares), self.prompts),
            "changes": in_steps((self.rises + self.falls) / 2 / count),
            "mean_square": in_steps(self.squares[:, None] / count)[:, 0],
            "linearity": np.round(linearity, 5),
            "answer_change": in_steps(self.answers[:, None] / count)[:, 0],
        }


class LogitShiftsWork:
    """The shifts of one model's neurons. A unit is some neurons of a layer, for an operator."""

    counts, few = "layer pass", 50_000

    def __init__(self, name: str):
        self.subject = Subject.named(name)
        settings, shown = self.subject.settings.runs or load(Runs), load(CausalVotes)
        self.title = f"logit shifts {name}"
        neurons = self.subject.table("neurons/shifted_neurons.parquet")
        pairs = self.subject.table("circuit/pairs.parquet")
        numbers = self.subject.table("store/numbers.parquet").sort("number")
        self.tokens = numbers["token"].to_numpy().astype(np.int64)
        self.sizes = PassSizes(
            checkpoint.outline(self.subject.settings), settings.rows, settings.memory
        )
        self.groups: dict[str, list[PromptPairs]] = {}
        for operator, own in prompts(pairs, shown.vote_prompts).items():
            self.groups[operator] = self.sizes.groups(own)
        shifted = neurons.filter(pl.col("operator").is_in([*self.groups]))
        most = max(1, settings.runs_per_part // (2 * shown.vote_prompts))
        self.bundles: list[pl.DataFrame] = []
        keys = ["operator", "layer"]
        for layer in shifted.sort(*keys, "neuron").partition_by(*keys, maintain_order=True):
            self.bundles += layer.iter_slices(most)
        self.units = list(map(self._unit, self.bundles))
        files = ("neurons/shifted_neurons", "circuit/pairs", "store/numbers")
        inputs = [self.subject.path(f"{file}.parquet") for file in files]
        weights = checkpoint.fingerprint(self.subject.settings.source)
        facts = (name, weights, self.subject.settings.dtype, settings, shown)
        machine = environment.device(), environment.passes()
        code = model, executor, Path(__file__)
        key = digest([*inputs, *code], *facts, *machine)
        self.parts = Parts(self.subject.path("neurons/logit_shifts.parquet"), key)

    @cached_property
    def executor(self) -> NumberExecutor:
        """The loaded model, after a few shifts agreed with plain forward passes."""
        loaded = checkpoint.from_settings(self.subject.settings, threads=1, whole=True)
        self.parts.admit(checkpoint.parity_digest(loaded))
        pairs = next(iter(self.groups.values()))
        return checked_executor(
            loaded,
            self.sizes,
            self.tokens,
            pairs,
            self.bundles,
            notes=self.parts.folder / "notes",
            remembered=shortcuts.kept(loaded, self.subject.settings.source),
        )

    def _unit(self, bundle: pl.DataFrame) -> Unit:
        operator, layer = bundle.select("operator", "layer").row(0)
        passes = LayerPasses.for_model(self.sizes.checkpoint.architecture, len(self.tokens))
        shifted = interventions(layer, bundle["neuron"].to_list(), UP)
        size = 2 * sum(passes.count(pairs, shifted) for pairs in self.groups[operator])
        return Unit(f"neurons of layer {layer}, {operator}", size, operator.encode())

    def missing(self) -> list[int]:
        return self.parts.missing(len(self.units))

    def do(self, number: int, report: Report = silent) -> None:
        runner, bundle = self.executor, self.bundles[number]
        report(0)
        measured = shifts(runner, bundle, self.groups[bundle["operator"][0]], report)
        rows = bundle.with_columns(measured).select(list(SCHEMA))
        self.parts.write(number, rows.cast(SCHEMA))  # type: ignore[arg-type]

    def finish(self) -> None:
        groups = [[number] for number in range(len(self.units))]
        self.parts.finish(groups, pl.DataFrame(schema=SCHEMA))


def prompts(pairs: pl.DataFrame, most: int) -> dict[str, pl.DataFrame]:
    """Return each operator's first evaluation prompts, in the random order of `pairs`."""
    own = pairs.filter(split="evaluation").sort("pair")
    own = own.unique(["operator", "op1", "op2"], keep="first", maintain_order=True)
    first = own.group_by("operator", maintain_order=True).head(most)
    return {rows["operator"][0]: rows for rows in first.partition_by("operator")}


def checked_executor(
    loaded: checkpoint.Checkpoint,
    sizes: PassSizes,
    tokens: np.ndarray,
    groups: Sequence[PromptPairs],
    bundles: Sequence[pl.DataFrame],
    *,
    notes: Path | None = None,
    remembered: Path | None = None,
) -> NumberExecutor:
    """Return an executor of these tokens, after a few shifts agreed with plain forward passes.

    notes: see parity_check.check; remembered: see Executor. Raises ParityError if they do not
    agree.
    """
    given = Shifts()
    runner = NumberExecutor(
        loaded, None, sizes.most_rows, sizes.memory, given=given, remembered=remembered
    )
    pairs, blocks = groups[0], []
    for number, bundle in enumerate(bundles):
        layer, patched = _layer_sizes(loaded, bundle)
        given.fill(runner.values(pairs), layer, patched)
        [intervention] = interventions(layer, bundle["neuron"].to_list()[:1], UP)
        blocks.append(Block(pairs, (Intervention(number, None, None, intervention.patches),)))
    parity_check.check(runner, blocks, notes)
    runner.tokens = torch.from_numpy(tokens).to(loaded.model.device)
    return runner


def _layer_sizes(loaded: checkpoint.Checkpoint, bundle: pl.DataFrame) -> tuple[int, np.ndarray]:
    """Return the layer of some neurons, and the shifts of all its neurons, 0 if not listed."""
    sizes = np.zeros(loaded.architecture.neurons)
    sizes[bundle["neuron"].to_numpy()] = bundle["std"].to_numpy()
    return bundle["layer"][0], sizes


def interventions(layer: int, neurons: Sequence[int], side: str) -> list[Intervention]:
    """Return one intervention per neuron, which shifts it at the last position. side: UP or DOWN.

    Up and down are not mixed, so that the executor can sweep over the neurons.
    """
    patched = []
    for number, neuron in enumerate(neurons):
        units = np.array([neuron], np.int32).tobytes()
        patch = Patch("neuron", layer, units, "last", None, "given", side)
        patched.append(Intervention(number, None, None, (patch,)))
    return patched


def shifts(
    runner: NumberExecutor,
    bundle: pl.DataFrame,
    groups: Sequence[PromptPairs],
    report: Report = silent,
) -> list[pl.Series]:
    """Return the measured columns for some neurons of one layer, on groups of prompts.

    report: called with the layer passes of each batch.
    """
    assert runner.tokens is not None
    layer, sizes = _layer_sizes(runner.checkpoint, bundle)
    tokens, neurons = runner.tokens.cpu().numpy(), bundle["neuron"].to_list()
    passes = LayerPasses.for_model(runner.checkpoint.architecture, len(tokens))
    totals, scales = Totals(len(neurons), len(tokens)), list[np.ndarray]()
    for pairs in groups:
        values = runner.values(pairs)
        runner.given.fill(values, layer, sizes)  # type: ignore[union-attr, attr-defined]
        clean = values.clean.logits[:, runner.tokens].double().cpu().numpy()
        answers = np.searchsorted(tokens, pairs.answers, sorter=np.argsort(tokens))
        answers = np.argsort(tokens)[answers]
        first = 0
        sides = [interventions(layer, neurons, side) for side in (UP, DOWN)]
        runs = [runner.token_logits(values, side) for side in sides]
        for up, down in zip(*runs, strict=True):
            rises = _centred(up.cpu().numpy() - clean)
            falls = _centred(clean - down.cpu().numpy())
            totals.add(first, rises, falls, answers)
            shifted = slice(first, first + len(rises))
            report(sum(passes.count(pairs, side[shifted]) for side in sides))
            first = shifted.stop
        totals.prompts += len(pairs)
        scales.append(norm_factors(runner.checkpoint, values.clean.streams[-1][:, -1]))
    scale = np.round(np.concatenate(scales).mean(), 9)
    columns = [pl.Series("scale", np.full(len(neurons), scale))]
    for name, column in totals.columns().items():
        columns.append(pl.Series(name, column, nan_to_null=column.ndim == 1))
    return columns


def _centred(changes: np.ndarray) -> np.ndarray:
    return changes - changes.mean(-1, keepdims=True)


def norm_factors(loaded: checkpoint.Checkpoint, stream: torch.Tensor) -> np.ndarray:
    """Return the final norm's factor, besides its gain, for each prompt: (prompts,).

    stream: (prompts, width).
    """
    norm, x = loaded.architecture.final_norm, stream.double()
    if centres(norm, stream):
        x = x - x.mean(-1, keepdim=True)
    # the gain in value logits is measured on a mean square of 1, which the norm divides by, too
    small = epsilon(norm) or 0.0
    return ((1 + small) / (x.square().mean(-1) + small)).sqrt().cpu().numpy()


def main(name: str) -> None:
    carry_out(LogitShiftsWork, name)


if __name__ == "__main__":
    main(sys.argv[1])
