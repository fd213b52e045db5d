"""`make` reports mistakes, and writes and fetches nothing."""

import re
import shutil
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo
from dvc.stage import Stage
from packaging.specifiers import SpecifierSet

from stages.lib.console.remote import of_subject
from tests import declared
from tests.conftest import MAKE, run_in
from tests.micro import ROOT, copy_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the project before anything has run."""
    return copy_project(tmp_path_factory.mktemp("make") / "project")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("remote", "URL=ssh://user:SECRET@host/folder"),
            "leave it out, then run dvc remote modify --local storage password",
        ),
        (("remote",), "name a place, such as URL=s3://bucket/folder"),
        (("pull", "SUBJECT=abacsu"), "unknown subject 'abacsu'; available subjects: abacus"),
        (("quick",), "no lock names a result of abacus; `make` makes them"),
        (("model",), "name a model of params.yaml, such as NAME=abacus"),
        (("example", "MODEL=models/nothing.gguf"), "no GGUF file at models/nothing.gguf"),
        (
            ("pull", "FILE=data/abacus/store/activation"),
            "no stage writes 'data/abacus/store/activation'",
        ),
    ],
)
def test_a_mistake_is_a_sentence(project: Path, arguments: tuple[str, ...], message: str):
    before = (project / ".dvc/config").read_text()
    done = run_in(project, *MAKE, *arguments, check=False)
    assert done.returncode != 0
    assert message in done.stderr
    assert "SECRET" not in done.stderr
    assert (project / ".dvc/config").read_text() == before
    assert not (project / "data").exists()


@pytest.mark.parametrize("model", ["models/other.gguf", "org/name@0123abc"])
def test_an_example_of_another_model_is_refused(tmp_path: Path, model: str):
    """Without the message, `make example` would silently take the model that was added first."""
    project = copy_project(tmp_path / "project")
    params = project / "params.yaml"
    entry = '  qwen:\n    source: "org/name"\n    revision: "4567cde"\n'
    params.write_text(f"{params.read_text()}\n{entry}")
    done = run_in(project, *MAKE, "example", f"MODEL={model}", check=False)
    assert f"qwen in params.yaml is from another model than {model}" in done.stderr
    assert done.returncode != 0


def test_the_example_adds_the_second_digit_and_compares_both(project: Path):
    """The names in the Makefile are those of the entry's file."""
    printed = run_in(project, *MAKE, "-n", "example-digits", "MODEL=models/x.gguf").stdout
    entry = yaml.safe_load((ROOT / "examples/qwen/second.yaml").read_text())
    [(name, digits)] = entry["digits"].items()
    first, second = digits["first"], digits["second"]
    stages = (f"report_data@{first}", f"report_data@{second}", f"digit_figure@{name}")
    command = f"bag add {second} {digits['source']} --entry examples/qwen/second.yaml"
    for words in (*stages, f"digit_claims@{name}", command):
        assert re.search(rf"{re.escape(words)}\s", printed), words


def test_a_python_that_is_too_old_is_named(tmp_path: Path):
    old = tmp_path / "old"
    old.write_text('#!/bin/sh\ncase "$1" in -V) echo Python 3.10.9 ;; *) exit 1 ;; esac\n')
    old.chmod(0o755)
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).touch()
    done = run_in(tmp_path, "make", "setup", f"PYTHON={old}", check=False)
    assert f"bag needs Python 3.11 to 3.14, and {old} is Python 3.10.9; name another" in done.stderr
    assert done.returncode != 0
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("uv_works", [True, False])
def test_pip_installs_where_uv_fails(tmp_path: Path, uv_works: bool):
    """uv does not read pip's settings, so that it may not reach an index that pip reaches.

    Neither installs torch, which another pip may be installing at the same time.
    """
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    for name, status in (("uv", 0 if uv_works else 1), ("pip", 0)):
        program = programs / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> called\nexit {status}\n')
        program.chmod(0o755)
    (programs.parent / "installed").touch()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/requirements.lock").write_text("ray==2.52.0\ntorch==2.13.0\nsix==1.17.0\n")
    shutil.copy(ROOT / "Makefile", tmp_path)
    run_in(tmp_path, *MAKE, ".venv/tests")
    called = (tmp_path / "called").read_text().splitlines()
    assert [line.split()[0] for line in called] == (["uv"] if uv_works else ["uv", "pip"])
    assert all(line.endswith(" ray==2.52.0 six==1.17.0") for line in called)


def test_the_supported_pythons_are_those_of_all_pinned_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = SpecifierSet(project["requires-python"])
    locks = [ROOT / "requirements.lock", ROOT / "tests/requirements.lock"]
    text = "\n".join(lock.read_text() for lock in locks)
    pinned = re.findall(r"^([\w.-]+)==", text, re.MULTILINE)
    theirs = []
    for name in pinned:
        theirs.append(SpecifierSet(distribution(name).metadata.get("Requires-Python") or ""))
    versions = ["3.10.9"]
    for minor in range(11, 17):
        versions += [f"3.{minor}.{patch}" for patch in range(15)]
    for version in versions:
        assert (version in supported) == all(version in each for each in theirs), version
    assert "Python 3.11 to 3.14 (`make PYTHON=" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(("subject", "page"), [("abacus", "report"), ("planted", "report/study")])
def test_a_subject_is_pulled_with_what_its_stages_read_of_all_subjects_and_its_page(
    project: Path,
    subject: str,
    page: str,
):
    pulled = of_subject(Repo(project), subject)
    assert {stage.name.partition("@")[2] for stage in pulled} == {subject, ""}
    own = {_key(stage) for stage in pulled if "@" in stage.name}
    common = {_key(stage) for stage in pulled} - own
    assert len(own) > 50
    assert page in common
    read = {f"data/models/{subject}"}.union(*map(declared.read, own))
    written = set().union(*map(declared.written, common))
    once = set()
    for name, entry in declared.STAGES.items():
        if not entry["foreach"]:
            once.update(declared.written(name))
    assert read & once <= written
    assert "data/models/planted" in written or subject != "planted"


def _key(stage: Stage) -> str:
    """Return the key of a stage in `declared`."""
    if stage.path_in_repo == "dvc.yaml":
        return declared.key(stage.name)
    return declared.key(f"{stage.path_in_repo}:{stage.name}")
