"""`bag add NAME SOURCE`: add a model to params.yaml, if `bag check` reports no problem.

The entry goes under `subjects:`, or under `stored:` if only the chapter store is requested or
possible.
"""

import argparse
import json
from pathlib import Path

from stages.lib import hub
from stages.lib.console import pipeline
from stages.lib.core.files import replacing
from stages.lib.core.settings import ParamsError, check, place, read
from stages.lib.core.vocabulary import CHAPTERS
from stages.lib.entries import inserted
from stages.lib.subject import SECTIONS, Name, Subjects, SubjectSettings
from stages.store import kernels
from stages.store.check_options import parsed

PARAMS = Path("params.yaml")
MODELS = Path("stages/subjects/params.yaml")
# sections whose entries are also models, written to data/models/<name>
MAKERS = ("train", "finetune", "hub", "gguf")
# stages of the chapter store that no other stage of this chapter needs; together they need all
LAST_OF_STORE = ("accuracy", "task_accuracy", "answer_accuracy", "architecture", "figures")


def main(arguments: list[str]) -> None:
    options = parsed("add", arguments)
    refuse(options.name)
    digits = _digits(options)
    kernels.begin_early(options)
    from stages.store.budget import by_stage  # only here: torch is slow to import
    from stages.store.description import checked, source_kind

    report = checked(options)
    print("\n".join(report.lines))
    if report.problems:
        problems = [f"But: {problem}" for problem in report.problems]
        raise SystemExit("\n".join([*problems, "bag add: nothing was added"]))
    settings, files = report.settings, {}
    kind = source_kind(options.source)
    if kind != "folder":
        settings = settings.model_copy(update={"source": f"data/models/{options.name}"})
        section, line = _made_from(options, kind)
        files[MODELS] = inserted(MODELS, {section: [line]})
    added = {report.section: entry(options.name, settings, report.section)}
    sizes = report.sizes.model_dump(exclude_defaults=True)
    if sizes:
        added["sizes"] = [f"  {options.name}: {json.dumps(sizes)}"]
    if digits:
        added["digits"] = digits
    files[PARAMS] = inserted(PARAMS, added)
    for file, text in files.items():  # only now, when no text can fail any more
        with replacing(file) as partial:
            partial.write_text(text, encoding="utf-8")
    pipeline.keep_estimates(options.name, by_stage(report.rows))
    print(f"\n{PARAMS} has it now, under {report.section}.")
    print("\n".join(next_steps(options.name, report.section)))


def next_steps(name: str, section: str) -> list[str]:
    """Return lines with the commands that compute a new model. section: that of its entry."""
    dump = f"dvc repro {stage_of_store('dump', name)}"
    lines = [f"Its activations alone: {dump}"]
    if section == "subjects":
        lines.append(f"All chapters, and its page: make model NAME={name}")
    else:
        last = [stage_of_store(stage, name) for stage in LAST_OF_STORE]
        lines.append(f"The whole chapter store: dvc repro {' '.join(last)}")
    return lines


def stage_of_store(stage: str, name: str) -> str:
    """Return DVC's name of a model's stage of the chapter store."""
    return f"stages/store/dvc.yaml:{stage}@{name}"


def _digits(options: argparse.Namespace) -> list[str]:
    """Return the lines that --entry's file adds to the section digits. Raises ParamsError."""
    known = read().get("digits") or {}
    lines = []
    for name, digits in options.digits.items():
        if name in known:
            raise ParamsError(f"{PARAMS} has {name} already, under digits; choose another name")
        lines.append(f"  {name}: {json.dumps(digits)}")
    return lines


def _made_from(options: argparse.Namespace, kind: str) -> tuple[str, str]:
    """Return the section whose stage writes the model's folder, and the line to add to it."""
    if kind == "gguf":
        file = json.dumps(options.source, ensure_ascii=False)
        return "gguf", f"  {options.name}: {{file: {file}}}"
    model = hub.fixed(options.source)
    return "hub", f"  {options.name}: {{repo: {model.repo}, commit: {model.commit}}}"


def refuse(name: str) -> None:
    """Raise ParamsError if a new model cannot have this name, or if the name is taken."""
    check(dict[Name, None], {name: None}, "subjects")
    params = read()
    for section in (*SECTIONS, *MAKERS):
        if name in (params.get(section) or {}):
            file = place(section)
            raise ParamsError(f"{file} has {name} already, under {section}; choose another name")
    if name in ("models", "planted", *CHAPTERS):
        problem = f"the pipeline itself has a folder data/{name}"
        raise ParamsError(f"{problem}; choose another name")
    if name == "shared":
        problem = "the page calls shared what belongs to no single model"
        raise ParamsError(f"{problem}; choose another name")


def entry(name: str, settings: SubjectSettings, section: str) -> list[str]:
    """Return the lines of a model's entry. Raises ParamsError if the section cannot have it."""
    values = settings.model_dump(exclude_defaults=True)
    check(Subjects, {name: values}, section)
    lines = [f"  {name}:"]
    for key, value in values.items():
        lines.append(f"    {key}: {json.dumps(value, ensure_ascii=False)}")
    return lines
