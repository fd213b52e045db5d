"""What fills the templates of a user's own tasks: the rows of a CSV file or of a file with one JSON object per line."""

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
    """The file's facts, sorted; `key` is where in params.yaml the table stands.

    Rows that lack a value are left out, and so are questions with several answers. Raises ParamsError on a file or column that is missing.
    """
    path, place = Path(table.file), f"stages/mediation/params.yaml: {key}.file = {table.file!r}"
    if not path.is_file():
        raise ParamsError(f"{place}: no such file; correct the path, which starts at the project's root, or take the task out")
    rows = _rows(path, place)
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
        values = [_usable(str(row[column]), place) for column in columns.values() if row.get(column) not in (None, "")]
        if len(values) == len(columns):
            answers.setdefault(tuple(values[:-1]), set()).add(values[-1])
    return [(dict(zip(names, values, strict=True)), *said) for values, said in sorted(answers.items()) if len(said) == 1]  # type: ignore[misc]


def _rows(path: Path, place: str) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets put a mark in front
    except UnicodeDecodeError as error:
        raise ParamsError(f"{place}: byte {error.start} is not UTF-8; save the file in this encoding") from None
    return _csv(text, place) if path.suffix == ".csv" else _json(text, place)


def _csv(text: str, place: str) -> list[dict[str, Any]]:
    reader = csv.DictReader(StringIO(text, newline=""))
    try:
        names = list(reader.fieldnames or [])
        if twice := [name for number, name in enumerate(names) if name in names[:number]]:
            raise ParamsError(f"{place}: two columns are called {twice[0]!r}")
        return list(reader)
    except csv.Error as error:
        raise ParamsError(f"{place}: behind line {reader.line_num}: {error}") from None


def _json(text: str, place: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            row = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
            raise ParamsError(
                f"{place}: line {number} is not JSON ({getattr(error, 'msg', error)}); it needs one object per line"
            ) from None
        if not isinstance(row, dict):
            raise ParamsError(f"{place}: line {number} is no object; it needs one object per line")
        rows.append(row)
    return rows


def _usable(value: str, place: str) -> str:
    """The value, if a prompt can hold it."""
    shown = f"{place}: {value[:40]!r}{'…' if len(value) > 40 else ''}"
    if len(value) > LONGEST:
        raise ParamsError(f"{shown} has {len(value):,} characters; a value has at most {LONGEST}")
    if other := next((letter for letter in value if unicodedata.category(letter) in ("Cc", "Cs")), None):
        raise ParamsError(f"{shown} holds {other!r}, which is no character of a text; take it out")
    return value
