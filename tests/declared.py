"""What a stage really uses, read from its source, to be held against what dvc.yaml declares for it."""

import ast
import re
from pathlib import Path

import yaml

from stages.lib.params.sections import key_of
from tests.report_files import read_by

ROOT = Path(__file__).parents[1]


def stages() -> dict[str, dict]:
    """Every stage of dvc.yaml: name -> its entry, that of a foreach stage being what is done for each."""
    entries = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    return {name: entry.get("do", entry) for name, entry in entries.items()}


def source(stage: str) -> Path:
    """The file that a stage runs: that of its own name, or runs.py for each of the stages that carry out interventions."""
    stage = "runs" if stage.endswith("_runs") else stage
    [path] = [p for p in (ROOT / f"stages/{stage}.py", ROOT / f"stages/{stage}.sql") if p.exists()]
    return path


def modules(stage: str) -> set[str]:
    """The project's own files that the stage's command runs, itself included."""
    path = source(stage)
    start = [path] if path.suffix == ".py" else [ROOT / "stages/lib/sql.py"]
    found, todo = {path} | read_by(stage), list(start)
    while todo:
        current = todo.pop()
        found.add(current)
        todo += [p for p in _imports(current) if p not in found]
    return {str(p.relative_to(ROOT)) for p in found if p.stat().st_size}


def _imports(path: Path) -> set[Path]:
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.split(".")[0] == "stages":
                base = ROOT / name.replace(".", "/")
                found |= {p for p in (base.with_suffix(".py"), base / "__init__.py") if p.exists()}
                found |= {p for parent in base.parents if ROOT in parent.parents for p in [parent / "__init__.py"] if p.exists()}
    return found


def sections(stage: str) -> set[str]:
    """The sections of params.yaml that a stage reads: load(Section), a subject's settings, load_finetuning(name), or all by Params.

    Without `machine`: what it says changes no numbers, so that no stage shall be rerun for it.
    """
    path = source(stage)
    text = path.read_text()
    if path.suffix == ".sql":
        first = {f"{name}.${{key}}": next(iter(_read()[name].values())) for name in ("trajectory", "finetune")}
        return {name for name in stages()[stage].get("params", []) if any(f"${key}" in text for key in (_read() | first)[name])}
    if "check(Params" in text:
        return set(_read())
    used = {key_of(name) for name in re.findall(r"\bload\((\w+)\)", text) if name[0].isupper()} - {"machine"}
    if "subject.settings" in text or "load_subject(" in text:
        used.add(f"{subjects_of(stage)}.${{key}}")
    return used | ({"finetune.${key}"} if "load_finetuning(" in text else set())


def subjects_of(stage: str) -> str:
    """The section of params.yaml where a foreach stage finds its subjects: `subjects`, or with others `dumped` or `mediated`."""
    each = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][stage]["foreach"].strip("${}")
    return "dumped" if each == "trajectory" else each


def ablates_to_means(experiment: str) -> bool:
    """Whether any intervention of the experiment puts in a mean."""
    [path] = (ROOT / "stages").glob(f"{experiment}_interventions.*")
    return bool(re.search(r"""['"]mean['"]""", path.read_text()))


def _read() -> dict:
    return yaml.safe_load((ROOT / "params.yaml").read_text())


def data_files(stage: str) -> set[str]:
    """The files below data/ and reports/ that a Python stage names, as patterns with * for what is computed."""
    text = source(stage).read_text()
    tree = ast.parse(text)
    literals = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return {name for name in literals if re.fullmatch(r"[\w/.-]*\.(parquet|h5|csv|json)", name)}
