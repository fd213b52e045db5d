"""Show a neuron: its map, its heuristics, what it adds to the answer, its effects and its training.

The map is also shown along its diagonals, on other operators and at checkpoints of training.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from dash import html

from stages.explorer import charts
from stages.explorer.explorer import Explorer
from stages.explorer.parts import (
    Field,
    Link,
    Part,
    alert,
    figure,
    later,
    note,
    section,
    sql,
    table,
)
from stages.explorer.project import ExplorerError, Project
from stages.explorer.question import Question
from stages.explorer.views.links import to_neuron
from stages.lib.core.vocabulary import OPERATORS
from stages.lib.heuristics import answer_tokens
from stages.lib.heuristics.members import listed
from stages.lib.heuristics.names import Heuristic, HeuristicError

KEYS = "subject = $subject and operator = $operator and layer = $layer and neuron = $neuron"
FIRST = """
    select layer, neuron from neuron_variances
    where subject = $subject and operator = $operator
    order by rank, layer, neuron
    limit 1
"""
MAP = f"""
    select op1, op2, result, activation from activations
    where {KEYS}
    order by op1, op2
"""
CONTRIBUTIONS = f"""
    with answers as (
        select op1, op2, number from prompts join numbers using (subject)
        where subject = $subject and operator = $operator and token = answer_token
    )
    select op1, op2, result, activation * logit as contribution
    from activations
    join value_logits using (subject, layer, neuron)
    join answers using (op1, op2, number)
    where {KEYS}
    order by op1, op2
"""
MATCHES = f"""
    with named as (select heuristic, side, rank as label from labels where {KEYS})
    select heuristic, side, score, chance_score as chance, chance_corrected, null_mean,
        p_value, q_value, label
    from matches left join named using (heuristic, side)
    where {KEYS}
    order by chance_corrected desc, heuristic, side
"""
SCORES = f"""
    select heuristic, side, score, chance_score as chance, chance_corrected from scores
    where {KEYS}
    order by chance_corrected desc, heuristic, side
"""
DISCOVERED = f"""
    select predicate, side, bits, gain, decoy_gain, q_value, discovered, explained,
        same_as, catalogue, catalogue_explained
    from discovered
    where {KEYS}
"""
VALUE_LOGITS = """
    select number, logit from value_logits
    where subject = $subject and layer = $layer and neuron = $neuron
    order by number
"""
SHIFTS = f"""
    with
        shifted as (select std, scale, prompts, changes from logit_shifts where {KEYS}),
        direct as (
            select number, logit - avg(logit) over () as logit from value_logits
            where subject = $subject and layer = $layer and neuron = $neuron
        )
    select number, logit * std * scale as direct, changes[number + 1] as measured, prompts
    from direct cross join shifted
    order by number
"""
VOTES = f"select correlation, chance_correlation from causal_votes where {KEYS}"
EFFECTS = f"""
    select method, position, effect, ci_low, ci_high, logit_effect, prompts, rank
    from neuron_effects
    where {KEYS}
    order by method, position
"""
FOURIER = f"""
    select rank, frequency1, frequency2, period1, period2, share from spectra
    where {KEYS}
    order by rank
"""
SIMILAR = """
    with
        of_all as (
            select layer, neuron, heuristic, side, chance_corrected::double as chance_corrected
            from scores
            where subject = $subject and operator = $operator and chance_corrected > 0
        ),
        own as (
            select heuristic, side, chance_corrected from of_all
            where layer = $layer and neuron = $neuron
        ),
        sizes as (
            select layer, neuron, sqrt(sum(chance_corrected * chance_corrected)) as size from of_all
            group by all
        )
    select layer, neuron,
        sum(of_all.chance_corrected * own.chance_corrected) / any_value(size)
            / (select sqrt(sum(chance_corrected * chance_corrected)) from own) as similarity,
        count(*) as heuristics_in_common
    from of_all join own using (heuristic, side) join sizes using (layer, neuron)
    where (layer, neuron) <> ($layer, $neuron)
    group by layer, neuron
    order by similarity desc, layer, neuron
    limit 12
"""
MEMBERS = """
    select op1, op2
    from (select *, nullif($targets[result + 1], -1) as asked from cells where operator = $operator)
    where ({predicate})::boolean
"""
CATALOGUE = """
    select operator, heuristic, kind, quantity, predicate from heuristics
    where operator = $operator and heuristic = $heuristic
"""
OF_ANSWERS = ("result", "asked")  # quantities whose heuristics are scored on contributions
# a cell's coordinate along each direction of the map is a · op1 + b · op2
DIRECTIONS = {"op1": (1, 0), "op2": (0, 1), "op1 + op2": (1, 1), "op1 - op2": (1, -1)}
INTRO = (
    "A neuron's activation is its value after the non-linearity, at the last position, for each "
    "prompt op1 · operator · op2. The direct logit attribution of its output weights tells which "
    "numbers it promotes when it is active."
)
HOVER = "op1 %{y}, op2 %{x}<br>result %{customdata}<br>activation %{z:.4g}"
SHORT = "op1 %{y}, op2 %{x}<br>activation %{z:.4g}"
ACTIVATION, CONTRIBUTION = "activation", "contribution to the answer"
MAPS = {  # map -> what it is for
    ACTIVATION: "heuristics of the operands are scored on this map",
    CONTRIBUTION: (
        "activation · direct logit attribution of each cell's answer; heuristics of the result "
        "are scored on this map"
    ),
}
SCORED = "as the outlined heuristic is scored"
PREDICATE = "discovered predicate"  # the outline of each neuron's own
SMALL, LARGER = 250, 380  # pixels of small maps
OFFERED = 40  # heuristics to outline
PROMOTED = 8  # numbers that a caption lists


@dataclass(frozen=True)
class OutlinedCells:
    """Cells to outline.

    name: in captions; predicate: SQL over a cell's columns; scored_on: the map, a key of MAPS, on
    which the heuristic is scored or the predicate was searched.
    """

    name: str
    predicate: str
    scored_on: str


def matches(project: Project, keys: dict) -> pl.DataFrame:
    """Return the neuron's heuristics, best first.

    Only their scores are known for a model without permutation tests.
    """
    if project.has("matches", keys["subject"]) and project.has("labels", keys["subject"]):
        return project.ask(MATCHES, **keys)
    project.need(keys["subject"], "scores")
    return project.ask(SCORES, **keys)


def heuristic(project: Project, operator: str, name: str) -> Heuristic:
    """Return the heuristic with a name. Raises ExplorerError if there is none."""
    catalogue = project.ask(CATALOGUE, operator=operator, heuristic=name)
    try:
        [named] = listed(catalogue, operator, [name])
    except HeuristicError as error:
        raise ExplorerError(str(error)) from None
    return named


def members(
    project: Project,
    subject: str,
    operator: str,
    name: str,
    shape: tuple[int, int],
) -> np.ndarray:
    """Return which cells of the operand grid satisfy a heuristic: bool (op1, op2)."""
    predicate = heuristic(project, operator, name).predicate
    return satisfying(project, subject, operator, predicate, shape)


def satisfying(
    project: Project,
    subject: str,
    operator: str,
    predicate: str,
    shape: tuple[int, int],
) -> np.ndarray:
    """Return which cells of the operand grid satisfy a predicate in SQL: bool (op1, op2)."""
    targets = project.targets(subject)
    numbers = [] if targets is None else targets.tolist()
    query = MEMBERS.format(predicate=predicate)
    cells = project.ask(query, operator=operator, targets=numbers)
    op1, op2 = cells["op1"].to_numpy(), cells["op2"].to_numpy()
    inside = (op1 < shape[0]) & (op2 < shape[1])
    holds = np.zeros(shape, bool)
    holds[op1[inside], op2[inside]] = True
    return holds


def discovered_predicate(project: Project, keys: dict) -> str | None:
    """Return the neuron's discovered predicate in SQL, None if it has none."""
    if not project.has("discovered", keys["subject"]):
        return None
    rows = project.ask(DISCOVERED, **keys).filter("discovered")
    return next(iter(rows["predicate"]), None)


def contributions(
    project: Project,
    keys: dict,
    values: np.ndarray,
    results: np.ndarray,
) -> np.ndarray:
    """Return what the neuron adds to the logit of each cell's answer, NaN without an answer.

    values: activations (op1, op2); results: (op1, op2), -1 without an answer.
    """
    store, neuron = project.value_logits(keys["subject"]), keys["neuron"]
    logits = store.read(keys["layer"], slice(neuron, neuron + 1), slice(None))[0]
    numbers = answer_tokens.logit_numbers(store, np.maximum(results, 0))
    return np.where(results >= 0, values * logits[numbers], np.nan)


def profiles(values: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the mean activation along each of DIRECTIONS: name -> coordinates, means.

    values: (op1, op2).
    """
    op1, op2 = np.indices(values.shape)
    weights = values.ravel().astype(np.float64)
    lines = {}
    for name, (a, b) in DIRECTIONS.items():
        coordinates = (a * op1 + b * op2).ravel()
        lowest = int(coordinates.min())
        sums = np.bincount(coordinates - lowest, weights)
        counts = np.bincount(coordinates - lowest)
        lines[name] = np.arange(lowest, lowest + len(counts)), sums / counts
    return lines


def fields(explorer: Explorer, question: Question) -> list[Field]:
    """Return the neuron, what its map shows, and the checkpoint if there are several."""
    project = explorer.project
    layer, neuron = _first(project, question.subject(project), question.operator())
    keys = _keys(project, question, layer, neuron)
    names = _heuristic_names(project, keys)
    outlines: list[Any] = ["none", *names]
    predicate = discovered_predicate(project, keys)
    if predicate is not None:
        names.append(PREDICATE)
        outlines.insert(1, {"label": f"{predicate} (discovered)", "value": PREDICATE})
    outline = question.get("outline", next(iter(names), "none"))
    maps = [SCORED, *MAPS]
    fields = [
        Field("subject", "Model", keys["subject"], "choice", project.subjects),
        Field("operator", "Operator", keys["operator"], "choice", list(OPERATORS)),
        Field("layer", "Layer", keys["layer"], "number"),
        Field("neuron", "Neuron", keys["neuron"], "number"),
        Field("map", "Map of", question.choice("map", maps), "choice", maps),
        Field(
            "outline",
            "Outline of",
            outline if outline in names else "none",
            "choice",
            outlines,
        ),
    ]
    checkpoints = _checkpoints(project, keys["subject"])
    if checkpoints:
        fields.append(_slider(checkpoints, question))
    return fields


def _first(project: Project, subject: str, operator: str) -> tuple[int, int]:
    """Return layer and number of the neuron with the largest variance, or 0, 0 if unknown."""
    if not project.has("neuron_variances", subject):
        return 0, 0
    rows = project.ask(FIRST, subject=subject, operator=operator).rows()
    return next(iter(rows), (0, 0))


def _keys(
    project: Project,
    question: Question,
    layer: int = 0,
    neuron: int = 0,
) -> dict[str, Any]:
    """Return subject, operator, layer and neuron; layer, neuron: of an empty question."""
    return {
        "subject": question.subject(project),
        "operator": question.operator(),
        "layer": question.whole("layer", layer),
        "neuron": question.whole("neuron", neuron),
    }


def _heuristic_names(project: Project, keys: dict) -> list[str]:
    """Return the heuristics that can be outlined, best first."""
    try:
        rows = matches(project, keys)
    except ExplorerError:
        return []
    return rows["heuristic"].unique(maintain_order=True).to_list()[:OFFERED]


def _checkpoints(project: Project, subject: str) -> list[tuple[int, str, str]]:
    """Return the checkpoints of the training that a model comes from; see Project.training."""
    ends = {name: last for _, name, last in project.training}
    end = ends.get(subject)
    return [checkpoint for checkpoint in project.training if checkpoint[2] == end]


def _slider(checkpoints: list[tuple[int, str, str]], question: Question) -> Field:
    """Return a slider over the checkpoints, at the last one unless the question has another."""
    marks = []
    for number, (step, *_) in enumerate(checkpoints):
        marks.append({"label": f"{step:,}", "value": number})
    place = len(marks) - 1
    text = question.get("point", "")
    if text.isdecimal():
        place = min(int(text), place)
    return Field("point", "Checkpoint during training, in steps", place, "slider", marks)


def content(explorer: Explorer, question: Question) -> Part:
    """Return the map and the heuristics; the other parts follow later."""
    project, keys = explorer.project, _keys(explorer.project, question)
    values, results = project.map(*keys.values())
    neuron = f"Neuron {keys['neuron']} of layer {keys['layer']}"
    drawn = _map(project, keys, values, results, question)
    return html.Div([
        html.H1(f"{neuron}, {keys['subject']}, {keys['operator']}"),
        note(INTRO),
        html.Div([drawn, _heuristics(project, keys)], className="side"),
        _discovered(project, keys),
        later("neuron", "evidence", question),
        later("neuron", "elsewhere", question),
    ])  # fmt: skip


def _evidence(explorer: Explorer, question: Question) -> Part:
    """Return what the neuron does, and along which directions of the map it varies."""
    project, keys = explorer.project, _keys(explorer.project, question)
    values, _ = project.map(*keys.values())
    tables = [_effects(project, keys), _fourier(project, keys), _similar(project, keys)]
    return html.Div([
        _along(keys, values),
        _promoted(project, keys),
        html.Div(tables, className="side"),
    ])  # fmt: skip


def _elsewhere(explorer: Explorer, question: Question) -> Part:
    """Return the neuron's maps on other operators and at a checkpoint of training."""
    project, keys = explorer.project, _keys(explorer.project, question)
    values, _ = project.map(*keys.values())
    return html.Div([_operators(project, keys, values), _trained(project, keys, question)])


LATER = {"evidence": _evidence, "elsewhere": _elsewhere}


def _map(
    project: Project,
    keys: dict,
    values: np.ndarray,
    results: np.ndarray,
    question: Question,
) -> Part:
    """Return the map, with the outline of a heuristic that is scored on this map."""
    outline = _outline(project, keys, question.get("outline", "none"))
    scored = ACTIVATION if outline is None else outline.scored_on
    what, query = question.choice("map", [SCORED, *MAPS]), MAP
    if what == SCORED:
        what = scored
    if what == CONTRIBUTION:
        values, query = contributions(project, keys, values, results), CONTRIBUTIONS
    drawn = charts.heat(values, results, HOVER.replace(ACTIVATION, what), size=540)
    remark = ""
    if outline is not None and what == scored:
        remark = _outlined(project, keys, outline, drawn, values)
    elif outline is not None:
        remark = f" {outline.name} is scored on the map of {scored}, which shows its outline."
    op1, op2 = np.unravel_index(np.nanargmax(values), values.shape)
    caption = (
        f"{what.capitalize()} from {np.nanmin(values):.3g} (blue is below zero) to "
        f"{np.nanmax(values):.3g} (red), largest at op1 {op1}, op2 {op2}; {MAPS[what]}.{remark} "
        "Drag to zoom, double-click to see all."
    )
    return section("Its map", figure("map", drawn, caption, sql(query, keys)))


def _outlined(
    project: Project,
    keys: dict,
    outline: OutlinedCells,
    drawn: charts.Figure,
    values: np.ndarray,
) -> str:
    """Outline cells on a map, and return a sentence about the means."""
    subject, operator = keys["subject"], keys["operator"]
    holds = satisfying(project, subject, operator, outline.predicate, values.shape)
    charts.outline(drawn, holds)
    if holds.all() or not holds.any():
        return ""
    inside, outside = np.nanmean(values[holds]), np.nanmean(values[~holds])
    means = f"where the mean is {inside:.3g}, elsewhere {outside:.3g}"
    return f" Outlined: {outline.name}, {means}."


def _outline(project: Project, keys: dict, name: str) -> OutlinedCells | None:
    """Return the outline that a name stands for: a heuristic's, PREDICATE or none.

    A heuristic of the answer is scored on activations if the value logits are missing. Raises
    ExplorerError if there is no such heuristic.
    """
    if name == "none":
        return None
    if name == PREDICATE:
        predicate = discovered_predicate(project, keys)
        return None if predicate is None else OutlinedCells(predicate, predicate, ACTIVATION)
    named = heuristic(project, keys["operator"], name)
    is_on_answers = named.quantity in OF_ANSWERS and project.has("value_logits", keys["subject"])
    return OutlinedCells(name, named.predicate, CONTRIBUTION if is_on_answers else ACTIVATION)


def _heuristics(project: Project, keys: dict) -> Part:
    try:
        rows = matches(project, keys)
    except ExplorerError as error:
        return section("Heuristics", alert(str(error)))
    query = SCORES
    caption = (
        "score: fraction of the map's largest (or smallest) cells that satisfy the heuristic; "
        "chance: fraction of all cells that satisfy it; chance_corrected: 0 is chance, 1 is perfect"
    )
    if "q_value" in rows.columns:
        query = MATCHES
        caption += (
            "; null: chance-corrected score with operands relabelled; q-value: false discovery "
            "rate; label: its rank among the neuron's labels"
        )
    if not rows.height:
        return section("Heuristics", note("No heuristic describes this neuron."), sql(query, keys))
    renamed = rows.rename({"null_mean": "null"}, strict=False)
    return section("Heuristics", table(renamed, caption, most=60), sql(query, keys))


def _discovered(project: Project, keys: dict) -> Part:
    title = "Predicate, searched without the catalogue"
    try:
        project.need(keys["subject"], "discovered")
        rows = project.ask(DISCOVERED, **keys)
    except ExplorerError as error:
        return section(title, alert(str(error)))
    if not rows.height:
        described = note("No predicate makes the description of this neuron's activations shorter.")
        return section(title, described, sql(DISCOVERED, keys))
    caption = (
        "gain: bits that the predicate saves; decoy_gain: with operands relabelled; explained: "
        "share of held-out variance; same_as: heuristic with the same cells; catalogue: its best "
        "heuristic by explained variance. If it is discovered, the map can outline it"
    )
    return section(title, table(rows, caption), sql(DISCOVERED, keys))


def _along(keys: dict, values: np.ndarray) -> Part:
    lines = profiles(values)
    best = max(lines, key=lambda name: np.var(lines[name][1]))
    caption = (
        "Mean activation along op1, op2 and both diagonals of the map. "
        f"It varies most along {best}."
    )
    drawn = charts.panels(lines, "mean activation")
    drawn_with_query = figure("along", drawn, caption, sql(MAP, keys))
    return section("Along the axes and diagonals", drawn_with_query)


def _promoted(project: Project, keys: dict) -> Part:
    title = "Numbers that it promotes"
    neuron = {name: keys[name] for name in ("subject", "layer", "neuron")}
    try:
        project.need(keys["subject"], "value_logits")
        numbers = project.value_logits(keys["subject"]).axes["number"]
        logits = project.ask(VALUE_LOGITS, **neuron)
    except ExplorerError as error:
        return section(title, alert(str(error)))
    largest = logits.sort("logit", descending=True)["number"].head(PROMOTED)
    caption = (
        f"Direct logit attribution for each of {numbers:,} numbers. "
        f"Largest for {', '.join(map(str, largest))}."
    )
    x, y = logits["number"].to_numpy(), logits["logit"].to_numpy()
    drawn = charts.line(x, y, "number", "direct logit attribution")
    direct = figure("value-logits", drawn, caption, sql(VALUE_LOGITS, keys))
    return section(title, direct, *_measured(project, keys))


def _measured(project: Project, keys: dict) -> list[Part]:
    """Return measured changes of numbers' logits beside the direct ones, if the model has them."""
    if not project.has("logit_shifts", keys["subject"]):
        return []
    rows = project.ask(SHIFTS, **keys)
    if rows.is_empty():
        return [note("This neuron was not shifted, so no change of logits is measured.")]
    largest = rows.sort("measured", descending=True)["number"].head(PROMOTED)
    caption = (
        "Change of each number's logit, above the mean over numbers, by one standard deviation of "
        "the activation. Left: by direct logit attribution alone. Right: measured after all later "
        f"layers, mean over {rows['prompts'][0]} prompts, largest for "
        f"{', '.join(map(str, largest))}.{_agreement(project, keys)}"
    )
    numbers, lines = rows["number"].to_numpy(), {}
    for column in ("direct", "measured"):
        lines[f"number, {column}"] = numbers, rows[column].to_numpy()
    drawn = charts.panels(lines, "change of the logit")
    return [figure("logit-shifts", drawn, caption, sql(SHIFTS, keys))]


def _agreement(project: Project, keys: dict) -> str:
    """Return a sentence that compares direct and measured changes; empty if it is unknown."""
    if not project.has("causal_votes", keys["subject"]):
        return ""
    for own, other in project.ask(VOTES, **keys).drop_nulls().rows():
        control = f"with the direct change of another neuron of its layer by {other:.2f}"
        return f" The measured change correlates with the direct one by {own:.2f}, {control}."
    return ""


def _rows(
    project: Project,
    keys: dict,
    source: str,
    title: str,
    query: str,
    caption: str,
    *,
    links: Mapping[str, Link] | None = None,
) -> Part:
    """Return a section with what a table, called `source`, has about the neuron."""
    try:
        project.need(keys["subject"], source)
        rows = project.ask(query, **keys)
    except ExplorerError as error:
        return section(title, alert(str(error)))
    if not rows.height:
        return section(title, note(f"{source} has no row about this neuron."), sql(query, keys))
    return section(title, table(rows, caption, links), sql(query, keys))


def _effects(project: Project, keys: dict) -> Part:
    caption = (
        "Effect of patching its counterfactual value on the answer (Eq. 1), with the confidence "
        "interval; exact: by patching, attribution: by gradients"
    )
    return _rows(project, keys, "neuron_effects", "Effect", EFFECTS, caption)


def _fourier(project: Project, keys: dict) -> Part:
    caption = "The map's strongest Fourier components; share of its variance, 0 to 1"
    return _rows(project, keys, "spectra", "Fourier components", FOURIER, caption)


def _similar(project: Project, keys: dict) -> Part:
    caption = (
        "Cosine of chance-corrected scores over heuristics; 1: the same heuristics in the same "
        "proportion"
    )
    links = to_neuron(keys["subject"], keys["operator"])
    return _rows(project, keys, "scores", "Most similar neurons", SIMILAR, caption, links=links)


def _operators(project: Project, keys: dict, values: np.ndarray) -> Part:
    """Return the neuron's maps on the other operators, with the colours of its own map."""
    limit = float(np.quantile(np.abs(values), charts.COLOURED)) or None
    maps = []
    for operator in OPERATORS:
        if operator != keys["operator"]:
            other = keys | {"operator": operator}
            drawing = _small_map(project, other, f"map-{operator}", operator, limit=limit)
            maps.append(drawing)
    content = html.Div(maps, className="side three")
    return section("On other operators, with the same colours", content)


def _trained(project: Project, keys: dict, question: Question) -> Part:
    title, subject = "During training", keys["subject"]
    checkpoints = _checkpoints(project, subject)
    if not checkpoints:
        problem = "is not a checkpoint of a training run (trajectory in params.yaml)."
        return section(title, note(f"{subject} {problem}"))
    last = len(checkpoints) - 1
    step, name, _ = checkpoints[min(question.whole("point", last), last)]
    other, label = keys | {"subject": name}, f"After {step:,} steps ({name})"
    return section(title, _small_map(project, other, "training", label, size=LARGER))


def _small_map(
    project: Project,
    keys: dict,
    name: str,
    label: str,
    *,
    size: int = SMALL,
    limit: float | None = None,
) -> Part:
    """Return a map without results, or a message if the store lacks the neuron.

    name: of the figure; label: start of the caption; size: pixels; limit: where colours end.
    """
    try:
        values, _ = project.map(*keys.values())
    except ExplorerError as error:
        return alert(str(error))
    drawn = charts.heat(values, None, SHORT, size=size, limit=limit)
    caption = f"{label}: {values.min():.3g} to {values.max():.3g}"
    return figure(name, drawn, caption, sql(MAP, keys))
