"""Read from a stage's source what it uses, to compare it with its chapter's dvc.yaml."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from stages.lib.core.settings import files, key_of
from stages.lib.core.vocabulary import CHAPTERS
from stages.lib.settings import Digits
from stages.lib.subject import Sizes, SubjectSettings
from tests.micro import FILES
from tests.report.report_files import read_by

ROOT = Path(__file__).parents[1]
OF_SUBJECTS = ("subjects", "with_pairs", "with_mediation", "known")
RUNNER = ROOT / "stages/lib/sql/stage.py"
READERS = {  # function that reads settings of one model -> its section
    "load_sizes": "sized",
    "load_training": "train",
    "load_finetuning": "finetune",
    "load_hub": "hub",
    "load_gguf": "gguf",
}


def name(path: Path) -> str:
    """Return a file as dvc.yaml writes it."""
    return str(path.relative_to(ROOT))


@cache
def stages() -> dict[str, dict]:
    """Return every stage: <chapter>/<name>, or its name in the root -> its entry.

    The entry of a foreach stage is that of one model, with its `foreach`. `file` is its dvc.yaml.
    """
    entries: dict[str, dict] = {}
    for file in pipelines():
        for name, entry in yaml.safe_load((ROOT / file).read_text())["stages"].items():
            key = "/".join([*Path(file).parts[1:2], name])
            assert key not in entries, key
            common = {"foreach": entry.get("foreach", ""), "file": file}
            entries[key] = common | entry.get("do", entry)
    return entries


def pipelines() -> list[str]:
    """Return every dvc.yaml: the root's, then each chapter's."""
    return ["dvc.yaml", *(f"stages/{chapter}/dvc.yaml" for chapter in CHAPTERS)]


def key(address: str) -> str:
    """Return the key in `stages` of DVC's name of a stage, without a model's name."""
    return re.sub(r"stages/(\w+)/dvc\.yaml:", r"\1/", address).partition("@")[0]


def source(stage: str) -> Path:
    """Return the module that a stage's command runs."""
    return _module(stages()[stage]["cmd"].split()[2])


def _module(dotted: str) -> Path:
    return ROOT / (dotted.replace(".", "/") + ".py")


def queries(stage: str) -> list[Path]:
    """Return the queries that a stage runs, in order."""
    if source(stage) != RUNNER:
        return []
    return [ROOT / path for path in read(stage) if path.endswith(".sql")]


def commands() -> list[Path]:
    """Return the modules of the commands of `bag`, except for queries."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entries = project["entry-points"]["bag.commands"].values()
    return [_module(entry.partition(":")[0]) for entry in entries]


def code(stage: str) -> set[str]:
    """Return the project's code that a stage runs, as dvc.yaml lists it.

    This is its module or queries, and of what it imports the folders of lib/, the single files of
    lib/, and the folders or files of a chapter. Types of settings are left out: they check values,
    and never change them.
    """
    is_settings = stage == "settings"
    paths = {*modules(source(stage), types=is_settings), *_table_queries(stage)}
    paths |= set(files(ROOT) if is_settings else read_by(stage))
    written_by_people = {file for file in data_files(stage) if file.startswith("stages/")}
    return written_by_people | set(map(unit, paths))


def _table_queries(stage: str) -> list[Path]:
    """Return the queries that a stage must run, one for each table that it writes."""
    if source(stage) != RUNNER:
        return []
    chapter = ROOT / "stages" / stage.partition("/")[0]
    tables = [Path(path.removesuffix("/${key}.parquet")).stem for path in written(stage)]
    return [chapter / f"{table}.sql" for table in tables]


def unit(path: Path) -> str:
    """Return a file's folder in lib/ or in a chapter, or the file itself, as dvc.yaml lists it."""
    return "/".join(path.relative_to(ROOT).parts[:3])


def modules(start: Path, types: bool = False) -> set[Path]:
    """Return the modules that a module runs, including itself. types: also types of settings."""
    reached: set[Path] = set()
    todo = [start]
    while todo:
        path = todo.pop()
        is_type = path.name == "settings.py" and path.parent.name != "core"
        if path in reached or (is_type and not types):
            continue
        reached.add(path)
        todo += imports(path)
    return {path for path in reached if path.stat().st_size}


@cache
def imports(path: Path) -> set[Path]:
    """Return the project's modules that a file imports."""
    paths = set()
    for dotted in imported(path):
        if dotted.split(".")[0] == "stages":
            paths |= {_module(dotted), _module(f"{dotted}.__init__")}
    return set(filter(Path.exists, paths))


@cache
def imported(path: Path) -> set[str]:
    """Return the dotted names that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def chapter(path: str) -> str | None:
    """Return the chapter of stages/<chapter>/…, data/<chapter>/… or data/<subject>/<chapter>/….

    Paths below reports/ are read likewise. The chapter subjects makes our own models.
    """
    top, *parts = Path(path).parts
    if top == "data" and parts[0] == "models":
        return "subjects"
    candidates = parts[:1] if top == "stages" else parts[:2]
    return next(filter(CHAPTERS.__contains__, candidates), None)


def sections(stage: str) -> set[str]:
    """Return the settings that a stage reads, as sections or single settings.

    For a query these are its $names. For a module they are load(Section), load(Section).setting,
    read()["section"], Subject.named(name), load_training(name) and similar calls, in its own file
    or in imported files of its chapter.
    """
    path, entry = source(stage), stages()[stage]
    if path == RUNNER:
        return _query_sections(stage)
    own = [module for module in modules(path) if module.parent == path.parent]
    text = "".join(module.read_text() for module in own)
    loaded = re.findall(r"\bload\(([A-Z]\w+)\)(\.\w+)?", text)
    used = {key_of(name) + setting for name, setting in loaded}
    used |= set(re.findall(r"\bread\(\)\[\"(\w+)\"\]", text))
    if re.search(r"\b(Subject\.named|load_subject)\(", text):
        used.add(_section_of_model(entry))
    for function, section in READERS.items():
        if f"{function}(" in text:
            used.add(f"{section}.${{key}}")
    return used


def _query_sections(stage: str) -> set[str]:
    names: set[str] = set()
    for query in queries(stage):
        names.update(re.findall(r"\$(\w+)", query.read_text()))
    entry = stages()[stage]
    return {name for name in declared_sections(stage) if names & set(_values(name, entry))}


def declared_sections(stage: str) -> set[str]:
    """Return the sections that dvc.yaml lists for a stage, from all files of settings."""
    listed: set[str] = set()
    for item in stages()[stage].get("params", []):
        if isinstance(item, str):
            listed.add(item)
        else:
            listed.update(*item.values())
    return listed


def _values(section: str, entry: dict) -> dict[str, Any]:
    """Return the settings of a section, or of one model in it."""
    name, _, each = section.partition(".")
    if each not in ("", "${key}"):
        return {each: None}
    [values] = [sections[name] for sections in FILES.values() if name in sections]
    if not each:
        return values
    kinds = {**dict.fromkeys(OF_SUBJECTS, SubjectSettings), "sized": Sizes, "digits": Digits}
    if name in kinds:  # shipped settings may have no entry
        return dict(kinds[name].model_fields)
    return next(iter(values.values()))


def _section_of_model(entry: dict) -> str:
    """Return the settings of the model that a stage's command names."""
    if not entry["foreach"]:
        return "subjects.${default}"
    if "${item.first}" in entry["cmd"]:
        return "subjects.${item.first}"
    return f"{_subjects(entry)}.${{key}}"


def _subjects(entry: dict) -> str:
    """Return the section of params.yaml with the settings of a foreach stage's models."""
    each = entry["foreach"].strip("${}")
    return {"trajectory": "with_pairs", "with_activations": "known", "with_figures": "known"}.get(
        each, each
    )


def data_files(stage: str) -> set[str]:
    """Return the files that a stage's module names: <chapter>/<file>, data/… or stages/…."""
    names = set()
    for node in ast.walk(ast.parse(source(stage).read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return set(filter(re.compile(r"[\w/-][\w/.-]*\.(parquet|h5|csv|json)").fullmatch, names))


def ablates_to_means(stage: str) -> bool:
    """Return whether any intervention of a stage of runs replaces a value by a mean."""
    [path] = (ROOT / "stages").glob(f"{stage.removesuffix('_runs')}_interventions.*")
    text = path.read_text()
    alone = re.search(r"'(\w+)'\) as replacement", text)  # equal for all interventions
    return bool(re.search(r"""['"]mean['"]""", alone[0] if alone else text))


def read(stage: str) -> list[str]:
    """Return the files and folders that a stage depends on."""
    return stages()[stage].get("deps", [])


def written(stage: str) -> list[str]:
    """Return the files and folders that a stage writes."""
    paths: list[str] = []
    for kind in ("outs", "metrics", "plots"):
        for item in stages()[stage].get(kind, []):
            paths.append(item if isinstance(item, str) else next(iter(item)))
    return paths


STAGES = stages()
RUNS = [stage for stage in STAGES if stage.endswith("_runs")]
