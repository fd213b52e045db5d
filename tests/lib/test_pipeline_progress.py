"""`stages.warm dvc repro` says how far it is, and how long the rest takes if that is known."""

import json
from pathlib import Path

import pytest
import yaml

from stages.lib.console import pipeline

SHARED = {"cmd": "cp in shared", "deps": ["in"], "outs": ["shared"]}
EACH = {
    "foreach": "${models}",
    "do": {
        "cmd": "cat ${item.file} shared > data/${key}/out",
        "wdir": "../..",
        "deps": ["${item.file}", "shared"],
        "outs": ["data/${key}/out"],
    },
}
LAST = {"cmd": "cat data/a/out > last", "deps": ["data/${default}"], "outs": ["last"]}
MODELS = {"default": "a", "models": {"a": {"file": "in"}, "b": {"file": "in"}}}
EACH_A, EACH_B = (f"stages/each/dvc.yaml:each@{model}" for model in "ab")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a project: shared -> each@a, each@b; each@a -> last, in the root."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "stages/each"
    folder.mkdir(parents=True)
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(MODELS))
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"last": LAST, "shared": SHARED}}))
    chapter = {"vars": ["../../params.yaml:models"], "stages": {"each": EACH}}
    (folder / "dvc.yaml").write_text(yaml.safe_dump(chapter))
    (tmp_path / "in").write_text("1")
    for model in "ab":
        (tmp_path / "data" / model).mkdir(parents=True)
    return tmp_path


def sentences_of(lines: list[tuple[float, str]], *options: str, is_done: bool = True) -> list[str]:
    """Return what is said of a run that prints these lines at these seconds."""
    sentences: list[str] = []
    progress = pipeline.progress_of(["dvc", "repro", *options], sentences.append)
    assert progress
    for time, line in lines:
        progress.clock = lambda time=time: time
        progress.read(line)
    progress.end(is_done)
    return sentences


def runs(stage: str) -> str:
    return f"Running stage '{stage}':"


ALL = [(0, runs("shared")), (10, runs(EACH_A)), (30, runs(EACH_B)), (70, runs("last"))]


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        ([], {"shared", EACH_A, "last"}),
        (["--all-pipelines"], {"shared", EACH_A, EACH_B, "last"}),
        ([EACH_B], {"shared", EACH_B}),
        (["stages/each/dvc.yaml:each"], {"shared", EACH_A, EACH_B}),
        (["stages/each/dvc.yaml"], {"shared", EACH_A, EACH_B}),
        (["shared"], {"shared"}),
    ],
)
def test_the_plan_is_what_the_targets_need(project: Path, options: list[str], stages: set[str]):
    progress = pipeline.progress_of(["dvc", "repro", *options], print)
    assert pipeline.plan(progress.targets, progress.every)[0].keys() == stages


@pytest.mark.parametrize("options", [["--dry"], ["-q"], ["--glob", "each*"]])
def test_other_commands_are_not_counted(options: list[str]):
    assert pipeline.progress_of(["dvc", "repro", *options], print) is None
    assert pipeline.progress_of(["sh", "-c", "dvc repro"], print) is None


def test_time_left_is_said_once_every_stage_has_run_before(project: Path):
    pipeline.RECORD.write_text('{"shared": ')  # as a killed run may leave it
    assert sentences_of(ALL, "-P") == [f"stage {number} of 4" for number in range(1, 5)]
    seconds = json.loads(pipeline.RECORD.read_text())
    assert seconds == {"shared": 10, EACH_A: 20, EACH_B: 40, "last": 0}
    pipeline.RECORD.write_text(json.dumps(seconds | {"last": 20}))
    assert sentences_of(ALL, "-P")[1] == "stage 2 of 4, about 80 s left"
    pipeline.RECORD.write_text(json.dumps(seconds | {"shared": 40, "last": 25}))
    slow = [(0, runs("shared")), (80, runs(EACH_A))]
    assert (
        sentences_of(slow, "-P")[1] == "stage 2 of 4, about 3 min left"
    )  # twice as slow as before


def test_skipped_stages_count_and_take_no_time(project: Path):
    record = json.dumps({"shared": 50, EACH_A: 20, EACH_B: 40, "last": 5})
    pipeline.RECORD.write_text(record)
    for output in ("shared", "data/a/out", "data/b/out", "last"):
        Path(output).touch()
    lines = [
        (0, "Stage 'shared' didn't change, skipping"),
        (1, f"Stage '{EACH_B}' is cached - skipping run, checking out outputs"),
        (2, runs(EACH_A)),
        (9, "> cat in shared > data/a/out"),
    ]
    assert sentences_of(lines, "-P") == ["stage 3 of 4, about 25 s left"]
    pipeline.RECORD.write_text(record)
    Path("data/b/out").unlink()
    assert sentences_of(lines[:1] + lines[2:], "-P") == ["stage 2 of 4, about 65 s left"]


def test_a_stage_that_failed_has_no_time(project: Path):
    sentences_of(ALL[:2], is_done=False)
    assert json.loads(pipeline.RECORD.read_text()) == {"shared": 10}
