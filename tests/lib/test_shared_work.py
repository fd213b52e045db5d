"""Check stages whose work is shared: the bytes are the same, whoever does it."""

import re
import shutil
from pathlib import Path

import pytest
import torch

from stages.heuristics import permutation_tests, scores
from stages.lib.core import environment
from stages.lib.executor import runs
from stages.lib.model import checkpoint
from stages.lib.sql.database import connect
from stages.lib.units import work
from stages.store import dump
from tests.conftest import run_in

DUMPED = ("activations/add.h5", "activations/divide.h5", "means.h5", "value_logits.h5")
STAGES: dict[str, tuple[str, tuple[str, ...]]] = {  # a stage's command -> its outputs
    "store.dump abacus": (*(f"store/{name}" for name in DUMPED), "store/predictions.parquet"),
    "lib.executor.runs neurons/neuron abacus": ("neurons/runs/neuron.parquet",),
    # and so for the scores, which read the same units
    "heuristics.permutation_tests abacus": tuple(
        f"heuristics/{name}.parquet" for name in ("permutation_tests", "null_shares", "naming")
    ),
}
# Each stage in two processes, then as two parts of an array of three, whose rest it does itself.
WAYS = (("2", ()), ("1", ("array:1/3", "array:0/3")))
FEW = """
import runpy, sys
from stages.heuristics.permutation_tests import PermutationTestsWork
from stages.lib.executor.runs import RunsWork
from stages.store.dump import DumpWork
if __name__ == "__main__":
    module, *sys.argv[1:] = sys.argv[1:]
    for work_of in (DumpWork, RunsWork, PermutationTestsWork):
        work_of.few = 0
    sys.modules["stages." + module].main(*sys.argv[1:])
"""


def test_the_bytes_are_the_same_whoever_does_the_work(micro_copy: Path):
    """Run all stages under stages.warm, whose forks need not import the libraries again."""
    (micro_copy / "stages/few.py").write_text(FEW)
    script = ["set -e", "cp -a data/abacus expected"]
    for command, names in STAGES.items():
        outputs = [f"data/abacus/{name}" for name in names]
        for workers, shares in WAYS:
            script.append(f"export {environment.WORKERS}={workers}; rm {' '.join(outputs)}")
            for share in shares:
                script.append(f"{work.ENGINE}={share} python -m stages.few {command}")
                script += [f"test ! -e {output}" for output in outputs]
            script.append(f"python -m stages.few {command}")
            script += [f"cmp {data} {data.replace('data/abacus', 'expected')}" for data in outputs]
    run_in(micro_copy, "python", "-m", "stages.warm", "sh", "-c", "\n".join(script))


def test_a_large_store_in_shards_gives_the_same_results(
    micro_copy: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(micro_copy)
    folder = micro_copy / "data/abacus"
    columns = "operator, layer, neuron, op1, op2, result, activation"
    query = f"select {columns} from activations where subject = 'abacus' order by all"
    names = [f"store/{name}" for name in ("means.h5", "value_logits.h5", "predictions.parquet")]
    for name in ("permutation_tests", "null_shares", "naming", "scores"):
        names.append(f"heuristics/{name}.parquet")
    others = [folder / name for name in names]
    expected = [file.read_bytes() for file in others]
    before = connect("data").sql(query).pl()
    shutil.rmtree(folder / "store/activations")
    chapter = Path("stages/store/params.yaml")
    chapter.write_text(re.sub(r"largest_file_mib: \d+", "largest_file_mib: 0", chapter.read_text()))
    for main in (dump.main, scores.main, permutation_tests.main):
        main("abacus")
    files = sorted(path.name for path in (folder / "store/activations").iterdir())
    assert files == ["add", "divide", "manifest.parquet", "multiply", "subtract"]
    assert connect("data").sql(query).pl().equals(before)
    assert [file.read_bytes() for file in others] == expected
    assert not list(folder.rglob("*.parts"))


def test_a_process_that_computes_other_numbers_writes_no_parts(
    micro_copy: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(micro_copy)
    Path("data/abacus/store/predictions.parquet").unlink()
    monkeypatch.setenv(work.ENGINE, "array:0/2")
    dump.main("abacus")
    monkeypatch.setattr(checkpoint, "parity_digest", lambda _: "other logits")
    monkeypatch.setenv(work.ENGINE, "array:1/2")
    began = r"the one that started data/abacus/store/predictions\.parquet"
    with pytest.raises(SystemExit, match=f"computes other numbers than {began}"):
        dump.main("abacus")


def test_a_parity_digest_tells_processors_apart_only_if_bytes_differ(micro: Path):
    path = micro / "data/models/abacus/step-00200"
    for dtype, is_same in (("float64", True), ("float32", False)):
        loaded = checkpoint.load(path, dtype, "cpu", 1)
        before = checkpoint.parity_digest(loaded)
        # Instruction sets differ by about as much.
        eps = torch.finfo(loaded.model.dtype).eps
        loaded.architecture.unembedding.weight.mul_(1 + eps)
        assert (checkpoint.parity_digest(loaded) == before) == is_same


def times(output: Path) -> dict[Path, int]:
    """Return when each part of an output was written."""
    files = output.with_suffix(".parts").rglob("*.parquet")
    return {file: file.stat().st_mtime_ns for file in files}


def test_an_array_does_every_unit_once(
    micro_copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(micro_copy)
    output = micro_copy / "data/abacus/store/predictions.parquet"
    output.unlink()
    units = dump.DumpWork("abacus").units
    for share in ("array:0/2", "array:1/2"):
        monkeypatch.setenv(work.ENGINE, share)
        dump.main("abacus")
    message = f"part 0 of 2 is done, {(len(units) + 1) // 2} units of work; when all parts are"
    assert f"dump abacus: {message} done, run the same command without" in capsys.readouterr().err
    assert dump.DumpWork("abacus").missing() == []
    before = times(output)
    assert len(before) == len(units)
    dump.main("abacus")  # still as a part of the array: nothing is left to do
    assert times(output) == before


@pytest.mark.parametrize("engine", ["array", "array:2/2", "array:-1/2", "array:1/0", "rai", ""])
def test_a_wrong_engine_is_named(engine: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(work.ENGINE, engine)
    message = f"BAG_ENGINE='{engine}', but it is local, ray or array:I/N"
    with pytest.raises(SystemExit, match=message):
        runs.main("neurons/neuron", "abacus")
