"""`bag add NAME SOURCE`: puts a model of one's own under `subjects:` in params.yaml, once `bag check` finds nothing against it."""

import json
import re
from pathlib import Path

from stages.lib.core.files import replacing
from stages.lib.core.settings import ParamsError, check, read
from stages.lib.subject import SECTIONS, Subjects, SubjectSettings
from stages.store.check import CheckError, checked, parser

PARAMS = Path("params.yaml")
SECTION = re.compile(r"^subjects:.*\n(?:(?:[ #].*)?\n)*", re.MULTILINE)


def main(arguments: list[str]) -> None:
    wanted = parser("add")
    wanted.add_argument("name", help="what to call it: small letters, digits and hyphens")
    options = wanted.parse_args([*arguments[1:], arguments[0]] if len(arguments) > 1 else arguments)  # NAME SOURCE
    refuse(options.name)
    found = checked(options)
    print("\n".join(found.lines))
    if found.problems:
        raise CheckError("\n".join([*(f"But: {problem}" for problem in found.problems), "bag add: nothing was added"]))
    add(options.name, found.settings)
    print(f"\n{PARAMS} has it now. Its activations: dvc repro stages/store/dvc.yaml:dump@{options.name}; all chapters: make study")


def refuse(name: str) -> None:
    """Raises ParamsError where params.yaml has the name already."""
    whole = read()
    if taken := [section for section in SECTIONS if name in (whole.get(section) or {})]:
        raise ParamsError(f"{PARAMS} has {name} already, under {taken[0]}; choose another name")


def add(name: str, settings: SubjectSettings) -> None:
    """Writes the entry behind the last subject; the rest of the file stays as it is. Raises ParamsError where the name cannot be one."""
    entry = settings.model_dump()
    check(Subjects, {name: entry}, "subjects")
    text = PARAMS.read_text()
    section = SECTION.search(text)
    if section is None:
        raise ParamsError(f"{PARAMS} has no section `subjects:`; add one")
    end = section.start() + len(section[0].rstrip())
    lines = [f"  {name}:", *(f"    {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items())]
    with replacing(PARAMS) as partial:
        partial.write_text(text[:end] + "\n" + "\n".join(lines) + text[end:])
