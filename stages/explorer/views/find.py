"""Find neurons, heuristics, cells that fail, or the rows of any query, which can be changed."""

import io
from collections.abc import Callable, Collection
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from dash import html

from stages.explorer.explorer import Explorer
from stages.explorer.parts import (
    Field,
    Link,
    Part,
    counted,
    filled,
    labelled,
    note,
    section,
    sql,
    table,
)
from stages.explorer.project import ExplorerError, Project
from stages.explorer.question import Question
from stages.explorer.views.links import to_neuron, to_prompt
from stages.lib.core.vocabulary import OPERATORS
from stages.lib.sql import cells

MOST = 1_000_000  # rows of a file
SHOWN = 200  # rows on a page
LABELS = """named as (
            select layer, neuron, list(heuristic order by rank) as labels from labels
            where subject = $subject and operator = $operator group by all
        )"""
EFFECTS = """patched as (
            select layer, neuron, effect, ci_low, ci_high, logit_effect from neuron_effects
            where subject = $subject and operator = $operator
                and method = 'exact' and position = 'last'
        )"""
CONDITIONS = {
    "layer": "layer = $layer",
    "heuristic": "len([label for label in labels if contains(label, $heuristic)]) > 0",
    "effect": "abs(logit_effect) >= $effect",
    "variance": "variance >= $variance",
}
NEEDED = {"heuristic": "labels", "effect": "neuron_effects"}  # condition -> table
HEURISTICS = """
    select heuristic, kind, count(*) as neurons, max(chance_corrected) as best,
        count(distinct layer) as layers
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
WHAT = {
    "neurons": "neurons",
    "heuristics": "heuristics, by number of labelled neurons",
    "cells": "cells that fail",
    "sql": "rows of my own SQL",
}
EXAMPLE = (
    "select operator, accuracy, cells, split from accuracy where subject = '{}' "
    "order by operator, split"
)
INTRO = (
    "Every view of this page is a query. Change one here. Queries only read, and they know the "
    "tables that `bag tables` lists."
)


def neurons_query(project: Project, subject: str, conditions: Collection[str]) -> str:
    """Return the query for the neurons that satisfy some of CONDITIONS.

    Labels and effects are columns if the model has them. Raises ExplorerError if the model lacks a
    table that a condition needs.
    """
    project.need(subject, "neuron_variances")
    for name in filter(NEEDED.get, conditions):
        project.need(subject, NEEDED[name])
    columns, start, joins = ["variance", "rank"], [], ["neuron_variances"]
    if project.has("labels", subject):
        columns = ["labels", *columns]
        start.append(LABELS)
        joins.append("left join named using (layer, neuron)")
    if project.has("neuron_effects", subject):
        columns += ["effect", "ci_low", "ci_high", "logit_effect"]
        start.append(EFFECTS)
        joins.append("left join patched using (layer, neuron)")
    where = ["subject = $subject and operator = $operator"]
    where += [CONDITIONS[name] for name in conditions]
    lines = [
        f"select {', '.join(['layer', 'neuron', *columns])}",
        "from " + "\n        ".join(joins),
        "where " + "\n        and ".join(where),
        "order by rank, layer, neuron",
    ]
    if start:
        lines.insert(0, "with\n        " + ",\n        ".join(start))
    return "    " + "\n    ".join(lines)


def _neurons(project: Project, question: Question, keys: dict) -> str:
    values = {
        "layer": question.whole("layer", 0) if "layer" in question else None,
        "heuristic": question.get("heuristic"),
        "effect": question.number("effect"),
        "variance": question.number("variance"),
    }
    conditions = [name for name, value in values.items() if value is not None]
    return filled(neurons_query(project, keys["subject"], conditions), keys | values)


def _heuristics(project: Project, question: Question, keys: dict) -> str:
    project.need(keys["subject"], "labels")
    return filled(HEURISTICS, keys | {"heuristic": question.get("heuristic", "")})


def _cells(project: Project, question: Question, keys: dict) -> str:
    project.need(keys["subject"], "predictions")
    return filled(CELLS, keys)


QUERIES = {"neurons": _neurons, "heuristics": _heuristics, "cells": _cells}


def query(explorer: Explorer, question: Question) -> str:
    """Return the query of a question. Raises ExplorerError if a field is wrong."""
    what = _what(question)
    if what == "sql":
        return question.get("sql", "")
    project = explorer.project
    keys = {"subject": question.subject(project), "operator": question.operator()}
    return QUERIES[what](project, question, keys)


def _what(question: Question) -> str:
    """Return what to find: a question with SQL of its own finds its rows."""
    default = "sql" if "sql" in question else "neurons"
    return question.choice("what", list(WHAT), default)


def _csv(rows: pa.Table) -> bytes:
    return pl.DataFrame(rows).write_csv().encode()


def _parquet(rows: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(rows, out)
    return out.getvalue()


# kind of file -> what writes it, and the form in which the engine returns the values
FILES: dict[str, tuple[Callable[[pa.Table], bytes], Callable[[Any], Any]]] = {
    "csv": (_csv, cells.as_csv),
    "parquet": (_parquet, cells.as_parquet),
}
BUTTONS = {"csv": "All as CSV", "parquet": "All as Parquet"}


def file(project: Project, text: str, kind: str) -> bytes:
    """Return all rows of a query as a file. Raises ExplorerError if there are more than MOST."""
    write, form = FILES[kind]
    rows = project.rows(text, MOST + 1, form)
    if rows.num_rows > MOST:
        fix = "select fewer here, or write them with `bag --csv`."
        raise ExplorerError(f"the query has more than {MOST:,} rows; {fix}")
    return write(rows)


def fields(explorer: Explorer, question: Question) -> list[Field]:
    """Return what to find, and the conditions of that or the query."""
    project, what, subject = explorer.project, _what(question), question.subject(explorer.project)
    choice = Field("what", "Find", what, "choice", labelled(WHAT))
    if what == "sql":
        label = "SQL: a SELECT, which runs when you leave the field"
        return [choice, Field("sql", label, question.get("sql", EXAMPLE.format(subject)), "sql")]
    common = [
        choice,
        Field("subject", "Model", subject, "choice", project.subjects),
        Field("operator", "Operator", question.operator(), "choice", list(OPERATORS)),
    ]
    if what == "cells":
        return common
    text = question.get("heuristic", "")
    label = "Heuristic that contains this text"
    common.append(Field("heuristic", label, text, hint="result mod 2"))
    if what == "heuristics":
        return common
    return [
        *common,
        Field("layer", "Layer", question.get("layer", ""), "number"),
        Field("effect", "Logit effect at least", question.get("effect", ""), "number"),
        Field("variance", "Variance at least", question.get("variance", ""), "number"),
    ]


def content(explorer: Explorer, question: Question) -> Part:
    """Return the first rows of the query, and buttons that save all of them."""
    text = query(explorer, question)
    rows, remarks = explorer.project.page(text, SHOWN + 1)
    some = rows.head(SHOWN)
    caption = counted(some.height, "row")
    if rows.height > SHOWN:
        caption += f" or more, the first {SHOWN}"
    buttons = [html.Button(BUTTONS[kind], id={"take": kind}, n_clicks=0) for kind in FILES]
    results = section(
        "Results",
        *map(note, remarks),
        html.Div(buttons, className="tools"),
        table(some, caption, _links(explorer.project, question, some)),
        sql(text, about=question),
    )
    return html.Div([html.H1("Find"), note(INTRO), results])


def _links(project: Project, question: Question, rows: pl.DataFrame) -> dict[str, Link]:
    """Return where the cells of columns lead that name a neuron, a cell or a heuristic."""
    subject, operator, names = question.subject(project), question.operator(), {*rows.columns}
    links: dict[str, Link] = {}
    if {"layer", "neuron"} <= names:
        links |= to_neuron(subject, operator)
    if {"op1", "op2"} <= names:
        links |= to_prompt(subject, project.symbols, operator)
    if "heuristic" in names and question.get("what") == "heuristics":
        links["heuristic"] = lambda row: _to_neurons(question, row["heuristic"])
    return links


def _to_neurons(question: Question, heuristic: str) -> str:
    return "/find" + question.changed(what="neurons", heuristic=heuristic).search()
