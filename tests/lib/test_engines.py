"""Check that every engine does the same work after workers, machines and drivers are killed."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.lib.core import environment
from stages.lib.units import work
from stages.lib.units.pool import RESUME
from stages.lib.units.queue import DEATHS
from tests.conftest import run_in
from tests.lib.noted import NUMBER
from tests.micro import ROOT

ENGINES = ("local", "ray")
FINISH = """
from stages.store.dump import DumpWork
work = DumpWork("abacus")
assert not work.missing()
work.finish()
"""
WITHOUT_RAY = """
import runpy, sys
sys.modules["ray"] = None
runpy.run_module("tests.lib.noted", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator:
    """Start a Ray cluster: a head without processors, to which machines of one each are added."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def machines(cluster) -> str:
    """Add two machines; return the cluster's address. A test that loses a machine adds one."""
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    return cluster.address


def carried_out(
    module: str,
    *arguments: str,
    engine: str,
    address: str = "",
    workers: int = 2,
    where: Path = ROOT,
) -> subprocess.CompletedProcess:
    """Run a module of the project as a process of its own, with an engine."""
    own = {
        work.ENGINE: engine,
        environment.WORKERS: str(workers),
        "PYTHONPATH": str(ROOT),
        "RAY_ADDRESS": address,
    }
    variables = {name: value for name, value in (os.environ | own).items() if value}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        check=False,
        env=variables,
        cwd=where,
        capture_output=True,
        text=True,
    )


def noted(
    folder: Path, what: str, engine: str, request: pytest.FixtureRequest
) -> subprocess.CompletedProcess:
    address = request.getfixturevalue("machines") if engine == "ray" else ""
    return carried_out("tests.lib.noted", str(folder), what, engine=engine, address=address)


def times(folder: Path) -> dict[int, int]:
    """Return when each unit was done."""
    files = [path for path in folder.iterdir() if path.name.isdecimal()]
    return {int(path.name): path.stat().st_mtime_ns for path in files}


def done(folder: Path) -> set[int]:
    return set(times(folder))


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_workers_are_replaced(engine: str, tmp_path: Path, request: pytest.FixtureRequest):
    ended = noted(tmp_path, "3:worker 17:worker", engine, request)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "whole").exists()
    assert done(tmp_path) == set(range(NUMBER))  # each once: a second time fails
    for number in (3, 17):
        assert f"was killed at the unit {number}, which is done again" in ended.stderr


def test_a_lost_machine_is_done_without(tmp_path: Path, request: pytest.FixtureRequest, cluster):
    ended = noted(tmp_path, "6:machine", "ray", request)
    cluster.add_node(num_cpus=1)  # for the other tests, in place of the lost one
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "whole").exists()
    assert done(tmp_path) == set(range(NUMBER))
    assert "was killed at the unit 6, which is done again" in ended.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_a_unit_that_kills_every_worker_is_named(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
):
    ended = noted(tmp_path, "8:always", engine, request)
    assert ended.returncode == 1
    [last] = [line for line in ended.stderr.splitlines() if "one unit of work" in line]
    problem = f"{DEATHS} workers were killed at one unit of work, the unit 8"
    assert last.startswith(f"{problem}, perhaps for want of memory")
    assert not (tmp_path / "whole").exists()
    assert 8 not in done(tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_is_raised_with_its_origin_and_not_tried_again(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
):
    ended = noted(tmp_path, "9:error", engine, request)
    assert ended.returncode == 1
    assert "ValueError: unit 9 cannot be done" in ended.stderr
    assert "tests/lib/noted.py" in ended.stderr.partition("in a worker process")[2]
    assert ended.stderr.count("ValueError: unit 9 cannot be done") == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_that_computes_other_numbers_is_refused(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
):
    ended = noted(tmp_path, "2:foreign", engine, request)
    assert ended.returncode == 0, ended.stderr
    assert "is refused: its logits are not those of the first" in ended.stderr
    assert done(tmp_path) == set(range(NUMBER))


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_ends_in_a_sentence_and_loses_nothing(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
):
    ended = noted(tmp_path, "13:interrupt", engine, request)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == f"interrupted; {RESUME}"
    assert "Traceback" not in ended.stderr
    before = done(tmp_path)
    assert before
    assert 13 not in before
    again = carried_out("tests.lib.noted", str(tmp_path), "13:interrupt", engine="local")
    assert again.returncode == 0
    assert done(tmp_path) == set(range(NUMBER))


@pytest.mark.parametrize("engine", ENGINES)
def test_another_engine_continues_after_a_killed_driver(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
):
    ended = noted(tmp_path, "13:driver", engine, request)
    assert ended.returncode == -9
    before = times(tmp_path)
    assert before
    assert len(before) < NUMBER
    for share in ("array:1/2", "array:0/2", "local"):
        assert not (tmp_path / "whole").exists()
        again = carried_out("tests.lib.noted", str(tmp_path), "13:driver", engine=share)
        assert again.returncode == 0
    assert (tmp_path / "whole").exists()
    assert done(tmp_path) == set(range(NUMBER))
    assert before.items() <= times(tmp_path).items()


OUTPUTS = [  # of the stage store/dump, below data/abacus
    "store/activations",
    "store/means.h5",
    "store/value_logits.h5",
    "store/predictions.parquet",
]


def test_actors_write_the_same_bytes(micro_copy: Path, machines: str):
    """Two actors make the dump, in parts.

    Local workers do scores and permutation tests, too, and every stage in twos
    (test_shared_work.py).
    """
    outputs: list[Path] = []
    for name in OUTPUTS:
        path = micro_copy / "data/abacus" / name
        outputs += [path] if path.is_file() else sorted(path.iterdir())
    expected = [output.read_bytes() for output in outputs]
    assert expected
    for output in outputs:
        output.unlink()
    script = "python -m stages.store.dump abacus"
    more = {work.ENGINE: "ray", environment.WORKERS: "2", "RAY_ADDRESS": machines}
    run_in(micro_copy, "python", "-m", "stages.warm", "sh", "-c", script, more=more)
    assert [output.read_bytes() for output in outputs] == expected


def test_the_guide_works(micro_copy: Path):
    guide = (ROOT / "docs/cluster.md").read_text()
    assert set(re.findall(r"BAG_[A-Z]+", guide)) == {
        environment.WORKERS,
        *environment.MODELS,
        work.ENGINE,
    }
    [loop] = re.findall(r"^for part in .*?wait$", guide, re.DOTALL | re.MULTILINE)
    smaller = {"0 1 2 3 4 5 6 7": "0 1", "/8": "/2", "=cuda": "=cpu", " llama": " abacus"}
    for written, small in smaller.items():
        assert loop.count(written) == 1
        loop = loop.replace(written, small)
    output = micro_copy / "data/abacus/store/predictions.parquet"
    expected = output.read_bytes()
    output.unlink()
    (micro_copy / "stages/finish.py").write_text(FINISH)
    script = f"set -e\n{loop}\ntest ! -e {output}\npython -m stages.finish"
    # each process is a fork, which need not import the libraries again
    run_in(micro_copy, "python", "-m", "stages.warm", "bash", "-c", script)
    assert output.read_bytes() == expected


def test_without_ray_the_other_engines_work(tmp_path: Path):
    for engine, status in (("local", 0), ("ray", 1)):
        folder = tmp_path / engine
        folder.mkdir()
        own = {work.ENGINE: engine, environment.WORKERS: "1", "PYTHONPATH": str(ROOT)}
        ended = subprocess.run(
            [sys.executable, "-c", WITHOUT_RAY, str(folder), ""],
            check=False,
            env=os.environ | own,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == status
        message = "BAG_ENGINE=ray asks for Ray, which is not installed here"
        assert (message in ended.stderr) == (engine == "ray")
