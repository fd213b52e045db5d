"""Lists the catalogue of heuristics: every set of cells that a neuron may be found to stand for.

Table heuristics: the catalogue, of each operator
    operator    VARCHAR    add, subtract, multiply or divide
    heuristic   VARCHAR    its name, which is read back as its predicate; a custom one's is the user's own
    kind        VARCHAR    range, modulo, pattern, value, identical, period, both ranges, both modulo, digit sum or custom
    quantity    VARCHAR    what it is about: op1, op2, result, or both operands
    parameters  VARCHAR[]  the numbers and patterns in its name
    predicate   VARCHAR    SQL over op1, op2 and result
    cells       BIGINT     cells that satisfy it
    share       DOUBLE     of all cells of the operator, 0 to 1: the score that chance gives
    usable      BOOLEAN    whether some but not all cells satisfy it; others say nothing about a neuron
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.core.words import QUANTITIES, Operator
from stages.lib.heuristics.grid import Grid, Heuristics
from stages.lib.heuristics.names import Heuristic, digit_sums, moduli, parse, patterns, periods, ranges
from stages.lib.sql.database import Database, DatabaseError

CELLS = Path("data/corpus/cells.parquet")


class CatalogueError(SystemExit):
    """A custom heuristic that DuckDB does not understand; uncaught, it ends the program with its message and status 1."""


def main() -> None:
    settings = load(Heuristics)
    database = Database({"cells": [CELLS]}, threads=1)
    largest = {operator: (a, b, r) for operator, a, b, r in database.sql(
        "select operator, max(op1), max(op2), max(result) from cells group by operator order by operator").fetchall()}  # fmt: skip
    custom = [Heuristic(name, "custom", "custom", (), predicate) for name, predicate in settings.custom.items()]
    _try(database, custom)
    frames = []
    for operator, ends in largest.items():
        named = [parse(name) for name in names(settings.grids[settings.grid], operator, dict(zip(QUANTITIES, ends, strict=True)))]
        frames.append(counted(database, operator, named + custom))
    write_table(pl.concat(frames).sort("operator", "kind", "quantity", "heuristic"), Path("data/heuristics/heuristics.parquet"))


def names(grid: Grid, operator: Operator, largest: dict[str, int]) -> Iterator[str]:
    """The names of a grid's heuristics for one operator; largest: of each quantity among its cells."""
    for quantity, end in largest.items():
        skipped = set(grid.not_of_quotients) if (operator, quantity) == ("divide", "result") else set()
        if "range" not in skipped:
            yield from ranges(quantity, end, grid.range_lengths[operator], grid.operand_ranges_overlap or quantity == "result")
        if "modulo" not in skipped:
            yield from moduli(quantity, grid.moduli)
        if "pattern" not in skipped:
            yield from patterns(quantity, grid.patterns)
        if grid.values and "value" not in skipped:
            yield from (f"{quantity} = {value}" for value in range(end + 1))
        yield from periods(quantity, grid.periods)
    if grid.identical:
        yield "op1 = op2"
    if length := grid.both_range_length:
        firsts, seconds = (range(0, largest[quantity], length) for quantity in ("op1", "op2"))
        yield from (f"op1 in {a}..{a + length - 1} and op2 in {b}..{b + length - 1}" for a in firsts for b in seconds)
    yield from (f"op1 mod {n} = {a} and op2 mod {n} = {b}" for n in grid.both_moduli for a in range(n) for b in range(n))
    yield from digit_sums(grid.digit_sum_places)


def counted(database: Database, operator: str, heuristics: list[Heuristic]) -> pl.DataFrame:
    """The rows of one operator. A predicate on one quantity is tried on each of its values, not on every cell."""
    cells: dict[str, int] = {}
    for quantity in sorted({h.quantity for h in heuristics}):
        members = [h for h in heuristics if h.quantity == quantity]
        counts = ", ".join(f"sum(n) filter (where {h.predicate})" for h in members)
        of = quantity if quantity in QUANTITIES else "op1, op2, result"
        grouped = f"select {of}, count(*) as n from cells where operator = $operator group by {of}"
        [(total, *found)] = database.sql(f"select sum(n), {counts} from ({grouped})", operator=operator).fetchall()
        cells |= {h.name: int(n or 0) for h, n in zip(members, found, strict=True)}
    columns = {
        "heuristic": [h.name for h in heuristics], "kind": [h.kind for h in heuristics], "quantity": [h.quantity for h in heuristics],
        "parameters": [list(h.parameters) for h in heuristics], "predicate": [h.predicate for h in heuristics],
        "cells": [cells[h.name] for h in heuristics],
    }  # fmt: skip
    kinds: dict[str, pl.DataType | type[pl.DataType]] = {"parameters": pl.List(pl.String), "cells": pl.Int64}
    share, some = pl.col("cells") / int(total), (pl.col("cells") > 0) & (pl.col("cells") < int(total))
    return pl.DataFrame(columns, schema_overrides=kinds).select(pl.lit(operator).alias("operator"), pl.all(), share=share, usable=some)


def _try(database: Database, custom: list[Heuristic]) -> None:
    for heuristic in custom:
        problem = ""
        try:
            tried = database.sql(f"select {heuristic.predicate} from cells limit 1")
            tried.fetchall()
            if [str(kind) for kind in tried.types] != ["BOOLEAN"]:
                problem = f"it is {', '.join(map(str, tried.types))}, not BOOLEAN"
        except (DatabaseError, ValueError) as error:
            problem = str(error)
        if problem:
            key = f"heuristics.custom.{heuristic.name}"
            raise CatalogueError(f"{key} = {heuristic.predicate!r} is no predicate over op1, op2 and result: {problem}")


if __name__ == "__main__":
    main()
