"""dvc.yaml says what is true, of code, settings and files; and all of it runs one way, from the first chapter to the last."""

import ast
import re
from functools import partial
from pathlib import Path

import pytest

from stages.lib.core.words import CHAPTERS
from tests import declared
from tests.conftest import run_in
from tests.declared import ROOT

STAGES = declared.stages()
RUNS = [stage for stage in STAGES if stage.endswith("_runs")]
CODE = sorted(path for path in (ROOT / "stages").rglob("*.py") if path.stat().st_size)
COMMAND = ROOT / "stages/lib/console/command.py"  # the console, which no stage runs
READ_BY_PEOPLE = {"report", "report/study", "metrics"}  # what these write, no stage reads


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_query_is_a_stage_and_every_module_is_run_by_one():
    assert {p for p in (ROOT / "stages").glob("*/*.sql")} == {declared.source(s) for s in STAGES if declared.source(s).suffix == ".sql"}
    run = declared.modules(COMMAND).union(*(declared.modules(declared.RUNNER, types=True), *map(all_modules, STAGES)))
    assert {name(path) for path in CODE} - {name(path) for path in run} == set()


def all_modules(stage: str) -> set[Path]:
    source = declared.source(stage)
    return declared.modules(source, types=True) if source.suffix == ".py" else set()


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_lists_exactly_the_code_it_runs(stage: str):
    assert {path for path in declared.read(stage) if not path.startswith(("data/", "reports/", "${"))} == declared.code(stage)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_lists_exactly_the_settings_it_reads(stage: str):
    assert declared.declared_sections(stage) == declared.sections(stage)


@pytest.mark.parametrize("stage", [s for s in STAGES if declared.source(s).suffix == ".py"])
def test_a_python_stage_lists_every_file_it_names(stage: str):
    mentioned = declared.data_files(stage)
    if stage in RUNS and not declared.ablates_to_means(stage):
        mentioned.discard("store/means.h5")
    known = declared.read(stage) + declared.written(stage)
    for file in mentioned:
        in_a_folder = any(Path(path).name in Path(file).parts or "." not in Path(path).name for path in declared.written(stage))
        assert any(path.endswith(file) for path in known) or in_a_folder, f"{stage} names {file}, which dvc.yaml does not"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_says_what_it_is_and_runs_itself(stage: str):
    entry, source, of = STAGES[stage], declared.source(stage), r"( \$\{(key|default)\})?"
    assert entry["desc"]
    if "/" not in stage:
        module = rf"stages\.(report\.)?{source.stem}{of}"
    elif source.suffix == ".sql":
        module = rf"stages\.lib\.sql\.stage stages/{stage}\.sql{of}"
        assert [re.sub(r"/\$\{key\}\.parquet$", ".parquet", out).rpartition("/")[2] for out in declared.written(stage)] == [f"{source.stem}.parquet"]
    elif stage in RUNS:
        module = rf"stages\.lib\.executor\.runs {stage.removesuffix('_runs')}{of}( \w+/\w+)?"
    else:
        module = rf"stages\.{stage.split('/')[0]}\.\w+{of}"
    assert re.fullmatch(f"python -m {module}", entry["cmd"])
    assert entry.get("wdir") == ("../.." if "/" in stage else None)


@pytest.mark.parametrize("stage", RUNS)
def test_a_stage_of_runs_lists_the_tables_that_its_command_names(stage: str):
    experiment, _, *pairs = STAGES[stage]["cmd"].removeprefix("python -m stages.lib.executor.runs ").split()
    tables = {f"data/${{key}}/{table}.parquet" for table in (f"{experiment}_interventions", *(pairs or ["circuit/pairs"]))}
    assert {d for d in declared.read(stage) if d.endswith(".parquet")} == tables


@pytest.mark.parametrize("stage", STAGES)
def test_data_run_one_way(stage: str):
    """A stage depends on nothing of a later chapter, neither data nor code, and writes into its own."""
    own = stage.split("/")[0] if "/" in stage else "report"
    for path in declared.read(stage) if stage != "settings" else []:
        assert CHAPTERS.index(declared.chapter(path) or own) <= CHAPTERS.index(own), path
    for path in declared.written(stage) if "/" in stage else []:
        assert declared.chapter(path) == own or path == "reports/study.html", path
    for path in declared.read(stage):
        assert declared.chapter(path) or path == "data/settings.txt" or not path.startswith("data/"), path


@pytest.mark.parametrize("path", CODE, ids=name)
def test_imports_run_one_way(path: Path):
    """A chapter imports from itself, from chapters before it and from lib/; lib/ from no chapter."""
    own = declared.chapter(name(path))
    for module in declared.imports(path) if name(path) != "stages/settings.py" else []:
        other = declared.chapter(name(module))
        assert name(module) != "stages/settings.py"
        assert other is None or (own is not None and CHAPTERS.index(other) <= CHAPTERS.index(own)), name(module)


def test_no_import_comes_back():
    done: set[Path] = set()

    def follow(path: Path, way: list[Path]) -> None:
        assert path not in way, " -> ".join(map(name, [*way, path]))
        if path not in done:
            for module in declared.imports(path):
                follow(module, [*way, path])
            done.add(path)

    for path in CODE:
        follow(path, [])
    assert len(done) >= len(CODE)


def planned(project: Path, *options: str) -> set[str]:
    """The stages that `dvc repro` would run, each in its file."""
    printed = run_in(project, "dvc", "repro", "--dry", "--force", *options).stdout
    return set(re.findall(r"(?:Running s|S)tage '([^']+)'", printed))


def test_repro_at_the_root_leaves_out_nothing_of_the_default_subject(micro: Path):
    """What all pipelines run besides: the analyses of other subjects, and the page of all of them together."""
    everything, default = planned(micro, "--all-pipelines"), planned(micro)
    assert default < everything
    others = {stage for stage in everything - default if "@" in stage}
    assert {stage.rpartition("@")[2] for stage in others} == {"planted"}
    assert {stage.rpartition(":")[2] for stage in everything - default - others} == {"study"}
    alone = {stage.partition("@")[0] for stage in others}
    assert alone <= {stage.partition("@")[0] for stage in default}


def test_what_no_stage_reads_is_read_by_people():
    """No stage is run for nobody."""
    read = [_open(path) for stage in STAGES for path in declared.read(stage)]

    def is_read(path: str) -> bool:
        """It, a folder that it is in, or a file in it; stages read models as ${item.source}."""
        inside = any(f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/") for other in read)
        return inside or path.startswith("data/models/")

    unread = {stage for stage in STAGES if not any(is_read(_open(path)) for path in declared.written(stage))}
    assert unread == READ_BY_PEOPLE


def _open(path: str) -> str:
    """A path with * for what stands for each subject."""
    return re.sub(r"\$\{[^}]*\}", "*", path)


HOMES = {
    "torch": ("stages/lib/model/", "stages/lib/executor/", "stages/lib/ask.py"),
    "transformers": ("stages/lib/model/", "stages/lib/executor/", "stages/lib/ask.py"),
    "tokenizers": ("stages/lib/model/tokenizer.py",),
    "h5py": ("stages/lib/store.py",),
    "duckdb": ("stages/lib/sql/database.py",),
    "matplotlib": ("stages/lib/drawing/drawing.py",),
    "tqdm": ("stages/lib/core/progress.py",),
    "sqlglot": ("stages/lib/sql/lazy/",),
    "numba": ("stages/heuristics/null/relabelled.py", "stages/lib/heuristics/scores.py"),
    "jinja2": ("stages/report/page/html.py",),
    "PIL": ("stages/report/page/pictures.py",),
    "prompt_toolkit": ("stages/lib/console/shell.py",),
}
ROOMS = {  # of chapters, that look into a model themselves: what they do no other chapter needs
    "torch": {
        "stages/subjects/planted/model.py", "stages/subjects/training/loop.py", "stages/store/grid.py", "stages/circuit/discriminant.py",
        "stages/circuit/streams.py", "stages/neurons/gradients.py",
    },
    "transformers": {
        "stages/subjects/planted/model.py", "stages/subjects/training/loop.py", "stages/subjects/training/fresh.py",
        "stages/store/grid.py", "stages/store/template.py", "stages/mediation/pairs/tokens.py",
    },
}  # fmt: skip


@pytest.mark.parametrize("library", HOMES)
def test_a_heavy_library_has_one_home(library: str):
    users = {name(path) for path in CODE if library in {imported.split(".")[0] for imported in declared.imported(path)}}
    outside = {user for user in users if not user.startswith(HOMES[library])}
    assert users > outside
    assert outside == ROOMS.get(library, set())


def test_lib_imports_no_stage_and_stages_import_no_stage():
    stages = {declared.source(stage) for stage in STAGES if stage not in RUNS and declared.source(stage).suffix == ".py"}
    for path in CODE:
        assert not declared.imports(path) & stages, path


def test_a_class_name_means_one_thing():
    found: dict[str, list[str]] = {}
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{name(path)}:{node.lineno}")
    assert len(found) > 50
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
