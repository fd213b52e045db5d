"""dvc.yaml says what is true: every stage lists the modules it runs, the settings it reads and the files it opens."""

import ast
import re
from pathlib import Path

import pytest

from tests import declared
from tests.declared import ROOT

STAGES = declared.stages()


def listed(stage: str, kind: str) -> set[str]:
    return {item if isinstance(item, str) else next(iter(item)) for item in STAGES[stage].get(kind, [])}


def test_every_file_in_stages_is_a_stage_and_every_stage_a_file():
    files = {p.stem for p in (ROOT / "stages").iterdir() if p.suffix in {".py", ".sql"} and p.stem != "__init__"}
    assert files == {declared.source(stage).stem for stage in STAGES}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_lists_exactly_the_modules_it_runs(stage: str):
    assert {d for d in listed(stage, "deps") if d.startswith("stages/")} == declared.modules(stage)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_lists_exactly_the_settings_it_reads(stage: str):
    assert listed(stage, "params") == declared.sections(stage)


@pytest.mark.parametrize("stage", [s for s in STAGES if declared.source(s).suffix == ".py"])
def test_a_python_stage_lists_every_file_it_names(stage: str):
    mentioned = {Path(name).name for name in declared.data_files(stage)}
    if stage.endswith("_runs") and not declared.ablates_to_means(stage.removesuffix("_runs")):
        mentioned.discard("means.h5")
    known = " ".join(listed(stage, "deps") | listed(stage, "outs") | listed(stage, "metrics") | listed(stage, "plots"))
    for name in mentioned:
        folder_output = any("." not in Path(out).name for out in listed(stage, "outs"))
        assert name in known or folder_output, f"{stage} names {name}, which dvc.yaml does not"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_says_what_it_is_and_runs_itself(stage: str):
    module = f"stages.{stage}" if declared.source(stage).suffix == ".py" else f"stages.lib.sql.database {stage}"
    if stage.endswith("_runs"):
        module = f"stages.lib.executor.runs {stage.removesuffix('_runs')}"
    assert STAGES[stage]["desc"]
    pairs = r"( \w+)?" if stage.endswith("_runs") else ""
    assert re.fullmatch(rf"python -m {re.escape(module)}( \$\{{key\}}{pairs})?", STAGES[stage]["cmd"])


@pytest.mark.parametrize("stage", [s for s in STAGES if s.endswith("_runs")])
def test_a_stage_of_runs_lists_the_tables_that_its_command_names(stage: str):
    experiment, _, *pairs = STAGES[stage]["cmd"].removeprefix("python -m stages.lib.executor.runs ").split()
    tables = {f"data/${{key}}/{name}.parquet" for name in (f"{experiment}_interventions", *(pairs or ["pairs"]))}
    assert {d for d in listed(stage, "deps") if d.endswith(".parquet")} == tables


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("torch", "stages/lib/model/"),
        ("transformers", "stages/lib/model/"),
        ("tokenizers", "stages/lib/model/"),
        ("h5py", "stages/lib/store.py"),
        ("duckdb", "stages/lib/sql/database.py"),
        ("matplotlib", "stages/lib/drawing/drawing.py"),
        ("tqdm", "stages/lib/core/progress.py"),
        ("sqlglot", ("stages/lib/sql/lazy/join.py", "stages/lib/sql/lazy/group_by.py")),
    ],
)
def test_a_heavy_library_has_one_importer(library: str, home: str | tuple[str, ...]):
    users = {str(p.relative_to(ROOT)) for p in (ROOT / "stages").rglob("*.py") if library in {n.split(".")[0] for n in imports(p)}}
    assert users
    assert {u for u in users if not u.startswith(home)} == set()


def test_lib_imports_no_stage_and_stages_import_no_stage():
    names = {f"stages.{stage}" for stage in STAGES}
    for path in (ROOT / "stages").rglob("*.py"):
        assert not imports(path) & names, path


def test_a_class_name_means_one_thing():
    found: dict[str, list[str]] = {}
    for path in (ROOT / "stages").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(found) > 50
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
