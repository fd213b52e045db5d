"""Whether the device computes what it should: against the processor, and against float32."""

import copy
import math
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from stages.lib.executor import given, naive, runs, whole
from stages.lib.executor.executor import Executor
from stages.lib.executor.interventions import (
    ALL,
    COMPONENTS,
    EARLIER,
    REPLACEABLE,
    REPLACEMENTS,
    Intervention,
    Patch,
)
from stages.lib.executor.pairs import PromptPairs, by_length
from stages.lib.executor.values import Values
from stages.lib.model.architecture import Architecture
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.float64 import widen
from stages.store import grid
from tests.bench.gpu.report import Report, free
from tests.bench.gpu.shapes import (
    SMALL,
    Shape,
    grid_of_prompts,
    pair_table,
    random_model,
    with_parts,
)

ROWS, MEMORY = 4000, 4 << 30  # of a pass of the small model, and of the one in bfloat16
PAIRS = 4  # of the small model
GIVEN = {"mlp": "neurons", "neuron": "neurons", "residual": "residual"}  # component -> array
Means = Mapping[str, Mapping[str, np.ndarray]]


def small(report: Report, device: str) -> None:
    """The same model in float64 on the processor and on the device: a dump, and every patch."""
    model = random_model("llama", SMALL, "cpu", torch.float64)
    for parameter in model.parameters():  # so large that every part matters
        scale = 0.3 if parameter.ndim > 1 else 0.1
        parameter.data = torch.randn_like(parameter) * scale + (parameter.ndim == 1)
    twin = copy.deepcopy(model).to(torch.device(device))
    both = [with_parts(widen(each)) for each in (model, twin)]
    report.attempt("dump", lambda: _compare_dumps(report, *both))
    report.attempt("runs", lambda: _compare_runs(report, *both))


def _compare_dumps(report: Report, on_cpu: Checkpoint, on_device: Checkpoint) -> None:
    (expected, expected_sums), (stored, stored_sums) = map(_dump, (on_cpu, on_device))
    different = sum(int((stored[name] != expected[name]).sum()) for name in expected)
    total = sum(array.size for array in expected.values())
    report.figure("dump: stored numbers that differ", different, f"of {total}")
    off = max(_distance(stored_sums[name], expected_sums[name]) for name in expected_sums)
    report.figure("dump: sums of components, difference", off)


def _dump(loaded: Checkpoint) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Activations and predictions as they are stored, and sums of every component."""
    a = loaded.architecture
    tokens = grid_of_prompts(a.vocabulary, 6, 10)
    blocks = {i: np.empty((a.neurons, 6, 10), np.float16) for i in range(len(a.layers))}
    sums = grid.Means.zeros(loaded, 5)
    answers = np.full((6, 10), 7)
    way = grid.sharing(loaded, tokens)
    predictions = list(grid.run(loaded, tokens, answers, 4, blocks, sums, sharing=way))
    fields = predictions[0].__dataclass_fields__
    arrays = {f: np.concatenate([getattr(part, f) for part in predictions]) for f in fields}
    arrays |= {f"layer {layer}": block for layer, block in blocks.items()}
    return arrays, {name: getattr(sums, name) for name in grid.SUMS}


def _compare_runs(report: Report, on_cpu: Checkpoint, on_device: Checkpoint) -> None:
    a = on_cpu.architecture
    table, means = pair_table(a.vocabulary, PAIRS), random_means(a)
    last = len(a.layers) - 1
    interventions = numbered(patches(a, 0, ("op2", "3", ALL)) + patches(a, last, ("last", ALL)))
    with tempfile.TemporaryDirectory() as folder:
        store = given_store(Path(folder), a, table)
        executor = Executor(on_cpu, means, ROWS, MEMORY, given=store)
        expected = runs.rows(executor, executor.plan(table, interventions), "bench", "small")
        executor = Executor(on_device, means, ROWS, MEMORY, given=store)
        stored = runs.rows(executor, executor.plan(table, interventions), "bench", "small")
        measures = [name for name in expected.columns if name not in ("subject", "experiment")]
        different = {name: int((expected[name] != stored[name]).sum()) for name in measures}
        differing = {name: number for name, number in different.items() if number}
        total = len(expected) * len(measures)
        report.figure(
            "runs: stored numbers that differ", sum(different.values()), f"of {total}",
            kinds=len(kinds(interventions)), **differing,
        )  # fmt: skip
        off = _against_hooks(executor, table, interventions)
        report.figure("runs: difference from naive passes", off)


def _against_hooks(
    executor: Executor,
    table: pl.DataFrame,
    interventions: list[Intervention],
) -> float:
    """The largest relative difference from naive forward passes on the device, over all kinds."""
    [pairs] = by_length(table.head(2), 2)
    values = executor.fresh(pairs)
    distances = []
    for first in kinds(interventions).values():
        plain = naive.logits(values, first)
        distances.append(_distance(executor.logits(values, first), plain))
    return max(distances)


def large(report: Report, loaded: Checkpoint, shape: Shape, device: str) -> None:
    """The shape in bfloat16 against the same weights in float32: restarted runs, and whole forward
    passes with hooks, each by its distance from float32, ‖x - y‖ / ‖y‖ of the logits."""
    reference = in_float32(loaded, shape, device)
    a = loaded.architecture
    table = pair_table(a.vocabulary, shape.checked)
    [pairs] = by_length(table, shape.checked)
    middle = len(a.layers) // 2
    interventions = numbered(patches(a, middle, ("op2", "last")))
    with tempfile.TemporaryDirectory() as folder:
        store = given_store(Path(folder), a, table)
        wide = Values(reference, pairs, None, given=store)
        means = observed_means(wide)
        wide = Values(reference, pairs, means, given=store)
        executor = Executor(loaded, means, ROWS, MEMORY, given=store)
        _clean(report, executor, pairs, wide)
        by_component: dict[str, list[Intervention]] = {}
        for intervention in kinds(interventions).values():
            component = intervention.patches[0].component
            by_component.setdefault(component, []).append(intervention)
        for component, several in by_component.items():
            name = f"{component} patched: restart, from float32"
            report.attempt(name, lambda s=several, n=name: _distances(report, n, executor, wide, s))


def _clean(report: Report, executor: Executor, pairs: PromptPairs, wide: Values) -> None:
    """Without any patch, and whether the restarts of this model hold at all."""
    values = executor.values(pairs)
    off = _distance(values.clean.logits, wide.clean.logits)
    report.figure("no patch: forward pass, from float32", off, restarts=str(executor.restarts))


def _distances(
    report: Report,
    name: str,
    executor: Executor,
    wide: Values,
    several: list[Intervention],
) -> None:
    """The mean distances of one component's kinds of patches."""
    values = executor.values(wide.pairs)
    fast, plain = [], []
    for intervention in several:
        wide.prepare(intervention.patches)
        values.prepare(intervention.patches)
        exact = whole.logits(wide, [intervention])[0]
        fast.append(_distance(executor.logits(values, intervention), exact))
        plain.append(_distance(whole.logits(values, [intervention])[0], exact))
    report.figure(
        name, statistics.mean(fast), forward_pass=statistics.mean(plain),
        ratio=sum(fast) / (sum(plain) or 1.0), worst=max(fast), worst_forward_pass=max(plain),
        kinds=len(several),
    )  # fmt: skip


def in_float32(loaded: Checkpoint, shape: Shape, device: str) -> Checkpoint:
    """The same weights in float32."""
    model = random_model(shape.family, shape.sizes, device, torch.float32)
    for wide, narrow in zip(model.parameters(), loaded.model.parameters(), strict=True):
        wide.data.copy_(narrow.data)
    free()
    return with_parts(model)


def patches(a: Architecture, layer: int, positions: tuple[str, ...]) -> list[Patch]:
    """Every component, all of its units, one, or some, with every replacement it can have."""
    several = {"neuron": a.neurons, "coordinate": a.width, "head": a.heads}
    listed = []
    for component in COMPONENTS[1:]:
        units: list[Any] = [None]
        if component in several:
            units += [_packed([1]), _packed([0, several[component] - 1])]
        for replacement in REPLACEABLE.get(component, REPLACEMENTS):
            for position in positions:
                for chosen_units in units:
                    listed += _patch(component, layer, chosen_units, position, replacement)
    return listed


def _patch(
    component: str,
    layer: int,
    units: bytes | None,
    position: str,
    replacement: str,
) -> list[Patch]:
    """The patch, or two for both kinds of attention edges; none where there is no such patch."""
    if component == "edge":
        keys = () if position == ALL else ("op1", EARLIER)
        edges = [(key, heads) for key in keys for heads in (None, _packed([1]))]
        return [Patch("edge", layer, heads, position, key, "zero") for key, heads in edges]
    if replacement == "given" and position == ALL:
        return []
    name = GIVEN[component] if replacement == "given" else None
    return [Patch(component, layer, units, position, None, replacement, name)]


def _packed(units: list[int]) -> bytes:
    return np.array(units, np.int32).tobytes()


def numbered(listed: list[Patch]) -> list[Intervention]:
    return [Intervention(number, None, None, (patch,)) for number, patch in enumerate(listed)]


def kinds(interventions: list[Intervention]) -> dict[tuple, Intervention]:
    """The first intervention of each component, replacement, kind of position and of units."""
    firsts: dict[tuple, Intervention] = {}
    for intervention in interventions:
        [patch] = intervention.patches
        units = len(patch.units or b"") // 4
        kind = patch.component, patch.replacement, patch.position == ALL, patch.key_position, units
        firsts.setdefault(kind, intervention)
    return firsts


def given_store(folder: Path, a: Architecture, table: pl.DataFrame) -> given.Given:
    """Random values that a table of interventions brings along."""
    path, random = folder / "given.h5", np.random.default_rng(3)
    widths = {"neurons": a.neurons, "residual": a.width}
    arrays = {n: random.standard_normal((len(table), width)) for n, width in widths.items()}
    given.write(path, table["pair"].to_numpy(), arrays)
    return given.Given(path)


def random_means(a: Architecture) -> Means:
    """Means of every operator, and over operators, at five positions."""
    random, size = np.random.default_rng(7), (len(a.layers), 5)
    shapes = {"neurons": (a.neurons,), "heads": (a.heads, a.head_width), "residual": (a.width,)}
    return {
        replacement: {kind: random.standard_normal((*size, *s)) for kind, s in shapes.items()}
        for replacement in REPLACEMENTS
        if replacement.startswith("mean")
    }


def observed_means(values: Values) -> Means:
    """Means over the clean prompts, the same for all operators."""
    a, clean = values.architecture, values.clean
    layers = range(len(a.layers))
    heads = [clean.heads[i].unflatten(-1, (a.heads, a.head_width)) for i in layers]
    kinds_of = {"neurons": clean.neurons, "heads": heads, "residual": clean.streams[: len(layers)]}
    means = {k: np.stack([x.mean(0).cpu().numpy() for x in v]) for k, v in kinds_of.items()}
    return {name: means for name in REPLACEMENTS if name.startswith("mean")}


def _distance(x: Any, y: Any) -> float:
    """‖x - y‖ / ‖y‖ in float64, ‖x‖ where y is 0; infinite where x or y holds a NaN."""
    wide_x, wide_y = (torch.as_tensor(v).to("cpu", torch.float64) for v in (x, y))
    off = float((wide_x - wide_y).norm() / (wide_y.norm() or 1.0))
    return float("inf") if math.isnan(off) else off
