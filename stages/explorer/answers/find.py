"""What to look for among neurons, heuristics and cells: a query with what was asked filled in, which anyone can change."""

import io
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from stages.explorer.project import ExplorerError, Project
from stages.lib.sql import cells

MOST = 1_000_000  # rows of a file
SHOWN = 200  # rows on a page
LABELS = "select layer, neuron, list(heuristic order by place) as labels from labels where {of} group by all"
EFFECTS = (
    "select layer, neuron, effect, ci_low, ci_high, logit_effect from neuron_effects\n"
    "            where {of} and method = 'exact' and position = 'last'"
)
OF = "subject = $subject and operator = $operator"
HEURISTICS = """
    select heuristic, kind, count(*) as neurons, max(corrected) as best, count(distinct layer) as layers
    from labels
    where subject = $subject and operator = $operator and contains(heuristic, $heuristic)
    group by heuristic, kind
    order by neurons desc, heuristic
"""
CELLS = """
    select operator, op1, op2, result, predicted, answer_probability
    from predictions join cells using (operator, op1, op2)
    where subject = $subject and operator = $operator and not correct
    order by answer_probability, op1, op2
"""


def neurons(project: Project, subject: str, *, layer: bool, heuristic: bool, effect: bool, variance: bool) -> str:
    """The query for neurons: every one that varies, with labels and effects where they are known, and those conditions that are asked."""
    project.need(subject, "neuron_variances")
    has = {name: project.has(name, subject) for name in ("labels", "neuron_effects")}
    for asked, name in ((heuristic, "labels"), (effect, "neuron_effects")):
        if asked:
            project.need(subject, name)
    parts = [("named", LABELS, has["labels"]), ("patched", EFFECTS, has["neuron_effects"])]
    given = ",\n        ".join(f"{name} as (\n            {query.format(of=OF)}\n        )" for name, query, known in parts if known)
    columns = ["layer", "neuron", *(["labels"] if has["labels"] else []), "variance", "rank"]
    columns += ["effect", "ci_low", "ci_high", "logit_effect"] if has["neuron_effects"] else []
    conditions = [OF]
    conditions += ["layer = $layer"] if layer else []
    conditions += ["len([one for one in labels if contains(one, $heuristic)]) > 0"] if heuristic else []
    conditions += ["abs(logit_effect) >= $effect"] if effect else []
    conditions += ["variance >= $variance"] if variance else []
    joins = "".join(f"\n        left join {name} using (layer, neuron)" for name, _, known in parts if known)
    start = f"    with\n        {given}\n" if given else ""
    where = "\n        and ".join(conditions)
    return f"{start}    select {', '.join(columns)}\n    from neuron_variances{joins}\n    where {where}\n    order by rank, layer, neuron"


def _csv(rows: pa.Table) -> bytes:
    return pl.DataFrame(rows).write_csv().encode()


def _parquet(rows: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(rows, out)
    return out.getvalue()


# Kind of file -> what writes it, and the form in which the engine hands over the values.
FILES: dict[str, tuple[Callable[[pa.Table], bytes], Callable[[Any], Any]]] = {
    "csv": (_csv, cells.as_csv),
    "parquet": (_parquet, cells.as_parquet),
}


def file(project: Project, query: str, kind: str) -> bytes:
    """All rows of a query as a file. Raises ExplorerError where there are more than MOST."""
    write, form = FILES[kind]
    rows = project.rows(query, MOST + 1, form)
    if rows.num_rows > MOST:
        raise ExplorerError(f"there are more than {MOST:,} rows; ask for fewer here, or write them with `bag --csv`.")
    return write(rows)
