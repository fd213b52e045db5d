"""Runs the queries of one stage: `python -m stages.lib.sql.stage circuit/component_effects [SUBJECT]`.

They are the .sql files that the stage's entry in the chapter's dvc.yaml depends on, in that order. A query sees what the entry
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
from stages.lib.sql.database import Database, QueryError
from stages.lib.sql.files import files_of, table_of

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # that of C, where it is there, takes a fifteenth of the time


def main(stage: str, subject: str | None = None) -> None:
    chapter, _, name = stage.partition("/")
    settings, stages = read(), yaml.load((Path("stages") / chapter / "dvc.yaml").read_text(), LOADER)["stages"]
    entry = stages[name].get("do", stages[name])
    item = settings.get(str(stages[name].get("foreach")).strip("${}"), {}).get(subject, {})
    names = {"${key}": subject or "", **{f"${{item.{name}}}": str(value) for name, value in item.items()}}
    expand = partial(re.sub, r"\$\{[\w.]+\}", lambda found: names[found[0]])
    dependencies, written = ([Path(expand(path)) for path in entry[kind]] for kind in ("deps", "outs"))
    files = files_of(path for path in dependencies if path.parts[0] == "data")
    values = {"subject": subject} | _settings(map(expand, _sections(entry)), settings)
    outputs = {table_of(path.relative_to("data")): path for path in written}
    for query in (path for path in dependencies if path.suffix == ".sql"):
        text, output = query.read_text(), outputs[query.stem]
        database = Database(files, threads=1)  # one thread: sums of floats come out the same every time
        named = database.connection.extract_statements(text)[0].named_parameters
        write_table(database.sql(text, **{name: values[name] for name in named}).pl(), output)
        files[query.stem] = [output]


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
    main(*sys.argv[1:])
