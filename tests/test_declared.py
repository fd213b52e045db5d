"""Every dvc.yaml says what is true: a stage lists the code it runs, the settings it reads and the files it opens."""

import os
import re
from pathlib import Path

import pytest
import yaml

from tests import declared
from tests.declared import ROOT, RUNS, STAGES, name

CODE = sorted(path for path in (ROOT / "stages").rglob("*.py") if path.stat().st_size)
COMMAND = ROOT / "stages/lib/console/bag.py"
# what the Makefile runs and notebooks import, but no stage
NO_STAGE = (
    ROOT / "stages/__init__.py",
    ROOT / "stages/warm.py",
    ROOT / "stages/lib/console/remote.py",
)


def test_every_query_is_a_stage_and_every_module_is_run_by_one():
    assert set((ROOT / "stages").glob("*/*.sql")) == {
        query for s in STAGES for query in declared.queries(s)
    }
    of_bag = [declared.modules(one, types=True) for one in (COMMAND, *declared.commands())]
    run = {*NO_STAGE}.union(*of_bag, *map(all_modules, STAGES))
    assert {name(path) for path in CODE} - {name(path) for path in run} == set()


def all_modules(stage: str) -> set[Path]:
    return declared.modules(declared.source(stage), types=True)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_lists_exactly_the_code_it_runs(stage: str):
    assert {
        path for path in declared.read(stage) if not path.startswith(("data/", "reports/", "${"))
    } == declared.code(stage)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_lists_exactly_the_settings_it_reads(stage: str):
    assert declared.declared_sections(stage) == declared.sections(stage)


@pytest.mark.parametrize("stage", [s for s in STAGES if declared.source(s) != declared.RUNNER])
def test_a_python_stage_lists_every_file_it_names(stage: str):
    mentioned = declared.data_files(stage)
    if stage in RUNS and not declared.ablates_to_means(stage):
        mentioned.discard("store/means.h5")
    known = declared.read(stage) + declared.written(stage)
    for file in mentioned:
        in_a_folder = any(
            Path(path).name in Path(file).parts or "." not in Path(path).name
            for path in declared.written(stage)
        )
        assert any(path.endswith(file) for path in known) or in_a_folder, (
            f"{stage} names {file}, which dvc.yaml does not"
        )


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_says_what_it_is_and_runs_itself(stage: str):
    entry, source, of = STAGES[stage], declared.source(stage), r"( \$\{(key|default)\})?"
    assert entry["desc"]
    if "/" not in stage:
        module = rf"stages\.(report\.)?{source.stem}{of}"
    elif source == declared.RUNNER:
        module = rf"stages\.lib\.sql\.stage {stage}{of}"
    elif stage in RUNS:
        module = rf"stages\.lib\.executor\.runs {stage.removesuffix('_runs')}{of}( \w+/\w+)?"
    else:
        module = rf"stages\.{stage.partition('/')[0]}\.\w+( training| digits)?{of}"
    assert re.fullmatch(f"python -m {module}", entry["cmd"])
    assert entry.get("wdir", ".") == os.path.relpath(ROOT, (ROOT / entry["file"]).parent)


def test_every_pipeline_is_known():
    assert {name(path) for path in ROOT.glob("stages/**/dvc.yaml")} | {"dvc.yaml"} == set(
        declared.pipelines()
    )


def test_every_sum_in_a_lock_says_what_it_is_of():
    """Without `hash: md5`, DVC takes a sum for one of its second version, and looks for the file elsewhere."""
    for file in declared.pipelines():
        lock = yaml.load((ROOT / file).with_suffix(".lock").read_text(), yaml.CSafeLoader)["stages"]
        entries = [
            entry
            for stage in lock.values()
            for kind in ("deps", "outs")
            for entry in stage.get(kind, [])
        ]
        assert [entry["path"] for entry in entries if "hash" not in entry] == []


@pytest.mark.parametrize("stage", RUNS)
def test_a_stage_of_runs_lists_the_tables_that_its_command_names(stage: str):
    experiment, _, *pairs = (
        STAGES[stage]["cmd"].removeprefix("python -m stages.lib.executor.runs ").split()
    )
    tables = {
        f"data/${{key}}/{table}.parquet"
        for table in (f"{experiment}_interventions", *(pairs or ["circuit/pairs"]))
    }
    assert {d for d in declared.read(stage) if d.endswith(".parquet")} == tables
