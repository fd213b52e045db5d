"""Ablate neurons or heuristics, and compare the new answer with the ablation of random neurons.

The executor runs at once: on a prompt, or on every cell of the grid.
"""

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from dash import dcc, html

from stages.explorer import charts
from stages.explorer.explorer import Explorer
from stages.explorer.jobs import BROKEN, MENDED, Ablation, GridJob, Neurons
from stages.explorer.parts import (
    Field,
    Part,
    alert,
    aria,
    counted,
    figure,
    labelled,
    note,
    section,
    sql,
    table,
)
from stages.explorer.project import ExplorerError, Project
from stages.explorer.question import Question, parse_neurons, parse_prompt
from stages.explorer.views.neuron import members
from stages.explorer.views.prompt import (
    NUMBERS,
    Cell,
    contributions,
    load_cell,
    membership_field,
    neuron_heuristics,
    predictions,
    strongest_rival,
)

if TYPE_CHECKING:
    from stages.explorer.live import Live

DRAWS = 5  # sets of random neurons
TICKED = 12  # neurons offered
LISTED = 40  # ablated neurons that a page lists
KEPT = 3  # finished grids, besides the one on the page
LIKELY, BARS = 1000, 7  # most likely tokens that are compared, and those that are shown
REPLACEMENTS = {"mean": "mean", "zero": "zero", "counterfactual": "another prompt's value"}
HEURISTICS = """
    select heuristic, count(*) as neurons from heuristic_neurons
    where subject = $subject and operator = $operator and criterion = $criterion and late
    group by heuristic
    order by neurons desc, heuristic
"""
NEURONS = """
    select distinct layer, neuron from heuristic_neurons
    where subject = $subject and operator = $operator and criterion = $criterion and late
        and list_contains($heuristics, heuristic)
    order by layer, neuron
"""
SIDE = "select max(greatest(op1, op2)) + 1 as side from cells where operator = $operator"
INTRO = (
    "Ablation replaces a neuron's activation at the last position by its mean (pooled over "
    "operators), by zero, or by its value in another prompt. A heuristic means all late neurons "
    "that count for it. The control is equally many random neurons of the same layers."
)
GRID = "also over the whole grid (about a minute; untick to stop)"
COLOURS = (
    "red: right before, wrong now; blue: wrong before, right now; white: no change; grey: no cell"
)


def heuristics(project: Project, subject: str, operator: str, criterion: str) -> pl.DataFrame:
    """Return the heuristics of late neurons and how many each has: heuristic, neurons."""
    project.need(subject, "heuristic_neurons")
    return project.ask(HEURISTICS, subject=subject, operator=operator, criterion=criterion)


def neurons_of(
    project: Project,
    subject: str,
    operator: str,
    criterion: str,
    names: list[str],
) -> Neurons:
    """Return the late neurons of these heuristics.

    Raises ExplorerError if a heuristic has no late neuron.
    """
    known = heuristics(project, subject, operator, criterion)["heuristic"].to_list()
    for name in names:
        if name not in known:
            problem = f"no late neuron of {subject} counts for {name!r} on {operator}"
            raise ExplorerError(f"{problem}; choose a heuristic from the list.")
    keys = {"subject": subject, "operator": operator, "criterion": criterion}
    return project.ask(NEURONS, **keys, heuristics=names).rows()


def ablated(live: "Live", prompt: pl.DataFrame, ablation: Ablation) -> list[np.ndarray]:
    """Return logits (vocabulary,) of a prompt, without and with an ablation.

    They are the logits of the unchanged model, of the model with the neurons ablated, and with as
    many random neurons ablated, DRAWS times.
    """
    other = live.cell(*ablation.other) if ablation.other else None
    sets: list = [list(ablation.neurons)]
    sets += [live.random(ablation.neurons, seed) for seed in range(DRAWS)]
    op1, op2 = prompt["op1"].item(), prompt["op2"].item()
    clean = live.predict(ablation.operator, op1, op2).logits
    return [clean, *live.ablated(prompt, list(filter(None, sets)), ablation.replacement, other)]


def summary(logits: list[np.ndarray], answer: int, numbers: pl.DataFrame) -> pl.DataFrame:
    """Return the prediction with each ablation, for logits as `ablated` returns them.

    The columns are ablated, prediction (null if it is not a number), correct, probability of the
    answer, and logit: the answer's, minus the mean over the vocabulary. answer: its token; numbers:
    number, token.
    """
    number_of = dict(numbers.select("token", "number").iter_rows())
    names = ["nothing", "the selected neurons"]
    names += [f"random neurons, draw {draw}" for draw in range(1, DRAWS + 1)]
    rows = []
    for name, values in zip(names, logits, strict=False):
        token = int(values.argmax())
        largest = values.max()
        probability = float(np.exp(values[answer] - largest) / np.exp(values - largest).sum())
        logit = float(values[answer] - values.mean())
        rows.append((name, number_of.get(token), token == answer, probability, logit))
    schema = {
        "ablated": pl.String,
        "prediction": pl.Int32,
        "correct": pl.Boolean,
        "probability": pl.Float64,
        "logit": pl.Float64,
    }
    return pl.DataFrame(rows, schema, orient="row")


def fields(explorer: Explorer, question: Question) -> list[Field]:
    """Return the prompt, the neurons to ablate, how to ablate them, and whether on every cell."""
    project, subject = explorer.project, question.subject(explorer.project)
    example = project.example(subject)
    text, criterion = question.get("prompt", example), membership_field(question)
    replacement = question.choice("replacement", list(REPLACEMENTS), "mean")
    named, offered = _offered(explorer, subject, text, criterion.value)
    named = _with(named, question.listed("heuristics"), "selected before; none here")
    offered = _with(offered, question.listed("ticked"), "ticked before")
    fields = [
        Field("subject", "Model", subject, "choice", project.subjects),
        Field("prompt", "Prompt", text, hint=example),
        Field("replacement", "Replaced by", replacement, "choice", labelled(REPLACEMENTS)),
    ]
    if replacement == "counterfactual":
        fields.append(Field("other", "Other prompt", question.get("other", "12-5"), hint="12-5"))
    fields += [
        criterion,
        Field(
            "heuristics",
            "Heuristics to ablate",
            question.get("heuristics", ""),
            "many",
            named,
            "all late neurons that count for them",
        ),
        Field(
            "neurons",
            "Neurons to ablate, as layer:neuron",
            question.get("neurons", ""),
            hint="2:489, 1:17",
        ),
    ]
    if offered:
        label, ticked = "Neurons with the largest contributions here", question.get("ticked", "")
        fields.append(Field("ticked", label, ticked, "tick", offered))
    everywhere = [{"label": GRID, "value": "yes"}]
    return [*fields, Field("grid", "Every cell", question.get("grid", ""), "tick", everywhere)]


def _offered(
    explorer: Explorer,
    subject: str,
    text: str,
    criterion: str,
) -> tuple[list[dict], list[dict]]:
    """Return options: heuristics, those that hold here first, and neurons, as far as known."""
    project, named, offered = explorer.project, [], []
    try:
        cell = load_cell(project, subject, *parse_prompt(text, project.symbols))
        known = neuron_heuristics(project, cell, criterion)
        holds = set(known.filter("holds")["heuristic"])
        counts = heuristics(project, subject, cell.operator, criterion).rows()
        for name, count in sorted(counts, key=lambda row: row[0] not in holds):
            more = "; holds here" if name in holds else ""
            named.append({"label": f"{name} ({count}{more})", "value": name})
        offered = _offered_neurons(explorer, cell, known)
    except ExplorerError:
        pass  # the content shows what is wrong
    return named, offered


def _offered_neurons(explorer: Explorer, cell: Cell, known: pl.DataFrame) -> list[dict]:
    """Return the neurons that contribute most; none before the model is loaded."""
    live = explorer.models.ready(cell.subject)
    if not live:
        return []
    with explorer.models.lock:
        prediction = live.predict(cell.operator, cell.op1, cell.op2)
    rival, _ = strongest_rival(explorer.project, cell.subject, prediction.logits, cell.target)
    rows = contributions(explorer.project, cell, rival, prediction, known).head(TICKED)
    options = []
    for layer, neuron, value in rows.select("layer", "neuron", "contribution").iter_rows():
        label = f"{layer}:{neuron} ({value:+.2f})"
        options.append({"label": label, "value": f"{layer}:{neuron}"})
    return options


def _with(options: list[dict], values: list[str], why: str) -> list[dict]:
    """Return the options and the selected values that are not options any more.

    So the reader sees these values and can take them back.
    """
    known = {option["value"] for option in options}
    lost = [value for value in values if value not in known]
    return [*options, *({"label": f"{value} ({why})", "value": value} for value in lost)]


def content(explorer: Explorer, question: Question) -> Part:
    """Return the prediction with and without the ablation, and the map over the grid."""
    project = explorer.project
    operator, op1, op2 = parse_prompt(question["prompt"], project.symbols)
    cell = load_cell(project, question["subject"], operator, op1, op2)
    neurons, everywhere = _selected(project, cell, question), question.get("grid") == "yes"
    if not everywhere:
        _stop(explorer)
    if not neurons:
        title = html.H1(f"Ablate neurons on {question['prompt']}")
        return html.Div([title, note(INTRO), note("Choose heuristics, or tick or write neurons.")])
    live, which = explorer.models.ready(cell.subject), _which(neurons, question)
    if not live:
        title = html.H1(f"Ablate {counted(len(neurons), 'neuron')}")
        return html.Div([title, note(INTRO), which, note("The model is being loaded.")])
    ablation = _ablation(project, cell, neurons, question)
    with explorer.models.lock:
        row = live.cell(operator, op1, op2)
        logits = ablated(live, row, ablation)
    numbers = project.ask(NUMBERS, subject=cell.subject)
    rows = summary(logits, row["answer_token"].item(), numbers)
    title = html.H1(_headline(cell, rows, len(neurons), project.symbols[operator]))
    parts = [title, note(INTRO), which, _answers(project, ablation, rows, logits)]
    if everywhere:
        parts.append(_grid(project, _start(explorer, live, ablation), question))
    return html.Div(parts)


def _ablation(project: Project, cell: Cell, neurons: Neurons, question: Question) -> Ablation:
    replacement, other = question["replacement"], None
    if replacement == "counterfactual":
        other = parse_prompt(question.get("other", ""), project.symbols)
    made_of = project.made_of(cell.subject)
    return Ablation(cell.subject, cell.operator, tuple(neurons), replacement, other, made_of)


def _selected(project: Project, cell: Cell, question: Question) -> Neurons:
    """Return the neurons that are written, ticked, or of selected heuristics."""
    ticked = ",".join(question.listed("ticked"))
    selected = {*parse_neurons(question.get("neurons", "")), *parse_neurons(ticked)}
    names = question.listed("heuristics")
    if names:
        criterion = question["criterion"]
        selected.update(neurons_of(project, cell.subject, cell.operator, criterion, names))
    return sorted(selected)


def _which(neurons: Neurons, question: Question) -> Part:
    """Return the list of ablated neurons, with a link that ablates none."""
    listed = ", ".join(f"{layer}:{neuron}" for layer, neuron in neurons[:LISTED])
    more = " …" if len(neurons) > LISTED else ""
    none = question.changed(heuristics="", ticked="", neurons="")
    link = dcc.Link("Ablate none of them", href="/silence" + none.search())
    return html.P([f"Ablated: {listed}{more}. ", link])


def _headline(cell: Cell, rows: pl.DataFrame, count: int, sign: str) -> list[Part]:
    before, after, *_ = rows["prediction"].cast(pl.String).fill_null("no number")
    verdict: Part = f"{cell.subject} predicts {after} instead of {before}"
    if after == before:
        verdict = f"{cell.subject} still predicts {after}"
    if not rows["correct"][1]:
        verdict = html.Span(verdict, className="wrong")
    return [f"{cell.op1} {sign} {cell.op2} without {counted(count, 'neuron')}: ", verdict]


def _answers(
    project: Project,
    ablation: Ablation,
    rows: pl.DataFrame,
    logits: list[np.ndarray],
) -> Part:
    names = {"probability": "unchanged model", "probability_after": "ablated"}
    drawn = charts.bars(_likely(project, ablation, logits), "answer", names, "probability")
    before, after, *random = rows["probability"]
    control = rows["correct"].slice(2)
    caption = (
        "Probability of the most likely answers, unchanged and with "
        f"{counted(len(ablation.neurons), 'neuron')} ablated. The correct answer goes from "
        f"{before:.3g} to {after:.3g}, with equally many random neurons to {np.mean(random):.3g} "
        f"on average. {control.sum()} of {control.len()} random draws stay right."
    )
    answers = figure("ablated", drawn, caption, sql(ablation.rows(), about=vars(ablation)))
    columns = "Predictions; logit: the answer's, above the mean over the vocabulary"
    parts = [
        section("The new answer", answers),
        section("Comparison with random neurons", table(rows, columns)),
    ]
    return html.Div(parts, className="side")


def _likely(project: Project, ablation: Ablation, logits: list[np.ndarray]) -> pl.DataFrame:
    """Return the most likely answers, with their probability before and after the ablation."""
    before = predictions(project, ablation.subject, logits[0], LIKELY)
    after = predictions(project, ablation.subject, logits[1], LIKELY)
    both = before.join(after, on="token", suffix="_after", how="full", coalesce=True)
    number = pl.coalesce("number", "number_after").cast(pl.String).fill_null("no number")
    largest = pl.max_horizontal("probability", "probability_after")
    return both.with_columns(answer=number).sort(largest, descending=True).head(BARS)


def _start(explorer: Explorer, live: "Live", ablation: Ablation) -> GridJob:
    """Return the work on a grid, started unless it is known; this tab looks at no other."""
    with explorer.changing:
        _stop(explorer, but=ablation)
        job = explorer.jobs.get(ablation)
        if job:
            job.tabs.add(explorer.tab)
            return job
        finished = [known for known, job in explorer.jobs.items() if job.done]
        for known in finished[:-KEPT]:
            del explorer.jobs[known]
        side = explorer.project.ask(SIDE, operator=ablation.operator).item()
        job = explorer.jobs[ablation] = GridJob(ablation, tabs={explorer.tab})
        job.start(live, explorer.models.lock, side)
        return job


def _stop(explorer: Explorer, but: Ablation | None = None) -> None:
    """Let this tab look at no grid but one; work that no tab looks at ends."""
    with explorer.changing:
        for known, job in list(explorer.jobs.items()):
            if known == but:
                continue
            job.tabs.discard(explorer.tab)
            if not job.done and not job.tabs:
                job.stopped = True
                del explorer.jobs[known]


def _grid(project: Project, job: GridJob, question: Question) -> Part:
    """Return the maps of the cells that change, or how far the work is."""
    title = "Every cell"
    if job.error:
        return alert(job.error)
    if not job.done:
        done, cells = job.cells
        words = f"{done:,} of {cells:,} cells"
        progress = html.Progress(value=str(done), max=str(cells or 1), **aria(label=words))
        return section(title, html.P([progress, f" {words}"]))
    selected = counted(len(job.ablation.neurons), "selected neuron")
    maps = [
        _changes(job, "broken", selected, job.changes),
        _changes(job, "broken-random", "equally many random neurons", job.random),
    ]
    names = question.listed("heuristics")
    where = _where(project, job, names) if names else None
    return section(title, html.Div(maps, className="side"), where)


def _changes(job: GridJob, name: str, neurons: str, changes: np.ndarray) -> Part:
    """Return a map of the cells that an ablation changes."""
    drawn = charts.heat(changes, None, "op1 %{y}, op2 %{x}<extra></extra>", size=460, limit=1.0)
    drawn["data"][0]["showscale"] = False
    broken, mended = np.sum(changes == BROKEN), np.sum(changes == MENDED)
    caption = (
        f"Without {neurons}: {broken:,} of {job.cells[1]:,} cells break, {mended:,} become right; "
        f"{COLOURS}."
    )
    ablation = job.ablation
    return figure(name, drawn, caption, sql(ablation.rows(), about=vars(ablation)))


def _where(project: Project, job: GridJob, names: list[str]) -> Part:
    """Return whether the cells that break are those for which the ablated heuristics hold."""
    subject, operator = job.ablation.subject, job.ablation.operator
    side, _ = job.changes.shape
    holds = np.zeros((side, side), bool)
    for name in names:
        holds |= members(project, subject, operator, name, (side, side))
    rows = [
        ("one of the heuristics holds", *_broken(job, holds)),
        ("none holds", *_broken(job, ~holds)),
    ]
    schema = ["cells_where", "cells", "broken", "broken_by_random"]
    caption = "Fraction of cells that break, where the ablated heuristics hold and elsewhere"
    return table(pl.DataFrame(rows, schema, orient="row"), caption)


def _broken(job: GridJob, holds: np.ndarray) -> tuple[int, float | None, float | None]:
    """Return the number of cells, and the fractions that the ablation and the control break."""
    cells = int(np.isfinite(job.changes[holds]).sum())
    if not cells:
        return 0, None, None
    broken = int((job.changes[holds] == BROKEN).sum()) / cells
    by_random = int((job.random[holds] == BROKEN).sum()) / cells
    return cells, broken, by_random
