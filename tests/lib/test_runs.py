"""Check the stage that runs interventions: interrupted, resumed, and compared with its inputs."""

import errno
import os
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
import yaml

from stages.circuit.new import written
from stages.lib.core.digest import digest
from stages.lib.dictionary import tables
from stages.lib.executor import runs
from stages.lib.sql.database import connect
from stages.lib.units.parts import Parts
from stages.lib.units.pool import Refused
from tests.conftest import run_in


@pytest.fixture
def project(micro_copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(micro_copy)
    return micro_copy


def counted(monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> list[int]:
    """Return a list that grows with each computed unit; interrupt after `stop_after` of them."""
    done: list[int] = []
    usual = runs.rows

    def rows(*arguments) -> pl.DataFrame:
        if len(done) == stop_after:
            raise KeyboardInterrupt
        done.append(len(done))
        return usual(*arguments)

    monkeypatch.setattr(runs, "rows", rows)
    return done


def test_an_interrupted_run_continues_after_its_last_unit(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    output = project / "data/abacus/circuit/runs/component.parquet"
    expected = output.read_bytes()
    output.unlink()
    with monkeypatch.context() as stopped:
        first = counted(stopped, stop_after=3)
        with pytest.raises(SystemExit, match="interrupted; what is done is kept"):
            runs.main("circuit/component", "abacus")
    assert len(first) == 3
    assert not output.exists()
    assert len(list(output.with_suffix(".parts").rglob("*.parquet"))) == 3
    done = counted(monkeypatch)
    runs.main("circuit/component", "abacus")
    rest = len(done)
    assert output.read_bytes() == expected
    assert not output.with_suffix(".parts").exists()
    output.unlink()
    runs.main("circuit/component", "abacus")
    assert len(done) - rest == 3 + rest > 3


def test_parts_of_other_inputs_are_not_used(project: Path, monkeypatch: pytest.MonkeyPatch):
    output = project / "data/abacus/circuit/runs/component.parquet"
    with monkeypatch.context() as stopped:
        counted(stopped, stop_after=3)
        with pytest.raises(SystemExit, match="interrupted; what is done is kept"):
            runs.main("circuit/component", "abacus")
    settings = yaml.safe_load(Path("params.yaml").read_text())
    settings["runs"]["rows_per_pass"] += 1
    Path("params.yaml").write_text(yaml.safe_dump(settings))
    again = counted(monkeypatch)
    before = pl.read_parquet(output)
    runs.main("circuit/component", "abacus")
    after = pl.read_parquet(output)
    assert len(again) > 3
    keys, floats = (
        ["intervention", "pair"],
        ["answer_logit", "counterfactual_logit", "max_logit", "mean_logit"],
    )
    before, after = before.sort(keys), after.sort(keys)
    assert after.drop(*floats, "answer_probability", "counterfactual_probability").equals(
        before.drop(*floats, "answer_probability", "counterfactual_probability")
    )
    for name in floats:
        assert (after[name] - before[name]).abs().max() < 1e-4


@pytest.mark.parametrize(
    "table_of",
    [
        "circuit/component",
        "circuit/head_circuit",
        "circuit/cut",
        "neurons/neuron",
        "neurons/neuron_circuit",
        "bag/knockout",
    ],
)
@pytest.mark.parametrize("subject", ["abacus", "planted"])
def test_every_intervention_is_run_on_every_pair_that_it_names(
    micro: Path, table_of: str, subject: str
):
    folder, (chapter, experiment) = micro / "data" / subject, table_of.split("/")
    runs = pl.read_parquet(folder / f"{chapter}/runs/{experiment}.parquet")
    wanted = pl.read_parquet(folder / f"{table_of}_interventions.parquet")
    wanted = wanted.select("intervention", "operator", "split").unique()
    pairs = pl.read_parquet(folder / "circuit/pairs.parquet")
    every = wanted.join(pairs.select("pair", "operator", "split"), how="cross", suffix="_of_pair")
    for name in ("operator", "split"):
        is_any = pl.col(name).is_null()
        every = every.filter(is_any | (pl.col(name) == pl.col(f"{name}_of_pair")))
    numbers = runs.select("intervention", "pair")
    assert numbers.n_unique() == len(runs) > 0
    assert set(numbers.rows()) == set(every.select("intervention", "pair").rows())


def test_the_clean_run_predicts_what_the_store_predicts(micro: Path):
    """Predictions of the dump and pairs without a patch are computed in two ways."""
    folder = micro / "data/abacus"
    pairs = pl.read_parquet(folder / "circuit/pairs.parquet").filter(pl.col("split") == "discovery")
    clean = pl.read_parquet(folder / "circuit/runs/component.parquet").filter(
        pl.col("intervention") == 0
    )
    predictions = pl.read_parquet(folder / "store/predictions.parquet")
    cell = ["operator", "op1", "op2"]
    both = clean.join(pairs, on="pair", validate="1:1")
    both = both.join(predictions, on=cell, suffix="_dumped", validate="m:1")
    assert len(both) == len(pairs) > 0
    assert both["correct"].all()
    for name in ("answer_logit", "max_logit", "answer_probability"):
        assert (both[name] - both[f"{name}_dumped"]).abs().max() < 1e-4


def test_a_new_experiment_is_two_queries_and_three_entries(project: Path):
    """Run what `bag new experiment` writes, by the command that it prints."""
    lines = written("mine", "circuit")
    [command] = [line.removeprefix("run it: ") for line in lines if line.startswith("run it: ")]
    run_in(project, *command.split())
    table = pl.read_parquet("data/abacus/circuit/mine_effects.parquet")
    clean = table.filter(intervention=0)
    ablated = table.filter(pl.col("intervention") > 0)
    assert (clean["accuracy"] == 1).all()
    assert len(ablated) > len(clean)
    assert ablated["accuracy"].min() < 1
    both = ablated.join(clean, on=["subject", "operator"], suffix="_clean", validate="m:1")
    assert len(both) == len(ablated)
    assert (both["probability"] != both["probability_clean"]).all()
    columns = {name: kind for name, (kind, _) in tables()["mine_effects"].columns.items()}
    with connect() as database:
        assert database.columns("mine_effects") == columns


def test_parts_are_joined_in_order_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture):
    output = tmp_path / "runs/x.parquet"
    tables = [pl.DataFrame({"n": [i, i]}) for i in range(3)]
    parts = Parts(output, "key")
    for number in (2, 0):
        parts.write(number, tables[number])
    parts = Parts(output, "key")
    assert parts.missing(3) == [1]
    assert capsys.readouterr().err == ""
    assert Parts(output, "another").missing(3) == [0, 1, 2]
    assert f"{parts.folder} has 2 finished parts of another input" in capsys.readouterr().err
    parts = Parts(output, "key")
    assert parts.missing(3) == [1]  # a forgotten variable, such as BAG_DEVICE, loses nothing
    assert capsys.readouterr().err == ""
    for number, table in enumerate(tables):
        parts.write(number, table)
    parts.finish([[0], [1, 2]], tables[0].clear())
    assert pl.read_parquet(output)["n"].to_list() == [0, 0, 1, 1, 2, 2]
    assert not output.with_suffix(".parts").exists()


def test_parts_need_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Some file systems have none, such as exFAT."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    parts = Parts(tmp_path / "x.parquet", "key")
    for _ in range(2):
        parts.admit("the digest")
    with pytest.raises(Refused, match="this machine computes other numbers"):
        parts.admit("another digest")


def test_a_digest_depends_on_contents_names_and_facts(tmp_path: Path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("x")
    second.write_text("y")
    digests = [digest([first, second]), digest([first, second], 1), digest([first])]
    second.write_text("z")
    digests.append(digest([first, second]))
    assert len(set(digests)) == 4
    assert digest([second, first]) == digests[3]


def test_only_blocks_on_one_pair_are_written_together():
    def block(size: int, pair: int | None) -> SimpleNamespace:
        return SimpleNamespace(runs=size, interventions=[SimpleNamespace(pair=pair)])

    blocks = [block(3, None), block(3, None)]
    blocks += [block(4, pair) for pair in range(5)]
    blocks += [block(20, 7), block(1, 8), block(2, None), block(1, 9)]
    bundles = runs.bundled(blocks, 10)
    assert list(chain.from_iterable(bundles)) == blocks
    sizes = [[block.runs for block in bundle] for bundle in bundles]
    assert sizes == [[3], [3], [4, 4], [4, 4], [4], [20], [1], [2], [1]]
