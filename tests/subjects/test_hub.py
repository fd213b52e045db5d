"""Models of the Hub, from a server with its protocol: download, resumption and refusals."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from stages.lib.hub import NOTE
from stages.lib.model import checkpoint, folder
from tests.conftest import run_in
from tests.hub import COMMIT, Hub, serving
from tests.micro import ROOT, copy_project
from tests.store.test_check import made
from tests.subjects.grown import digests

NAMES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A server with org/mine, which also has code and other formats, and org/old, no weights."""
    source = made(tmp_path / "source")
    (source / "modeling_mine.py").write_text("raise SystemExit('code of the model was run')")
    (source / "original").mkdir()
    shutil.copy(source / "model.safetensors", source / "original/consolidated.safetensors")
    (tmp_path / "old").mkdir()
    shutil.copy(source / "config.json", tmp_path / "old")
    with serving({"org/mine": source, "org/old": tmp_path / "old"}) as server:
        yield server


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the project's settings and one model of the Hub in them."""
    return settings(tmp_path / "project", "org/mine")


def settings(place: Path, repo: str, commit: str = COMMIT) -> Path:
    for file in [ROOT / "params.yaml", *ROOT.glob("stages/*/params.yaml")]:
        (place / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place / file.relative_to(ROOT))
    enter(place, repo, commit)
    return place


def enter(place: Path, repo: str, commit: str = COMMIT) -> None:
    """Write the model `mine` into the section hub of a project."""
    chapter = place / "stages/subjects/params.yaml"
    section = f"hub:\n  mine: {{repo: {repo}, commit: '{commit}'}}\n"
    chapter.write_text(chapter.read_text().replace("hub: {}", section))


def client(hub: Hub, folder: Path) -> dict[str, str]:
    """Environment variables of a client of this server."""
    home = str(folder / "home")
    return {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": home}


def stage(project: Path, hub: Hub, *command: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, **client(hub, project), "PYTHONPATH": str(ROOT)}
    command = command or ("stages.subjects.hub", "mine")
    return subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        cwd=project,
        env=environment,
        check=False,
    )


def test_a_model_comes_whole_without_code_and_can_be_loaded(hub: Hub, project: Path):
    done = stage(project, hub)
    assert done.returncode == 0, done.stderr
    model, source = project / "data/models/mine", hub.models["org/mine"]
    assert (model / NOTE).read_text() == f"org/mine@{COMMIT}\n"
    for name in NAMES:
        assert (model / name).read_bytes() == (source / name).read_bytes()
    sums = {}
    for line in (model / folder.SUMS).read_text().splitlines():
        digest, name = line.split("  ")
        sums[name] = digest
    (model / folder.SUMS).unlink()
    assert digests(model) == sums
    assert sums.keys() == {*NAMES, NOTE}
    assert checkpoint.load(model, "float32", "cpu", 1).architecture.neurons == 48
    assert [file.name for file in model.parent.iterdir()] == ["mine"]


def test_what_is_there_and_whole_is_not_fetched_again(hub: Hub, project: Path):
    assert stage(project, hub).returncode == 0
    hub.models.clear()
    assert stage(project, hub).returncode == 0
    (project / "data/models/mine/config.json").write_text("{}")
    assert "the Hub has no model org/mine" in stage(project, hub).stderr


def test_a_download_that_breaks_off_goes_on_where_it_was(hub: Hub, project: Path):
    large = hub.models["org/mine"] / "vocab.bin"
    large.write_bytes(os.urandom(25_000_000))  # the client writes ten megabytes at a time
    hub.cut[large.name] = 15_000_000
    first = stage(project, hub)
    if first.returncode:  # else the client has asked again by itself
        assert "org/mine cannot be downloaded now" in first.stderr
        assert not (project / "data/models/mine").exists()
        assert stage(project, hub).returncode == 0
    assert hub.ranges == [large.name]
    assert (project / "data/models/mine" / large.name).read_bytes() == large.read_bytes()


def test_what_is_left_of_another_model_is_not_taken_up(hub: Hub, project: Path):
    """The entry is corrected after a failed download, whose files the right model does not have."""
    (hub.models["org/old"] / "vocab.old").write_text("of another model")
    failed = stage(settings(project, "org/old"), hub)
    assert "org/old has no weights in safetensors" in failed.stderr
    done = stage(settings(project, "org/mine"), hub)
    assert done.returncode == 0, done.stderr
    assert digests(project / "data/models/mine").keys() == {*NAMES, NOTE, folder.SUMS}


@pytest.mark.parametrize(
    ("repo", "commit", "sentence"),
    [
        ("org/none", COMMIT, "the Hub has no model org/none, or it is private"),
        ("org/mine", "f" * 40, f"org/mine has no commit, branch or tag {'f' * 40}"),
        ("org/old", COMMIT, "org/old has no weights in safetensors"),
        ("org/mine", "main", "hub.mine.commit = 'main'"),
    ],
)
def test_what_the_hub_does_not_have_is_said_in_a_line(
    hub: Hub, tmp_path: Path, repo: str, commit: str, sentence: str
):
    done = stage(settings(tmp_path / "other", repo, commit), hub)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_gated_model_asks_for_a_login(hub: Hub, project: Path):
    hub.gated.add("org/mine")
    message = "org/mine is gated: ask for access on its page, then `hf auth login`"
    assert message in stage(project, hub).stderr


def test_a_server_that_does_not_answer_is_said_in_a_line(hub: Hub, project: Path):
    hub.shutdown()
    hub.server_close()
    done = stage(project, hub)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("org/mine cannot be downloaded now")


def test_a_model_is_checked_and_added_before_it_is_downloaded(hub: Hub, project: Path):
    source = f"org/mine@{COMMIT}"
    done = stage(project, hub, "stages.lib.console.bag", "add", "other", source)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "layers        3, each of 48 neurons and 4 heads, width 32" in done.stdout
    assert not (project / "data").exists()
    chapter = yaml.safe_load((project / "stages/subjects/params.yaml").read_text())
    root = yaml.safe_load((project / "params.yaml").read_text())
    entry = {"repo": "org/mine", "commit": COMMIT}
    assert chapter["hub"] == {"mine": entry, "other": entry}
    assert root["subjects"]["other"]["source"] == "data/models/other"
    assert root["subjects"]["other"]["revision"] == source


def test_a_branch_is_refused_with_the_commit_that_it_is_now(hub: Hub, project: Path):
    done = stage(project, hub, "stages.lib.console.bag", "add", "other", "org/mine@main")
    assert done.returncode == 1
    assert f"a branch moves, a commit stays; main is org/mine@{COMMIT} now" in done.stderr


def test_dvc_downloads_it_before_what_reads_it(hub: Hub, tmp_path: Path):
    project = tmp_path / "whole"
    copy_project(project)
    enter(project, "org/mine")
    more = client(hub, tmp_path)
    run_in(project, "dvc", "repro", "stages/subjects/dvc.yaml:hub@mine", more=more)
    assert (project / "data/models/mine/model.safetensors").is_file()
    assert "hub@mine" in (project / "stages/subjects/dvc.lock").read_text()
