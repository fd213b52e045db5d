"""Data and imports run one way, from the first chapter to the last; nothing runs for nobody, and what is heavy or shared has one place."""

import ast
import re
from pathlib import Path

import pytest
import yaml

from stages.lib.core.vocabulary import CHAPTERS
from tests import declared
from tests.conftest import planned
from tests.declared import ROOT, RUNS, STAGES, name

CODE = sorted(path for path in (ROOT / "stages").rglob("*.py") if path.stat().st_size)
OVER_TRAINING = {  # what compares points of training
    "trajectory_interventions", "trajectory_runs", "trajectory", "trajectory_mediation",
}  # fmt: skip
READ_BY_PEOPLE = {
    "report",
    "report/study",
    "metrics",
    "neurons/digit_figure",
}  # what these write, no stage reads


@pytest.mark.parametrize("stage", STAGES)
def test_data_run_one_way(stage: str):
    """A stage depends on nothing of a later chapter, neither data nor code, and writes into its own."""
    own = stage.partition("/")[0] if "/" in stage else "report"
    for path in declared.read(stage) if stage != "settings" else []:
        assert CHAPTERS.index(declared.chapter(path) or own) <= CHAPTERS.index(own), path
    for path in declared.written(stage) if "/" in stage else []:
        assert declared.chapter(path) == own or path == "reports/study.html", path
    for path in declared.read(stage):
        assert (
            declared.chapter(path) or path == "data/settings.txt" or not path.startswith("data/")
        ), path


@pytest.mark.parametrize("path", CODE, ids=name)
def test_imports_run_one_way(path: Path):
    """A chapter imports from itself, from chapters before it and from lib/; lib/ from no chapter."""
    own = declared.chapter(name(path))
    for module in declared.imports(path) if name(path) != "stages/settings.py" else []:
        other = declared.chapter(name(module))
        assert name(module) != "stages/settings.py"
        assert other is None or (
            own is not None and CHAPTERS.index(other) <= CHAPTERS.index(own)
        ), name(module)


def test_nothing_needs_the_explorer():
    """It reads what chapters wrote, and imports lib/ alone."""
    for path in CODE:
        room = name(path).split("/")[1]
        for module in declared.imports(path):
            other = name(module).split("/")[1]
            assert (room == "explorer") <= (other in ("explorer", "lib"))
            assert (other == "explorer") <= (room == "explorer"), name(path)


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


def test_repro_at_the_root_leaves_out_what_other_subjects_and_comparisons_take(
    micro: Path, everything: list[str]
):
    """What all pipelines run besides: other subjects, of which labels take the planted one's scores, and what compares subjects."""
    default = set(planned(micro))
    settings = yaml.safe_load((micro / "params.yaml").read_text())
    own = settings["default"]
    assert default < set(everything)
    left_out, taken = (
        {stage.rpartition(":")[2] for stage in some}
        for some in (set(everything) - default, default)
    )
    assert {stage.rpartition("@")[2] for stage in taken if "@" in stage} == {own, "planted"}
    of_default = {stage.partition("@")[0] for stage in left_out if stage.endswith(f"@{own}")}
    together = {stage for stage in left_out if "@" not in stage}
    assert of_default == OVER_TRAINING
    assert together == {
        "study",
        "study_claims",
        "trajectory_figures",
        "trajectory_mediation_figure",
        "verdicts",
    }


def test_what_no_stage_reads_is_read_by_people():
    """No stage is run for nobody."""
    read = [_open(path) for stage in STAGES for path in declared.read(stage)]

    def is_read(path: str) -> bool:
        """It, a folder that it is in, or a file in it; stages read models as ${item.source}."""
        inside = any(
            f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/")
            for other in read
        )
        return inside or path.startswith("data/models/")

    unread = {
        stage
        for stage in STAGES
        if not any(is_read(_open(path)) for path in declared.written(stage))
    }
    assert unread == READ_BY_PEOPLE


def _open(path: str) -> str:
    """A path with * for what stands for each subject."""
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
    "sqlglot": ("stages/lib/sql/",),
    "numba": ("stages/lib/core/compiled.py",),
    "jinja2": ("stages/report/page/html.py",),
    "ray": ("stages/lib/units/actors.py",),
    "accelerate": ("stages/lib/model/spread.py",),
    "PIL": ("stages/report/page/pictures.py", "stages/explorer/pictures.py"),
    "dash": ("stages/explorer/",),
    "flask": ("stages/explorer/app.py",),
    "werkzeug": ("stages/explorer/",),
    "prompt_toolkit": ("stages/lib/console/shell.py",),
}
ROOMS = {  # of chapters, that look into a model themselves: what they do no other chapter needs
    "torch": {
        "stages/subjects/planted/model.py", "stages/subjects/training/loop.py", "stages/subjects/training/fresh.py", "stages/store/grid.py",
        "stages/store/rates.py",
        "stages/circuit/discriminant.py", "stages/circuit/recording.py", "stages/neurons/gradients.py",
    },
    "transformers": {
        "stages/subjects/planted/model.py", "stages/subjects/training/loop.py", "stages/subjects/training/fresh.py",
        "stages/store/grid.py", "stages/store/template.py", "stages/mediation/pairs/tokens.py",
    },
}  # fmt: skip


@pytest.mark.parametrize("library", HOMES)
def test_a_heavy_library_has_one_home(library: str):
    users = {
        name(path)
        for path in CODE
        if library in {imported.split(".")[0] for imported in declared.imported(path)}
    }
    outside = {user for user in users if not user.startswith(HOMES[library])}
    assert users > outside
    assert outside == ROOMS.get(library, set())


def test_lib_imports_no_stage_and_stages_import_no_stage():
    stages = {declared.source(stage) for stage in STAGES if stage not in RUNS}
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
