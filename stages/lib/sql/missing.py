"""Name the stage that makes a table that is missing, and the commands that bring it."""

import re
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePath

import yaml

from stages.lib.core.settings import sections_of
from stages.lib.core.vocabulary import CHAPTERS

STAGES = Path(__file__).parents[2]
RENAMED_TABLES = {"nulls": "permutation_tests"}
RENAMED_COLUMNS = {
    "membership": "criterion",
    "foremost": "nonredundant",
    "corrected": "chance_corrected",
    "null_corrected": "null_mean",
    "null_deviation": "null_std",
    "place": "rank",
    "share": "chance_score",
}
UNKNOWN_COLUMN = re.compile(r'[Cc]olumn (?:named )?"(\w+)"')
BEFORE, AFTER = "Table with name ", " does not exist!"  # around the name in the engine's message
# file and name of a stage, and the section of models that it runs for, empty for no model
Maker = tuple[str, str, str]


def is_known(table: str) -> bool:
    """Return whether some stage makes a table of this name."""
    return table in _makers()


def ways_to(table: str, subject: str) -> str:
    """Return which stage makes a table, and the commands that bring the subject's table."""
    makers = _makers().get(table, [])
    if not makers:
        return "`bag tables` lists the tables that exist here."
    if len({PurePath(file).parts[1] for file, *_ in makers}) > 1:
        return "Several stages make it: `make study` here, or `make pull` from where it was made."
    file, stage, section = makers[0]
    known = _models("known")
    if section and subject in known and subject not in _models(section):
        return f"The stage {stage} makes it for the models {', '.join(_models(section))} only."
    target = f"{file}:{stage}{f'@{subject}' if section else ''}"
    chapter = PurePath(file).parts[1]
    commands = f"`dvc repro {target}` here, or `make pull` from where it was made"
    return f"The stage {stage} of stages/{chapter} makes it: {commands}."


def explained(message: str, tables: list[str], subject: str) -> str:
    """Return the engine's message about an unknown table or column with what helps the user.

    tables: those that exist here. Messages about anything else are returned as they are.
    """
    column = UNKNOWN_COLUMN.search(message)
    if column and column[1] in RENAMED_COLUMNS:
        return f"{message}\nThe column {column[1]} is now {RENAMED_COLUMNS[column[1]]}."
    start, before, rest = message.partition(BEFORE)
    name, after, _ = rest.partition(AFTER)
    name = name.strip('"')
    if not before or not after:
        return message
    if is_known(name.lower()):
        return f"There is no table {name} here. {ways_to(name.lower(), subject)}"
    similar = get_close_matches(name.lower(), {*tables, *_makers()}, n=1)
    if name in RENAMED_TABLES:
        similar = [RENAMED_TABLES[name]]
    if not similar:
        return f"{start}{before}{name}{after} {ways_to(name, subject)}"
    question = f'{start}{before}{name}{after} Did you mean "{similar[0]}"?'
    if similar[0] in tables:
        return question
    return f"{question} {ways_to(similar[0], subject)}"


@cache
def _makers() -> dict[str, list[Maker]]:
    """Return the stages that write each table, by the table's name."""
    makers: dict[str, list[Maker]] = {}
    for file in sorted(STAGES.rglob("dvc.yaml")):
        for stage, entry in yaml.safe_load(file.read_text(encoding="utf-8"))["stages"].items():
            for output in entry.get("do", entry).get("outs", []):
                for table in _table(output):
                    section = entry.get("foreach", "").strip("${}")
                    maker = file.relative_to(STAGES.parent).as_posix(), stage, section
                    makers.setdefault(table, []).append(maker)
    return makers


def _models(section: str) -> list[str]:
    """Return the models of a section of params.yaml, in its order; none without the section."""
    params = STAGES.parent / "params.yaml"
    if not params.exists():
        return []
    return list(sections_of(params, params.read_text(encoding="utf-8")).get(section) or {})


def _table(output: str | dict) -> list[str]:
    """Return the table that an output below data/ is, as a list of at most one."""
    # an output with options is a mapping, path -> options
    path = PurePath(next(iter(output)) if isinstance(output, dict) else output)
    parts = path.with_suffix("").parts
    if parts[0] != "data":
        return []
    return [table for chapter, table in pairwise(parts) if chapter in CHAPTERS][:1]
