"""Read the description of every table and column from the query or stage that makes the table.

A `.sql` stage starts with comment lines. A Python stage has the same lines in its docstring, after
"Table <name>: meaning". The first lines describe the table. Each column has one line,
`name  TYPE  meaning`, separated by blanks. Any other line continues the description before it.
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

HEAD = re.compile(r"(?:--[^\n]*\n)*")


@dataclass(frozen=True)
class Table:
    """A table's description. path: of its query or stage; columns: name -> (type, meaning)."""

    name: str
    path: Path
    meaning: str
    columns: dict[str, tuple[str, str]]


def tables(stages: Path = Path("stages")) -> dict[str, Table]:
    """Return every documented table, by name."""
    documented: dict[str, Table] = {}
    for path in sorted(stages.glob("*/*.sql")):
        comment = HEAD.match(path.read_text(encoding="utf-8"))[0]  # type: ignore[index]
        documented[path.stem] = _table(path.stem, path, comment.replace("\n--", "\n")[2:])
    for path in sorted(stages.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "\nTable " not in text:  # parsing takes long
            continue
        docstring = ast.get_docstring(ast.parse(text)) or ""
        for section in re.split(r"^Table ", docstring, flags=re.MULTILINE)[1:]:
            name, description = section.split(":", 1)
            documented[name] = _table(name, path, description)
    return dict(sorted(documented.items()))


def _table(name: str, path: Path, description: str) -> Table:
    meaning: list[str] = []
    columns: dict[str, tuple[str, str]] = {}
    last = ""
    for line in filter(None, map(str.strip, description.splitlines())):
        column = COLUMN.match(line)
        if column:
            last = column[1]
            columns[last] = (column[2], column[3])
        elif last:
            kind, before = columns[last]
            columns[last] = (kind, f"{before} {line}")
        else:
            meaning.append(line)
    return Table(name, path, " ".join(meaning), columns)
