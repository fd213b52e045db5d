"""Runs the queries of one stage: `python -m stages.lib.sql.stage circuit/component_effects [SUBJECT]`.

They are the .sql files that the stage's entry in a dvc.yaml of the chapter depends on, in that order. A query sees what the entry
declares: a table for every file below data/ that it depends on, the tables of the queries before it, the settings it lists as
$names, $subject, and nothing else within reach, so that the declared dependencies are true. The rows of <name>.sql are the
declared output <name>.parquet.
"""

import re
import sys
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import yaml

from stages.lib.core.settings import read
from stages.lib.core.tables import write_table
from stages.lib.core.words import CHAPTERS
from stages.lib.sql.database import Database, QueryError
from stages.lib.sql.files import files_of, table_of

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # that of C, where it is there, takes a fifteenth of the time


def main(stage: str, subject: str | None = None) -> None:
    if not Path("stages").is_dir():
        root = next((folder for folder in Path.cwd().parents if (folder / "stages").is_dir()), None)
        way_out = "run this in the project's root" + (f"; `cd {root}`" if root else "")
        raise QueryError(f"{Path.cwd()} has no folder stages/: {way_out}")
    settings, found = read(), _found(stage)
    entry, each = found.get("do", found), found.get("foreach", "").strip("${}")
    subjects = settings[each] if each else {None: {}}
    if subject not in subjects:
        asked = f"not for {subject}" if subject else "and none is named"
        raise QueryError(f"{stage} is there for each of {', '.join(subjects)}, {asked}" if each else f"{stage} is there once, {asked}")
    names = {"${key}": str(subject), **{f"${{item.{name}}}": str(value) for name, value in subjects[subject].items()}}
    expand = partial(re.sub, r"\$\{[\w.]+\}", lambda found: names[found[0]])
    dependencies, written = ([Path(expand(path)) for path in entry[kind]] for kind in ("deps", "outs"))
    files = files_of(path for path in dependencies if path.parts[0] == "data")
    values = {"subject": subject} | _settings(map(expand, _sections(entry)), settings)
    outputs = {table_of(path.relative_to("data")): path for path in written}
    for query in (path for path in dependencies if path.suffix == ".sql"):
        text, output = query.read_text(encoding="utf-8"), outputs[query.stem]
        database = Database(files, threads=1)  # one thread: sums of floats come out the same every time
        named = database.connection.extract_statements(text)[0].named_parameters
        write_table(database.sql(text, **{name: values[name] for name in named}).pl(), output)
        files[query.stem] = [output]


def _found(stage: str) -> dict[str, Any]:
    """The entry of chapter/name in a dvc.yaml of the chapter. Raises QueryError where there is none, or one without queries."""
    chapter, _, name = stage.partition("/")
    of_queries: dict[str, dict[str, Any]] = {}
    for file in sorted((Path("stages") / chapter).rglob("dvc.yaml")):
        stages = yaml.load(file.read_text(encoding="utf-8"), LOADER)["stages"]
        of_queries |= {key: found for key, found in stages.items() if any(".sql" in path for path in found.get("do", found)["deps"])}
    if name not in of_queries:
        known = f"only {', '.join(of_queries) or 'none'}"
        if not of_queries:
            known = f"and there is no such chapter; chapters: {', '.join(CHAPTERS)}"
        raise QueryError(f"stages/{chapter} has no stage {name!r} that runs queries, {known}")
    return of_queries[name]


def _sections(entry: dict[str, Any]) -> list[str]:
    """The sections that a stage lists, those of params.yaml and those of a chapter's own."""
    listed = [item if isinstance(item, dict) else {"params.yaml": [item]} for item in entry.get("params", [])]
    return [section for file in listed for sections in file.values() for section in sections]


def _settings(sections: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Every setting of the sections, or the one that is listed, such as tasks.arithmetic; what the entry of a model says, such as
    subjects.abacus, goes first."""
    values: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for section in sections:
        found = reduce(getitem, section.split("."), settings)
        if "." in section:
            own |= found if isinstance(found, dict) else {section.rpartition(".")[2]: found}
            continue
        if twice := values.keys() & found.keys():
            raise QueryError(f"${min(twice)} is a setting of two of the sections that the stage lists, {section} is the second")
        values |= found
    return values | own


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        usage = "usage: python -m stages.lib.sql.stage CHAPTER/STAGE [SUBJECT]"
        sys.exit(f"{usage}, such as circuit/late_layers abacus")
    try:
        main(*sys.argv[1:])
    except QueryError as error:
        sys.exit(str(error))
