"""The same work by every engine: killed workers, machines and drivers cost nothing but time."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.lib.core import environment
from stages.lib.units import work
from stages.lib.units.queue import DEATHS
from tests.conftest import run_in
from tests.lib.noted import NUMBER
from tests.micro import ROOT

ENGINES = ("local", "ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator:
    """A Ray cluster of a head without processors, and machines of one each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def machines(cluster) -> str:
    """Two of them, and where the cluster is. Whoever loses one adds it."""
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
    """Runs a module of the project as a process of its own, with an engine."""
    asked = {
        work.ENGINE: engine,
        environment.WORKERS: str(workers),
        "PYTHONPATH": str(ROOT),
        "RAY_ADDRESS": address,
    }
    variables = {name: value for name, value in (os.environ | asked).items() if value}
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


def done(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.iterdir() if path.name.isdecimal()}


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_workers_are_replaced(engine: str, tmp_path: Path, request: pytest.FixtureRequest):
    ended = noted(tmp_path, "3:worker 17:worker", engine, request)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "whole").exists()
    assert done(tmp_path) == set(range(NUMBER))  # each once: a second time fails
    assert all(
        f"was killed at the unit {number}, which is done again" in ended.stderr
        for number in (3, 17)
    )


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
    assert last.startswith(
        f"{DEATHS} workers were killed at one unit of work, the unit 8, perhaps for want of memory"
    )
    assert not (tmp_path / "whole").exists()
    assert 8 not in done(tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_is_raised_with_where_it_comes_from_and_not_tried_again(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
):
    ended = noted(tmp_path, "9:error", engine, request)
    assert ended.returncode == 1
    assert "ValueError: unit 9 cannot be done" in ended.stderr
    assert "tests/lib/noted.py" in ended.stderr.partition("in a worker process")[2]
    assert ended.stderr.count("ValueError: unit 9 cannot be done") == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_that_computes_otherwise_is_refused(
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
    assert (
        ended.stderr.splitlines()[-1]
        == "interrupted; what is done is kept, and the same command goes on from there"
    )
    assert "Traceback" not in ended.stderr
    before = done(tmp_path)
    assert before
    assert 13 not in before
    assert (
        carried_out("tests.lib.noted", str(tmp_path), "13:interrupt", engine="local").returncode
        == 0
    )
    assert done(tmp_path) == set(range(NUMBER))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_driver_is_taken_up_by_another_engine(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
):
    ended = noted(tmp_path, "13:driver", engine, request)
    assert ended.returncode == -9
    before = {number: (tmp_path / str(number)).stat().st_mtime_ns for number in done(tmp_path)}
    assert before
    assert len(before) < NUMBER
    for share in ("array:1/2", "array:0/2", "local"):
        assert not (tmp_path / "whole").exists()
        assert (
            carried_out("tests.lib.noted", str(tmp_path), "13:driver", engine=share).returncode == 0
        )
    assert (tmp_path / "whole").exists()
    assert done(tmp_path) == set(range(NUMBER))
    assert all(
        (tmp_path / str(number)).stat().st_mtime_ns == time for number, time in before.items()
    )


UNITS = {  # what is done by units -> what it writes of a subject
    "stages.store.dump abacus": [
        "store/activations",
        "store/means.h5",
        "store/value_logits.h5",
        "store/predictions.parquet",
    ],
    "stages.lib.executor.runs neurons/neuron abacus": ["neurons/runs/neuron.parquet"],
    "stages.heuristics.scores abacus": ["heuristics/scores.parquet"],
}


def test_what_actors_do_is_the_same(micro_copy: Path, machines: str):
    """One stage's work is done by one actor, the others' by two. PermutationTests, whose compiled code is that
    of scores, are done by local workers alone, who also do every stage in twos (test_shared_work.py)."""
    for workers, commands in (("1", list(UNITS)[:1]), ("2", list(UNITS)[1:])):
        paths = [
            micro_copy / "data/abacus" / name for command in commands for name in UNITS[command]
        ]
        outputs = sorted(
            file for path in paths for file in ([path] if path.is_file() else path.iterdir())
        )
        expected = [output.read_bytes() for output in outputs]
        for output in outputs:
            output.unlink()
        script = "set -e\n" + "\n".join(f"python -m {command}" for command in commands)
        more = {work.ENGINE: "ray", environment.WORKERS: workers, "RAY_ADDRESS": machines}
        run_in(micro_copy, "python", "-m", "stages.warm", "sh", "-c", script, more=more)
        assert [output.read_bytes() for output in outputs] == expected


def test_the_guide_says_what_works(micro_copy: Path):
    guide = (ROOT / "docs/cluster.md").read_text()
    assert set(re.findall(r"BAG_[A-Z]+", guide)) == {environment.WORKERS, *environment.MODELS, work.ENGINE}
    [loop] = re.findall(r"^for part in .*?wait$", guide, re.DOTALL | re.MULTILINE)
    for there, here in {
        "0 1 2 3 4 5 6 7": "0 1",
        "/8": "/2",
        "=cuda": "=cpu",
        " llama": " abacus",
    }.items():
        assert loop.count(there) == 1
        loop = loop.replace(there, here)
    output = micro_copy / "data/abacus/store/predictions.parquet"
    expected = output.read_bytes()
    output.unlink()
    run_in(micro_copy, "bash", "-c", loop)
    assert not output.exists()
    run_in(
        micro_copy,
        "python",
        "-c",
        "from stages.store import dump; work = dump.DumpWork('abacus'); assert not work.missing(); work.finish()",
    )
    assert output.read_bytes() == expected


def test_without_ray_all_but_ray_works(tmp_path: Path):
    code = "import runpy, sys; sys.modules['ray'] = None; runpy.run_module('tests.lib.noted', run_name='__main__', alter_sys=True)"
    for engine, status in (("local", 0), ("ray", 1)):
        folder = tmp_path / engine
        folder.mkdir()
        variables = os.environ | {
            work.ENGINE: engine,
            environment.WORKERS: "1",
            "PYTHONPATH": str(ROOT),
        }
        ended = subprocess.run(
            [sys.executable, "-c", code, str(folder), ""],
            check=False,
            env=variables,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == status
        assert ("BAG_ENGINE=ray asks for Ray, which is not installed here" in ended.stderr) == (
            engine == "ray"
        )
