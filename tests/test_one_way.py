"""Test that data and imports run one way, and that heavy or shared code has one place."""

import ast
import re
from contextlib import chdir
from pathlib import Path

import pytest
import yaml

from stages.lib.console import pipeline
from stages.lib.core.vocabulary import CHAPTERS
from tests import declared
from tests.conftest import planned
from tests.declared import ROOT, RUNS, STAGES, name

CODE = sorted(path for path in (ROOT / "stages").rglob("*.py") if path.stat().st_size)
OVER_TRAINING = {  # stages that compare checkpoints of training
    "trajectory_interventions",
    "trajectory_runs",
    "trajectory",
    "trajectory_mediation",
}
COMPARING = {  # stages that compare models
    "study",
    "study_claims",
    "trajectory_figures",
    "trajectory_mediation_figure",
    "verdicts",
}
READ_BY_PEOPLE = {  # stages whose outputs no stage reads
    "report",
    "report/study",
    "metrics",
    "neurons/digit_figure",
}


def is_before(other: str | None, own: str | None) -> bool:
    """Return whether a chapter, or lib/ (None), is before another one, or is it itself."""
    if other is None:
        return True
    return own is not None and CHAPTERS.index(other) <= CHAPTERS.index(own)


@pytest.mark.parametrize("stage", STAGES)
def test_data_run_one_way(stage: str):
    """Test that a stage uses no later chapter's data or code, and writes into its own."""
    own = stage.partition("/")[0] if "/" in stage else "report"
    for path in declared.read(stage):
        chapter = declared.chapter(path)
        assert stage == "settings" or is_before(chapter, own), path
        assert chapter or path == "data/settings.txt" or not path.startswith("data/"), path
    for path in declared.written(stage) if "/" in stage else []:
        assert declared.chapter(path) == own or path == "reports/study.html", path


@pytest.mark.parametrize("path", CODE, ids=name)
def test_imports_run_one_way(path: Path):
    """Test that a chapter imports from itself, earlier chapters and lib/; lib/ from no chapter."""
    if name(path) == "stages/settings.py":
        return
    own = declared.chapter(name(path))
    for module in declared.imports(path):
        assert name(module) != "stages/settings.py"
        assert is_before(declared.chapter(name(module)), own), name(module)


def test_nothing_needs_the_explorer():
    """Test that the explorer imports only lib/, and that nothing imports the explorer."""
    for path in CODE:
        is_explorer = name(path).split("/")[1] == "explorer"
        for module in declared.imports(path):
            other = name(module).split("/")[1]
            if is_explorer:
                assert other in ("explorer", "lib"), name(path)
            else:
                assert other != "explorer", name(path)


def test_no_import_is_circular():
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


def test_repro_at_the_root_leaves_out_other_models_and_comparisons(
    micro: Path, everything: list[str]
):
    """Test that `dvc repro` runs the default model, and the synthetic one for calibration."""
    default = set(planned(micro))
    with chdir(micro):
        assert default == {*pipeline.plan([], False)[0]}
    settings = yaml.safe_load((micro / "params.yaml").read_text())
    own = settings["default"]
    assert default < set(everything)
    subjects = {stage.partition("@")[2] for stage in default if "@" in stage}
    assert subjects == {own, "planted"}
    of_default, together = set(), set()
    for address in set(everything) - default:
        stage, _, subject = address.rpartition(":")[2].partition("@")
        if not subject:
            together.add(stage)
        elif subject == own:
            of_default.add(stage)
    assert of_default == OVER_TRAINING
    assert together == COMPARING


def test_outputs_that_no_stage_reads_are_read_by_people():
    read: set[str] = set()
    for stage in STAGES:
        read.update(map(_open, declared.read(stage)))
    unread = set()
    for stage in STAGES:
        paths = map(_open, declared.written(stage))
        if not any(_is_read(path, read) for path in paths):
            unread.add(stage)
    assert unread == READ_BY_PEOPLE


def _is_read(path: str, read: set[str]) -> bool:
    """Return whether a stage reads a path, its folder, or a file in it."""
    if path.startswith("data/models/"):  # stages read models as ${item.source}
        return True
    folders = (f"{other}/" for other in read)
    own = f"{path}/"
    return any(own.startswith(folder) or folder.startswith(own) for folder in folders)


def _open(path: str) -> str:
    """Return a path with * in place of each model's name."""
    return re.sub(r"\$\{[^}]*\}", "*", path)


HOMES = {
    "torch": (
        "stages/lib/model/",
        "stages/lib/gguf/weights.py",
        "stages/lib/executor/",
        "stages/lib/ask.py",
    ),
    "transformers": (
        "stages/lib/model/",
        "stages/lib/gguf/",
        "stages/lib/executor/",
        "stages/lib/ask.py",
    ),
    "tokenizers": ("stages/lib/model/tokenizer.py", "stages/lib/gguf/vocabulary.py"),
    "gguf": ("stages/lib/gguf/",),
    "h5py": ("stages/lib/core/hdf5_store.py",),
    "duckdb": ("stages/lib/sql/database.py",),
    "matplotlib": ("stages/lib/drawing/drawing.py",),
    "tqdm": ("stages/lib/core/progress.py",),
    "sqlglot": ("stages/lib/sql/", "stages/bridges/dataset.py"),
    "numba": ("stages/lib/core/compiled.py",),
    "jinja2": ("stages/report/page/html.py",),
    "ray": ("stages/lib/units/actors.py",),
    "accelerate": ("stages/lib/model/spread.py",),
    "PIL": ("stages/report/page/pictures.py", "stages/explorer/pictures.py", "stages/site/"),
    "dash": ("stages/explorer/",),
    "flask": ("stages/explorer/app.py",),
    "werkzeug": ("stages/explorer/",),
    "prompt_toolkit": ("stages/lib/console/shell.py",),
}
ROOMS = {  # modules of chapters that use a model themselves, for what no other chapter needs
    "torch": {
        "stages/subjects/planted/model.py",
        "stages/subjects/training/loop.py",
        "stages/subjects/training/fresh.py",
        "stages/store/grid.py",
        "stages/store/rates.py",
        "stages/circuit/discriminant.py",
        "stages/circuit/recording.py",
        "stages/neurons/gradients.py",
        "stages/neurons/logit_shifts.py",
        "stages/neurons/tuned_lens.py",
    },
    "transformers": {
        "stages/subjects/planted/model.py",
        "stages/subjects/training/loop.py",
        "stages/subjects/training/fresh.py",
        "stages/store/grid.py",
        "stages/store/template.py",
        "stages/mediation/pairs/tokens.py",
    },
}


@pytest.mark.parametrize("library", HOMES)
def test_a_heavy_library_has_one_home(library: str):
    users = set()
    for path in CODE:
        packages = {dotted.split(".")[0] for dotted in declared.imported(path)}
        if library in packages:
            users.add(name(path))
    outside = {user for user in users if not user.startswith(HOMES[library])}
    assert users > outside
    assert outside == ROOMS.get(library, set())


def test_no_module_imports_a_stage():
    stages = {declared.source(stage) for stage in STAGES if stage not in RUNS}
    for path in CODE:
        assert not declared.imports(path) & stages, path


def test_a_class_name_has_one_meaning():
    places: dict[str, list[str]] = {}
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{name(path)}:{node.lineno}")
    assert len(places) > 50
    assert [listed for listed in places.values() if len(listed) > 1] == []
