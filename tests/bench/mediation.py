"""The benchmark of causal mediation: whole MLPs and attention blocks patched at every token of every prompt."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import torch

from stages.corpus.settings import Tasks
from stages.lib import ask
from stages.lib.core.settings import load
from stages.lib.executor.executor import Executor
from stages.lib.executor.interventions import Intervention, Patch
from stages.lib.executor.values import Values
from stages.lib.model import checkpoint, tokenizer
from stages.lib.model.architecture import patched
from stages.lib.settings import Runs
from stages.lib.subject import Subject
from tests.bench.timing import median

SUBJECT = "abacus"
EACH = 50  # pairs of a template and operator
EVERY = 7  # the plain way runs every so many-th intervention on whole groups of pairs,
SINGLE = 100  # and at most so many of those runs on one prompt
ROUNDS = 3

Run = tuple[Values, Intervention, slice]  # an intervention on some prompts of a group


def mediation() -> None:
    """The full arithmetic condition against one full forward pass per intervention and pair. Bar: 10 x, mean effects within 1e-5."""
    table, random = arithmetic(), np.random.default_rng(0)
    runner, exact = (_runner(dtype) for dtype in (None, "float64"))
    wanted = everything(
        len(runner.checkpoint.architecture.layers), int(table["tokens"].list.len().max())
    )  # type: ignore[arg-type]
    batched = sample(runner, table, wanted)
    prompts = [int(random.integers(len(values.pairs))) for values, _, _ in batched]
    single = [(*run[:2], slice(i, i + 1)) for run, i in zip(batched, prompts, strict=True)][
        :: len(batched) // SINGLE + 1
    ]
    fast, many, few = median(
        ROUNDS,
        lambda: shared(runner, table, wanted),
        lambda: [looped(*run) for run in batched],
        lambda: [looped(*run) for run in single],
    )
    said = shared(runner, table, wanted)
    runs, sizes = (
        int(np.isfinite(said[1:, 0]).sum()),
        [len(values.pairs) for values, _, _ in batched],
    )
    many, few = many / sum(sizes) * runs, few / len(single) * runs
    print(
        f"mediation: {len(table)} pairs, {len(wanted) - 1} interventions, {runs} runs: {fast:.1f} s"
    )
    print(
        f"mediation: a full forward pass each, one prompt at a time: {few:.0f} s, {few / fast:.0f} x (bar 10)"
    )
    print(
        f"mediation: a full forward pass each, up to {max(sizes)} prompts at a time: {many:.0f} s, {many / fast:.1f} x"
    )
    mean, largest = differences(said, plain(wanted, table, batched))
    itself = differences(plain(wanted, table, single), plain(wanted, table, batched))[1]
    print(
        f"mediation: mean effects differ by {mean:.0e} of 1 + |effect| (bar 1e-05), a pair's by {largest:.0e}"
    )
    print(f"mediation: a pair's by {itself:.0e} between forward passes of one and of many prompts")
    tenth = table.filter(pl.col("pair") % 10 == 0).with_columns(pair=pl.int_range(pl.len()))
    mean, largest = differences(
        shared(exact, tenth, wanted), plain(wanted, tenth, sample(exact, tenth, wanted))
    )
    print(
        f"mediation: in float64, on {len(tenth)} pairs, mean effects differ by {mean:.0e}, a pair's by {largest:.0e}"
    )


def _runner(dtype: str | None) -> Executor:
    settings, chosen = load(Runs), Subject.named(SUBJECT).settings
    loaded = checkpoint.of(chosen.model_copy(update={"dtype": dtype or chosen.dtype}))
    return Executor(loaded, None, settings.rows, settings.memory)


def arithmetic() -> pl.DataFrame:
    """The pairs of the condition "result varies", numbered from 0; before there is a table of them, pairs of random cells."""
    path = Path(f"data/{SUBJECT}/mediation/mediation_pairs.parquet")
    if path.exists():
        chosen = pl.read_parquet(path).filter(
            pl.col("task") == "arithmetic", pl.col("condition") == "result_varies"
        )
        return chosen.sort("pair").with_columns(pair=pl.int_range(pl.len()))
    cells, subject, templates = (
        pl.read_parquet("data/corpus/cells.parquet"),
        Subject.named(SUBJECT).settings,
        load(Tasks),
    )
    prompts, answers = [], []
    for (operator,), part in cells.sort("operator", "op1", "op2").group_by(
        "operator", maintain_order=True
    ):
        for number, template in enumerate(templates.arithmetic):
            drawn = part.select("op1", "op2", "result").sample(2 * EACH, seed=number)
            words = templates.operators[operator].model_dump()
            prompts += [template.format(x=x, y=y, **words) for x, y, _ in drawn.iter_rows()]
            answers += [str(result) for result in drawn["result"]]
    asked = ask.encode(tokenizer.load(subject.source), prompts, answers, subject.bos)
    columns: dict[str, Sequence] = {"pair": range(len(prompts) // 2)}
    for first, front in enumerate(("", "counterfactual_")):
        columns[f"{front}tokens"] = asked.sequences[first::2]
        columns[f"{front}answer_token"] = asked.answers[first::2]
        columns[f"{front}positions"] = [
            {"last": len(tokens) - 1} for tokens in asked.sequences[first::2]
        ]
    return pl.DataFrame(columns)


def everything(layers: int, places: int) -> list[Intervention]:
    """The clean run, and the counterfactual output of each MLP and each attention block at each place."""
    sites = [
        (part, layer, place)
        for part in ("mlp", "head")
        for layer in range(layers)
        for place in range(places)
    ]
    patches = [
        (Patch(part, layer, None, str(place), None, "counterfactual"),)
        for part, layer, place in sites
    ]
    return [
        Intervention(number, None, None, several) for number, several in enumerate([(), *patches])
    ]


def sample(runner: Executor, table: pl.DataFrame, wanted: Sequence[Intervention]) -> list[Run]:
    """Some interventions on all the pairs that have their places. Both clean runs are made here, and kept, at no one's cost."""
    groups = [Values(runner.checkpoint, pairs, None) for pairs in runner.sizes.groups(table)]
    for values in groups:
        _ = values.counterfactual
    some = [(one, one.patches[0].position) for one in wanted[1::EVERY]]
    return [
        (values, one, slice(None))
        for values in groups
        for one, place in some
        if place in values.positions
    ]


def looped(values: Values, one: Intervention, prompts: slice) -> np.ndarray:
    """One full forward pass with a hook: probabilities of both answers (2, prompts)."""
    [patch] = one.patches
    layer, other, at = (
        values.architecture.layers[patch.layer],
        values.counterfactual,
        int(patch.position),
    )
    module, source = (
        (layer.mlp_out, other.neurons)
        if patch.component == "mlp"
        else (layer.attention_out, other.heads)
    )

    def change(x: torch.Tensor) -> torch.Tensor:
        x[:, at] = source[patch.layer][prompts, at]
        return x

    with torch.no_grad(), patched(module, change):
        logits = values.checkpoint.model(
            input_ids=values.clean.tokens[prompts], use_cache=False, logits_to_keep=1
        ).logits[:, -1]
    return _probabilities(logits, values, prompts)


def _probabilities(logits: torch.Tensor, values: Values, prompts: slice) -> np.ndarray:
    answers = np.stack([values.pairs.answers, values.pairs.counterfactual_answers])[:, prompts]
    return np.take_along_axis(logits.double().softmax(-1).cpu().numpy(), answers.T, 1).T


def shared(runner: Executor, table: pl.DataFrame, wanted: Sequence[Intervention]) -> np.ndarray:
    """What the executor says: probabilities of both answers (interventions, 2, pairs), NaN where a pair lacks the place."""
    said = np.full((len(wanted), 2, len(table)), np.nan)
    for block in runner.plan(table, wanted):
        for batch, measured in runner.run(block):
            both = np.stack([measured.answer_probability, measured.counterfactual_probability], 1)
            said[np.ix_([one.number for one in batch], [0, 1], block.pairs.number)] = both
    return said


def plain(wanted: Sequence[Intervention], table: pl.DataFrame, runs: Sequence[Run]) -> np.ndarray:
    """What full forward passes say: as `shared`, NaN where none was run."""
    said = np.full((len(wanted), 2, len(table)), np.nan)
    for values, one, prompts in runs:
        said[0][:, values.pairs.number] = _probabilities(values.clean.logits, values, slice(None))
        said[one.number][:, values.pairs.number[prompts]] = looped(values, one, prompts)
    return said


def differences(said: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """The largest difference of effects where both say something, as a share of 1 + |effect|: of means over pairs, and of pairs."""
    known = np.isfinite(said[1:, 0]) & np.isfinite(other[1:, 0])
    mine, theirs = (np.where(known, effects(one), 0) for one in (said, other))
    pairs = (np.abs(mine - theirs) / (1 + np.abs(theirs))).max()
    mine, theirs = (one.sum(1)[known.any(1)] / known.sum(1)[known.any(1)] for one in (mine, theirs))
    return float((np.abs(mine - theirs) / (1 + np.abs(theirs))).max()), float(pairs)


def effects(said: np.ndarray) -> np.ndarray:
    """The study's indirect effects (interventions but the first, pairs), the first one being the clean run."""
    clean, changed = said[0], said[1:]
    return ((changed[:, 1] - clean[1]) / clean[1] + (clean[0] - changed[:, 0]) / changed[:, 0]) / 2
