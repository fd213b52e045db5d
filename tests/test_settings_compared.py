"""What DVC compares of params.yaml: a change is seen by the stages that read it, and by no other stage."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from dvc.dependency import ParamsDependency
from dvc.repo import Repo

from stages.lib.core.settings import files
from stages.lib.subject import Sizes, SubjectSettings
from stages.store.add import inserted
from tests.declared import ROOT, STAGES, declared_sections, key, name, pipelines

PARAMS = Path("params.yaml")
SUBJECTS = ("abacus", "abacus-deep", "mine")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every dvc.yaml and params.yaml, as a DVC project without code, data and Git."""
    for file in [*pipelines(), *map(name, files(ROOT))]:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n    no_scm = true\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compared(project: Path) -> dict[str, list[Any]]:
    """Return what DVC writes into locks: stage of some subjects -> settings. Raises MissingParamsError as `dvc repro` does."""
    with Repo(str(project)) as repo:
        stages = [stage for stage in repo.index.stages if stage.addressing.partition("@")[2] in SUBJECTS]
        return {stage.addressing: [dep.get_hash().value for dep in stage.deps if isinstance(dep, ParamsDependency)] for stage in stages}


def test_a_change_of_sizes_and_another_model_rerun_only_what_reads_them(project: Path):
    """The sizes of abacus change, and a model with sizes of its own is added."""
    before = compared(project)
    sizes = ["  abacus: {patched_neurons: 30, pairs_per_split: 10}", "  mine: {patched_neurons: 30}"]
    PARAMS.write_text(inserted(PARAMS, {"subjects": ["  mine: {<<: *abacus, source: models/mine}"], "sizes": sizes}))
    after = compared(project)
    changed = {address for address in before if before[address] != after[address]}
    assert {address.partition("@")[2] for address in changed} == {"abacus"}
    assert {key(address) for address in changed} == {stage for stage in STAGES if "sized.${key}" in declared_sections(stage)}
    assert "store/dump" not in map(key, changed)
    added = {key(address) for address in after.keys() - before.keys()}
    assert added == {key(address) for address in before if address.endswith("@abacus-deep")} - {"subjects/train"}


def test_no_entry_of_a_model_holds_sizes():
    """So a stage that lists the entry, such as a dump, reads none of them."""
    assert Sizes.model_fields.keys().isdisjoint(SubjectSettings.model_fields)
