"""Estimate the effects of all neurons of the first and the late layers by attribution patching.

Late layers are estimated at the last position, the first layer at op1, operator and op2. Estimates
are collected in a temporary file, which needs no memory.

Table neuron_attributions: first-order estimates of neuron effects
    subject      VARCHAR   the model
    layer        SMALLINT  decoder layer, from 0
    neuron       INTEGER   neuron of the layer's MLP, from 0
    position     VARCHAR   role of the token to be patched: op1, operator, op2 or last
    pair         INTEGER   number of the pair, as in pairs
    attribution  FLOAT     gradient of half the logit difference (counterfactual answer - answer) x
                           (counterfactual - clean activation), in logits
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from stages.lib.core import progress
from stages.lib.core.files import replacing
from stages.lib.core.settings import load
from stages.lib.core.tables import seal
from stages.lib.executor import shortcuts
from stages.lib.executor.executor import Executor
from stages.lib.model import checkpoint
from stages.lib.settings import Runs
from stages.lib.subject import Subject
from stages.neurons.gradients import Site, attributions

SCHEMA = pl.Schema(
    {
        "subject": pl.String,
        "layer": pl.Int16,
        "neuron": pl.Int32,
        "position": pl.String,
        "pair": pl.Int32,
        "attribution": pl.Float32,
    }
)
ROWS = 122_880  # about the rows of a piece, since polars writes row groups of this size


def main(name: str) -> None:
    """Estimate and write one model's attributions."""
    subject = Subject.named(name)
    settings = subject.settings.runs or load(Runs)
    [(first, layers)] = subject.table(
        "circuit/late_layers.parquet", ["first_layer", "layers"]
    ).rows()
    sites = sites_of(first, layers)
    prompts = subject.table("circuit/pairs.parquet").filter(split="discovery")
    numbers = prompts["pair"].sort().to_numpy()
    loaded = checkpoint.from_settings(subject.settings, whole=True)
    known = shortcuts.kept(loaded, subject.settings.source)
    executor = Executor(loaded, None, settings.rows, settings.memory, remembered=known)
    path = subject.path("neurons/neuron_attributions.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = len(sites), loaded.architecture.neurons, len(numbers)
    with TemporaryFile(dir=path.parent) as file:
        if len(numbers):
            estimates: np.ndarray = np.memmap(file, np.float32, "w+", shape=shape)
        else:
            estimates = np.empty(shape, np.float32)
        groups = executor.sizes.groups(prompts)
        for group in progress.bar(groups, desc=f"attributions {name}", unit="group"):
            pairs = np.searchsorted(numbers, group.number)
            for site, values in attributions(executor.values(group), sites).items():
                estimates[sites.index(site)][:, pairs] = values.float().cpu().numpy().T
        write(pieces(name, sites, numbers, estimates), path)


def sites_of(first_late: int | None, layers: int) -> list[Site]:
    """Return the sites, sorted: late layers at the last position, layer 0 at the operands."""
    late = range(layers if first_late is None else first_late, layers)
    early = [(0, role) for role in ("op1", "operator", "op2")]
    return sorted([*early, *((layer, "last") for layer in late)])


def pieces(
    subject: str, sites: Sequence[Site], pairs: np.ndarray, estimates: np.ndarray
) -> Iterator[pl.DataFrame]:
    """Yield the table's rows, sorted by site, neuron and pair, in pieces of equal size.

    pairs: numbers of the pairs, rising; estimates: (sites, neurons, pairs)
    """
    neurons, flat = estimates.shape[1], estimates.reshape(-1)
    layers, roles = zip(*sites, strict=True)
    count = max(1, (len(flat) + ROWS // 2) // ROWS)
    size, larger = divmod(len(flat), count)
    ends = [part * size + min(part, larger) for part in range(count + 1)]
    for start, end in pairwise(ends):
        rows = np.arange(start, end)
        site, within = np.divmod(rows, neurons * len(pairs))
        columns = {
            "subject": pl.repeat(subject, len(rows), eager=True),
            "layer": np.array(layers)[site],
            "neuron": within // len(pairs),
            "position": pl.Series(roles).gather(site),
            "pair": pairs[within % len(pairs)],
            "attribution": flat[start:end],
        }
        yield pl.DataFrame(columns).cast(SCHEMA)


def write(frames: Iterator[pl.DataFrame], path: Path) -> None:
    """Write a table in pieces, each of which becomes a row group."""
    with replacing(path) as partial:
        register_io_source(lambda *_: frames, schema=SCHEMA).sink_parquet(partial)
        seal(partial)


if __name__ == "__main__":
    main(sys.argv[1])
