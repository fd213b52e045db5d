"""Benchmark causal mediation: whole MLPs and attention blocks patched at every token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import polars as pl
import torch

from stages.lib.core.settings import load
from stages.lib.executor.executor import Executor
from stages.lib.executor.interventions import Intervention, Patch
from stages.lib.executor.values import Values
from stages.lib.model import checkpoint
from stages.lib.model.architecture import patched
from stages.lib.settings import Runs
from stages.lib.subject import Subject
from tests.bench.timing import median

SUBJECT = "abacus"
EVERY = 7  # the plain way runs every 7th intervention on whole groups of pairs,
SINGLE = 100  # and at most so many of those runs on one prompt
ROUNDS = 3


@dataclass(frozen=True)
class Run:
    """An intervention on some prompts of a group of pairs."""

    values: Values
    intervention: Intervention
    prompts: slice


def mediation() -> None:
    """Compare the full arithmetic condition with one forward pass per intervention and pair.

    Bars: 10 x, mean effects within 1e-5.
    """
    table, random = arithmetic(), np.random.default_rng(0)
    runner, exact = _runner(None), _runner("float64")
    longest = int(table["tokens"].list.len().max())  # type: ignore[arg-type]
    interventions = everything(len(runner.checkpoint.architecture.layers), longest)
    batched = sample(runner, table, interventions)
    sizes = [len(run.values.pairs) for run in batched]
    single = []
    for run, prompt in zip(batched, random.integers(sizes).tolist(), strict=True):
        single.append(replace(run, prompts=slice(prompt, prompt + 1)))
    single = single[:: len(batched) // SINGLE + 1]
    fast, many, few = median(
        ROUNDS,
        lambda: swept(runner, table, interventions),
        lambda: list(map(looped, batched)),
        lambda: list(map(looped, single)),
    )
    probabilities = swept(runner, table, interventions)
    runs = int(np.isfinite(probabilities[1:, 0]).sum())
    many, few = many / sum(sizes) * runs, few / len(single) * runs
    size = f"{len(table)} pairs, {len(interventions) - 1} interventions, {runs} runs"
    _report(f"{size}: {fast:.1f} s")
    each = "a full forward pass each"
    _report(f"{each}, one prompt at a time: {few:.0f} s, {few / fast:.0f} x (bar 10)")
    at_once = f"up to {max(sizes)} prompts at a time"
    _report(f"{each}, {at_once}: {many:.0f} s, {many / fast:.1f} x")
    plain = by_passes(interventions, table, batched)
    mean, largest = differences(probabilities, plain)
    share = "of 1 + |effect| (bar 1e-05)"
    _report(f"mean effects differ by {mean:.0e} {share}, a pair's by {largest:.0e}")
    largest = differences(by_passes(interventions, table, single), plain)[1]
    _report(f"a pair's by {largest:.0e} between forward passes of one and of many prompts")
    tenth = table.filter(pl.col("pair") % 10 == 0).with_columns(pair=pl.int_range(pl.len()))
    plain = by_passes(interventions, tenth, sample(exact, tenth, interventions))
    mean, largest = differences(swept(exact, tenth, interventions), plain)
    figure = f"mean effects differ by {mean:.0e}, a pair's by {largest:.0e}"
    _report(f"in float64, on {len(tenth)} pairs, {figure}")


def _report(figure: str) -> None:
    print(f"mediation: {figure}")


def _runner(dtype: str | None) -> Executor:
    """Return an executor of the subject's model, in its own or another dtype."""
    settings, subject = load(Runs), Subject.named(SUBJECT).settings
    loaded = checkpoint.from_settings(subject.model_copy(update={"dtype": dtype or subject.dtype}))
    return Executor(loaded, None, settings.rows, settings.memory)


def arithmetic() -> pl.DataFrame:
    """Return the pairs of the condition "result varies", numbered from 0."""
    pairs = Subject.named(SUBJECT).table("mediation/mediation_pairs.parquet")
    some = pairs.filter(task="arithmetic", condition="result_varies")
    return some.sort("pair").with_columns(pair=pl.int_range(pl.len()))


def everything(layers: int, positions: int) -> list[Intervention]:
    """Return the clean run, and each MLP's and attention block's counterfactual everywhere."""
    interventions = [Intervention(0, None, None, ())]
    for part, layer, position in product(("mlp", "head"), range(layers), range(positions)):
        patch = Patch(part, layer, None, str(position), None, "counterfactual")
        interventions.append(Intervention(len(interventions), None, None, (patch,)))
    return interventions


def sample(
    runner: Executor, table: pl.DataFrame, interventions: Sequence[Intervention]
) -> list[Run]:
    """Return some interventions on all the pairs that have their positions.

    Both clean runs are made here, so that no measurement includes them.
    """
    runs = []
    for pairs in runner.sizes.groups(table):
        values = Values(runner.checkpoint, pairs, None)
        _ = values.counterfactual
        for intervention in interventions[1::EVERY]:
            if intervention.patches[0].position in values.positions:
                runs.append(Run(values, intervention, slice(None)))
    return runs


def looped(run: Run) -> np.ndarray:
    """Return probabilities of both answers (2, prompts) by one full forward pass with a hook."""
    [patch] = run.intervention.patches
    layer = run.values.architecture.layers[patch.layer]
    other, at = run.values.counterfactual, int(patch.position)
    module, source = layer.attention_out, other.heads
    if patch.component == "mlp":
        module, source = layer.mlp_out, other.neurons

    def change(x: torch.Tensor) -> torch.Tensor:
        x[:, at] = source[patch.layer][run.prompts, at]
        return x

    tokens = run.values.clean.tokens[run.prompts]
    with torch.no_grad(), patched(module, change):
        out = run.values.checkpoint.model(input_ids=tokens, use_cache=False, logits_to_keep=1)
    return _probabilities(out.logits[:, -1], run.values, run.prompts)


def _probabilities(logits: torch.Tensor, values: Values, prompts: slice) -> np.ndarray:
    answers = np.stack([values.pairs.answers, values.pairs.counterfactual_answers])[:, prompts]
    return np.take_along_axis(logits.double().softmax(-1).cpu().numpy(), answers.T, 1).T


def swept(
    runner: Executor, table: pl.DataFrame, interventions: Sequence[Intervention]
) -> np.ndarray:
    """Return the executor's probabilities of both answers (interventions, 2, pairs).

    They are NaN where a pair lacks the position.
    """
    probabilities = np.full((len(interventions), 2, len(table)), np.nan)
    for block in runner.plan(table, interventions):
        for batch, measured in runner.run(block):
            both = np.stack([measured.answer_probability, measured.counterfactual_probability], 1)
            numbers = [intervention.number for intervention in batch]
            probabilities[np.ix_(numbers, [0, 1], block.pairs.number)] = both
    return probabilities


def by_passes(
    interventions: Sequence[Intervention], table: pl.DataFrame, runs: Sequence[Run]
) -> np.ndarray:
    """Return the probabilities of full forward passes as `swept` does, NaN where none was run."""
    probabilities = np.full((len(interventions), 2, len(table)), np.nan)
    for run in runs:
        values, pairs = run.values, run.values.pairs.number
        clean = _probabilities(values.clean.logits, values, slice(None))
        probabilities[0][:, pairs] = clean
        probabilities[run.intervention.number][:, pairs[run.prompts]] = looped(run)
    return probabilities


def differences(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Return the largest differences of mean effects and of pairs' effects.

    They are shares of 1 + |effect|, where both probabilities are known.
    """
    known = np.isfinite(first[1:, 0]) & np.isfinite(second[1:, 0])
    first, second = np.where(known, effects(first), 0), np.where(known, effects(second), 0)
    some = known.any(1)
    counts = known.sum(1)[some]
    means = _largest(first.sum(1)[some] / counts, second.sum(1)[some] / counts)
    return means, _largest(first, second)


def _largest(first: np.ndarray, second: np.ndarray) -> float:
    return float((np.abs(first - second) / (1 + np.abs(second))).max())


def effects(probabilities: np.ndarray) -> np.ndarray:
    """Return the study's indirect effects (interventions but the first, pairs).

    The first intervention is the clean run.
    """
    clean, changed = probabilities[0], probabilities[1:]
    return ((changed[:, 1] - clean[1]) / clean[1] + (clean[0] - changed[:, 0]) / changed[:, 0]) / 2
