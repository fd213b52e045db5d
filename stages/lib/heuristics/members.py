"""Evaluate heuristics' predicates: which cells satisfy which heuristic."""

from collections.abc import Iterable

import numpy as np
import polars as pl

from stages.lib.core.vocabulary import QUANTITIES
from stages.lib.heuristics.names import Heuristic, parse
from stages.lib.sql.database import Database


def listed(
    catalogue: pl.DataFrame, operator: str, names: Iterable[str] | None = None
) -> list[Heuristic]:
    """Return an operator's heuristics of these names, or all that the catalogue has.

    The predicate of a name that the catalogue lacks is parsed from the name. Raises HeuristicError
    if that fails.
    """
    columns = ["heuristic", "kind", "quantity", "predicate"]
    known = {}
    for name, kind, quantity, predicate in catalogue.filter(operator=operator)[columns].rows():
        known[name] = Heuristic(name, kind, quantity, (), predicate)
    if names is None:
        return list(known.values())
    return [known.get(name) or parse(name) for name in names]


def members(
    database: Database,
    operator: str,
    heuristics: list[Heuristic],
    numbers: np.ndarray | None = None,
) -> np.ndarray:
    """Return which cells satisfy which heuristic: (heuristics, cells) bool.

    database: has the table `cells`, whose rows of the operator are taken in order of op1, then op2;
    numbers: see answer_tokens.numbers. A predicate on one quantity is evaluated once for each
    value, any other predicate once for each cell.
    """
    cells = f"select op1, op2, result from cells where operator = '{operator}' order by op1, op2"
    values = dict(zip(QUANTITIES, database.sql(cells).pl().to_numpy().T, strict=True))
    if numbers is not None:
        results = values["result"]
        known = numbers[np.minimum(results, len(numbers) - 1)]
        values["asked"] = np.where(results < len(numbers), known, -1)
    quantities = np.array([heuristic.quantity for heuristic in heuristics])
    satisfied = np.zeros((len(heuristics), len(values["op1"])), bool)
    for quantity in np.unique(quantities).tolist():
        indices = np.flatnonzero(quantities == quantity)
        predicates = ", ".join(f"({heuristics[i].predicate})::boolean" for i in indices)
        if quantity in values:
            own = values[quantity]
            rows = f"select unnest(range({max(own.max(), 0) + 1})) as {quantity}"
            holds = _evaluate(database, predicates, rows, quantity)
            satisfied[indices] = holds[own].T & (own >= 0)
        else:
            satisfied[indices] = _evaluate(database, predicates, cells, "op1, op2").T
    return satisfied


def _evaluate(database: Database, predicates: str, rows: str, order: str) -> np.ndarray:
    """Evaluate predicates on the rows of a query: (rows, predicates) bool, null counts as false."""
    return np.array(
        database.sql(f"select {predicates} from ({rows}) order by {order}").fetchall(), bool
    )
