"""Neurons or heuristics silenced: the executor runs at once and says the new answer, beside as many random neurons; or over the grid."""

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from dash import dcc, html

from stages.explorer import charts
from stages.explorer.answers import neuron as squares
from stages.explorer.answers import prompt as explained
from stages.explorer.answers import silence as asked
from stages.explorer.explorer import Explorer
from stages.explorer.parts import Field, Part, alert, aria, figure, labelled, note, section, sql, table
from stages.explorer.project import ExplorerError, Project
from stages.explorer.question import Question, neurons, prompt
from stages.explorer.views.prompt import COUNTED
from stages.lib.core.words import MEMBERSHIPS

if TYPE_CHECKING:
    from stages.explorer.live import Live

INTRO = (
    "Ablation replaces a neuron's activation at the last position by its mean (pooled over "
    "operators), by zero, or by its value in another prompt. A heuristic means all late "
    "neurons that count for it. The control is equally many random neurons of the same layers."
)
TICKED = 12  # neurons offered
LISTED = 40  # neurons that a page lists as silenced
KEPT = 3  # grids, besides the one that is asked for
GRID = "also over the whole grid (about a minute; untick to stop)"
COLOURS = "red: right before, wrong now; blue: wrong before, right now; white: no change; grey: no cell"


def fields(explorer: Explorer, question: Question) -> list[Field]:
    project, subject = explorer.project, question.subject(explorer.project)
    example = project.example(subject)
    text = question.get("prompt", example)
    membership = question.one_of("membership", list(MEMBERSHIPS), "called")
    replacement = question.one_of("replacement", list(asked.REPLACEMENTS), "mean")
    named, offered = _offered(explorer, subject, text, membership)
    named = _with(named, question.get("heuristics", ""), "chosen before; none here")
    offered = _with(offered, question.get("ticked", ""), "ticked before")
    result = [
        Field("subject", "Subject", subject, "choice", project.subjects),
        Field("prompt", "Prompt", text, hint=example),
        Field("replacement", "Replaced by", replacement, "choice", labelled(asked.REPLACEMENTS)),
        *([Field("other", "Other prompt", question.get("other", "12-5"), hint="12-5")] if replacement == "counterfactual" else []),
        Field("membership", "A neuron counts for a heuristic", membership, "choice", labelled(COUNTED)),
        Field("heuristics", "Heuristics to ablate", question.get("heuristics", ""), "many", named, "all late neurons that count for them"),
        Field("neurons", "Neurons to ablate, as layer:neuron", question.get("neurons", ""), hint="2:489, 1:17"),
        Field("grid", "Every cell", question.get("grid", ""), "tick", [{"label": GRID, "value": "yes"}]),
    ]  # fmt: skip
    if offered:
        result.insert(
            -1,
            Field(
                "ticked",
                "Neurons with the largest votes here",
                question.get("ticked", ""),
                "tick",
                offered,
            ),
        )
    return result


def _offered(explorer: Explorer, subject: str, text: str, membership: str) -> tuple[list[dict], list[dict]]:
    """Heuristics, those that hold here first, and neurons to choose from, as far as they are known."""
    project, named, offered = explorer.project, [], []
    try:
        of = explained.cell(project, subject, *prompt(text, project.symbols))
        standing = explained.holding(project, of, membership)
        holds = set(standing.filter("holds")["heuristic"])
        known = asked.heuristics(project, subject, of.operator, membership).rows()
        for name, count in sorted(known, key=lambda row: row[0] not in holds):
            more = "; holds here" if name in holds else ""
            named.append({"label": f"{name} ({count}{more})", "value": name})
        if live := explorer.models.ready(subject):
            with explorer.models.lock:
                spoken = live.speak(of.operator, of.op1, of.op2)
            against, _ = explained.rival(project, subject, spoken.logits, of.asked)
            voted = explained.votes(project, of, against, spoken.neurons, spoken.scale, standing).head(TICKED)
            for layer, neuron, vote in voted.select("layer", "neuron", "voted").iter_rows():
                offered.append({"label": f"{layer}:{neuron} ({vote:+.2f})", "value": f"{layer}:{neuron}"})
    except ExplorerError:
        pass  # the content says what is wrong
    return named, offered


def _with(options: list[dict], chosen: str, why: str) -> list[dict]:
    """Options, and what is chosen and no option any more, so that it is seen and can be taken back."""
    known = {option["value"] for option in options}
    return [*options, *({"label": f"{one} ({why})", "value": one} for one in chosen.split("|") if one and one not in known)]


def content(explorer: Explorer, question: Question) -> Part:
    project, subject = explorer.project, question["subject"]
    operator, op1, op2 = prompt(question["prompt"], project.symbols)
    of = explained.cell(project, subject, operator, op1, op2)
    chosen, everywhere = _chosen(project, subject, operator, question), question.get("grid") == "yes"
    if not everywhere:
        _stop(explorer)
    if not chosen:
        return html.Div(
            [
                html.H1(f"Ablate neurons on {question['prompt']}"),
                note(INTRO),
                note("Choose heuristics, or tick or write neurons."),
            ],
        )
    live, which = explorer.models.ready(subject), _which(chosen, question)
    if not live:
        return html.Div(
            [
                html.H1(f"Ablate {_counted(len(chosen))}"),
                note(INTRO),
                which,
                note("The model is being loaded."),
            ]
        )
    replacement = question["replacement"]
    other = prompt(question.get("other", ""), project.symbols) if replacement == "counterfactual" else None
    silencing = asked.Silencing(subject, operator, tuple(chosen), replacement, other, project.made_of(subject))
    with explorer.models.lock:
        row = live.cell(operator, op1, op2)
        logits = asked.silenced(live, row, silencing)
    told = asked.summary(logits, row["answer_token"].item(), project.ask(explained.NUMBERS, subject=subject))
    inside = [
        html.H1(_headline(of, told, len(chosen), project.symbols[operator])),
        note(INTRO),
        which,
        _answers(project, subject, silencing, told, logits),
    ]
    if everywhere:
        inside.append(_grid(explorer.project, _start(explorer, live, silencing), question))
    return html.Div(inside)


def _chosen(project: Project, subject: str, operator: str, question: Question) -> list[tuple[int, int]]:
    named = [name for name in question.get("heuristics", "").split("|") if name]
    of_heuristics = asked.standing(project, subject, operator, question["membership"], named) if named else []
    return sorted({*neurons(question.get("neurons", "")), *neurons(question.get("ticked", "").replace("|", ",")), *of_heuristics})


def _which(chosen: list[tuple[int, int]], question: Question) -> Part:
    """The neurons that are silenced, and the way to silence none."""
    listed = ", ".join(f"{layer}:{neuron}" for layer, neuron in chosen[:LISTED]) + (" …" if len(chosen) > LISTED else "")
    none = "/silence" + question.but(heuristics="", ticked="", neurons="").search()
    return html.P([f"Ablated: {listed}. ", dcc.Link("Ablate none of them", href=none)])


def _headline(of: explained.Cell, told: pl.DataFrame, count: int, sign: str) -> list[Part]:
    before, after = told.row(0, named=True), told.row(1, named=True)
    says = "no number" if after["says"] is None else after["says"]
    neurons = _counted(count)
    verdict = (
        f"{of.subject} still predicts {says}"
        if after["says"] == before["says"]
        else f"{of.subject} predicts {says} instead of {before['says']}"
    )
    spoken = verdict if after["right"] else html.Span(verdict, className="wrong")
    return [f"{of.op1} {sign} {of.op2} without {neurons}: ", spoken]


def _counted(count: int) -> str:
    return f"{count:,} neuron{'s' if count != 1 else ''}"


def _answers(project: Project, subject: str, of: asked.Silencing, told: pl.DataFrame, logits: list[np.ndarray]) -> Part:
    before, after = (explained.spoken(project, subject, one, 1000) for one in logits[:2])
    both = before.join(after, on="token", suffix="_after", how="full", coalesce=True).with_columns(
        answer=pl.coalesce("number", "number_after").cast(pl.String).fill_null("no number"),
    )
    top = both.sort(pl.max_horizontal("probability", "probability_after"), descending=True).head(7)
    drawn = charts.bars(
        top,
        "answer",
        {"probability": "unchanged model", "probability_after": "ablated"},
        "probability",
    )
    control = told.slice(2)
    random, neurons = np.mean(control["probability"].to_numpy()), _counted(len(of.neurons))
    caption = (
        f"Probability of the most likely answers, unchanged and with {neurons} ablated. The "
        "correct answer goes from "
        f"{told['probability'][0]:.3g} to {told['probability'][1]:.3g}, with equally many random "
        f"neurons to {random:.3g} "
        f"on average. {control['right'].sum()} of {control.height} random draws stay right."
    )
    beside = table(told, "Predictions; logit: the answer's, above the mean over the vocabulary")
    return html.Div([
        section("The new answer", figure("silenced", drawn, caption, sql(of.rows(), about=vars(of)))),
        section("Beside random neurons", beside),
    ], className="side")  # fmt: skip


def _start(explorer: Explorer, live: "Live", of: asked.Silencing) -> asked.GridJob:
    """A grid's work, which starts unless it is known already; this tab looks at no other any more."""
    with explorer.changing:
        _stop(explorer, but=of)
        if job := explorer.jobs.get(of):
            job.tabs.add(explorer.tab)
            return job
        for known in [known for known, job in explorer.jobs.items() if job.done][:-KEPT]:
            del explorer.jobs[known]
        side = explorer.project.ask(
            "select max(greatest(op1, op2)) + 1 as side from cells where operator = $operator",
            operator=of.operator,
        ).item()
        job = explorer.jobs[of] = asked.GridJob(of, tabs={explorer.tab})
        job.start(live, explorer.models.lock, side)
        return job


def _stop(explorer: Explorer, but: asked.Silencing | None = None) -> None:
    """This tab looks at no grid any more, or at this one alone; work that no tab looks at ends."""
    with explorer.changing:
        for known, job in list(explorer.jobs.items()):
            if known == but:
                continue
            job.tabs.discard(explorer.tab)
            if not job.done and not job.tabs:
                job.stopped = True
                del explorer.jobs[known]


def _grid(project: Project, job: asked.GridJob, question: Question) -> Part:
    if job.error:
        return alert(job.error)
    of, (done, cells) = job.of, job.cells
    if not job.done:
        words = f"{done:,} of {cells:,} cells"
        return section("Every cell", html.P([html.Progress(value=str(done), max=str(cells or 1), **aria(label=words)), f" {words}"]))
    maps = []
    for name, title, square in (
        ("broken", f"{len(of.neurons):,} chosen neurons", job.chosen),
        ("broken-random", "equally many random neurons", job.drawn),
    ):
        broken, mended = (int((square == kind).sum()) for kind in (asked.BROKEN, asked.MENDED))
        drawn = charts.heat(square, None, "op1 %{y}, op2 %{x}<extra></extra>", size=460, limit=1.0)
        drawn["data"][0]["showscale"] = False
        caption = f"Without {title}: {broken:,} of {cells:,} cells break, {mended:,} become right; {COLOURS}."
        maps.append(figure(name, drawn, caption, sql(of.rows(), about=vars(of))))
    named = [name for name in question.get("heuristics", "").split("|") if name]
    return section("Every cell", html.Div(maps, className="side"), _where(project, of, job, named) if named else None)


def _where(project: Project, of: asked.Silencing, job: asked.GridJob, named: list[str]) -> Part:
    """Whether what breaks is what the chosen heuristics are about."""
    holds = np.logical_or.reduce([squares.members(project, of.subject, of.operator, name, job.chosen.shape) for name in named])
    rows = []
    for what, cells in (("one of the heuristics holds", holds), ("none holds", ~holds)):
        counts = [int((square[cells] == asked.BROKEN).sum()) for square in (job.chosen, job.drawn)]
        total = int(np.isfinite(job.chosen[cells]).sum())
        rows.append((what, total, *(count / total if total else None for count in counts)))
    frame = pl.DataFrame(rows, ["cells_where", "cells", "broken", "broken_by_random"], orient="row")
    return table(
        frame,
        "Share of cells that break, where the ablated heuristics hold and elsewhere",
    )
