"""Stages whose work is shared: the bytes are the same, whoever does it, and who would write others is not let in."""

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

STAGES: dict[str, tuple[Callable, tuple[str, ...], tuple[str, ...]]] = {
    "dump": (dump.main, ("abacus",), ("store/activations/add.h5", "store/activations/divide.h5", "store/means.h5", "store/value_logits.h5",
                                      "store/predictions.parquet")),
    "runs": (runs.main, ("neurons/neuron", "abacus"), ("neurons/runs/neuron.parquet",)),
    "scores": (scores.main, ("abacus",), ("heuristics/scores.parquet",)),
    "permutation_tests": (permutation_tests.main, ("abacus",), ("heuristics/permutation_tests.parquet", "heuristics/null_shares.parquet", "heuristics/naming.parquet")),
}  # fmt: skip


@pytest.mark.parametrize("stage", STAGES)
def test_the_bytes_are_the_same_whoever_does_the_work(
    stage: str, micro_copy: Path, monkeypatch: pytest.MonkeyPatch
):
    main, arguments, names = STAGES[stage]
    outputs = [micro_copy / "data/abacus" / name for name in names]
    expected = [output.read_bytes() for output in outputs]
    monkeypatch.chdir(micro_copy)
    for work_of in (runs.RunsWork, scores.ScoresWork, permutation_tests.PermutationTestsWork, dump.DumpWork):
        monkeypatch.setattr(work_of, "few", 0)
    for workers, shares in (("2", []), ("1", ["array:1/3", "array:0/3"])):
        monkeypatch.setenv(environment.WORKERS, workers)
        for output in outputs:
            output.unlink()
        for share in shares:
            monkeypatch.setenv(work.ENGINE, share)
            main(*arguments)
            assert not any(output.exists() for output in outputs)
        monkeypatch.delenv(work.ENGINE, raising=False)  # whoever comes next does the rest
        main(*arguments)
        assert [output.read_bytes() for output in outputs] == expected


def test_a_large_subject_is_dumped_in_shards_and_studied_alike(
    micro_copy: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(micro_copy)
    folder = micro_copy / "data/abacus"
    query = "select operator, layer, neuron, op1, op2, result, activation from activations where subject = 'abacus' order by all"
    others = [
        folder / "store" / name for name in ("means.h5", "value_logits.h5", "predictions.parquet")
    ]
    others += [
        folder / "heuristics" / f"{name}.parquet"
        for name in ("permutation_tests", "null_shares", "naming", "scores")
    ]
    expected = [file.read_bytes() for file in others]
    before = connect("data").sql(query).pl()
    shutil.rmtree(folder / "store/activations")
    chapter = Path("stages/store/params.yaml")
    chapter.write_text(re.sub(r"largest_file_mib: \d+", "largest_file_mib: 0", chapter.read_text()))
    for main in (dump.main, scores.main, permutation_tests.main):
        main("abacus")
    assert sorted(path.name for path in (folder / "store/activations").iterdir()) == [
        "add",
        "divide",
        "manifest.parquet",
        "multiply",
        "subtract",
    ]
    assert connect("data").sql(query).pl().equals(before)
    assert [file.read_bytes() for file in others] == expected
    assert not list(folder.rglob("*.parts"))


def test_who_computes_otherwise_writes_no_parts(micro_copy: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(micro_copy)
    Path("data/abacus/store/predictions.parquet").unlink()
    monkeypatch.setenv(work.ENGINE, "array:0/2")
    dump.main("abacus")
    monkeypatch.setattr(checkpoint, "parity_digest", lambda _: "other logits")
    monkeypatch.setenv(work.ENGINE, "array:1/2")
    with pytest.raises(
        SystemExit,
        match=r"gives other numbers than the one that began data/abacus/store/predictions\.parquet",
    ):
        dump.main("abacus")


def test_processors_of_other_kinds_are_told_apart_where_bytes_are(micro: Path):
    wide, narrow = (
        checkpoint.load(micro / "data/models/abacus/step-00200", dtype, "cpu", 1)
        for dtype in ("float64", "float32")
    )
    found = checkpoint.parity_digest(wide), checkpoint.parity_digest(narrow)
    for loaded in (wide, narrow):  # as much as instruction sets differ by
        loaded.architecture.unembedding.weight.mul_(1 + torch.finfo(loaded.model.dtype).eps)
    assert checkpoint.parity_digest(wide) == found[0]
    assert checkpoint.parity_digest(narrow) != found[1]


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
    said = capsys.readouterr().err
    assert (
        f"dump abacus: part 0 of 2 is done, {(len(units) + 1) // 2} units of work; once all parts are, the same command without"
        in said
    )
    assert dump.DumpWork("abacus").missing() == []
    before = {
        file: file.stat().st_mtime_ns for file in output.with_suffix(".parts").rglob("*.parquet")
    }
    assert len(before) == len(units)
    dump.main("abacus")  # still as one of an array: nothing is left to do
    assert before == {
        file: file.stat().st_mtime_ns for file in output.with_suffix(".parts").rglob("*.parquet")
    }


@pytest.mark.parametrize("engine", ["array", "array:2/2", "array:-1/2", "array:1/0", "rai", ""])
def test_a_wrong_engine_is_named(engine: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(work.ENGINE, engine)
    with pytest.raises(
        SystemExit, match=f"BAG_ENGINE='{engine}', but it is local, ray or array:I/N"
    ):
        runs.main("neurons/neuron", "abacus")
