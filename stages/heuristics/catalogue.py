"""List the catalogue of heuristics: every set of cells that a neuron may be found to implement.

Table heuristics: the catalogue of heuristics, for each operator
    operator    VARCHAR    add, subtract, multiply or divide
    heuristic   VARCHAR    name of the heuristic, which determines its predicate; a custom heuristic
                           has the name from params.yaml
    kind        VARCHAR    range, modulo, pattern, value, identical, period, both ranges, both
                           modulo, digit sum or custom
    quantity    VARCHAR    what the heuristic is about: op1, op2, result, both (operands) or custom
    parameters  VARCHAR[]  numbers and patterns in the name, in order
    predicate   VARCHAR    SQL condition on op1, op2 and result
    cells       BIGINT     number of the operator's cells that satisfy the predicate
    share       DOUBLE     share of the operator's cells that satisfy the predicate, 0 to 1; this is
                           the score that chance gives
    usable      BOOLEAN    whether some but not all cells satisfy the predicate; other heuristics
                           cannot describe a neuron
"""

from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.core.vocabulary import QUANTITIES, Operator
from stages.lib.heuristics.catalogue_grid import Grid, Heuristics
from stages.lib.heuristics.names import (
    Heuristic,
    digit_sums,
    moduli,
    parse,
    patterns,
    periods,
    ranges,
)
from stages.lib.sql.database import Database, DatabaseError

CELLS = Path("data/corpus/cells.parquet")
COLUMNS: dict[str, Any] = {
    "heuristic": pl.String,
    "kind": pl.String,
    "quantity": pl.String,
    "parameters": pl.List(pl.String),
    "predicate": pl.String,
}


class CatalogueError(SystemExit):
    """A custom predicate that DuckDB refuses; it ends the program with its message and status 1."""


def main() -> None:
    settings = load(Heuristics)
    grid = settings.grids[settings.grid]
    database = Database({"cells": [CELLS]}, threads=1)
    custom = []
    for name, predicate in settings.custom.items():
        custom.append(Heuristic(name, "custom", "custom", (), predicate))
    _try(database, custom)
    maxima = ", ".join(f"max({quantity})" for quantity in QUANTITIES)
    query = f"select operator, {maxima} from cells group by operator order by operator"
    frames = []
    for operator, *ends in database.sql(query).fetchall():
        largest = dict(zip(QUANTITIES, ends, strict=True))
        heuristics = [*map(parse, names(grid, operator, largest)), *custom]
        frames.append(counted(database, operator, heuristics))
    table = pl.concat(frames).sort("operator", "kind", "quantity", "heuristic")
    write_table(table, Path("data/heuristics/heuristics.parquet"))


def names(grid: Grid, operator: Operator, largest: dict[str, int]) -> Iterator[str]:
    """Yield the names of an operator's heuristics; largest: quantity -> its largest value."""
    for quantity, end in largest.items():
        is_quotient = (operator, quantity) == ("divide", "result")
        skipped = grid.not_of_quotients if is_quotient else []
        overlap = grid.operand_ranges_overlap or quantity == "result"
        if "range" not in skipped:
            yield from ranges(quantity, end, grid.range_lengths[operator], overlap)
        if "modulo" not in skipped:
            yield from moduli(quantity, grid.moduli)
        if "pattern" not in skipped:
            yield from patterns(quantity, grid.patterns)
        if grid.values and "value" not in skipped:
            for value in range(end + 1):
                yield f"{quantity} = {value}"
        yield from periods(quantity, grid.periods)
    if grid.identical:
        yield "op1 = op2"
    yield from _of_both(grid, largest)
    yield from digit_sums(grid.digit_sum_places)


def _of_both(grid: Grid, largest: dict[str, int]) -> Iterator[str]:
    """Yield the names of heuristics that restrict op1 and op2 alike."""
    length = grid.both_range_length
    if length:
        firsts, seconds = range(0, largest["op1"], length), range(0, largest["op2"], length)
        for a, b in product(firsts, seconds):
            yield f"op1 in {a}..{a + length - 1} and op2 in {b}..{b + length - 1}"
    for divisor in grid.both_moduli:
        for a, b in product(range(divisor), repeat=2):
            yield f"op1 mod {divisor} = {a} and op2 mod {divisor} = {b}"


def counted(database: Database, operator: str, heuristics: list[Heuristic]) -> pl.DataFrame:
    """Return the catalogue's rows for one operator, with the number of cells of each heuristic."""
    query = "select count(*) from cells where operator = $operator"
    [(total,)] = database.sql(query, operator=operator).fetchall()
    frames = []
    for quantity in sorted({heuristic.quantity for heuristic in heuristics}):
        group = [heuristic for heuristic in heuristics if heuristic.quantity == quantity]
        rows = [tuple(vars(heuristic).values()) for heuristic in group]
        cells = _count_cells(database, operator, quantity, [h.predicate for h in group])
        frames.append(pl.DataFrame(rows, COLUMNS, orient="row").with_columns(cells=cells))
    number = pl.col("cells")
    return pl.concat(frames).select(
        pl.lit(operator).alias("operator"),
        pl.all(),
        share=number / total,
        usable=(number > 0) & (number < total),
    )


def _count_cells(
    database: Database, operator: str, quantity: str, predicates: Iterable[str]
) -> pl.Series:
    """Count an operator's cells that satisfy each predicate, all of which are about one quantity.

    A predicate on op1, op2 or result alone is evaluated once for each value rather than each cell.
    """
    columns = quantity if quantity in QUANTITIES else ", ".join(QUANTITIES)
    values = f"select {columns}, count(*) as n from cells where operator = $operator group by all"
    counts = ", ".join(f"sum(n) filter (where {predicate})" for predicate in predicates)
    [row] = database.sql(f"select {counts} from ({values})", operator=operator).fetchall()
    return pl.Series([int(count or 0) for count in row], dtype=pl.Int64)


def _try(database: Database, custom: list[Heuristic]) -> None:
    """Evaluate custom predicates. Raises CatalogueError on the first that is not a condition."""
    for heuristic in custom:
        problem = ""
        try:
            tried = database.sql(f"select {heuristic.predicate} from cells limit 1")
            tried.fetchall()
            types = ", ".join(map(str, tried.types))
            if types != "BOOLEAN":
                problem = f"its type is {types}, but it must be BOOLEAN"
        except (DatabaseError, ValueError) as error:
            problem = str(error)
        if problem:
            key = f"heuristics.custom.{heuristic.name}"
            raise CatalogueError(
                f"{key} = {heuristic.predicate!r} must be a SQL condition on op1, op2 and result: "
                f"{problem}"
            )


if __name__ == "__main__":
    main()
