"""Give columns of tables of interventions and of pairs their types, or refuse the table.

Everything is checked before anything runs. No number is rounded or cut.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

INTEGER, TEXT, INTEGERS = pl.Int32(), pl.String(), pl.List(pl.Int32)
IN_SQL = {INTEGER: "integer", TEXT: "varchar", INTEGERS: "integer[]"}
LARGEST = (1 << 31) - 1  # number that an INTEGER holds


class InterventionError(ValueError):
    """An intervention that names what does not exist, or a prompt that it cannot apply to."""


def typed(
    table: pl.DataFrame,
    what: str,
    key: str,
    columns: Mapping[str, Any],
    optional: Mapping[str, Any] | None = None,
) -> pl.DataFrame:
    """Return these columns of a table in these types.

    what: what the rows are; key: the column that numbers them; columns: name -> a type of IN_SQL;
    optional: columns that the table may lack, which are null then.

    Raises InterventionError if a column is missing or has a type that does not fit, if a row has no
    number from 0, or if an integer does not fit in 32 bits.
    """
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise InterventionError(f"a table of {what} needs the columns {', '.join(missing)}")
    kinds = {**columns, **(optional or {})}
    result = pl.DataFrame([_typed(table, what, name, kind) for name, kind in kinds.items()])
    _check_key(table, what, key, result[key])
    for name, kind in kinds.items():
        if name in table.columns:
            _check_integers(key, result[key], table[name], result[name], kind)
    return result


def _check_key(table: pl.DataFrame, what: str, key: str, numbers: pl.Series) -> None:
    """Raise InterventionError unless every row has a number from 0."""
    wrong = numbers.is_null() | (numbers < 0)
    if wrong.any():
        value = table.filter(wrong)[key][0]
        allowed = f"{what} are numbered by integers, 0..{LARGEST}"
        raise InterventionError(f"{allowed}, in the column {key}, which holds {value}")


def _check_integers(
    key: str, numbers: pl.Series, before: pl.Series, after: pl.Series, kind: Any
) -> None:
    """Raise InterventionError if a column's integers do not fit; before, after: its cast."""
    allowed = f"0..{LARGEST}"
    if kind == INTEGER and after.null_count() > before.null_count():
        number, wrong = _first(numbers, before, after.is_null() & before.is_not_null())
        problem = f"{before.name} {wrong} does not exist; it is an integer"
        raise InterventionError(f"{key} {number}: {problem}, {allowed}")
    if kind == INTEGERS and after.drop_nulls().to_arrow().flatten().null_count:
        has_null = after.list.eval(pl.element().is_null()).list.any()
        number, values = _first(numbers, before, has_null)
        wrong = next(filter(_does_not_fit, values))
        problem = f"{before.name} hold {wrong}, which does not exist; they are integers"
        raise InterventionError(f"{key} {number}: {problem}, {allowed}")


def _does_not_fit(value: int | None) -> bool:
    return value is None or not -LARGEST <= value <= LARGEST


def _typed(table: pl.DataFrame, what: str, name: str, kind: Any) -> pl.Series:
    """Return one column, null where its type cannot hold a number."""
    # The type of a column without values means nothing: to SQL, null is an integer.
    if name not in table.columns or table[name].null_count() == len(table):
        return pl.Series(name, [None] * len(table), kind)
    if not _fits(table.schema[name], kind):
        raise InterventionError(
            f"the column {name} of a table of {what} is {table.schema[name]}; "
            f"cast it to {IN_SQL[kind]} where the table is made"
        )
    return table[name].cast(kind, strict=False)


def _fits(kind: Any, wanted: Any) -> bool:
    """Return whether a column of one type may be cast to another."""
    if wanted == INTEGER:
        return kind.is_integer()
    if wanted == TEXT:
        return kind in (pl.String, pl.Categorical, pl.Enum)
    if not isinstance(kind, pl.List | pl.Array):
        return False
    return kind.inner == pl.Null or _fits(kind.inner, INTEGER)


def _first(numbers: pl.Series, values: pl.Series, where: pl.Series) -> tuple:
    """Return the number and the value of the first of the selected rows."""
    return pl.DataFrame([numbers, values.alias("value")]).filter(where).row(0)
