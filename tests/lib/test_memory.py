"""Stores that are larger than memory: what reads them holds a part at a time."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from stages.lib.core import hdf5_store
from stages.lib.core.hdf5_store import LayerWriter, writing
from stages.lib.core.tables import write_table
from tests.micro import ROOT, SHIPPED, alone

LAYERS, NEURONS, SIDE, NUMBERS = (
    32,
    14336,
    300,
    1000,
)  # Llama-3-8B's, whose numbers up to 999 are one token
SAID = list(range(8))  # neurons that say anything, in the first and in the last layer

CODE = """
import sys
from pathlib import Path
from stages.heuristics.permutation_tests import PermutationTestsWork
from stages.heuristics.scores import ScoresWork
from stages.lib.sql.database import connect
for make in (ScoresWork, PermutationTestsWork):
    work = make("large")
    for number in (0, len(work.units) - 1):
        work.do(number)
asked = [
    "select sum(activation) from activations where layer in (0, 31) and neuron < 64",
    "select count(*) from (select layer, neuron, max(activation) as most from activations where neuron < 32 group by all) where most > 0",
    "select count(*) from activations where neuron in (3, 9000) and op1 = 7",
]
database = connect("data")
answers = [database.sql(query).fetchall()[0][0] for query in asked]
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print()
print(len(work.units), *answers, int(status["VmHWM"].split()[0]) >> 10)
"""


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with sums of a subject of 83 GB, all of which are zeros that take no disk but for a few neurons'."""
    # the disk may hold less than 83 GB
    monkeypatch.setattr(hdf5_store, "_need_space", lambda path, size: None)
    sections = {name: SHIPPED[name] for name in ("scores", "permutation_tests")}
    few = {"scores": {"neurons_per_unit": 16}, "permutation_tests": {"neurons_per_unit": 16, "least_draws": 20}}
    settings = alone("large", operators=["add"]) | {
        name: sections[name] | few[name] for name in sections
    }
    settings["labels"] = SHIPPED["labels"]
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(settings))
    op1, op2 = np.indices((SIDE, SIDE))
    maps = np.random.default_rng(0).random((len(SAID), SIDE, SIDE)).astype(np.float16) + (
        op1 % 2 == 0
    )
    store = tmp_path / "data/large/store"
    with writing(store / "activations/add.h5") as file:
        axes, of = (
            {"neuron": NEURONS, "op1": SIDE, "op2": SIDE},
            {"subject": "large", "operator": "add"},
        )
        writer = LayerWriter(
            file,
            list(range(LAYERS)),
            axes,
            "float16",
            (8, 75, SIDE),
            of,
            columns={"result": op1 + op2},
        )
        for layer in (0, LAYERS - 1):
            writer.datasets[layer][SAID] = maps
    with writing(store / "value_logits.h5") as file:
        LayerWriter(
            file,
            list(range(LAYERS)),
            {"neuron": NEURONS, "number": NUMBERS},
            "float32",
            (64, NUMBERS),
            {"subject": "large"},
        )
    cells = {
        "operator": "add",
        "op1": op1.ravel(),
        "op2": op2.ravel(),
        "result": (op1 + op2).ravel(),
    }
    write_table(pl.DataFrame(cells), tmp_path / "data/corpus/cells.parquet")
    heuristics = [
        ("op1 mod 2 = 0", "modulo", "op1", "op1 % 2 = 0"),
        ("result mod 5 = 0", "modulo", "result", "result % 5 = 0"),
    ]
    catalogue = pl.DataFrame(
        heuristics, orient="row", schema=["heuristic", "kind", "quantity", "predicate"]
    )
    usable = catalogue.select(pl.lit("add").alias("operator"), pl.all(), usable=pl.lit(True))
    write_table(usable, tmp_path / "data/heuristics/heuristics.parquet")
    return tmp_path


def test_a_store_of_83_gb_is_scored_and_queried_in_less_than_one(large: Path):
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    ended = subprocess.run(
        [sys.executable, "-c", CODE],
        check=False,
        cwd=large,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    units, total, saying, count, mib = ended.stdout.splitlines()[
        -1
    ].split()  # above it DuckDB draws
    assert int(units) == LAYERS * NEURONS // 16
    assert float(total) == pytest.approx(2 * len(SAID) * SIDE * SIDE * 1.0, rel=0.01)
    assert int(saying) == 2 * len(SAID)
    assert int(count) == LAYERS * 2 * SIDE
    assert int(mib) < 1024
