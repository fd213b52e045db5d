"""Find neurons, heuristics, cells that fail, or whatever a query of one's own asks; the query is there to be read and changed."""

from dash import html

from stages.explorer.answers import find as asked
from stages.explorer.explorer import Explorer
from stages.explorer.parts import Field, Link, Part, filled, labelled, note, section, sql, table
from stages.explorer.question import Question
from stages.explorer.views.links import to_neuron, to_prompt
from stages.lib.core.words import OPERATORS

WHAT = {
    "neurons": "neurons",
    "heuristics": "heuristics, by number of labelled neurons",
    "cells": "cells that fail",
    "sql": "rows of my own SQL",
}
EXAMPLE = "select operator, accuracy, cells, split from accuracy where subject = '{}' order by operator, split"
INTRO = "Every view of this page is a query. Change one here. Queries only read, and they know the tables that `bag tables` lists."


def fields(explorer: Explorer, question: Question) -> list[Field]:
    project = explorer.project
    what = question.one_of("what", list(WHAT), "sql" if "sql" in question else "neurons")
    chosen = [Field("what", "Find", what, "choice", labelled(WHAT))]
    subject = question.subject(project)
    if what == "sql":
        return [
            *chosen,
            Field(
                "sql",
                "SQL: a SELECT, which runs when you leave the field",
                question.get("sql", EXAMPLE.format(subject)),
                "sql",
            ),
        ]
    common = [
        Field("subject", "Subject", subject, "choice", project.subjects),
        Field("operator", "Operator", question.operator(), "choice", list(OPERATORS)),
    ]
    heuristic = Field(
        "heuristic",
        "Heuristic that contains this text",
        question.get("heuristic", ""),
        hint="result mod 2",
    )
    of_neurons = [
        heuristic,
        Field("layer", "Layer", question.get("layer", ""), "number"),
        Field("effect", "Logit effect at least", question.get("effect", ""), "number"),
        Field("variance", "Variance at least", question.get("variance", ""), "number"),
    ]
    more = {"neurons": of_neurons, "heuristics": [heuristic], "cells": []}
    return [*chosen, *common, *more[what]]


def query(explorer: Explorer, question: Question) -> str:
    """What these fields ask, in SQL. Raises ExplorerError where one of them is wrong."""
    what = question.one_of("what", list(WHAT), "sql" if "sql" in question else "neurons")
    if what == "sql":
        return question.get("sql", "")
    given = {"subject": question.subject(explorer.project), "operator": question.operator()}
    if what == "cells":
        explorer.project.need(given["subject"], "predictions")
        return filled(asked.CELLS, given)
    if what == "heuristics":
        explorer.project.need(given["subject"], "labels")
        return filled(asked.HEURISTICS, given | {"heuristic": question.get("heuristic", "")})
    layer = question.whole("layer", 0) if "layer" in question else None
    conditions = {
        "layer": layer,
        "heuristic": question.get("heuristic"),
        "effect": question.number("effect"),
        "variance": question.number("variance"),
    }
    text = asked.neurons(explorer.project, given["subject"], **{name: value is not None for name, value in conditions.items()})
    return filled(text, given | conditions)


def content(explorer: Explorer, question: Question) -> Part:
    text = query(explorer, question)
    found, remarks = explorer.project.page(text, asked.SHOWN + 1)
    links: dict[str, Link] = {}
    if {"layer", "neuron"} <= {*found.columns}:
        links |= to_neuron(question.subject(explorer.project), question.operator())
    if {"op1", "op2"} <= {*found.columns}:
        links |= to_prompt(question.subject(explorer.project), explorer.project.symbols, question.operator())
    if "heuristic" in found.columns and question.get("what") == "heuristics":
        links["heuristic"] = lambda row: "/find" + question.but(what="neurons", heuristic=row["heuristic"]).search()
    more = f" or more, the first {asked.SHOWN}" if found.height > asked.SHOWN else ""
    count = f"{min(found.height, asked.SHOWN):,} row{'s' if found.height != 1 else ''}{more}"
    buttons = [html.Button(f"All as {kind.upper() if kind == 'csv' else 'Parquet'}", id={"take": kind}, n_clicks=0) for kind in asked.FILES]
    rows = table(found.head(asked.SHOWN), count) if not found.height else table(found.head(asked.SHOWN), count, links)
    tools = html.Div(buttons, className="tools")
    return html.Div(
        [
            html.H1("Find"),
            note(INTRO),
            section("Results", *map(note, remarks), tools, rows, sql(text, about=question)),
        ]
    )
