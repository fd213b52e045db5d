"""Run the queries of one stage: `python -m stages.lib.sql.stage CHAPTER/STAGE [SUBJECT]`.

The queries are the .sql files among the dependencies of the stage in a dvc.yaml of the chapter, in
that order. The rows of <name>.sql are written to the declared output <name>.parquet.

A query sees what the stage declares, and nothing else, so that the declared dependencies are true:
* a table for every file below data/ among the dependencies,
* the tables of the queries before it,
* $subject, and as $names the settings that the stage lists.
A query with $operator, which is not a setting, runs once for each operator, in alphabetical order,
so that memory holds the rows of one operator.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from polars.io.plugins import register_io_source

from stages.lib.core.files import replacing
from stages.lib.core.settings import read
from stages.lib.core.tables import seal
from stages.lib.core.vocabulary import CHAPTERS, OPERATORS
from stages.lib.sql.database import ERRORS, Database, QueryError, sentence
from stages.lib.sql.files import files_of, table_of

ROWS = 1 << 17  # that are computed and written together
# the C parser, where it is installed, takes a fifteenth of the time
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def main(stage: str, subject: str | None = None) -> None:
    """Run the queries of a stage, such as circuit/late_layers, for a subject.

    Raises QueryError if the chapter has no such stage, or the stage is not run for this subject.
    """
    _check_folder()
    settings = read()
    entry, item = _entry(stage, subject, settings)
    expand = partial(_expand, subject=subject, item=item)
    dependencies = [Path(expand(path)) for path in entry["deps"]]
    outputs = [Path(expand(path)) for path in entry["outs"]]
    paths = {table_of(path.relative_to("data")): path for path in outputs}
    files = files_of(path for path in dependencies if path.parts[0] == "data")
    values = {"subject": subject} | _values(map(expand, _sections(entry)), settings)
    queries = [path for path in dependencies if path.suffix == ".sql"]
    for query in queries:
        if query.stem not in paths:
            problem = f"the stage {stage} has {query} among its deps, and no {query.stem}.parquet"
            raise QueryError(f"{problem} among its outs; add data/…/{query.stem}.parquet")
    for query in queries:
        _run(query, files, values, paths[query.stem])
        files[query.stem] = [paths[query.stem]]


def _run(query: Path, files: dict[str, list[Path]], values: dict[str, Any], output: Path) -> None:
    """Write the rows of a query. files: the tables that it may read; values: of its $names."""
    database = Database(files, threads=1)  # with one thread, sums of floats are always the same
    try:
        rows = answer(database, query.read_text(encoding="utf-8"), values)
        with replacing(output) as partial:
            rows.sink_parquet(partial, row_group_size=ROWS)
            seal(partial)
    except ERRORS as error:
        raise QueryError(f"{query}: {sentence(error)}") from None


def answer(database: Database, query: str, values: Mapping[str, Any]) -> pl.LazyFrame:
    """Return the rows of a query, which are computed as they are written, and only once.

    values: of its $names, except $operator. A $name without a value is an error of DuckDB.
    """
    names = database.connection.extract_statements(query)[0].named_parameters
    known = {name: values[name] for name in names if name in values}
    operators = [{"operator": name} for name in sorted(OPERATORS)] if "operator" in names else [{}]
    ask = partial(database.sql, query, **known)

    def read(*_: object) -> Iterator[pl.DataFrame]:  # a LazyFrame may ask for less, but none does
        for operator in operators:
            try:
                yield from map(pl.DataFrame, ask(**operator).to_arrow_reader(ROWS))
            except OSError as error:  # Arrow's name for any error of a query that has begun
                raise QueryError(str(error)) from None

    return register_io_source(read, schema=ask(**operators[0]).limit(0).pl().schema)


def _check_folder() -> None:
    """Raise QueryError if the working directory is not the root of a project."""
    if Path("stages").is_dir():
        return
    way_out = "run this in the project's root"
    for folder in Path.cwd().parents:
        if (folder / "stages").is_dir():
            way_out += f"; `cd {folder}`"
            break
    raise QueryError(f"{Path.cwd()} has no folder stages/: {way_out}")


def _entry(
    stage: str,
    subject: str | None,
    settings: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entry of a stage in its dvc.yaml, and the settings of the subject (`item`).

    Raises QueryError if there is no such stage, or if it is not run for this subject.
    """
    chapter, _, name = stage.partition("/")
    known = _stages_with_queries(chapter)
    if name not in known:
        problem = f"stages/{chapter} has no stage {name!r} that runs queries"
        if known:
            raise QueryError(f"{problem}; available stages: {', '.join(known)}")
        raise QueryError(f"{problem}; available chapters: {', '.join(CHAPTERS)}")
    entry = known[name]
    if "foreach" not in entry:
        if subject:
            raise QueryError(f"{stage} runs once, for no subject; leave out {subject}")
        return entry, {}
    items = settings[entry["foreach"].strip("${}")]
    if subject not in items:
        way_out = f"{subject} is not among them" if subject else "name one of them"
        raise QueryError(f"{stage} runs for the subjects {', '.join(items)}; {way_out}")
    return entry["do"], items[subject]


def _stages_with_queries(chapter: str) -> dict[str, dict[str, Any]]:
    """Return the entries of a chapter's stages that depend on .sql files, by name."""
    entries: dict[str, dict[str, Any]] = {}
    for file in sorted((Path("stages") / chapter).rglob("dvc.yaml")):
        stages = yaml.load(file.read_text(encoding="utf-8"), LOADER)["stages"]
        for name, entry in stages.items():
            if any(".sql" in path for path in entry.get("do", entry)["deps"]):
                entries[name] = entry
    return entries


def _expand(text: str, subject: str | None, item: Mapping[str, Any]) -> str:
    """Replace ${key} by the subject, and ${item.NAME} by its setting NAME."""
    values = {"key": subject} | {f"item.{name}": value for name, value in item.items()}
    return re.sub(r"\$\{([\w.]+)\}", lambda match: str(values[match[1]]), text)


def _sections(entry: dict[str, Any]) -> list[str]:
    """Return the sections that a stage lists, of params.yaml and of a chapter's params.yaml."""
    sections: list[str] = []
    for listed in entry.get("params", []):
        if isinstance(listed, dict):  # file -> sections
            for names in listed.values():
                sections += names
        else:
            sections.append(listed)
    return sections


def _values(sections: Iterable[str], settings: dict[str, Any]) -> dict[str, Any]:
    """Return every setting of the sections that a stage lists, by name.

    A section such as tasks.arithmetic is a single setting. One such as subjects.abacus is the
    entry of a model, whose settings take precedence over the others.
    """
    values: dict[str, Any] = {}
    single: dict[str, Any] = {}
    for section in sections:
        content = reduce(getitem, section.split("."), settings)
        if "." not in section:
            repeated = values.keys() & content.keys()
            if repeated:
                problem = f"${min(repeated)} is a setting of {section} and of an earlier section"
                raise QueryError(f"{problem} that the stage lists; rename one of the settings")
            values |= content
        elif isinstance(content, dict):
            single |= content
        else:
            single[section.rpartition(".")[2]] = content
    return values | single


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        usage = "usage: python -m stages.lib.sql.stage CHAPTER/STAGE [SUBJECT]"
        sys.exit(f"{usage}, such as circuit/late_layers abacus")
    try:
        main(*sys.argv[1:])
    except QueryError as error:
        sys.exit(str(error))
