"""`bag add NAME SOURCE`: puts a model of one's own into params.yaml, once `bag check` finds nothing against it: under `subjects:`, or under
`stored:` where only the chapter store is wanted or possible."""

import json
import re
from pathlib import Path

from stages.lib import hub
from stages.lib.core.files import replacing
from stages.lib.core.settings import ParamsError, check, read
from stages.lib.subject import SECTIONS, Name, Subjects, SubjectSettings
from stages.store.check import checked, parser

PARAMS = Path("params.yaml")
HUB = Path("stages/subjects/params.yaml")


def main(arguments: list[str]) -> None:
    options = parser("add").parse_args(arguments)
    refuse(options.name)
    found = checked(options)
    print("\n".join(found.lines))
    if found.problems:
        raise SystemExit("\n".join([*(f"But: {problem}" for problem in found.problems), "bag add: nothing was added"]))
    settings = found.settings
    if not Path(options.source).is_dir():
        settings = settings.model_copy(update={"source": f"data/models/{options.name}"})
        model = hub.fixed(options.source)
        insert(HUB, "hub", [f"  {options.name}: {{repo: {model.repo}, commit: {model.commit}}}"])
    add(options.name, settings, found.section)
    dump = f"dvc repro stages/store/dvc.yaml:dump@{options.name}"
    print(f"\n{PARAMS} has it now, under {found.section}. Its activations: {dump}; all chapters: make study")


def refuse(name: str) -> None:
    """Raises ParamsError where the name cannot be one, or params.yaml has it already."""
    check(dict[Name, None], {name: None}, "subjects")
    whole = read()
    if taken := [section for section in SECTIONS if name in (whole.get(section) or {})]:
        raise ParamsError(f"{PARAMS} has {name} already, under {taken[0]}; choose another name")


def add(name: str, settings: SubjectSettings, section: str) -> None:
    """Writes the entry behind the section's last one. Raises ParamsError where the name cannot be one."""
    entry = settings.model_dump(exclude_defaults=True)
    check(Subjects, {name: entry}, section)
    insert(PARAMS, section, [f"  {name}:", *(f"    {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items())])


def insert(file: Path, section: str, lines: list[str]) -> None:
    """Puts lines behind the last one of a section, whatever comments there are. Raises ParamsError where the file lacks the section."""
    text = re.sub(rf"^({section}:(?: &\w+)?) \{{\}}", r"\1", file.read_text(), flags=re.MULTILINE)
    found = re.search(rf"^{section}:.*\n(?:(?:[ #].*)?\n)*", text, re.MULTILINE)
    if found is None or re.match(rf"{section}: *(&\w+ *)?\{{", found[0]):
        raise ParamsError(f"{file} has no section `{section}:` with a line for each entry; write it so, or add the entry by hand")
    end = found.start() + len(found[0].rstrip())
    with replacing(file) as partial:
        partial.write_text(text[:end] + "\n" + "\n".join(lines) + text[end:])
