"""Columns of the tables that are run, interventions and pairs: each in its own type, or refused in a sentence before anything runs."""

from collections.abc import Mapping
from typing import Any

import polars as pl

INTEGER, TEXT, INTEGERS = pl.Int32(), pl.String(), pl.List(pl.Int32)
IN_SQL = {INTEGER: "integer", TEXT: "varchar", INTEGERS: "integer[]"}
LARGEST = (1 << 31) - 1  # number that an INTEGER holds


class InterventionError(ValueError):
    """An intervention on something that does not exist, or a prompt it cannot be applied to."""


def typed(
    table: pl.DataFrame,
    what: str,
    key: str,
    columns: Mapping[str, Any],
    optional: Mapping[str, Any] | None = None,
) -> pl.DataFrame:
    """These columns of a table in these types, of IN_SQL; optional: those that are null where the table lacks them.

    what, key: what its rows are, and the column that numbers them. Raises InterventionError where a column is missing or of another kind,
    where one without a number is numbered, and where a number is no 32-bit integer: none is rounded, and none is cut.
    """
    if missing := [name for name in columns if name not in table.columns]:
        raise InterventionError(f"a table of {what} needs the columns {', '.join(missing)}")
    kinds = {**columns, **(optional or {})}
    found = pl.DataFrame([_typed(table, what, name, kind) for name, kind in kinds.items()])
    numbers = found[key]
    if numbers.null_count() or (numbers < 0).any():
        wrong = table.filter(numbers.is_null() | (numbers < 0))[key][0]
        raise InterventionError(
            f"{what} are numbered by integers, 0..{LARGEST}, in the column {key}, which holds {wrong}"
        )
    for name, kind in kinds.items():
        if (
            name in table.columns
            and kind == INTEGER
            and found[name].null_count() > table[name].null_count()
        ):
            number, wrong = _rows(
                numbers, table[name], found[name].is_null() & table[name].is_not_null()
            )
            raise InterventionError(
                f"{key} {number}: {name} {wrong} does not exist; it is an integer, 0..{LARGEST}"
            )
        if kind == INTEGERS and found[name].drop_nulls().to_arrow().flatten().null_count:
            number, several = _rows(
                numbers, table[name], found[name].list.eval(pl.element().is_null()).list.any()
            )
            wrong = next(one for one in several if one is None or not -LARGEST <= one <= LARGEST)
            raise InterventionError(
                f"{key} {number}: {name} hold {wrong}, which does not exist; they are integers, 0..{LARGEST}"
            )
    return found


def _typed(table: pl.DataFrame, what: str, name: str, kind: Any) -> pl.Series:
    """One column, null where its type cannot hold a number."""
    nothing = pl.Series(name, [None] * len(table), kind)
    if name not in table.columns or table[name].null_count() == len(
        table
    ):  # then its type says nothing: to SQL, null is an integer
        return nothing
    if not _fits(table.schema[name], kind):
        say = f"cast it to {IN_SQL[kind]} where the table is made"
        raise InterventionError(
            f"the column {name} of a table of {what} is {table.schema[name]}; {say}"
        )
    return table[name].cast(kind, strict=False)


def _fits(kind: Any, wanted: Any) -> bool:
    """Whether values of one type of column are of the kind of another's."""
    if wanted == INTEGERS:
        return isinstance(kind, pl.List | pl.Array) and (
            kind.inner == pl.Null or _fits(kind.inner, INTEGER)
        )
    return kind.is_integer() if wanted == INTEGER else kind in (pl.String, pl.Categorical, pl.Enum)


def _rows(numbers: pl.Series, values: pl.Series, where: pl.Series) -> tuple:
    """The number and the value of the first row there."""
    return pl.DataFrame([numbers, values.alias("value")]).filter(where).row(0)
