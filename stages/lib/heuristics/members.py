"""Which cells satisfy which heuristic."""

from collections.abc import Iterable

import numpy as np
import polars as pl

from stages.lib.core.words import QUANTITIES
from stages.lib.heuristics.names import Heuristic, parse
from stages.lib.sql.database import Database


def listed(catalogue: pl.DataFrame, operator: str, names: Iterable[str] | None = None) -> list[Heuristic]:
    """The heuristics of these names (or all) that the catalogue has for an operator; of a name that it lacks the name says all."""
    rows = catalogue.filter(operator=operator).select("heuristic", "kind", "quantity", "predicate").rows()
    known = {name: Heuristic(name, kind, quantity, (), predicate) for name, kind, quantity, predicate in rows}
    return [known[name] if name in known else parse(name) for name in (known if names is None else names)]


def members(database: Database, operator: str, heuristics: list[Heuristic], asked: np.ndarray | None = None) -> np.ndarray:
    """Bool (heuristics, cells), the cells of an operator in order of op1, then op2; database: has the table `cells`.

    asked: see asked.numbers. A predicate on one quantity is tried on each of its values, any other on every cell.
    """
    cells = f"select op1, op2, result from cells where operator = '{operator}' order by op1, op2"
    columns = dict(zip(QUANTITIES, database.sql(cells).pl().to_numpy().T, strict=True))
    if asked is not None:
        columns["asked"] = np.where(columns["result"] < len(asked), asked[np.minimum(columns["result"], len(asked) - 1)], -1)
    found = np.zeros((len(heuristics), len(columns["op1"])), bool)
    for quantity in sorted({h.quantity for h in heuristics}):
        chosen = [i for i, h in enumerate(heuristics) if h.quantity == quantity]
        predicates = ", ".join(f"({heuristics[i].predicate})::boolean" for i in chosen)
        if quantity in columns:
            values = f"select unnest(range({max(columns[quantity].max(), 0) + 1})) as {quantity}"
            holds = np.array(database.sql(f"select {predicates} from ({values}) order by {quantity}").fetchall(), bool)
            found[chosen] = holds[columns[quantity]].T & (columns[quantity] >= 0)
        else:
            found[chosen] = np.array(database.sql(f"select {predicates} from ({cells}) order by op1, op2").fetchall(), bool).T
    return found
