"""Name the stage that makes a table that is missing, and the new names of tables and columns."""

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
# a column's name before -> its name now, and the tables in which it was renamed
RENAMED_COLUMNS: dict[str, tuple[str, set[str]]] = {
    "membership": (
        "criterion",
        {
            "bag_alone",
            "bag_interventions",
            "failure_controls",
            "failure_tests",
            "failures",
            "fault_knockouts",
            "faults",
            "heuristic_neurons",
            "knockout_interventions",
            "knockout_tests",
            "knockouts_by_heuristic",
            "knockouts_by_neuron",
            "knockouts_by_prompt",
            "prompt_knockout_interventions",
        },
    ),
    "foremost": ("nonredundant", {"matches"}),
    "corrected": (
        "chance_corrected",
        {
            "heuristic_neurons",
            "labels",
            "matches",
            "permutation_tests",
            "scores",
            "trajectory_neurons",
        },
    ),
    "null_corrected": ("null_mean", {"matches", "permutation_tests"}),
    "null_deviation": (
        "null_std",
        {"classified_share", "knockouts_by_neuron", "permutation_tests"},
    ),
    "place": ("rank", {"labels", "spectra"}),
    "share": ("chance_score", {"matches", "scores"}),
}
# the engine's messages, some of which name the column's table, or its alias in the query
UNKNOWN_COLUMN = re.compile(
    r'(?:(?:Table|Values list) "(?P<table>\w+)" does not have a )?'
    r'[Cc]olumn (?:named )?"(?P<column>\w+)"'
)
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
    """Return the engine's message about an unknown table with what helps the user.

    tables: those that exist here. Messages about anything else are returned as they are.
    """
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


def renamed(message: str, aliases: dict[str, str]) -> str:
    """Return the engine's message about an unknown column with the column's new name.

    aliases: alias -> table, of the tables that the query reads. The message is returned as it is
    if none of them had the column.
    """
    unknown = UNKNOWN_COLUMN.search(message)
    if not unknown or unknown["column"].lower() not in RENAMED_COLUMNS:
        return message
    before = unknown["column"].lower()
    now, tables = RENAMED_COLUMNS[before]
    named = aliases.get((unknown["table"] or "").lower(), "")
    # the name of a WITH clause is no table: its column may come from any that the query reads
    read = {named} if is_known(named) else {*aliases.values()}
    had = " and ".join(sorted(tables & read))
    return f"{message}\nThe column {before} of {had} is now {now}." if had else message


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
