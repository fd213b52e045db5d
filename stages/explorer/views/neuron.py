"""A neuron: its whole map, along diagonals too, what it stands for, what it votes for and does, elsewhere and while training."""

from typing import Any

import numpy as np
from dash import html

from stages.explorer import charts
from stages.explorer.answers import neuron as asked
from stages.explorer.explorer import Explorer
from stages.explorer.parts import Field, Part, alert, figure, later, note, section, sql, table
from stages.explorer.project import ExplorerError, Project
from stages.explorer.question import Question
from stages.explorer.views.links import to_neuron
from stages.lib.core.words import OPERATORS

FIRST = "select layer, neuron from neuron_variances where subject = $subject and operator = $operator order by rank, layer, neuron limit 1"
INTRO = (
    "A neuron's activation is its value after the non-linearity, at the last position, for each "
    "prompt op1 · operator · op2. The direct "
    "logit attribution of its output weights tells which numbers it promotes when it is active."
)
HOVER = "op1 %{y}, op2 %{x}<br>result %{customdata}<br>activation %{z:.4g}"
SHORT = "op1 %{y}, op2 %{x}<br>activation %{z:.4g}"
MAPS = {  # what a map shows: why
    "activation": "heuristics of the operands are scored on this map",
    "vote for the answer": ("activation · direct logit attribution of each cell's answer; heuristics of the result are scored on this map"),
}
SCORED = "as the outlined heuristic is scored"
SMALL = 250  # pixels of the small maps


def fields(explorer: Explorer, question: Question) -> list[Field]:
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
        Field("map", "Map of", question.one_of("map", [SCORED, *MAPS]), "choice", [SCORED, *MAPS]),
        Field("outline", "Outline of", chosen if chosen in names else "none", "choice", ["none", *names]),
    ]
    if points := _training(project, subject):
        at = question.get("point", str(len(points) - 1))
        place = int(at) if at.isdecimal() and int(at) < len(points) else len(points) - 1
        marks = [{"label": f"{step:,}", "value": number} for number, (step, *_) in enumerate(points)]
        result.append(
            Field("point", "During training, after this many steps", place, "slider", marks),
        )
    return result


def content(explorer: Explorer, question: Question) -> Part:
    """The map and its heuristics; the others follow."""
    project, keys = explorer.project, _keys(explorer, question)
    values, results = project.map(*keys.values())
    title = f"Neuron {keys['neuron']} of layer {keys['layer']}, {keys['subject']}, {keys['operator']}"
    drawn = _map(project, keys, values, results, question)
    beside = html.Div([drawn, _heuristics(project, keys)], className="side")
    return html.Div([html.H1(title), note(INTRO), beside, *(later("neuron", name, question) for name in LATER)])


def _does(explorer: Explorer, question: Question) -> Part:
    """What it votes for and does, and where along the map it fires."""
    project, keys = explorer.project, _keys(explorer, question)
    values, _ = project.map(*keys.values())
    tables = [make(project, keys) for make in (_effects, _waves, _similar)]
    return html.Div([_along(keys, values), _votes(project, keys), html.Div(tables, className="side")])


def _elsewhere(explorer: Explorer, question: Question) -> Part:
    """Its map on other operators, and at a point of training."""
    project, keys = explorer.project, _keys(explorer, question)
    values, _ = project.map(*keys.values())
    return html.Div([_operators(project, keys, values), _trained(project, keys, question)])


LATER = {"does": _does, "elsewhere": _elsewhere}


def _keys(explorer: Explorer, question: Question) -> dict[str, Any]:
    """What a neuron is known by."""
    keys = {"subject": question.subject(explorer.project), "operator": question.operator()}
    return keys | {name: question.whole(name, 0) for name in ("layer", "neuron")}


def _names(project: Project, keys: dict) -> list[str]:
    try:
        return asked.matches(project, keys)["heuristic"].unique(maintain_order=True).to_list()[:40]
    except ExplorerError:
        return []


def _training(project: Project, subject: str) -> list[tuple[int, str, str]]:
    """The points of the training that this subject is a point of."""
    last = next((last for _, name, last in project.training if name == subject), None)
    return [point for point in project.training if point[2] == last]


def _map(project: Project, keys: dict, values: np.ndarray, results: np.ndarray, question: Question) -> Part:
    outline = question.get("outline", "none")
    scored = _scored_on(project, keys, outline)
    what = question.one_of("map", [SCORED, *MAPS])
    what = scored if what == SCORED else what
    query = asked.MAP
    if what != "activation":
        values, query = asked.voted(project, keys, values, results), asked.VOTED
    drawn = charts.heat(values, results, HOVER.replace("activation", what), size=540)
    inside = ""
    if outline != "none" and what != scored:
        inside = f" {outline} is scored on the map of {scored}, which shows its outline."
    elif outline != "none":
        holds = asked.members(project, keys["subject"], keys["operator"], outline, values.shape)
        charts.outline(drawn, holds)
        if holds.any() and not holds.all():
            inside = f" Outlined: {outline}, where the mean is {np.nanmean(values[holds]):.3g}, elsewhere {np.nanmean(values[~holds]):.3g}."
    top = np.unravel_index(np.nanargmax(values), values.shape)
    caption = (
        f"{what.capitalize()} from {np.nanmin(values):.3g} (blue is below zero) to {np.nanmax(values):.3g} (red), largest at op1 {top[0]}, "
        f"op2 {top[1]}; {MAPS[what]}."
        f"{inside} Drag to zoom, double-click to see all."
    )
    return section("Its map", figure("map", drawn, caption, sql(query, keys)))


def _scored_on(project: Project, keys: dict, outline: str) -> str:
    """Return the map on which a heuristic is scored.

    It is the activations if no heuristic is outlined or if the value logits are missing.
    """
    if outline == "none" or not project.has("value_logits", keys["subject"]):
        return "activation"
    quantity = asked.heuristic(project, keys["operator"], outline).quantity
    return "vote for the answer" if quantity in asked.OF_ANSWERS else "activation"


def _heuristics(project: Project, keys: dict) -> Part:
    try:
        found = asked.matches(project, keys)
    except ExplorerError as error:
        return section("Heuristics", alert(str(error)))
    tested = "q_value" in found.columns
    caption = (
        "score: share of the map's largest (or smallest) cells that satisfy it; chance: share of "
        "all cells; "
        "corrected: 0 is chance, 1 perfect"
    )
    caption += (
        "; null: corrected, with operands relabelled; q-value: false discovery rate; label: its rank among the neuron's labels"
        if tested
        else ""
    )
    query = sql(asked.MATCHES if tested else asked.SCORES, keys)
    inside = [table(found.rename({"null_corrected": "null"}, strict=False), caption, most=60), query]
    return section(
        "Heuristics",
        *(inside if found.height else [note("No heuristic describes this neuron."), query]),
    )


def _along(keys: dict, values: np.ndarray) -> Part:
    lines = asked.profiles(values)
    best = max(lines, key=lambda name: np.var(lines[name][1]))
    caption = f"Mean activation along op1, op2 and both diagonals of the map. It varies most along {best}."
    return section("Along the axes and diagonals", figure("along", charts.panels(lines, "mean"), caption, sql(asked.MAP, keys)))


def _votes(project: Project, keys: dict) -> Part:
    try:
        project.need(keys["subject"], "value_logits")
        store = project.votes(keys["subject"])
        logits = project.ask(asked.VOTES, subject=keys["subject"], layer=keys["layer"], neuron=keys["neuron"])
    except ExplorerError as error:
        return section("Numbers that it promotes", alert(str(error)))
    most = logits.sort("logit", descending=True)["number"].head(8).to_list()
    caption = f"Direct logit attribution for each of {store.axes['number']:,} numbers. Largest for {', '.join(map(str, most))}."
    drawn = charts.line(
        logits["number"].to_numpy(),
        logits["logit"].to_numpy(),
        "number",
        "direct logit attribution",
    )
    return section(
        "Numbers that it promotes",
        figure("value-logits", drawn, caption, sql(asked.VOTES, keys)),
    )


def _facts(project: Project, keys: dict, title: str, query: str, caption: str, links: Any = None) -> Part:
    """Rows of the table that the query reads first."""
    table_of = query.partition(" from ")[2].split()[0]
    try:
        project.need(keys["subject"], table_of)
        found = project.ask(query, **keys)
    except ExplorerError as error:
        return section(title, alert(str(error)))
    return section(
        title,
        table(found, caption, links) if found.height else note(f"{table_of} has no row about this neuron."),
        sql(query, keys),
    )


def _effects(project: Project, keys: dict) -> Part:
    caption = "What its counterfactual value does to the answer (Eq. 1), with its interval; exact: by patching, attribution: by gradients"
    return _facts(project, keys, "Effect", asked.EFFECTS, caption)


def _waves(project: Project, keys: dict) -> Part:
    return _facts(
        project,
        keys,
        "Fourier components",
        asked.WAVES,
        "The map's strongest Fourier components; share of its variance, 0 to 1",
    )


def _similar(project: Project, keys: dict) -> Part:
    caption = "Cosine of chance-corrected scores over heuristics; 1: the same heuristics in the same proportion"
    return _facts(project, keys, "Most similar neurons", asked.SIMILAR, caption, to_neuron(keys["subject"], keys["operator"]))


def _operators(project: Project, keys: dict, values: np.ndarray) -> Part:
    """The same neuron on the other operators, on its own scale."""
    limit, inside = float(np.quantile(np.abs(values), 0.995)) or None, []
    for operator in OPERATORS:
        if operator == keys["operator"]:
            continue
        other = keys | {"operator": operator}
        try:
            there, _ = project.map(*other.values())
        except ExplorerError as error:
            inside.append(alert(str(error)))
            continue
        drawn = charts.heat(there, None, SHORT, size=SMALL, limit=limit)
        caption = f"{operator}: {there.min():.3g} to {there.max():.3g}"
        inside.append(figure(f"map-{operator}", drawn, caption, sql(asked.MAP, other)))
    return section(
        "On other operators, with the same colours",
        html.Div(inside, className="side three"),
    )


def _trained(project: Project, keys: dict, question: Question) -> Part:
    points = _training(project, keys["subject"])
    if not points:
        return section(
            "During training",
            note(
                f"{keys['subject']} is not a checkpoint of a training run (trajectory in params.yaml).",
            ),
        )
    at = question.whole("point", len(points) - 1)
    step, name, _ = points[min(at, len(points) - 1)]
    other = keys | {"subject": name}
    try:
        values, _ = project.map(*other.values())
    except ExplorerError as error:
        return section("During training", alert(str(error)))
    drawn = charts.heat(values, None, SHORT, size=380)
    caption = f"After {step:,} steps ({name}): {values.min():.3g} to {values.max():.3g}. The slider above selects the step."
    return section("During training", figure("training", drawn, caption, sql(asked.MAP, other)))
