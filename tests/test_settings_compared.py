"""Test that a change of params.yaml reruns the stages that read it, and no other stage."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from dvc.dependency import ParamsDependency
from dvc.repo import Repo

from stages.lib.core.settings import files
from stages.lib.entries import inserted
from stages.lib.subject import Sizes, SubjectSettings
from tests.declared import ROOT, STAGES, declared_sections, key, name, pipelines

PARAMS, DUMPS = Path("params.yaml"), "stages/store/dvc.yaml"
SUBJECTS = ("abacus", "abacus-deep", "mine")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a DVC project of dumps and the stages that read sizes, without code, data and Git."""
    reading = [file for file in pipelines() if "sized." in (ROOT / file).read_text()]
    for file in {*reading, DUMPS, *map(name, files(ROOT))}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n    no_scm = true\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compared(project: Path) -> dict[str, list[Any]]:
    """Return the settings that DVC writes into locks, by stage of one of SUBJECTS.

    Raises MissingParamsError as `dvc repro` does.
    """
    values: dict[str, list[Any]] = {}
    with Repo(str(project)) as repo:
        for stage in repo.index.stages:
            if stage.addressing.partition("@")[2] in SUBJECTS:
                settings = (dep for dep in stage.deps if isinstance(dep, ParamsDependency))
                values[stage.addressing] = [dep.get_hash().value for dep in settings]
    return values


def test_a_change_of_sizes_and_another_model_rerun_only_what_reads_them(project: Path):
    """The sizes of abacus change, and a model with sizes of its own is added."""
    before = compared(project)
    sizes = [
        "  abacus: {patched_neurons: 30, pairs_per_split: 10}",
        "  mine: {patched_neurons: 30}",
    ]
    entry = "  mine: {<<: *abacus, source: models/mine}"
    PARAMS.write_text(inserted(PARAMS, {"subjects": [entry], "sizes": sizes}))
    after = compared(project)
    changed = {address for address in before if before[address] != after[address]}
    assert {address.partition("@")[2] for address in changed} == {"abacus"}
    readers = {stage for stage in STAGES if "sized.${key}" in declared_sections(stage)}
    assert {key(address) for address in changed} == readers
    assert f"{DUMPS}:dump@abacus" in before.keys() - changed
    added = {key(address) for address in after.keys() - before.keys()}
    assert added == {key(address) for address in before if address.endswith("@abacus-deep")}


def test_no_entry_of_a_model_holds_sizes():
    """So a stage that depends on the entry, such as a dump, reads no sizes."""
    assert Sizes.model_fields.keys().isdisjoint(SubjectSettings.model_fields)
