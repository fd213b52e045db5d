"""A neuron: its whole map, along diagonals too, what it stands for, what it votes for and does, elsewhere and while training."""

from typing import Any

import numpy as np
import polars as pl
from dash import html

from stages.explorer import charts
from stages.explorer.answers import neuron as asked
from stages.explorer.parts import Field, Part, alert, figure, note, section, sql, table
from stages.explorer.project import ExplorerError
from stages.explorer.question import Question
from stages.explorer.views.links import to_neuron
from stages.lib.core.words import OPERATORS

FIRST = "select layer, neuron from neuron_variances where subject = $subject and operator = $operator order by rank, layer, neuron limit 1"
INTRO = (
    "A neuron's activation is its value behind the non-linearity, at the last position, for each prompt op1 · operator · op2. Its value "
    "logits say which numbers its value vector votes for when it fires."
)
HOVER = "op1 %{y}, op2 %{x}<br>result %{customdata}<br>activation %{z:.4g}"
SMALL = 250  # pixels of the small maps


def fields(explorer: Any, question: Question) -> list[Field]:
    project = explorer.project
    subject, operator = question.subject(project), question.operator()
    first = project.ask(FIRST, subject=subject, operator=operator).rows() if project.has("neuron_variances", subject) else []
    layer, neuron = first[0] if first else (0, 0)
    keys = {"subject": subject, "operator": operator, "layer": question.whole("layer", layer), "neuron": question.whole("neuron", neuron)}
    names = _names(project, keys)
    chosen = question.get("outline", names[0] if names else "none")
    result = [
        Field("subject", "Subject", subject, "choice", project.subjects),
        Field("operator", "Operator", operator, "choice", list(OPERATORS)),
        Field("layer", "Layer", keys["layer"], "number"),
        Field("neuron", "Neuron", keys["neuron"], "number"),
        Field("outline", "Outline of", chosen if chosen in names else "none", "choice", ["none", *names]),
    ]
    if points := _training(project, subject):
        at = question.get("point", str(len(points) - 1))
        place = int(at) if at.isdecimal() and int(at) < len(points) else len(points) - 1
        marks = [{"label": f"{step:,}", "value": number} for number, (step, *_) in enumerate(points)]
        result.append(Field("point", "While training, after this many steps", place, "slider", marks))
    return result


def content(explorer: Any, question: Question) -> Part:
    project = explorer.project
    keys = {"subject": question.subject(project), "operator": question.operator()}
    keys |= {name: question.whole(name, 0) for name in ("layer", "neuron")}
    values, results = project.map(*keys.values())
    title = f"Neuron {keys['neuron']} of layer {keys['layer']}, {keys['subject']}, {keys['operator']}"
    heuristics, matched = _heuristics(project, keys)
    return html.Div([
        html.H1(title), note(INTRO),
        html.Div([_map(project, keys, values, results, question.get("outline", "none")), html.Div([heuristics])], className="side"),
        _along(keys, values), _votes(project, keys),
        html.Div([_effects(project, keys), _waves(project, keys), _similar(project, keys)], className="side"),
        _elsewhere(project, keys, values), _trained(project, keys, question),
    ])  # fmt: skip


def _names(project: Any, keys: dict) -> list[str]:
    try:
        return asked.matches(project, keys)["heuristic"].unique(maintain_order=True).to_list()[:40]
    except ExplorerError:
        return []


def _training(project: Any, subject: str) -> list[tuple[int, str, str]]:
    """The points of the training that this subject is a point of."""
    last = next((last for _, name, last in project.training if name == subject), None)
    return [point for point in project.training if point[2] == last]


def _map(project: Any, keys: dict, values: np.ndarray, results: np.ndarray, outline: str) -> Part:
    drawn = charts.heat(values, results, HOVER, size=540)
    inside = ""
    if outline != "none":
        holds = asked.members(project, keys["operator"], outline, values.shape)
        charts.outline(drawn, holds, outline)
        if holds.any() and not holds.all():
            inside = f" Outlined: {outline}, where the mean is {values[holds].mean():.3g}, elsewhere {values[~holds].mean():.3g}."
    top = np.unravel_index(values.argmax(), values.shape)
    caption = (
        f"Activation from {values.min():.3g} (blue is below zero) to {values.max():.3g} (red), largest at op1 {top[0]}, op2 {top[1]}."
        f"{inside} Drag to zoom, double-click to see all."
    )
    return section("Its map", figure("map", drawn, caption, sql(asked.MAP, keys)))


def _heuristics(project: Any, keys: dict) -> tuple[Part, pl.DataFrame]:
    try:
        found = asked.matches(project, keys)
    except ExplorerError as error:
        return section("Heuristics", alert(str(error))), pl.DataFrame()
    tested = "q_value" in found.columns
    caption = "Score: share of the map's first (or last) cells that satisfy it; chance: share of all cells; corrected: 0 is chance, 1 perfect"
    caption += "; null: corrected with operands relabelled; q-value: share of false discoveries; label: its place among the neuron's labels" if tested else ""
    query = sql(asked.MATCHES if tested else asked.SCORES, keys)
    inside = [table(found.rename({"null_corrected": "null"}, strict=False), caption, most=60), query]
    return section("Heuristics", *(inside if found.height else [note("No heuristic comes near this neuron."), query])), found


def _along(keys: dict, values: np.ndarray) -> Part:
    lines = asked.profiles(values)
    best = max(lines, key=lambda name: np.var(lines[name][1]))
    caption = f"Mean activation along op1, op2 and both diagonals of the map. It varies most along {best}."
    return section("Along the axes and diagonals", figure("along", charts.panels(lines, "mean"), caption, sql(asked.MAP, keys)))


def _votes(project: Any, keys: dict) -> Part:
    try:
        project.need(keys["subject"], "value_logits")
        store = project.votes(keys["subject"])
        logits = project.ask(asked.VOTES, subject=keys["subject"], layer=keys["layer"], neuron=keys["neuron"])
    except ExplorerError as error:
        return section("What it votes for", alert(str(error)))
    most = logits.sort("logit", descending=True)["number"].head(8).to_list()
    caption = f"Value logit of each number of the {store.axes['number']:,}. Most for {', '.join(map(str, most))}."
    drawn = charts.line(logits["number"].to_list(), logits["logit"].to_list(), "number", "value logit")
    return section("What it votes for", figure("value-logits", drawn, caption, sql(asked.VOTES, keys)))


def _facts(project: Any, keys: dict, title: str, table_of: str, query: str, caption: str, links: Any = None) -> Part:
    try:
        project.need(keys["subject"], table_of)
        found = project.ask(query, **keys)
    except ExplorerError as error:
        return section(title, alert(str(error)))
    return section(title, table(found, caption, links) if found.height else note(f"{table_of} has no row of it."), sql(query, keys))


def _effects(project: Any, keys: dict) -> Part:
    caption = "What its counterfactual value does to the answer (Eq. 1), with the interval; exact: patched, attribution: by gradient"
    return _facts(project, keys, "Effect", "neuron_effects", asked.EFFECTS, caption)


def _waves(project: Any, keys: dict) -> Part:
    return _facts(project, keys, "Waves", "spectra", asked.WAVES, "The map's strongest waves; share of its variance, 0 to 1")


def _similar(project: Any, keys: dict) -> Part:
    caption = "Cosine of corrected scores over heuristics: 1 stands for the same, as much"
    return _facts(project, keys, "Most similar neurons", "scores", asked.SIMILAR, caption, to_neuron(keys["subject"], keys["operator"]))


def _elsewhere(project: Any, keys: dict, values: np.ndarray) -> Part:
    """The same neuron on the other operators, on its own scale."""
    limit, inside = float(np.quantile(np.abs(values), 0.995)) or None, []
    for operator in OPERATORS:
        if operator == keys["operator"]:
            continue
        other = keys | {"operator": operator}
        try:
            there, results = project.map(*other.values())
        except ExplorerError as error:
            inside.append(alert(str(error)))
            continue
        drawn = charts.heat(there, results, HOVER, size=SMALL, limit=limit)
        caption = f"{operator}: {there.min():.3g} to {there.max():.3g}"
        inside.append(figure(f"map-{operator}", drawn, caption, sql(asked.MAP, other)))
    return section("On the other operators, in the same colours", html.Div(inside, className="side three"))


def _trained(project: Any, keys: dict, question: Question) -> Part:
    points = _training(project, keys["subject"])
    if not points:
        return section("While training", note(f"{keys['subject']} is no point of a training (trajectory, in params.yaml)."))
    at = question.whole("point", len(points) - 1)
    step, name, _ = points[min(at, len(points) - 1)]
    other = keys | {"subject": name}
    try:
        values, results = project.map(*other.values())
    except ExplorerError as error:
        return section("While training", alert(str(error)))
    drawn = charts.heat(values, results, HOVER, size=380)
    caption = f"After {step:,} steps ({name}): {values.min():.3g} to {values.max():.3g}. The slider above goes through the training."
    return section("While training", figure("training", drawn, caption, sql(asked.MAP, other)))
