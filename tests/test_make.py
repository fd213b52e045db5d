"""What make says of a mistake, with nothing written or fetched."""

import os
import re
import shutil
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests import declared
from tests.conftest import MAKE, run_in
from tests.micro import ROOT, copy_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project before anything has run."""
    return copy_project(tmp_path_factory.mktemp("make") / "project")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("remote", "URL=ssh://user:SECRET@host/folder"), "leave it out, then say dvc remote modify --local storage password"),
        (("remote",), "say where, such as URL=s3://bucket/folder"),
        (("pull", "SUBJECT=abacsu"), "there is no subject 'abacsu', only abacus"),
        (("pull",), "there is no subject '', only abacus"),
    ],
)
def test_a_mistake_is_a_sentence(project: Path, arguments: tuple[str, ...], said: str):
    before = (project / ".dvc/config").read_text()
    done = run_in(project, *MAKE, *arguments, check=False)
    assert done.returncode != 0
    assert said in done.stderr
    assert "SECRET" not in done.stderr
    assert (project / ".dvc/config").read_text() == before
    assert not (project / "data").exists()


def test_the_pythons_that_are_asked_for_are_those_that_all_pinned_packages_take():
    asked = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    theirs = [SpecifierSet(distribution(name).metadata["Requires-Python"] or "") for name in pinned]
    for version in ("3.10.9", *(f"3.{minor}.{patch}" for minor in range(11, 17) for patch in range(15))):
        assert (version in asked) == all(version in each for each in theirs), version
    assert "Python 3.11 to 3.14 (`make PYTHON=" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("subject", ["abacus", "planted"])
def test_a_subject_is_pulled_with_what_its_stages_read_of_all_subjects(project: Path, tmp_path: Path, subject: str):
    real = shutil.which("dvc", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (tmp_path / "dvc").write_text(f'#!/bin/sh\n[ "$1" = pull ] && echo pulled "$@" || exec {real} "$@"\n')
    (tmp_path / "dvc").chmod(0o700)
    done = run_in(project, *MAKE, "pull", f"SUBJECT={subject}", more={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    _, _, *pulled = done.stdout.split()
    assert {name.partition("@")[2] for name in pulled} == {subject, ""}
    own = {declared.key(name) for name in pulled if "@" in name}
    assert len(own) > 50
    read = {path for name in own for path in declared.read(name)} | {f"data/models/{subject}"}
    written = {path for name in pulled if "@" not in name for path in declared.written(declared.key(name))}
    once = {path for name, entry in declared.STAGES.items() if not entry["foreach"] for path in declared.written(name)}
    assert read & once <= written | {"data/settings.txt"}
    assert ("data/models/planted" in written) == (subject == "planted")
