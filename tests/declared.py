"""What a stage really uses, read from its source, to be held against what its chapter's dvc.yaml declares for it."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import yaml

from stages.lib.core.settings import files, key_of
from stages.lib.core.vocabulary import CHAPTERS
from stages.lib.subject import Sizes, SubjectSettings
from stages.neurons.settings import Digits
from tests.micro import FILES
from tests.report.report_files import read_by

ROOT = Path(__file__).parents[1]
OF_SUBJECTS = ("subjects", "with_pairs", "with_mediation", "known")
RUNNER = ROOT / "stages/lib/sql/stage.py"


def name(path: Path) -> str:
    """A file as dvc.yaml writes it."""
    return str(path.relative_to(ROOT))


@cache
def stages() -> dict[str, dict]:
    """Every stage: <chapter>/<name>, or its name in the root, -> its entry; that of a foreach stage is what is done for each, with its
    `foreach`; `file`: where it stands."""
    found = {}
    for file in pipelines():
        for name, entry in yaml.safe_load((ROOT / file).read_text())["stages"].items():
            key = "/".join([*Path(file).parts[1:2], name])
            assert key not in found, key
            found[key] = {"foreach": entry.get("foreach", ""), "file": file} | entry.get(
                "do", entry
            )
    return found


def pipelines() -> list[str]:
    """Every dvc.yaml: the root's, then each chapter's, followed by that of its stages that read tensors."""
    files = [f"stages/{chapter}/dvc.yaml" for chapter in CHAPTERS]
    return ["dvc.yaml", *(file for file in files if (ROOT / file).exists())]


def key(address: str) -> str:
    """The key in `stages` of a stage that DVC calls so, without a subject's name."""
    return re.sub(r"stages/(\w+)/dvc\.yaml:", r"\1/", address).partition("@")[0]


def source(stage: str) -> Path:
    """The module that a stage's command runs."""
    return ROOT / (stages()[stage]["cmd"].split()[2].replace(".", "/") + ".py")


def queries(stage: str) -> list[Path]:
    """The queries that a stage runs, in order."""
    return (
        [ROOT / path for path in read(stage) if path.endswith(".sql")]
        if source(stage) == RUNNER
        else []
    )


def commands() -> list[Path]:
    """The modules of what `bag` does besides answering queries."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
        "bag.commands"
    ]
    return [ROOT / (entry.partition(":")[0].replace(".", "/") + ".py") for entry in listed.values()]


def code(stage: str) -> set[str]:
    """What of the project's own code the stage's command runs: its file or its queries, and of what that imports the folders of
    lib/, the files that lie alone there, and the folders or files of a chapter. Types of settings are left out: they check
    values, and never change one."""
    more = set(files(ROOT)) if stage == "settings" else read_by(stage)
    curated = {file for file in data_files(stage) if file.startswith("stages/")}
    return curated | {
        unit(p) for p in {*modules(source(stage), types=stage == "settings"), *_asked(stage), *more}
    }


def _asked(stage: str) -> list[Path]:
    """The queries that a stage has to run: one for each table that it writes."""
    tables = (
        [Path(path.removesuffix("/${key}.parquet")).stem for path in written(stage)]
        if source(stage) == RUNNER
        else []
    )
    return [ROOT / "stages" / stage.partition("/")[0] / f"{table}.sql" for table in tables]


def unit(path: Path) -> str:
    """What stands in dvc.yaml for a file: the folder of lib/ or of a chapter that it is in, or itself."""
    return "/".join(path.relative_to(ROOT).parts[:3])


def modules(start: Path, types: bool = False) -> set[Path]:
    """The project's modules that one of them runs, itself included. types: also those of settings."""
    found: set[Path] = set()
    todo = [start]
    while todo:
        current = todo.pop()
        if current not in found and (
            types or current.name != "settings.py" or current.parent.name == "core"
        ):
            found.add(current)
            todo += imports(current)
    return {path for path in found if path.stat().st_size}


@cache
def imports(path: Path) -> set[Path]:
    """The project's modules that a file names in its imports."""
    bases = [
        ROOT / name.replace(".", "/") for name in imported(path) if name.split(".")[0] == "stages"
    ]
    return {
        p for base in bases for p in (base.with_suffix(".py"), base / "__init__.py") if p.exists()
    }


@cache
def imported(path: Path) -> set[str]:
    """The names that a file imports, dotted, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def chapter(path: str) -> str | None:
    """The chapter that a file belongs to: stages/<chapter>/…, data/<chapter>/… or data/<subject>/<chapter>/…, reports/ likewise. Models
    of our own are what the chapter subjects makes."""
    top, *parts = Path(path).parts
    if top == "data" and parts[0] == "models":
        return "subjects"
    return next((part for part in parts[: 1 if top == "stages" else 2] if part in CHAPTERS), None)


def sections(stage: str) -> set[str]:
    """The settings that a stage reads, by sections or singly: load(Section), load(Section).setting, read()["section"], Subject.named(name),
    load_training(name) and its like, in its own file or in one of its chapter that it imports; of a query its $names."""
    path, entry = source(stage), stages()[stage]
    if path == RUNNER:
        asked = {
            name for query in queries(stage) for name in re.findall(r"\$(\w+)", query.read_text())
        }
        return {name for name in declared_sections(stage) if asked & set(_values(name, entry))}
    text = "".join(p.read_text() for p in modules(path) if p.parent == path.parent)
    used = {key_of(name) + key for name, key in re.findall(r"\bload\(([A-Z]\w+)\)(\.\w+)?", text)}
    if re.search(r"\b(Subject\.named|load_subject)\(", text):
        used.add(f"{_subjects(entry)}.${{key}}" if entry["foreach"] else "subjects.${default}")
    used |= set(re.findall(r"\bread\(\)\[\"(\w+)\"\]", text))
    return used | {
        f"{section}.${{key}}"
        for section, read in (
            ("sized", "load_sizes("),
            ("train", "load_training("),
            ("finetune", "load_finetuning("),
            ("hub", "load_hub("),
            ("gguf", "load_gguf("),
        )
        if read in text
    }


def declared_sections(stage: str) -> set[str]:
    """The sections that dvc.yaml lists for a stage, whatever file they stand in."""
    found: set[str] = set()
    for item in stages()[stage].get("params", []):
        found |= (
            {item}
            if isinstance(item, str)
            else {section for listed in item.values() for section in listed}
        )
    return found


def _values(section: str, entry: dict) -> dict:
    name, _, each = section.partition(".")
    if each not in ("", "${key}"):
        return {each: None}
    [values] = [sections[name] for sections in FILES.values() if name in sections]
    kinds = {**dict.fromkeys(OF_SUBJECTS, SubjectSettings), "sized": Sizes, "digits": Digits}
    known = kinds.get(name)  # of which shipped settings may have none
    return (known.model_fields if known else next(iter(values.values()))) if each else values


def _subjects(entry: dict) -> str:
    """The section of params.yaml where a foreach stage finds the settings of its subjects, most often the one that it is done for."""
    each = entry["foreach"].strip("${}")
    return {"trajectory": "with_pairs", "with_activations": "known", "with_figures": "known"}.get(
        each, each
    )


def data_files(stage: str) -> set[str]:
    """The files of data that a Python stage names: <chapter>/<file>, data/…, or stages/… for one that people write."""
    tree = ast.parse(source(stage).read_text())
    literals = [
        n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]
    return {
        name for name in literals if re.fullmatch(r"[\w/-][\w/.-]*\.(parquet|h5|csv|json)", name)
    }


def ablates_to_means(stage: str) -> bool:
    """Whether any intervention of a stage of runs puts in a mean."""
    [path] = (ROOT / "stages").glob(f"{stage.removesuffix('_runs')}_interventions.*")
    text = path.read_text()
    alone = re.search(r"'(\w+)'\) as replacement", text)  # the same for all of them
    return bool(re.search(r"""['"]mean['"]""", alone[0] if alone else text))


def read(stage: str) -> list[str]:
    """The files and folders that a stage depends on."""
    return stages()[stage].get("deps", [])


def written(stage: str) -> list[str]:
    """The files and folders that a stage writes."""
    entry = stages()[stage]
    listed = [item for kind in ("outs", "metrics", "plots") for item in entry.get(kind, [])]
    return [item if isinstance(item, str) else next(iter(item)) for item in listed]


STAGES = stages()
RUNS = [stage for stage in STAGES if stage.endswith("_runs")]
