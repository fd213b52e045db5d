"""`bag add NAME SOURCE`: puts a model of one's own into params.yaml, once `bag check` finds nothing against it: under `subjects:`, or under
`stored:` where only the chapter store is wanted or possible."""

import argparse
import json
import re
from pathlib import Path

from stages.lib import hub
from stages.lib.core.files import replacing
from stages.lib.core.settings import ParamsError, check, place, read
from stages.lib.core.words import CHAPTERS
from stages.lib.subject import SECTIONS, Name, Subjects, SubjectSettings
from stages.store.check import checked, parsed, source_kind

PARAMS = Path("params.yaml")
MODELS = Path("stages/subjects/params.yaml")
# sections whose entries are also models, written to data/models/<name>
MAKERS = ("train", "finetune", "hub", "gguf")


def main(arguments: list[str]) -> None:
    options = parsed("add", arguments)
    refuse(options.name)
    found = checked(options)
    print("\n".join(found.lines))
    if found.problems:
        raise SystemExit(
            "\n".join(
                [*(f"But: {problem}" for problem in found.problems), "bag add: nothing was added"]
            )
        )
    settings, files = found.settings, {}
    if source_kind(options.source) != "folder":
        settings = settings.model_copy(update={"source": f"data/models/{options.name}"})
        files[MODELS] = inserted(MODELS, dict([_made_from(options)]))
    added = {found.section: entry(options.name, settings, found.section)}
    if proposed := found.sizes.model_dump(exclude_defaults=True):
        added["sizes"] = [f"  {options.name}: {json.dumps(proposed)}"]
    files[PARAMS] = inserted(PARAMS, added)
    for file, text in files.items():  # all of them, now that nothing stands against any
        with replacing(file) as partial:
            partial.write_text(text, encoding="utf-8")
    dump = f"dvc repro stages/store/tensors/dvc.yaml:dump@{options.name}"
    print(
        f"\n{PARAMS} has it now, under {found.section}. Its activations: {dump}; all chapters: make study"
    )


def _made_from(options: argparse.Namespace) -> tuple[str, list[str]]:
    """The section whose stage makes the model's folder, and the lines of its entry there."""
    if source_kind(options.source) == "gguf":
        file = json.dumps(options.source, ensure_ascii=False)
        return "gguf", [f"  {options.name}: {{file: {file}}}"]
    model = hub.fixed(options.source)
    return "hub", [f"  {options.name}: {{repo: {model.repo}, commit: {model.commit}}}"]


def refuse(name: str) -> None:
    """Raises ParamsError where the name cannot be one, or something is called so already."""
    check(dict[Name, None], {name: None}, "subjects")
    whole = read()
    if taken := [section for section in (*SECTIONS, *MAKERS) if name in (whole.get(section) or {})]:
        raise ParamsError(
            f"{place(taken[0])} has {name} already, under {taken[0]}; choose another name"
        )
    if name in ("models", "planted", *CHAPTERS):
        raise ParamsError(
            f"{name} is a folder of the pipeline's own below data/; choose another name"
        )
    if name == "shared":
        raise ParamsError("the page calls shared what is of no one subject; choose another name")


def entry(name: str, settings: SubjectSettings, section: str) -> list[str]:
    """Lines of params.yaml. Raises ParamsError where the section cannot have it."""
    values = settings.model_dump(exclude_defaults=True)
    check(Subjects, {name: values}, section)
    return [
        f"  {name}:",
        *(f"    {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()),
    ]


def inserted(file: Path, added: dict[str, list[str]]) -> str:
    """Return the file's text with lines after each section's last one, whatever comments it has.

    Raises ParamsError where the file lacks a section.
    """
    text = file.read_text(encoding="utf-8")
    for section, lines in added.items():
        text = _inserted(file, text, section, lines)
    return text


def _inserted(file: Path, text: str, section: str, lines: list[str]) -> str:
    text = re.sub(rf"^({section}:(?: &\w+)?) \{{\}}", r"\1", text, flags=re.MULTILINE)
    found = re.search(rf"^{section}:.*\n(?:(?:[ #].*)?\n)*", text, re.MULTILINE)
    if found is None or re.match(rf"{section}: *(&\w+ *)?\{{", found[0]):
        raise ParamsError(
            f"{file} has no section `{section}:` with a line for each entry; write it so, or add the entry by hand"
        )
    end = found.start() + len(found[0].rstrip())
    return text[:end] + "\n" + "\n".join(lines) + text[end:]
