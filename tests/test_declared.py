"""Test that every dvc.yaml lists the code, settings and files that its stages use."""

import os
import re
from pathlib import Path

import pytest
import yaml

from stages.lib.console.command import COMMANDS
from tests import declared
from tests.declared import ROOT, RUNS, STAGES, name

CODE = sorted(path for path in (ROOT / "stages").rglob("*.py") if path.stat().st_size)
CONSOLE = ROOT / "stages/lib/console"
# found by name when the program runs
OWN_COMMANDS = [CONSOLE / f"{command}.py" for command in COMMANDS]
# what the Makefile runs and notebooks import, but no stage
NO_STAGE = (
    ROOT / "stages/__init__.py",
    ROOT / "stages/bridges/__init__.py",
    ROOT / "stages/bridges/hooks.py",
    ROOT / "stages/explorer/notebook.py",  # for stages/__init__.py
    *(ROOT / "stages/site").glob("*.py"),  # for `make site`
    ROOT / "stages/theories/kernel_times.py",  # for `bag check`, which starts it as a program
    ROOT / "stages/warm.py",
    ROOT / "stages/lib/console/branches.py",
    ROOT / "stages/lib/console/quick_dvc.py",  # for stages/warm.py, which starts it as a program
    ROOT / "stages/lib/console/pipeline.py",  # for stages/warm.py
    ROOT / "stages/lib/console/remote.py",
    ROOT / "stages/lib/console/starter.py",
)


def test_every_query_is_a_stage_and_every_module_is_run_by_one():
    queries: set[Path] = set()
    queries.update(*map(declared.queries, STAGES))
    assert set((ROOT / "stages").glob("*/*.sql")) == queries
    run = set(NO_STAGE)
    for start in (
        CONSOLE / "bag.py",
        *OWN_COMMANDS,
        *declared.commands(),
        *map(declared.source, STAGES),
    ):
        run |= declared.modules(start, types=True)
    assert set(map(name, CODE)) - set(map(name, run)) == set()


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_lists_exactly_the_code_it_runs(stage: str):
    outside = ("data/", "reports/", "${")
    code = {path for path in declared.read(stage) if not path.startswith(outside)}
    assert code == declared.code(stage)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_lists_exactly_the_settings_it_reads(stage: str):
    assert declared.declared_sections(stage) == declared.sections(stage)


@pytest.mark.parametrize("stage", [s for s in STAGES if declared.source(s) != declared.RUNNER])
def test_a_python_stage_lists_every_file_it_names(stage: str):
    mentioned = declared.data_files(stage)
    if stage in RUNS and not declared.ablates_to_means(stage):
        mentioned.discard("store/means.h5")
    known = declared.read(stage) + declared.written(stage)
    folders = {Path(path).name for path in declared.written(stage)}
    writes_folder = any("." not in folder for folder in folders)
    for file in mentioned:
        is_listed = any(path.endswith(file) for path in known)
        in_a_folder = writes_folder or bool(folders & {*Path(file).parts})
        assert is_listed or in_a_folder, f"{stage} names {file}, which dvc.yaml does not"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_has_a_description_and_runs_its_own_module(stage: str):
    entry, source = STAGES[stage], declared.source(stage)
    assert entry["desc"]
    subject = r"( \$\{(key|default|item\.first)\})?"
    if "/" not in stage:
        module = rf"stages\.(report\.)?{source.stem}{subject}"
    elif source == declared.RUNNER:
        module = rf"stages\.lib\.sql\.stage {stage}{subject}"
    elif stage in RUNS:
        experiment = stage.removesuffix("_runs")
        module = rf"stages\.lib\.executor\.runs {experiment}{subject}( \w+/\w+)?"
    else:
        module = rf"stages\.{stage.partition('/')[0]}\.\w+( training| digits)?{subject}"
    assert re.fullmatch(f"python -m {module}", entry["cmd"])
    assert entry.get("wdir", ".") == os.path.relpath(ROOT, (ROOT / entry["file"]).parent)


def test_every_pipeline_is_known():
    files = {"dvc.yaml", *map(name, ROOT.glob("stages/**/dvc.yaml"))}
    assert files == set(declared.pipelines())


def test_every_checksum_in_a_lock_has_its_kind():
    """Without `hash: md5`, DVC takes a checksum for one of its version 2 and searches elsewhere."""
    for file in declared.pipelines():
        text = (ROOT / file).with_suffix(".lock").read_text()
        for stage in yaml.load(text, yaml.CSafeLoader)["stages"].values():
            for entry in [*stage.get("deps", []), *stage.get("outs", [])]:
                assert "hash" in entry, f"{file}: {entry['path']}"


@pytest.mark.parametrize("stage", RUNS)
def test_a_stage_of_runs_lists_the_tables_that_its_command_names(stage: str):
    command = STAGES[stage]["cmd"].removeprefix("python -m stages.lib.executor.runs ")
    experiment, model, *pairs = command.split()
    names = [f"{experiment}_interventions", *(pairs or ["circuit/pairs"])]
    tables = {f"data/{model}/{table}.parquet" for table in names}
    assert {path for path in declared.read(stage) if path.endswith(".parquet")} == tables
