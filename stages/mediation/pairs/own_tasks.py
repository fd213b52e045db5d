"""What fills the templates of a user's own tasks: the rows of a CSV file or of a file with one JSON object per line."""

import csv
import json
from pathlib import Path
from typing import Any

from stages.lib.core.settings import ParamsError
from stages.mediation.pairs.templates import placeholders
from stages.mediation.settings import FilledTemplate

Fact = tuple[dict[str, str], str]  # values of the placeholders, and the answer


def fillings(table: FilledTemplate, key: str) -> list[Fact]:
    """The file's facts, sorted; `key` is where in params.yaml the table stands.

    Rows that lack a value are left out, and so are questions with several answers. Raises ParamsError on a file or column that is missing.
    """
    path, place = Path(table.file), f"stages/mediation/params.yaml: {key}.file = {table.file!r}"
    if not path.is_file():
        raise ParamsError(f"{place}: no such file; correct the path, which starts at the project's root, or take the task out")
    rows = _csv(path) if path.suffix == ".csv" else _json(path, place)
    names = list(dict.fromkeys(placeholders(table.template)))
    columns = {name: table.columns.get(name, name) for name in (*names, "answer")}
    there = {column: None for row in rows for column in row if column is not None}  # None: what a CSV row has too many of
    for name, column in columns.items():
        if column not in there:
            raise ParamsError(
                f"{place} has no column {column!r}; it has {', '.join(map(repr, there)) or 'no rows'}; "
                f"say which of them is {name}: columns: {{{name}: …}}"
            )
    answers: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        values = [str(row[column]) for column in columns.values() if row.get(column) not in (None, "")]
        if len(values) == len(columns):
            answers.setdefault(tuple(values[:-1]), set()).add(values[-1])
    return [(dict(zip(names, values, strict=True)), *said) for values, said in sorted(answers.items()) if len(said) == 1]  # type: ignore[misc]


def _csv(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets put a mark in front
        return list(csv.DictReader(file))


def _json(path: Path, place: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        try:
            row = json.loads(line) if line.strip() else {}
        except json.JSONDecodeError as error:
            raise ParamsError(f"{place}: line {number} is not JSON ({error.msg}); it needs one object per line") from None
        if not isinstance(row, dict):
            raise ParamsError(f"{place}: line {number} is no object; it needs one object per line")
        rows.append(row)
    return rows
