"""Compare two models, for example trained and untrained, or two checkpoints of training."""

from collections.abc import Callable
from typing import Any

import polars as pl
from dash import html

from stages.explorer import charts
from stages.explorer.explorer import Explorer
from stages.explorer.parts import Field, Part, alert, figure, later, note, section, sql, table
from stages.explorer.project import ExplorerError, Project
from stages.explorer.question import Question
from stages.explorer.views.links import to_prompt
from stages.explorer.views.neuron import HOVER, MAP
from stages.lib.core.vocabulary import OPERATORS

ACCURACY = """
    select operator,
        sum(accuracy * cells) filter (subject = $left)
            / sum(cells) filter (subject = $left) as left_accuracy,
        sum(accuracy * cells) filter (subject = $right)
            / sum(cells) filter (subject = $right) as right_accuracy
    from accuracy
    where subject in ($left, $right)
    group by operator
    order by operator
"""
HEURISTICS = """
    with
        layers as (
            select distinct layer from scores where subject = $left and operator = $operator
            intersect
            select distinct layer from scores where subject = $right and operator = $operator
        ),
        counted as (
            select {by} as heuristic,
                count(distinct (layer, neuron)) filter (subject = $left) as left_neurons,
                count(distinct (layer, neuron)) filter (subject = $right) as right_neurons
            from scores join layers using (layer)
            where subject in ($left, $right) and operator = $operator
                and chance_corrected >= (select max(threshold) from label_setting)
            group by all
        )
    select * from counted
    where left_neurons + right_neurons > 0
    order by abs(left_neurons - right_neurons) desc, heuristic
    limit $count
"""
CELLS = """
    select op1, op2, result,
        mine.predicted as left_prediction,
        other.predicted as right_prediction,
        mine.answer_probability as left_probability,
        other.answer_probability as right_probability
    from predictions as mine
    join predictions as other using (operator, op1, op2)
    join cells using (operator, op1, op2)
    where mine.subject = $left and other.subject = $right and operator = $operator
        and mine.correct <> other.correct
    order by abs(mine.answer_probability - other.answer_probability) desc, op1, op2
    limit 200
"""
COMPARED = ("accuracy", "predictions", "scores")
KINDS, LISTED = 12, 30  # kinds and heuristics that the page shows at most
INTRO = (
    "A neuron counts for a heuristic here if its chance-corrected score passes the threshold of "
    "labels. There is no permutation test, because checkpoints of training have none. Neurons "
    "with equal numbers correspond only if one model was trained from the other."
)


def accuracy(project: Project, left: str, right: str) -> pl.DataFrame:
    """Return the accuracy of two models by operator, 0 to 1."""
    for subject in (left, right):
        project.need(subject, "accuracy")
    return project.ask(ACCURACY, left=left, right=right)


def heuristics(project: Project, keys: dict, by: str, most: int) -> pl.DataFrame:
    """Return how many neurons pass the threshold, with the largest differences first.

    Only layers that both models have count. keys: left, right, operator; by: heuristic or kind.
    """
    for subject in (keys["left"], keys["right"]):
        project.need(subject, "scores")
    return project.ask(HEURISTICS.format(by=by), **keys, count=most)


def cells(project: Project, keys: dict) -> pl.DataFrame:
    """Return the cells that one model answers correctly and the other does not."""
    return project.ask(CELLS, **keys)


def fields(explorer: Explorer, question: Question) -> list[Field]:
    """Return two models, an operator and a neuron."""
    project = explorer.project
    names = project.subjects
    other = question.choice("other", names, _other(project, question.subject(project)))
    return [
        Field("subject", "Left model", question.subject(project), "choice", names),
        Field("other", "Right model", other, "choice", names),
        Field("operator", "Operator", question.operator(), "choice", list(OPERATORS)),
        Field("layer", "Layer", question.whole("layer", 1), "number"),
        Field("neuron", "Neuron", question.whole("neuron", 0), "number"),
    ]


def _other(project: Project, subject: str) -> str:
    """Return the default model to compare with: another with the tables, else the same model."""
    for name in project.subjects:
        if name != subject and all(project.has(table, name) for table in COMPARED):
            return name
    return subject


def content(explorer: Explorer, question: Question) -> Part:
    """Return accuracies, numbers of neurons by kind of heuristic, and the map of a neuron."""
    project, keys = explorer.project, _keys(question)
    side_by_side = html.Div(
        [
            _section("Accuracy", _accuracy, project, keys, question),
            _section("Heuristics of neurons", _kinds, project, keys, question),
        ],
        className="side",
    )
    return html.Div([
        html.H1(f"{keys['left']} and {keys['right']}"),
        note(INTRO),
        side_by_side,
        _maps(project, keys, question),
        later("compare", "more", question),
    ])  # fmt: skip


def _keys(question: Question) -> dict[str, Any]:
    names = {"left": question["subject"], "right": question["other"]}
    return names | {"operator": question["operator"]}


def _section(
    title: str,
    make: Callable[[Project, dict, Question], list[Part]],
    project: Project,
    keys: dict,
    question: Question,
) -> Part:
    """Return a section with the parts that a function makes, or with what is missing for them."""
    try:
        return section(title, *make(project, keys, question))
    except ExplorerError as error:
        return section(title, alert(str(error)))


def _accuracy(project: Project, keys: dict, question: Question) -> list[Part]:
    rows = accuracy(project, keys["left"], keys["right"])
    names = {"left_accuracy": keys["left"], "right_accuracy": keys["right"]}
    selected = rows.filter(operator=keys["operator"])
    values = []
    for column, name in names.items():
        for value in selected[column].drop_nulls():
            values.append(f"{name} {value:.1%} on {keys['operator']}")
    caption = "Accuracy by operator. " + "; ".join(values)
    drawn = charts.bars(rows, "operator", names, "accuracy, 0 to 1")
    query = sql(ACCURACY, {"left": keys["left"], "right": keys["right"]}, question)
    return [figure("accuracy", drawn, caption, query)]


def _kinds(project: Project, keys: dict, question: Question) -> list[Part]:
    rows = heuristics(project, keys, "kind", KINDS)
    names = {"left_neurons": keys["left"], "right_neurons": keys["right"]}
    drawn = charts.bars(rows, "heuristic", names, "neurons")
    caption = (
        f"Neurons that count for a heuristic of each kind, on {keys['operator']}, in the layers "
        "that both models have."
    )
    query = sql(HEURISTICS.format(by="kind"), keys | {"count": KINDS}, question)
    return [figure("kinds", drawn, caption, query)]


def _maps(project: Project, keys: dict, question: Question) -> Part:
    maps = [_map(project, side, keys, question) for side in ("left", "right")]
    return section("The same neuron", html.Div(maps, className="side"))


def _map(project: Project, side: str, keys: dict, question: Question) -> Part:
    neuron = {
        "subject": keys[side],
        "operator": keys["operator"],
        "layer": question.whole("layer", 0),
        "neuron": question.whole("neuron", 0),
    }
    try:
        values, results = project.map(*neuron.values())
    except ExplorerError as error:
        return alert(str(error))
    drawn = charts.heat(values, results, HOVER, size=440)
    name = f"{keys[side]}, layer {neuron['layer']}, neuron {neuron['neuron']}"
    caption = f"{name}: {values.min():.3g} to {values.max():.3g}"
    return figure(f"map-{side}", drawn, caption, sql(MAP, neuron))


def _more(explorer: Explorer, question: Question) -> Part:
    """Return the heuristics and the cells on which the models differ."""
    keys, project = _keys(question), explorer.project
    cells_title = "Cells that one model gets right and the other wrong"
    return html.Div([
        _section("Heuristics that differ most", _heuristics, project, keys, question),
        _section(cells_title, _cells, project, keys, question),
    ])  # fmt: skip


def _heuristics(project: Project, keys: dict, question: Question) -> list[Part]:
    rows = heuristics(project, keys, "heuristic", LISTED)
    query = sql(HEURISTICS.format(by="heuristic"), keys | {"count": LISTED}, question)
    return [table(_named(rows, keys), "Neurons that count for each heuristic"), query]


def _cells(project: Project, keys: dict, question: Question) -> list[Part]:
    links = to_prompt(keys["left"], project.symbols, keys["operator"])
    predictions = table(_named(cells(project, keys), keys), "At most 200, by difference", links)
    return [predictions, sql(CELLS, keys, question)]


def _named(frame: pl.DataFrame, keys: dict) -> pl.DataFrame:
    """Return rows with columns named after the models: left_neurons is "neurons of abacus"."""
    again = " again" * (keys["left"] == keys["right"])  # so that names of columns differ
    names = {"left": keys["left"], "right": keys["right"] + again}
    renamed = {}
    for column in frame.columns:
        side, _, what = column.partition("_")
        if side in names:
            renamed[column] = f"{what} of {names[side]}"
    return frame.rename(renamed)


LATER = {"more": _more}
