"""Compare what the device computes with the processor, and with float32."""

import copy
import math
import statistics
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from stages.lib.executor import external_values, naive, runs, whole
from stages.lib.executor.executor import Executor
from stages.lib.executor.interventions import (
    ALL,
    COMPONENTS,
    EARLIER,
    MEANS,
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
    """Compare one model in float64 on the processor and on the device: a dump, every patch."""
    model = random_model("llama", SMALL, "cpu", torch.float64)
    for parameter in model.parameters():  # so large that every part matters
        scale = 0.3 if parameter.ndim > 1 else 0.1
        parameter.data = torch.randn_like(parameter) * scale + (parameter.ndim == 1)
    twin = copy.deepcopy(model).to(torch.device(device))
    both = with_parts(widen(model)), with_parts(widen(twin))
    report.attempt("dump", lambda: _compare_dumps(report, *both))
    report.attempt("runs", lambda: _compare_runs(report, *both))


def _compare_dumps(report: Report, on_cpu: Checkpoint, on_device: Checkpoint) -> None:
    (expected, expected_sums), (stored, stored_sums) = map(_dump, (on_cpu, on_device))
    different = sum(int((stored[name] != expected[name]).sum()) for name in expected)
    total = sum(array.size for array in expected.values())
    report.figure("dump: stored numbers that differ", different, f"of {total}")
    off = map(_distance, stored_sums.values(), expected_sums.values())
    report.figure("dump: sums of components, difference", max(off))


def _dump(loaded: Checkpoint) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return activations and predictions as they are stored, and sums of every component."""
    a = loaded.architecture
    tokens = grid_of_prompts(a.vocabulary, 6, 10)
    blocks = {i: np.empty((a.neurons, 6, 10), np.float16) for i in range(len(a.layers))}
    sums = grid.Means.zeros(loaded, 5)
    answers = np.full((6, 10), 7)
    way = grid.sharing(loaded, tokens)
    predictions = list(grid.run(loaded, tokens, answers, 4, blocks, sums, sharing=way))
    arrays = {f"layer {layer}": block for layer, block in blocks.items()}
    for name in predictions[0].__dataclass_fields__:
        arrays[name] = np.concatenate([getattr(part, name) for part in predictions])
    return arrays, {name: getattr(sums, name) for name in grid.SUMS}


def _compare_runs(report: Report, on_cpu: Checkpoint, on_device: Checkpoint) -> None:
    a = on_cpu.architecture
    table, means = pair_table(a.vocabulary, PAIRS), random_means(a)
    last = len(a.layers) - 1
    interventions = numbered(patches(a, 0, ("op2", "3", ALL)) + patches(a, last, ("last", ALL)))
    with tempfile.TemporaryDirectory() as folder:
        store = given_store(Path(folder), a, table)
        expected = _rows(Executor(on_cpu, means, ROWS, MEMORY, given=store), table, interventions)
        executor = Executor(on_device, means, ROWS, MEMORY, given=store)
        stored = _rows(executor, table, interventions)
        different: dict[str, int] = {}
        for name in expected.columns:
            number = int((expected[name] != stored[name]).sum())
            if number:
                different[name] = number
        total = len(expected) * (len(expected.columns) - 2)  # without subject and experiment
        report.figure(
            "runs: stored numbers that differ",
            sum(different.values()),
            f"of {total}",
            kinds=len(kinds(interventions)),
            **different,
        )
        off = _against_hooks(executor, table, interventions)
        report.figure("runs: difference from naive passes", off)


def _rows(
    executor: Executor, table: pl.DataFrame, interventions: list[Intervention]
) -> pl.DataFrame:
    return runs.rows(executor, executor.plan(table, interventions), "bench", "small")


def _against_hooks(
    executor: Executor, table: pl.DataFrame, interventions: list[Intervention]
) -> float:
    """Return the largest relative difference from naive passes on the device, over all kinds."""
    [pairs] = by_length(table.head(2), 2)
    values = executor.fresh(pairs)
    distances = []
    for first in kinds(interventions).values():
        plain = naive.logits(values, first)
        distances.append(_distance(executor.logits(values, first), plain))
    return max(distances)


def large(report: Report, loaded: Checkpoint, shape: Shape, device: str) -> None:
    """Compare the shape in bfloat16 with the same weights in float32.

    Restarted runs, and whole forward passes with hooks, are each measured by the distance of their
    logits from float32, ‖x - y‖ / ‖y‖.
    """
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
    """Report the distance without any patch, and whether the model can be restarted."""
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
    """Report the mean distances of one component's kinds of patches."""
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
    """Return a model with the same weights in float32."""
    model = random_model(shape.family, shape.sizes, device, torch.float32)
    for wide, narrow in zip(model.parameters(), loaded.model.parameters(), strict=True):
        wide.data.copy_(narrow.data)
    free()
    return with_parts(model)


def patches(a: Architecture, layer: int, positions: tuple[str, ...]) -> list[Patch]:
    """Return patches of every component: all, one or some units, with every replacement."""
    several = {"neuron": a.neurons, "coordinate": a.width, "head": a.heads}
    listed = []
    for component in COMPONENTS[1:]:
        units: list[Any] = [None]
        if component in several:
            units += [_packed([1]), _packed([0, several[component] - 1])]
        for replacement in REPLACEABLE.get(component, REPLACEMENTS):
            for position in positions:
                for packed in units:
                    listed += _patch(component, layer, packed, position, replacement)
    return listed


def _patch(
    component: str,
    layer: int,
    units: bytes | None,
    position: str,
    replacement: str,
) -> list[Patch]:
    """Return the patch, four for attention edges, or none if there is no such patch."""
    if component == "edge":
        if position == ALL:
            return []
        edges = product(("op1", EARLIER), (None, _packed([1])))
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
    """Return the first intervention of each component, replacement, position and unit kind."""
    firsts: dict[tuple, Intervention] = {}
    for intervention in interventions:
        [patch] = intervention.patches
        units = len(patch.units or b"") // 4
        kind = patch.component, patch.replacement, patch.position == ALL, patch.key_position, units
        firsts.setdefault(kind, intervention)
    return firsts


def given_store(folder: Path, a: Architecture, table: pl.DataFrame) -> external_values.Given:
    """Return random external values for a table of pairs."""
    path, random = folder / "given.h5", np.random.default_rng(3)
    widths = {"neurons": a.neurons, "residual": a.width}
    arrays = {n: random.standard_normal((len(table), width)) for n, width in widths.items()}
    external_values.write(path, table["pair"].to_numpy(), arrays)
    return external_values.Given(path)


def random_means(a: Architecture) -> Means:
    """Return random means of every operator, and over operators, at five positions."""
    random, size = np.random.default_rng(7), (len(a.layers), 5)
    means = {}
    for replacement in MEANS:
        means[replacement] = {
            "neurons": random.standard_normal((*size, a.neurons)),
            "heads": random.standard_normal((*size, a.heads, a.head_width)),
            "residual": random.standard_normal((*size, a.width)),
        }
    return means


def observed_means(values: Values) -> Means:
    """Return means over the clean prompts, the same for all operators."""
    a, clean = values.architecture, values.clean
    heads = _mean(clean.heads)
    means = {
        "neurons": _mean(clean.neurons),
        "heads": heads.reshape(*heads.shape[:2], a.heads, a.head_width),
        "residual": _mean(clean.streams[:-1]),
    }
    return dict.fromkeys(MEANS, means)


def _mean(layers: list[torch.Tensor]) -> np.ndarray:
    """Return means over the prompts of (prompts, positions, …) of each layer."""
    return np.stack([x.mean(0).cpu().numpy() for x in layers])


def _distance(x: Any, y: Any) -> float:
    """Return ‖x - y‖ / ‖y‖ in float64, ‖x‖ if y is 0; infinite if x or y holds a NaN."""
    wide = torch.as_tensor(y).to("cpu", torch.float64)
    difference = torch.as_tensor(x).to("cpu", torch.float64) - wide
    off = float(difference.norm() / (wide.norm() or 1.0))
    return float("inf") if math.isnan(off) else off
