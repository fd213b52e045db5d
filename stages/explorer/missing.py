"""What is not here: which stage makes it, and the ways to it."""

from functools import cache
from itertools import pairwise
from pathlib import Path, PurePath

import yaml

from stages.lib import dictionary

STAGES = Path(__file__).parents[1]


@cache
def _described() -> dict[str, dictionary.Table]:
    return dictionary.tables(STAGES)


def is_known(table: str) -> bool:
    """Whether some stage makes a table of this name."""
    return table in _described()


def ways_to(table: str, subject: str) -> str:
    """Which stage makes a table, and the ways to it, for this subject where it is made for each."""
    if not is_known(table):
        return "`bag tables` lists the tables there are."
    chapter = _described()[table].path.parent.name
    file, stage, of_each = _maker(table, chapter)
    if not stage:
        return "Several stages make it: `make study` here, or `dvc pull` from where it was made."
    way = f"dvc repro {file}:{stage}{f'@{subject}' if of_each else ''}"
    return f"The stage {stage} of stages/{chapter} makes it: `{way}` here, or `dvc pull` from where it was made."


@cache
def _maker(table: str, chapter: str) -> tuple[str, str, bool]:
    """The stage of a chapter that writes a table, in which file, and whether there is one for each subject; "" where stages of several
    chapters do."""
    for file in sorted((STAGES / chapter).rglob("dvc.yaml")):
        for stage, of in yaml.safe_load(file.read_text(encoding="utf-8"))["stages"].items():
            for out in of.get("do", of).get("outs", []):  # a path, or one with what DVC does with it
                place = PurePath(next(iter(out)) if isinstance(out, dict) else out).with_suffix("").parts
                if place[0] == "data" and (chapter, table) in pairwise(place):
                    return str(file.relative_to(STAGES.parent)), stage, "foreach" in of
    return "", "", False
