"""Convert the values of a query, in the engine, to types that people and programs can read.

Python, Polars and JSON hold fewer values than the engine: dates beyond the year 9999 or before the
year 1, infinite time stamps, integers of 128 bits. And a single cell may take gigabytes.
"""

from collections.abc import Callable
from typing import Any

SHOWN = 10_000  # characters of a cell that people see at most
WHOLE = 10_000_000  # characters of a cell that programs get at most
ON_PAGE = 1_000  # characters of a cell of the explorer
SIZES = ("tinyint", "smallint", "integer", "bigint")
INTEGERS = {*SIZES, *(f"u{size}" for size in SIZES)}
PLAIN = {"boolean", "float", "double", *INTEGERS}  # types that Polars and JSON hold entirely
GROWING = {"varchar", "blob", "bit", "bignum", "list", "map", "union", "variant", "geometry"}
NESTED = {"array", "struct", "tuple"}  # of a fixed size, unless they hold something else
JSON_NUMBERS = {"decimal": "double", "hugeint": "bigint", "uhugeint": "bigint"}


def printed(relation: Any) -> Any:
    """Return the rows as a printed table shows them: types stay, and longer texts end in …

    Other values of more than WHOLE characters are an error that names the column.
    """
    if not any(_grows(kind) for kind in relation.types):
        return relation

    def form(column: str, kind: Any, name: str) -> str:
        if kind.id == "varchar":
            return cut(column, SHOWN)
        return _limited(column, name, kind)

    return _each(relation, form)


def texts(relation: Any) -> Any:
    """Return the rows with every value as text; longer ones end in …"""
    return _each(relation, lambda column, *_: cut(f"{column}::varchar", SHOWN))


def shown(relation: Any) -> Any:
    """Return the rows for the explorer: numbers and lists of numbers stay, all else is text."""

    def form(column: str, kind: Any, name: str) -> str:
        if kind.id in PLAIN:
            return column
        if kind.id == "list" and kind.children[0][1].id in PLAIN:
            return f"{column}[:{ON_PAGE}]"
        if kind.id == "list" and kind.children[0][1].id == "varchar":
            return f"list_transform({column}[:{ON_PAGE}], lambda text: {cut('text', ON_PAGE)})"
        return cut(f"{column}::varchar", ON_PAGE)

    return _each(_numbered(relation), form)


def as_csv(relation: Any) -> Any:
    """Return the rows with numbers as they are and all else as text, and names that differ."""

    def form(column: str, kind: Any, name: str) -> str:
        return column if kind.id in PLAIN else _limited(f"{column}::varchar", name, kind)

    return _each(_numbered(relation), form)


def as_json(relation: Any) -> Any:
    """Return the rows with the types that JSON has, and names that differ."""

    def form(column: str, kind: Any, name: str) -> str:
        return _limited(f"{column}::{json_type(kind)}", name, kind)

    return _each(_numbered(relation), form)


def as_parquet(relation: Any) -> Any:
    """Return the rows with the types that every reader of Parquet knows, and names that differ."""

    def form(column: str, kind: Any, name: str) -> str:
        element = kind.children[0][1] if kind.id == "list" else kind
        return column if element.id in PLAIN | {"varchar"} else f"{column}::varchar"

    return _each(_numbered(relation), form)


def json_type(kind: Any) -> str:
    """Return the type as JSON has it: numbers, booleans, text, and lists and objects of these."""
    if kind.id in PLAIN:
        return str(kind)
    if kind.id in ("list", "array"):
        return json_type(kind.children[0][1]) + "[]"
    if kind.id == "struct":
        fields = [f"{quoted(name)} {json_type(child)}" for name, child in kind.children]
        return f"struct({', '.join(fields)})"
    return JSON_NUMBERS.get(kind.id, "varchar")


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def cut(text: str, most: int) -> str:
    """Return SQL for a text of at most `most` characters; a longer one ends in …"""
    # strlen, the number of bytes, is fast; length, the number of characters, is not
    is_long = f"strlen({text}) > {most} and length({text}) > {most}"
    return f"case when {is_long} then left({text}, {most - 1}) || '…' else {text} end"


def _limited(value: str, name: str, kind: Any) -> str:
    """Return SQL for a value whose text has at most WHOLE characters; a longer one is an error.

    kind: the type of the column.
    """
    if not _grows(kind):
        return value
    problem = f"a value of the column {name} has more than {WHOLE:,} characters"
    message = f"{problem}; cut it in the query, as left(text, 1000) and list[:1000] do"
    literal = message.replace("'", "''")
    is_long = f"strlen({value}::varchar) > {WHOLE}"
    return f"case when {is_long} then error('{literal}') else {value} end"


def _grows(kind: Any) -> bool:
    """Return whether values of a type may be of any size."""
    if kind.id in NESTED:
        # the other child of an array is its size
        children = kind.children[:1] if kind.id == "array" else kind.children
        return any(_grows(child) for _, child in children)
    return kind.id in GROWING


def _each(relation: Any, form: Callable[[str, Any, str], str]) -> Any:
    """Return the rows with each column as `form(reference, type, name)` writes it."""
    columns = []
    named_types = zip(relation.columns, relation.types, strict=True)
    for number, (name, kind) in enumerate(named_types, start=1):
        columns.append(f"{form(f'#{number}', kind, name)} as {quoted(name)}")
    return relation.project(", ".join(columns))


def _numbered(relation: Any) -> Any:
    """Return the rows with distinct names: a repeated name is numbered, as in a subquery."""
    names: list[str] = []
    for name in relation.columns:
        again = 0
        free = name
        while free in names:
            again += 1
            free = f"{name}_{again}"
        names.append(free)
    if names == relation.columns:
        return relation
    columns = [f"#{number} as {quoted(name)}" for number, name in enumerate(names, start=1)]
    return relation.project(", ".join(columns))
