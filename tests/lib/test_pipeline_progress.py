"""`stages.warm dvc repro` says how far it is, and how long the rest takes if that is known."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from stages.lib.console import pipeline
from tests.micro import ROOT

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
    # branches.py counts the stages of these
    assert pipeline.progress_of(["dvc", "--wait-for-lock", "repro", *options], print) is None


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


def test_commands_side_by_side_have_one_count_and_end_with_the_longest(project: Path):
    """Two of them run a stage each at the same time, then another one runs the last stage."""
    record = {"shared": 10, EACH_A: 20, EACH_B: 60, "last": 5}
    pipeline.RECORD.write_text(json.dumps(record))
    sentences: list[str] = []
    rounds = [[[]], [[EACH_A], [EACH_B]], [[]]]
    progress = pipeline.Progress(sentences.append, [], True, rounds, workers=2)
    lines = [
        (0, 0, runs("shared")),
        (10, 1, runs(EACH_B)),
        (12, 0, runs(EACH_A)),
        (40, 0, runs("last")),
    ]
    for time, command, line in lines:
        progress.clock = lambda time=time: time
        progress.read(line, command)
    progress.end(True, 0)
    progress.end(False, 1)
    left = ["75 s", "65 s", "63 s", "35 s"]  # of the longer command, and of the last stage
    expected = [f"stage {number} of 4, about {time} left" for number, time in enumerate(left, 1)]
    assert sentences == expected
    ran = {"shared": 12, EACH_A: 28, "last": 0}
    assert json.loads(pipeline.RECORD.read_text()) == record | ran


@pytest.mark.parametrize("bars", [False, True])
def test_a_stage_that_takes_long_says_so_every_half_minute(project: Path, bars: bool):
    """No line interrupts the bars of other stages than queries."""
    query = LAST | {"cmd": "python -m stages.lib.sql.stage each/last"}
    (project / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"last": query, "shared": SHARED}}))
    pipeline.RECORD.write_text(json.dumps({"shared": 60, EACH_A: 20, "last": 120}))
    sentences: list[str] = []
    progress = pipeline.Progress(sentences.append, [], False, bars=bars)
    for stage, start in (("shared", 0), (EACH_A, 60), ("last", 80)):
        progress.clock = lambda start=start: start
        progress.read(runs(stage))
        for seconds in range(0, 60, 7):
            progress.clock = lambda seconds=start + seconds: seconds
            progress.look()
    progress.clock = lambda: 300.0
    progress.look()
    progress.look()
    expected = [] if bars else ["shared: 35 s of about 60 s", "each@a: 35 s"]
    expected += ["last: 35 s of about 2 min", "last: 4 min"]
    assert [line for line in sentences if "stage" not in line] == expected


def test_a_first_run_has_typical_seconds_at_its_own_pace(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pipeline, "TYPICAL", project / "typical.yaml")
    pipeline.TYPICAL.write_text("shared: 40\nstages/each/dvc.yaml:each: 20\nlast: 4\n")
    slow = [(0, runs("shared")), (80, runs(EACH_A)), (130, runs(EACH_B))]
    # it takes twice as long as elsewhere; then 130 instead of 60 seconds
    assert sentences_of(slow, "-P") == [
        "stage 1 of 4",
        "stage 2 of 4, about 88 s left",
        "stage 3 of 4, about 52 s left",
    ]
    # what ran here tells the pace, too
    assert sentences_of(slow[:1], "-P") == ["stage 1 of 4, about 2 min left"]
    pipeline.TYPICAL.write_text("shared: 40\n")
    pipeline.RECORD.unlink()
    assert sentences_of(slow, "-P") == [f"stage {number} of 4" for number in (1, 2, 3)]


def test_stages_of_an_added_model_have_the_seconds_that_were_estimated(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    """Typical seconds are those of another model. They count only for stages of no added model."""
    monkeypatch.setattr(pipeline, "TYPICAL", project / "typical.yaml")
    pipeline.TYPICAL.write_text("shared: 40\nstages/each/dvc.yaml:each: 1\nlast: 4\n")
    for model, seconds in (("a", 3000), ("b", 6000)):
        pipeline.keep_estimates(model, {"each/each": seconds})
    lines = [(0, runs("shared")), (80, runs(EACH_A)), (4580, runs(EACH_B))]
    # the shared stage takes twice as long as usual, a's half longer than estimated
    assert sentences_of(lines, "-P", is_done=False) == [
        "stage 1 of 4, about 2 h 31 min left",
        "stage 2 of 4, about 2 h 30 min left",
        "stage 3 of 4, about 2 h 30 min left",
    ]
    # what was measured counts before what was estimated
    assert sentences_of(lines[:2], "-P")[1] == "stage 2 of 4, about 3 h 45 min left"


def test_typical_seconds_do_not_count_for_a_model_that_is_far_slower(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pipeline, "TYPICAL", project / "typical.yaml")
    pipeline.TYPICAL.write_text("shared: 40\nstages/each/dvc.yaml:each: 20\nlast: 4\n")
    slow = [(0, runs("shared")), (4 * 40, runs(EACH_A)), (240 + 5 * 20, runs(EACH_B))]
    assert sentences_of(slow, "-P") == [
        "stage 1 of 4",
        "stage 2 of 4, about 3 min left",  # four times as slow
        "stage 3 of 4",  # 340 seconds, in place of 60
    ]


def test_a_resumed_run_has_the_pace_of_all_stages_so_far(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    """One stage that takes twice as long as usual does not stand for all that are left."""
    monkeypatch.setattr(pipeline, "TYPICAL", project / "typical.yaml")
    pipeline.TYPICAL.write_text("shared: 100\nstages/each/dvc.yaml:each: 40\nlast: 100\n")
    pipeline.RECORD.write_text(json.dumps({"shared": 100}))
    Path("shared").touch()
    lines = [
        (0, "Stage 'shared' didn't change, skipping"),
        (0, runs(EACH_A)),
        (80, runs(EACH_B)),
    ]
    # 180 seconds in place of 140; 140 are left
    assert sentences_of(lines, "-P")[1] == "stage 3 of 4, about 3 min left"


def test_estimates_need_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    pipeline.keep_estimates("a", {"each/each": 1.0})
    assert not list(tmp_path.iterdir())


def test_typical_seconds_are_those_of_all_stages_of_a_first_make(monkeypatch: pytest.MonkeyPatch):
    """A stage that has none, such as the training of our own models, has its outputs in Git."""
    monkeypatch.chdir(ROOT)
    typical = yaml.safe_load(pipeline.TYPICAL.read_text())
    assert min(typical.values()) > 0
    every, _ = pipeline.plan([], True)
    assert typical.keys() <= {stage.partition("@")[0] for stage in every}
    stages, _ = pipeline.plan([], False)
    lacking = [stage for stage in stages if stage.partition("@")[0] not in typical]
    command = ["git", "ls-files", "data", "reports"]
    in_git = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for stage in lacking:
        for path in stages[stage].writes:
            assert re.search(rf"^{path}(/|$)", in_git, re.MULTILINE), (
                f"{stage}: see {pipeline.TYPICAL}"
            )


def test_an_output_in_git_is_not_made_again_after_missing_ones(project: Path):
    pipeline.RECORD.write_text(json.dumps({"shared": 50, EACH_A: 20}))
    for output in ("data/b/out", "last"):
        Path(output).touch()
    lines = [(0, runs("shared")), (50, runs(EACH_A)), (70, runs("last"))]
    assert sentences_of(lines, "-P") == [
        "stage 1 of 4, about 70 s left",
        "stage 2 of 4, about 20 s left",
        "stage 3 of 4",  # which has changed, and has never run before
    ]


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
