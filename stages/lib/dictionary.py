"""What every table and column means, read from where it is written: beside the query or the stage that makes it.

A `.sql` stage opens with comment lines, a Python stage has them in its docstring behind "Table
<name>: meaning": first what the table is, then one line per column, `name  TYPE  meaning`, with one
or more blanks between. A line that starts otherwise goes on with the meaning of the column before
it.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

TYPE = (
    r"U?(?:TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|FLOAT|DOUBLE|BOOLEAN|VARCHAR|BLOB"
    r"|DATE|TIMESTAMP|INTERVAL|(?:DECIMAL|STRUCT|MAP|UNION|ENUM)\([^)]*\)"
)
COLUMN = re.compile(rf"^(\w+) +((?:{TYPE})(?:\[\d*\])*) +(.+)$")


@dataclass(frozen=True)
class Table:
    """A table's meaning, the file of the stage that makes it, and its columns: name -> (type, meaning)."""

    name: str
    path: Path
    meaning: str
    columns: dict[str, tuple[str, str]]


def tables(stages: Path = Path("stages")) -> dict[str, Table]:
    """Every documented table, by name."""
    found: dict[str, Table] = {}
    for path in sorted(stages.glob("*/*.sql")):
        head = re.match(r"(--[^\n]*\n)+", path.read_text(encoding="utf-8"))
        lines = [line.removeprefix("--").strip() for line in (head.group() if head else "").splitlines()]
        found[path.stem] = _table(path.stem, path, lines)
    for path in sorted(stages.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        text = (ast.get_docstring(ast.parse(text)) if "\nTable " in text else None) or ""  # few have one, and parsing takes long
        for section in re.split(r"^Table ", text, flags=re.MULTILINE)[1:]:
            name, body = section.split(":", 1)
            found[name] = _table(name, path, [line.strip() for line in body.splitlines()])
    return dict(sorted(found.items()))


def _table(name: str, path: Path, lines: list[str]) -> Table:
    meaning: list[str] = []
    columns: dict[str, tuple[str, str]] = {}
    for line in lines:
        if column := COLUMN.match(line):
            columns[column[1]] = (column[2], column[3])
        elif line and columns:
            name_before, (kind, before) = columns.popitem()
            columns[name_before] = (kind, f"{before} {line}")
        elif line:
            meaning.append(line)
    return Table(name, path, " ".join(meaning), columns)
