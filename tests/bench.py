"""Benchmarks: ratios measured side by side in one run. `make bench` runs them all, `python -m tests.bench NAME` one.

Each function prints its own figures; every one is the median of several rounds, taken in turn.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from stages.heuristics.null import p_values, relabelled
from stages.heuristics.settings import Nulls, Scores
from stages.lib import store
from stages.lib.core.settings import load
from stages.lib.core.words import OPERATORS
from stages.lib.executor import executor, interventions
from stages.lib.executor import values as replacing
from stages.lib.heuristics import scores
from stages.lib.heuristics.square import Square
from stages.lib.model import architecture, checkpoint
from stages.lib.settings import Machine, Passes, Runs
from stages.lib.sql.database import Database, connect
from stages.lib.subject import Subject
from stages.store import grid
from stages.store.settings import Dump
from tests.bench_mediation import mediation
from tests.timing import median

SUBJECT = "abacus"


def dump() -> None:
    """A whole dump of one operator, files written, against the plain forward passes alone. Bar: at most 0.65 x."""
    from stages.store import dump as stage

    subject, at_once = Subject.named(SUBJECT), load(Passes).prompts_per_pass
    loaded = checkpoint.of(subject.settings, load(Machine))
    prompts = subject.table("prompts.parquet").filter(operator="add")
    square = stage.PromptSquare("add", prompts)

    def plain() -> None:
        for start in range(0, len(prompts), at_once):
            with torch.no_grad():
                tokens = square.tokens.reshape(len(prompts), -1)[start : start + at_once]
                loaded.model(input_ids=torch.from_numpy(tokens), use_cache=False, logits_to_keep=1)

    def forward_only() -> None:
        for _ in grid.run(loaded, square.tokens, square.answers, at_once // square.shape[1], {}):
            pass

    with tempfile.TemporaryDirectory(dir=".") as folder:

        def whole() -> None:
            means = grid.Means.zeros(loaded, square.tokens.shape[2])
            with stage.tqdm(disable=True) as bar:
                dumping = stage.Dumping(loaded, list(range(len(loaded.architecture.layers))), load(Dump), at_once, {})
                dumping.write(square, Path(folder) / "add.h5", means, bar)

        seconds = median(3, plain, forward_only, whole)
    print(f"dump: plain forward passes {seconds[0]:.2f} s for {len(prompts)} prompts")
    print(f"dump: shared-prefix forward passes {seconds[1]:.2f} s, {seconds[1] / seconds[0]:.2f} x")
    print(f"dump: whole dump, files written {seconds[2]:.2f} s, {seconds[2] / seconds[0]:.2f} x (bar 0.65)")


def memory() -> None:
    """Peak memory of a dump of 100 x 100 and of 300 x 300 prompts, each in a process of its own."""
    code = """
import resource, sys, tempfile
from pathlib import Path
import polars as pl
from stages import dump as stage
from stages.lib.model import checkpoint, grid
from stages.lib.params.machine import Machine
from stages.lib.params.sections import load
from stages.lib.params.subjects import Dump, Passes
from stages.lib.subject import Subject
side, subject = int(sys.argv[1]), Subject.named("abacus")
loaded = checkpoint.of(subject.settings, load(Machine))
prompts = subject.table("prompts.parquet").filter(pl.col("operator") == "add", pl.col("op1") < side, pl.col("op2") < side)
with tempfile.TemporaryDirectory(dir=".") as folder, stage.tqdm(disable=True) as bar:
    dumping = stage.Dumping(loaded, [0, 1, 2], load(Dump), load(Passes).prompts_per_pass, {})
    dumping.write(stage.PromptSquare("add", prompts), Path(folder) / "add.h5", grid.Means.zeros(loaded, 5), bar)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
    for side in (100, 300):
        done = subprocess.run([sys.executable, "-c", code, str(side)], capture_output=True, text=True, check=True)
        print(f"memory: {side} x {side} prompts, peak {float(done.stdout):.0f} MiB")


def sql() -> None:
    """Queries in an open connection, file cache warm. Bars: 15 ms, 25 ms, 150 million activations/s."""
    database = connect()
    one = f"select op1, op2, activation from activations where subject = '{SUBJECT}' and operator = 'add' and layer = 1 and neuron = 17"
    three = (
        "select layer, neuron, avg(activation) from activations "
        f"where subject = '{SUBJECT}' and operator = 'add' and layer = 2 and neuron in (5, 100, 400) group by all"
    )
    whole = (
        f"select layer, neuron, avg(activation) from activations where subject = '{SUBJECT}' and operator = 'add' group by layer, neuron"
    )
    joined = (
        "select layer, neuron, avg(activation) from activations join neuron_variances using (subject, operator, layer, neuron) "
        f"where rank <= 3 and operator = 'add' and subject = '{SUBJECT}' group by all"
    )

    def by_hand() -> None:
        for part in database.lazy["activations"].parts:
            if part.constants == {"subject": SUBJECT, "operator": "add"}:
                step = part.store.chunk[0]
                for layer in part.store.layers:
                    for first in range(0, part.store.axes["neuron"], step):
                        part.store.read(layer, slice(first, first + step), slice(None))

    fast = median(
        9, lambda: database.sql(one).to_arrow_table(), lambda: database.sql(three).fetchall(), lambda: database.sql(joined).fetchall()
    )
    slow = median(3, lambda: database.sql(whole).fetchall(), by_hand)
    size = int(np.prod(list(database.lazy["activations"].parts[0].store.axes.values()))) * 3 / 1e6
    print(f"sql: one neuron's map {fast[0] * 1e3:.1f} ms (bar 15)")
    print(f"sql: the means of three neurons {fast[1] * 1e3:.1f} ms (bar 25)")
    print(f"sql: the means of three neurons by a join {fast[2] * 1e3:.1f} ms (bar 25)")
    print(f"sql: group by layer, neuron {size / slow[0]:.0f} million activations/s (bar 150); h5py alone {size / slow[1]:.0f}")


def random_llama() -> tuple[checkpoint.Checkpoint, pl.DataFrame]:
    """A random Llama (8 layers, width 512, 1408 neurons, 8 heads, vocabulary 1,100), and 50 pairs of random prompts of 5 tokens."""
    torch.manual_seed(0)
    torch.set_num_threads(load(Machine).threads)
    config = LlamaConfig(
        vocab_size=1100, hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8, tie_word_embeddings=False
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().requires_grad_(False)
    random, roles = np.random.default_rng(0), {"op1": 1, "operator": 2, "op2": 3, "last": 4}
    rows = [
        {
            "pair": pair, "operator": "add", "split": "discovery", "tokens": random.integers(3, 1100, 5).tolist(),
            "answer_token": int(random.integers(3, 1100)), "positions": roles, "counterfactual_tokens": random.integers(3, 1100, 5).tolist(),
            "counterfactual_answer_token": int(random.integers(3, 1100)), "counterfactual_positions": roles,
        }
        for pair in range(50)
    ]  # fmt: skip
    return checkpoint.Checkpoint(model, architecture.find(model)), pl.DataFrame(rows)


def patches(component: str, layer: int, units: Sequence[int | None], position: str) -> list[interventions.Intervention]:
    """One intervention per unit: its counterfactual value at one position."""
    return [
        interventions.Intervention(
            number, None, None,
            (interventions.Patch(component, layer, None if u is None else np.int32(u).tobytes(), position, None, "counterfactual"),),
        )
        for number, u in enumerate(units)
    ]  # fmt: skip


def looped(values: replacing.Values, one: interventions.Intervention) -> torch.Tensor:
    """The loop that everyone writes: one full forward pass of the batch, with a hook; probabilities (prompts, vocabulary)."""
    a, [patch] = values.architecture, one.patches
    layer = a.layers[patch.layer]
    module = layer.attention_out if patch.component == "head" else layer.mlp_out
    width = a.head_width if patch.component == "head" else 1
    units = patch.chosen()
    part = slice(None) if units is None else slice(int(units[0]) * width, (int(units[0]) + 1) * width)
    source = values.counterfactual.heads if patch.component == "head" else values.counterfactual.neurons
    at = int(values.positions[patch.position][0])

    def change(x: torch.Tensor) -> torch.Tensor:
        x[:, at, part] = source[patch.layer][:, at, part]
        return x

    with torch.no_grad(), architecture.patched(module, change):
        return values.checkpoint.model(input_ids=values.clean.tokens, use_cache=False).logits[:, -1].softmax(-1)


def matmul_rate(inputs: int = 512, outputs: int = 1408, rows: int = 2000) -> float:
    """What this machine's matrix products reach, in GFLOP/s."""
    x, w = torch.randn(rows, inputs), torch.randn(inputs, outputs)
    [seconds] = median(30, lambda: x @ w)
    return 2 * rows * inputs * outputs / seconds / 1e9


def sweep(runner: executor.Executor, table: pl.DataFrame, wanted: list[interventions.Intervention]) -> dict[int, np.ndarray]:
    """The answers' probabilities (prompts,) under each intervention, by its number."""
    done = [(batch, measured.answer_probability) for block in runner.plan(table, wanted) for batch, measured in runner.run(block)]
    return {one.number: row for batch, rows in done for one, row in zip(batch, rows, strict=True)}


def neurons() -> None:
    """Exact patching of every neuron at the last position, against one full forward pass per neuron. Bar: 28 x over layers 4..7."""
    loaded, table = random_llama()
    settings, a = load(Runs), loaded.architecture
    runner = executor.Executor(loaded, None, settings.rows_per_pass, settings.memory_mib << 20)
    values = runner.values(runner.groups(table)[0])
    rows, total = torch.arange(50), [0.0, 0.0]
    for layer in range(4, 8):
        wanted = patches("neuron", layer, range(a.neurons), "last")
        few = wanted[:: a.neurons // 8][:8]
        slow, fast = median(3, lambda few=few: [looped(values, one) for one in few], lambda wanted=wanted: sweep(runner, table, wanted))
        slow, fast = slow / len(few), fast / a.neurons
        total = [total[0] + slow, total[1] + fast]
        found = sweep(runner, table, few)
        difference = max(np.abs(found[one.number] - looped(values, one)[rows, values.pairs.answers].numpy()).max() for one in few)
        work = 2 * 50 * ((7 - layer) * (4 * 512 * 512 + 3 * 512 * 1408) + 512 * 1100)  # of a restart that avoids nothing
        print(
            f"neurons: layer {layer}: {slow * 1e3:.0f} ms by a forward pass each, {fast * 1e3:.2f} ms swept, {slow / fast:.0f} x; "
            f"a plain restart at this speed: {work / fast / 1e9 / matmul_rate():.0%} of the matmul rate; largest difference {difference:.0e}"
        )
    print(f"neurons: all four layers {total[0] / total[1]:.1f} x (bar 28)")


def components() -> None:
    """Effects of all heads and MLPs at all positions, against one full forward pass per component and position. Bar: 4 x."""
    loaded, table = random_llama()
    settings, a = load(Runs), loaded.architecture
    runner = executor.Executor(loaded, None, settings.rows_per_pass, settings.memory_mib << 20)
    values = runner.values(runner.groups(table)[0])
    wanted = [
        one for layer in range(8) for position in table["positions"].struct.fields
        for one in (*patches("head", layer, range(a.heads), position), *patches("mlp", layer, [None], position))
    ]  # fmt: skip
    few = wanted[::16]
    slow, fast = median(3, lambda: [looped(values, one) for one in few], lambda: sweep(runner, table, wanted))
    slow, fast = slow / len(few), fast / len(wanted)
    print(f"components: {slow * 1e3:.0f} ms by a forward pass each, {fast * 1e3:.1f} ms restarted, {slow / fast:.1f} x (bar 4)")


def bound() -> None:
    """Peak memory of sweeps over some and over all neurons, each in a process of its own, against runs.memory_mib."""
    code = """
import resource, sys
from tests.bench import *
loaded, table = random_llama()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
runner = executor.Executor(loaded, None, 10**9, int(sys.argv[1]) << 20)  # no bound on rows: memory alone decides
for layer in range(8 - int(sys.argv[2]), 8):
    for block in runner.plan(table, patches("neuron", layer, range(1408), "last")):
        for _ in runner.run(block):
            pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    for mib in (128, 256):
        for layers in (2, 4):
            done = subprocess.run([sys.executable, "-c", code, str(mib), str(layers)], capture_output=True, text=True, check=True)
            print(f"bound: {layers * 1408} neurons, {float(done.stdout.split()[-1]):.0f} MiB more than the model (bound {mib})")


def match() -> None:
    """Scores of 3,200 random neurons for the paper's whole catalogue over the 300 x 300 sums, both sides. Bar: 40 s."""
    square = _square("add")
    random = np.random.default_rng(0)
    maps = random.standard_normal((3200, len(square.cells)), dtype=np.float32).astype(np.float16)
    logits = random.standard_normal((3200, 1000), dtype=np.float32)

    def score(neuron: int) -> None:
        activations = store.widen(maps[neuron])
        scores.scores(activations, square.operands.sets)
        scores.scores(activations * logits[neuron][square.results], square.answers.sets)

    def all_neurons() -> None:
        with ThreadPoolExecutor(load(Machine).threads) as pool:
            list(pool.map(score, range(len(maps))))

    [seconds] = median(1, all_neurons)
    heuristics = len(square.operands.names) + len(square.answers.names)
    print(f"match: 3,200 neurons x {heuristics} heuristics x {len(square.cells)} cells, top and bottom: {seconds:.1f} s (bar 40)")


def relabel() -> None:
    """1,000 relabellings of a sample of the subject's neurons, and what that makes for all of them."""
    settings, sets = load(Nulls), load(Scores).answer_sets
    votes = Subject.named(SUBJECT).votes()
    whole, sample = 0.0, 16
    for operator in OPERATORS:
        square = _square(operator)
        layers = square.activations.layers
        labels = relabelled.permutations(square, 1000, settings.seed)
        some = [one for layer in layers for one in next(square.neurons(layer, votes, sample))]

        def judge(one: tuple[int, np.ndarray, np.ndarray], square: Square = square, labels: relabelled.Relabellings = labels) -> None:
            p_values.judged(square, one[1], one[2], labels, settings, sets)

        def sampled(some: list = some, judge: Callable = judge) -> None:
            with ThreadPoolExecutor(load(Machine).threads) as pool:
                list(pool.map(judge, some))

        start = time.perf_counter()
        sampled()
        seconds = time.perf_counter() - start
        neurons = len(layers) * square.activations.axes["neuron"]
        whole += seconds / len(some) * neurons
        print(f"relabel: {operator}: {seconds / len(some):.2f} s per neuron for 1,000 draws, {seconds:.0f} s for {len(some)}")
    print(f"relabel: all neurons of {SUBJECT}: {whole / 60:.0f} min")


def nulls() -> None:
    """A relabelling of one neuron: both maps sorted and walked along anew in every draw, against what the stage does."""
    sets, draws, votes = load(Scores).answer_sets, 60, Subject.named(SUBJECT).votes()
    for operator in OPERATORS:
        square = _square(operator)
        labels = relabelled.permutations(square, draws, load(Nulls).seed)
        _, activations, logits = next(square.neurons(square.activations.layers[-1], votes, 1))[0]

        def sorted_anew(square: Square = square, labels: relabelled.Relabellings = labels, of: tuple = (activations, logits)) -> None:
            for row, column in zip(*labels, strict=True):
                values = of[0][row[square.op1], column[square.op2]]
                scores.scores(values, square.operands.sets)
                scores.scores(values * of[1][square.results], square.answers.sets)

        def by_tables(square: Square = square, labels: relabelled.Relabellings = labels, of: tuple = (activations, logits)) -> None:
            relabelled.Neuron(square, *of, sets).null(labels)

        slow, fast = (seconds / (draws + 1) * 1e3 for seconds in median(5, sorted_anew, by_tables))
        print(f"nulls: {operator}: {slow:.2f} ms per draw by sorting, {fast:.2f} ms, {slow / fast:.1f} x")


def _square(operator: str) -> Square:
    catalogue = pl.read_parquet("data/heuristics/heuristics.parquet").filter("usable")
    database = Database({"cells": [Path("data/corpus/cells.parquet")]}, threads=1)
    return Square(database, catalogue, store.LayerStore(Path(f"data/{SUBJECT}/store/activations/{operator}.h5")))


BENCHMARKS = {function.__name__: function for function in (dump, memory, sql, neurons, components, mediation, bound, match, nulls, relabel)}


if __name__ == "__main__":
    print(f"{os.cpu_count()} cores, torch {torch.__version__}")
    for name in sys.argv[1:] or BENCHMARKS:
        BENCHMARKS[name]()
