"""`bag new experiment`: it adds text and keeps the rest, and refuses names that cannot be used."""

import shutil
from pathlib import Path

import polars as pl
import pytest
import yaml

from stages.circuit import new
from stages.lib.dictionary import tables
from stages.lib.sql.database import Database
from tests.made import Tables, architecture, majority, pairs, runs
from tests.micro import ROOT


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with the stages of two chapters, as the working directory."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    for chapter in ("circuit", "theories"):
        folder = tmp_path / "stages" / chapter
        folder.mkdir(parents=True)
        for file in ("dvc.yaml", "params.yaml"):
            shutil.copy(ROOT / "stages" / chapter / file, folder)
    for query in (ROOT / "stages/circuit").glob("*.sql"):
        shutil.copy(query, tmp_path / "stages/circuit")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_experiment_is_added_and_all_else_stays(
    project: Path, capsys: pytest.CaptureFixture[str]
):
    entries = project / "stages/theories/dvc.yaml"
    before = entries.read_text()
    new.main(["experiment", "mine", "--chapter", "theories"])
    printed = capsys.readouterr().out
    after = entries.read_text()
    assert after.startswith(before)
    added = yaml.safe_load(after)["stages"]
    names = ["mine_interventions", "mine_runs", "mine_effects"]
    assert [*added][-3:] == names
    assert added["mine_runs"]["do"]["outs"] == ["data/${key}/theories/runs/mine.parquet"]
    for stage in names[::2]:
        query = Path(f"stages/theories/{stage}.sql")
        assert query.is_file()
        assert str(query) in added[stage]["do"]["deps"]
        assert str(query) in printed
        assert tables()[stage].columns["intervention"][0] == "INTEGER"
    assert "dvc repro stages/theories/dvc.yaml:mine_effects@abacus" in printed
    first, last = len(before.splitlines()) + 1, len(after.splitlines())
    assert f"lines {first} to {last}" in printed


def result(query: str, given: Tables) -> pl.DataFrame:
    """Return the rows of a query of the chapter circuit on these tables."""
    files = {name: [Path(f"{name}.parquet")] for name in given}
    for name, rows in given.items():
        rows.write_parquet(*files[name])
    text = Path("stages/circuit", f"{query}.sql").read_text()
    return Database(files, threads=1).sql(text, subject="s").pl()


def test_the_accuracy_of_an_experiment_has_that_of_the_most_frequent_answer(project: Path):
    new.main(["experiment", "mine"])
    interventions = result("mine_interventions", {"architecture": architecture()})
    given = {"mine_interventions": interventions, "pairs": pairs()}
    effects = result("mine_effects", given | {"runs": runs(interventions, pairs(), "mine")})
    assert list(effects.columns) == [*tables()["mine_effects"].columns]
    assert len(effects) == 2 * len(interventions) > 2
    for row in effects.iter_rows(named=True):
        most = majority(pairs(), operator=row["operator"], split="evaluation")
        assert row["majority_accuracy"] == pytest.approx(most)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Mine", "'Mine' is not a name"),
        ("my-own", "'my-own' is not a name"),
        ("2nd", "'2nd' is not a name"),
        ("a" * 41, "at most 39"),
        ("component", "component_interventions; choose another name"),
        ("helix", "helix_runs; choose another name"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(project: Path, name: str, problem: str):
    before = sorted(project.rglob("*"))
    with pytest.raises(SystemExit) as refusal:
        new.main(["experiment", name])
    assert problem in str(refusal.value)
    assert sorted(project.rglob("*")) == before


def test_a_folder_that_cannot_be_written_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch):
    # tests may run as a user who may write anywhere
    monkeypatch.setattr(new.os, "access", lambda file, mode: Path(file).name != "dvc.yaml")
    with pytest.raises(SystemExit, match="is not writable"):
        new.main(["experiment", "mine"])
    assert not list(project.rglob("mine*"))


def test_another_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="run bag new in the project's root"):
        new.main(["experiment", "mine"])
