"""Benchmark the store: time and memory to write it, and time to query it."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from stages.lib.core.settings import load
from stages.lib.model import checkpoint
from stages.lib.settings import Passes
from stages.lib.sql.database import connect
from stages.lib.subject import Subject
from stages.lib.units.parts import Parts
from stages.store import grid
from stages.store.dump import DumpWork, PromptGrid
from tests.bench.timing import median

SUBJECT = "abacus"


def dump() -> None:
    """Compare a dump of one operator, files written, with plain forward passes alone.

    Bar: at most 0.65 x.
    """
    subject, at_once = Subject.named(SUBJECT), load(Passes).prompts
    loaded = checkpoint.from_settings(subject.settings)
    prompts = subject.table("store/prompts.parquet").filter(operator="add")
    prompt_grid = PromptGrid("add", prompts)

    def plain() -> None:
        for start in range(0, len(prompts), at_once):
            with torch.no_grad():
                tokens = prompt_grid.tokens.reshape(len(prompts), -1)[start : start + at_once]
                loaded.model(input_ids=torch.from_numpy(tokens), use_cache=False, logits_to_keep=1)

    def forward_only() -> None:
        for _ in grid.run(
            loaded, prompt_grid.tokens, prompt_grid.answers, at_once // prompt_grid.shape[1], {}
        ):
            pass

    with tempfile.TemporaryDirectory(dir=".") as folder:
        work = DumpWork(SUBJECT)
        work.parts = Parts(Path(folder) / "predictions.parquet", "benchmark")

        def whole() -> None:
            for number, unit in enumerate(work.units):
                if unit.group == "add":
                    work.do(number)

        seconds = median(3, plain, forward_only, whole)
    slow, forward, fast = seconds
    print(f"dump: plain forward passes {slow:.2f} s for {len(prompts)} prompts")
    print(f"dump: shared-prefix forward passes {forward:.2f} s, {forward / slow:.2f} x")
    print(f"dump: whole dump, files written {fast:.2f} s, {fast / slow:.2f} x (bar 0.65)")


def memory() -> None:
    """Measure peak memory of workers that dump one block of rows, and four, in own processes."""
    code = """
import resource, sys, tempfile
from pathlib import Path
from stages.lib.units.parts import Parts
from stages.store.dump import DumpWork
with tempfile.TemporaryDirectory(dir=".") as folder:
    work = DumpWork("abacus")
    work.parts = Parts(Path(folder) / "predictions.parquet", "benchmark")
    for number in range(int(sys.argv[1])):
        work.do(number)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
    for blocks in (1, 4):
        done = subprocess.run(
            [sys.executable, "-c", code, str(blocks)], capture_output=True, text=True, check=True
        )
        print(f"memory: {blocks} blocks of rows, peak {float(done.stdout):.0f} MiB")


def sql() -> None:
    """Time queries in an open connection, with a warm file cache.

    Bars: 15 ms, 25 ms, 150 million activations/s.
    """
    database = connect()
    means = "select layer, neuron, avg(activation) from activations"
    cells = f"subject = '{SUBJECT}' and operator = 'add'"
    single = f"""select op1, op2, activation from activations
        where {cells} and layer = 1 and neuron = 17"""
    three = f"{means} where {cells} and layer = 2 and neuron in (5, 100, 400) group by all"
    whole = f"{means} where {cells} group by layer, neuron"
    joined = f"""{means} join neuron_variances using (subject, operator, layer, neuron)
        where rank <= 3 and {cells} group by all"""

    def by_hand() -> None:
        for part in database.lazy["activations"].parts:
            if part.constants == {"subject": SUBJECT, "operator": "add"}:
                step = part.store.chunk[0]
                for layer in part.store.layers:
                    for first in range(0, part.store.axes["neuron"], step):
                        part.store.read(layer, slice(first, first + step), slice(None))

    fast = median(
        9,
        lambda: database.sql(single).to_arrow_table(),
        lambda: database.sql(three).fetchall(),
        lambda: database.sql(joined).fetchall(),
    )
    slow = median(3, lambda: database.sql(whole).fetchall(), by_hand)
    size = int(np.prod(list(database.lazy["activations"].parts[0].store.axes.values()))) * 3 / 1e6
    print(f"sql: one neuron's map {fast[0] * 1e3:.1f} ms (bar 15)")
    print(f"sql: the means of three neurons {fast[1] * 1e3:.1f} ms (bar 25)")
    print(f"sql: the means of three neurons by a join {fast[2] * 1e3:.1f} ms (bar 25)")
    rates = f"{size / slow[0]:.0f} million activations/s (bar 150); h5py alone {size / slow[1]:.0f}"
    print(f"sql: group by layer, neuron {rates}")
