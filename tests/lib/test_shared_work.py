"""Check stages whose work is shared: the bytes are the same, whoever does it."""

import re
import shutil
from collections.abc import Callable
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

DUMPED = ("activations/add.h5", "activations/divide.h5", "means.h5", "value_logits.h5")
STAGES: dict[str, tuple[Callable, tuple[str, ...], tuple[str, ...]]] = {
    "dump": (
        dump.main,
        ("abacus",),
        (*(f"store/{name}" for name in DUMPED), "store/predictions.parquet"),
    ),
    "runs": (runs.main, ("neurons/neuron", "abacus"), ("neurons/runs/neuron.parquet",)),
    "permutation_tests": (  # and so for the scores, which read the same units
        permutation_tests.main,
        ("abacus",),
        tuple(
            f"heuristics/{name}.parquet" for name in ("permutation_tests", "null_shares", "naming")
        ),
    ),
}


@pytest.mark.parametrize("stage", STAGES)
def test_the_bytes_are_the_same_whoever_does_the_work(
    stage: str, micro_copy: Path, monkeypatch: pytest.MonkeyPatch
):
    main, arguments, names = STAGES[stage]
    outputs = [micro_copy / "data/abacus" / name for name in names]
    expected = [output.read_bytes() for output in outputs]
    monkeypatch.chdir(micro_copy)
    for work_of in (
        runs.RunsWork,
        permutation_tests.PermutationTestsWork,
        dump.DumpWork,
    ):
        monkeypatch.setattr(work_of, "few", 0)
    for workers, shares in (("2", []), ("1", ["array:1/3", "array:0/3"])):
        monkeypatch.setenv(environment.WORKERS, workers)
        for output in outputs:
            output.unlink()
        for share in shares:
            monkeypatch.setenv(work.ENGINE, share)
            main(*arguments)
            assert not any(output.exists() for output in outputs)
        monkeypatch.delenv(work.ENGINE, raising=False)  # the plain command does the rest
        main(*arguments)
        assert [output.read_bytes() for output in outputs] == expected


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
    began = r"the one that began data/abacus/store/predictions\.parquet"
    with pytest.raises(SystemExit, match=f"gives other numbers than {began}"):
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
    message = f"part 0 of 2 is done, {(len(units) + 1) // 2} units of work; once all parts are"
    assert f"dump abacus: {message}, the same command without" in capsys.readouterr().err
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
