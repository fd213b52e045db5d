"""Check that stores larger than memory are read a part at a time."""

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

# A quarter of Llama-3-8B's layers; its numbers up to 999 are one token.
LAYERS, NEURONS, SIDE, NUMBERS = 8, 14336, 300, 1000
ACTIVE = list(range(8))  # neurons of the first and the last layer that are not zero

CODE = """
import re
from pathlib import Path
from stages.heuristics.permutation_tests import PermutationTestsWork
from stages.heuristics.scores import ScoresWork
from stages.lib.sql.database import connect
for make in (ScoresWork, PermutationTestsWork):
    work = make("large")
    for number in (0, len(work.units) - 1):
        work.do(number)
queries = [
    "select sum(activation) from activations where layer in (0, 7) and neuron < 64",
    '''select count(*) from (
        select layer, neuron, max(activation) as most
        from activations where neuron < 32 group by all
    ) where most > 0''',
    "select count(*) from activations where neuron in (3, 9000) and op1 = 7",
]
database = connect("data")
answers = [database.sql(query).fetchall()[0][0] for query in queries]
[peak] = re.findall(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())
print()
print(len(work.units), *answers, int(peak) >> 10)
"""


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a project with 21 GB of activations, zeros that take no disk but for a few neurons."""
    # The disk may hold less than 21 GB.
    monkeypatch.setattr(hdf5_store, "_need_space", lambda path, size: None)
    settings = alone("large", operators=["add"]) | {"labels": SHIPPED["labels"]}
    settings["scores"] = SHIPPED["scores"] | {"neurons_per_unit": 16}
    settings["permutation_tests"] = SHIPPED["permutation_tests"] | {
        "neurons_per_unit": 16,
        "least_draws": 20,
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(settings))
    op1, op2 = np.indices((SIDE, SIDE))
    maps = np.random.default_rng(0).random((len(ACTIVE), SIDE, SIDE)).astype(np.float16)
    maps += op1 % 2 == 0
    store, layers = tmp_path / "data/large/store", list(range(LAYERS))
    with writing(store / "activations/add.h5") as file:
        axes = {"neuron": NEURONS, "op1": SIDE, "op2": SIDE}
        attributes = {"subject": "large", "operator": "add"}
        writer = LayerWriter(
            file,
            layers,
            axes,
            "float16",
            (8, 75, SIDE),
            attributes,
            columns={"result": op1 + op2},
        )
        for layer in (layers[0], layers[-1]):
            writer.datasets[layer][ACTIVE] = maps
    with writing(store / "value_logits.h5") as file:
        axes = {"neuron": NEURONS, "number": NUMBERS}
        LayerWriter(file, layers, axes, "float32", (64, NUMBERS), {"subject": "large"})
    operands = {"op1": op1.ravel(), "op2": op2.ravel(), "result": (op1 + op2).ravel()}
    cells = pl.DataFrame({"operator": "add", **operands})
    write_table(cells, tmp_path / "data/corpus/cells.parquet")
    heuristics = [
        ("op1 mod 2 = 0", "modulo", "op1", "op1 % 2 = 0"),
        ("result mod 5 = 0", "modulo", "result", "result % 5 = 0"),
    ]
    columns = ["heuristic", "kind", "quantity", "predicate"]
    catalogue = pl.DataFrame(heuristics, orient="row", schema=columns)
    usable = catalogue.select(pl.lit("add").alias("operator"), pl.all(), usable=pl.lit(True))
    write_table(usable, tmp_path / "data/heuristics/heuristics.parquet")
    return tmp_path


def test_a_store_of_21_gb_is_scored_and_queried_in_less_than_one(large: Path):
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
    *_, last = ended.stdout.splitlines()  # DuckDB draws above it
    units, total, active, count, mib = last.split()
    assert int(units) == LAYERS * NEURONS // 16
    assert float(total) == pytest.approx(2 * len(ACTIVE) * SIDE * SIDE, rel=0.01)
    assert int(active) == 2 * len(ACTIVE)
    assert int(count) == LAYERS * 2 * SIDE
    assert int(mib) < 1024
