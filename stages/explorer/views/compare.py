"""Two subjects side by side, such as trained and untrained, two points of training, or two models of one's own."""

from typing import Any

import polars as pl
from dash import html

from stages.explorer import charts
from stages.explorer.answers import compare as asked
from stages.explorer.answers import neuron as of_neuron
from stages.explorer.explorer import Explorer
from stages.explorer.parts import Field, Part, alert, figure, later, note, section, sql, table
from stages.explorer.project import ExplorerError, Project
from stages.explorer.question import Question
from stages.explorer.views.links import to_prompt
from stages.explorer.views.neuron import HOVER
from stages.lib.core.words import OPERATORS

COMPARED = ("accuracy", "predictions", "scores")
INTRO = (
    "A neuron counts for a heuristic here if its chance-corrected score passes the threshold of "
    "labels. There is no permutation test, "
    "because checkpoints of training have none. Neurons with equal numbers correspond only if one "
    "model was trained from the other."
)


def fields(explorer: Explorer, question: Question) -> list[Field]:
    project = explorer.project
    return [
        Field("subject", "Left", question.subject(project), "choice", project.subjects),
        Field(
            "other",
            "Right",
            question.one_of("other", project.subjects, _other(project, question)),
            "choice",
            project.subjects,
        ),
        Field("operator", "Operator", question.operator(), "choice", list(OPERATORS)),
        Field("layer", "Layer", question.whole("layer", 1), "number"),
        Field("neuron", "Neuron", question.whole("neuron", 0), "number"),
    ]


def _other(project: Project, question: Question) -> str:
    """Return the default subject to compare with: another that has the tables, else the same."""
    subject = question.subject(project)
    others = [name for name in project.subjects if name != subject]
    for name in others:
        if all(project.has(table, name) for table in COMPARED):
            return name
    return subject


def content(explorer: Explorer, question: Question) -> Part:
    given = _given(question)
    project, operator = explorer.project, given["operator"]
    found = asked.accuracy(project, given["left"], given["right"])
    names = {"left_accuracy": given["left"], "right_accuracy": given["right"]}
    rows = {row["operator"]: row for row in found.iter_rows(named=True)}
    here = rows.get(operator, {})
    caption = "Accuracy by operator. " + "; ".join(
        f"{name} {number:.1%} on {operator}" for column, name in names.items() if (number := here.get(column)) is not None
    )
    drawn = charts.bars(found, "operator", names, "accuracy, 0 to 1")
    query = sql(asked.ACCURACY, {"left": given["left"], "right": given["right"]}, question)
    right = section("Accuracy", figure("accuracy", drawn, caption, query))
    return html.Div([
        html.H1(f"{given['left']} and {given['right']}"), note(INTRO),
        html.Div([right, _kinds(project, given, question)], className="side"),
        _maps(project, given, question), *(later("compare", name, question) for name in LATER),
    ])  # fmt: skip


def _given(question: Question) -> dict[str, Any]:
    return {"left": question["subject"], "right": question["other"], "operator": question["operator"]}


def _kinds(project: Project, given: dict, question: Question) -> Part:
    try:
        found = asked.heuristics(project, given, "kind", 12)
    except ExplorerError as error:
        return section("Heuristics of neurons", alert(str(error)))
    drawn = charts.bars(found, "heuristic", {"left_neurons": given["left"], "right_neurons": given["right"]}, "neurons")
    caption = f"Neurons that count for a heuristic of each kind, on {given['operator']}, in the layers that both models have."
    return section(
        "Heuristics of neurons",
        figure(
            "kinds",
            drawn,
            caption,
            sql(asked.HEURISTICS.format(by="kind"), given | {"count": 12}, question),
        ),
    )


def _maps(project: Project, given: dict, question: Question) -> Part:
    inside = []
    for side in ("left", "right"):
        keys = {
            "subject": given[side],
            "operator": given["operator"],
            "layer": question.whole("layer", 0),
            "neuron": question.whole("neuron", 0),
        }
        try:
            values, results = project.map(*keys.values())
        except ExplorerError as error:
            inside.append(alert(str(error)))
            continue
        drawn = charts.heat(values, results, HOVER, size=440)
        caption = f"{given[side]}, layer {keys['layer']}, neuron {keys['neuron']}: {values.min():.3g} to {values.max():.3g}"
        inside.append(figure(f"map-{side}", drawn, caption, sql(of_neuron.MAP, keys)))
    return section("The same neuron", html.Div(inside, className="side"))


def _more(explorer: Explorer, question: Question) -> Part:
    """Heuristic by heuristic, and cell by cell."""
    given, project = _given(question), explorer.project
    again = " again" if given["left"] == given["right"] else ""  # columns have names of their own
    called = {"left": given["left"], "right": given["right"] + again}

    def named(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.rename(
            {name: f"{name.partition('_')[2]} of {called[side]}" for name in frame.columns if (side := name.partition("_")[0]) in called}
        )

    by, differ = asked.heuristics(project, given, "heuristic", 30), asked.cells(project, given)
    query = sql(asked.HEURISTICS.format(by="heuristic"), given | {"count": 30}, question)
    links = to_prompt(given["left"], project.symbols, given["operator"])
    return html.Div([
        section("Heuristics that differ most", table(named(by), "Neurons that count for each heuristic"), query),
        section("Cells that one model gets right and the other wrong", table(named(differ), "At most 200, by difference", links),
                sql(asked.CELLS, given, question)),
    ])  # fmt: skip


LATER = {"more": _more}
