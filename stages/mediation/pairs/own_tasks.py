"""Read the files of a user's own tasks, which fill templates: CSV or one JSON object per line."""

import csv
import json
import unicodedata
from io import StringIO
from pathlib import Path
from typing import Any

from stages.lib.core.settings import ParamsError
from stages.lib.core.templates import placeholders
from stages.mediation.settings import FilledTemplate

LONGEST = 1000  # characters of a value
Fact = tuple[dict[str, str], str]  # values of the placeholders, and the answer


def fillings(table: FilledTemplate, key: str) -> list[Fact]:
    """Return the file's facts, sorted. key: location of the table in params.yaml.

    Rows that lack a value are left out, and so are questions with several answers. Raises
    ParamsError on a missing file or column.
    """
    path, place = Path(table.file), f"stages/mediation/params.yaml: {key}.file = {table.file!r}"
    if not path.is_file():
        way_out = "correct the path, which starts at the project's root, or remove the task"
        raise ParamsError(f"{place}: no such file; {way_out}")
    rows = _rows(path, place)
    names = list(dict.fromkeys(placeholders(table.template)))
    columns = {name: table.columns.get(name, name) for name in (*names, "answer")}
    _check_columns(rows, columns, place)
    answers: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        cells = [row.get(column) for column in columns.values()]
        values = [_usable(str(cell), place) for cell in cells if cell not in (None, "")]
        if len(values) == len(columns):
            answers.setdefault(tuple(values[:-1]), set()).add(values[-1])
    facts = []
    for question, distinct in sorted(answers.items()):
        if len(distinct) == 1:
            facts.append((dict(zip(names, question, strict=True)), distinct.pop()))
    return facts


def _check_columns(rows: list[dict[str, Any]], columns: dict[str, str], place: str) -> None:
    """Raise ParamsError if the file lacks a column. columns: placeholder -> its column."""
    present: dict[str, None] = {}
    for row in rows:
        present |= dict.fromkeys(row)
    present.pop(None, None)  # type: ignore[call-overload]  # surplus values of a CSV row
    for name, column in columns.items():
        if column not in present:
            listed = ", ".join(map(repr, present)) or "no rows"
            raise ParamsError(
                f"{place} has no column {column!r}; it has {listed}; "
                f"name the column of {name}: columns: {{{name}: …}}"
            )


def _rows(path: Path, place: str) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
    except UnicodeDecodeError as error:
        problem = f"byte {error.start} is not UTF-8"
        raise ParamsError(f"{place}: {problem}; save the file in this encoding") from None
    return _csv(text, place) if path.suffix == ".csv" else _json(text, place)


def _csv(text: str, place: str) -> list[dict[str, Any]]:
    reader = csv.DictReader(StringIO(text, newline=""))
    try:
        names: set[str] = set()
        for name in reader.fieldnames or []:
            if name in names:
                problem = f"two columns are called {name!r}"
                raise ParamsError(f"{place}: {problem}; rename one of them")
            names.add(name)
        return list(reader)
    except csv.Error as error:
        raise ParamsError(f"{place}: after line {reader.line_num}: {error}") from None


def _json(text: str, place: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{place}: line {number}"
        try:
            row = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
            reason = getattr(error, "msg", error)
            problem = f"{where} is not JSON ({reason})"
            raise ParamsError(f"{problem}; each line needs one object") from None
        if not isinstance(row, dict):
            raise ParamsError(f"{where} is not an object; each line needs one object")
        rows.append(row)
    return rows


def _usable(value: str, place: str) -> str:
    """Return the value. Raises ParamsError if a prompt cannot contain it."""
    shown = f"{place}: {value[:40]!r}{'…' if len(value) > 40 else ''}"
    if len(value) > LONGEST:
        raise ParamsError(f"{shown} has {len(value):,} characters; shorten it to {LONGEST}")
    for letter in value:
        if unicodedata.category(letter) in ("Cc", "Cs"):
            raise ParamsError(f"{shown} contains {letter!r}, which is not text; remove it")
    return value
