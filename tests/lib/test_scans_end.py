"""A query that needs only a store's first rows ends with status 0; Ctrl-C ends it as well."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stages.lib.core import hdf5_store

CONSOLE = "import sys; from stages.lib.console.bag import main; sys.argv[0] = 'bag'; main()"
SCRIPT = """
import sys
from stages.lib.sql.database import connect
print(connect(sys.argv[2]).sql(sys.argv[3]).fetchall())
"""
INTERRUPTED = """
import os, signal
from stages.lib.core.hdf5_store import LayerStore
read = LayerStore.read
def interrupt(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    return read(*arguments)
LayerStore.read = interrupt
"""
LIMIT = "select * from activations limit 2"
INSIDE = "select count(*) from (select activation from activations limit 2)"
LOGITS = "select number from value_logits where number = 2 limit 2"
ROWS, COUNT = (b"add", 2), (b"2", 1)  # what the output holds, and how often at least
RUNS = [
    ((CONSOLE, LIMIT), ROWS), ((CONSOLE, LIMIT, "--csv"), ROWS), ((CONSOLE, LIMIT, "--json"), ROWS),
    ((CONSOLE, INSIDE), COUNT),
    ((SCRIPT, LIMIT), ROWS), ((SCRIPT, INSIDE), COUNT), ((CONSOLE, LOGITS), COUNT),
]  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    with hdf5_store.writing(folder / "s/store/activations/add.h5") as file:
        axes = {"neuron": 600, "op1": 100, "op2": 100}
        attributes = {"subject": "s", "operator": "add"}
        writer = hdf5_store.LayerWriter(file, [0], axes, "float16", (8, 100, 100), attributes)
        writer.write(0, 0, np.ones(tuple(axes.values()), np.float16))
    with hdf5_store.writing(folder / "s/store/value_logits.h5") as file:
        axes = {"neuron": 600, "number": 100}
        writer = hdf5_store.LayerWriter(file, [0], axes, "float32", (64, 100), {"subject": "s"})
        writer.write(0, 0, np.ones(tuple(axes.values()), np.float32))
    return folder


def start(data: Path, code: str, query: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", code, "--data", str(data), query, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_process_ends_quietly_after_the_first_rows(data: Path):
    for first in range(0, len(RUNS), 2):  # two at a time
        for process, (text, times) in [
            (start(data, *run), expected) for run, expected in RUNS[first : first + 2]
        ]:
            output, errors = process.communicate(timeout=120)
            assert (process.returncode, errors) == (0, b"")
            assert output.count(text) >= times


def test_ctrl_c_ends_the_console_in_the_middle_of_a_scan(data: Path):
    process = start(data, INTERRUPTED + CONSOLE, "select sum(activation * op1) from activations")
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output, errors) == (-signal.SIGINT, b"", b"")


def test_ctrl_c_ends_an_export_and_leaves_nothing(data: Path, tmp_path: Path):
    command = ["export", "select neuron, op1, activation from activations", str(tmp_path / "new")]
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPTED + CONSOLE, *command, "--data", str(data)],
        capture_output=True,
        check=False,
    )
    assert process.returncode != 0
    assert b"Traceback" not in process.stderr
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_other_commands_without_a_traceback(data: Path, tmp_path: Path):
    """`bag check` and `bag add` import for seconds, and may be interrupted anywhere."""
    interrupted = "import os, signal\nfrom stages.bridges import mib\n"
    interrupted += "mib.areas = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
    interrupted += "mib.circuit_graph = mib.areas\n"
    command = ["circuit", "s", "add", str(tmp_path / "new.json"), "--data", str(data)]
    process = subprocess.run(
        [sys.executable, "-c", interrupted + CONSOLE, *command], capture_output=True, check=False
    )
    assert (process.returncode, process.stderr) == (-signal.SIGINT, b"")
    assert list(tmp_path.iterdir()) == []
