"""A prompt, explained: the answer and its rivals, the bag that voted for it, what every heuristic says, and the prompt's neighbours."""

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from dash import html

from stages.explorer import charts
from stages.explorer.answers import prompt as asked
from stages.explorer.explorer import Explorer
from stages.explorer.parts import Field, Part, alert, figure, labelled, note, section, sql, table
from stages.explorer.project import ExplorerError, Project
from stages.explorer.question import Question, prompt
from stages.explorer.views.links import to_neuron, to_prompt, to_silence
from stages.lib.core.words import MEMBERSHIPS

if TYPE_CHECKING:
    from stages.explorer.live import Live

INTRO = (
    "A cell is a prompt with an answer of one token. A neuron's vote for an answer is its "
    "activation · its direct logit attribution: what "
    "the neuron adds to the answer's logit. A linear probe reads the answer after each late layer."
)
COUNTED = {
    "label": ("if it is a label: it passes the threshold and the false discovery rate, and is not redundant"),
    "called": "if it passes the threshold and the false discovery rate",
    "scored": "if its score passes the threshold, without a test against chance",
}


def fields(explorer: Explorer, question: Question) -> list[Field]:
    membership = question.one_of("membership", list(MEMBERSHIPS), "called")
    subject = question.subject(explorer.project)
    example = explorer.project.example(subject)
    return [
        Field("subject", "Subject", subject, "choice", explorer.project.subjects),
        Field("prompt", "Prompt", question.get("prompt", example), hint=example),
        Field("membership", "A neuron counts for a heuristic", membership, "choice", labelled(COUNTED)),
    ]  # fmt: skip


def content(explorer: Explorer, question: Question) -> Part:
    project = explorer.project
    of = asked.cell(project, question["subject"], *prompt(question["prompt"], project.symbols))
    standing, missing = None, None
    try:
        standing = asked.holding(project, of, question["membership"])
    except ExplorerError as error:
        missing = alert(str(error))
    said = _said(of, project.symbols[of.operator])
    bag, voted = [note("The model is being loaded. Rivals and votes follow in a moment.")], None
    try:
        if live := explorer.models.ready(of.subject):
            bag, voted = _bag(explorer, of, standing, live)
    except ExplorerError as error:
        bag = [alert(str(error))]
    heuristics = [] if standing is None else [_heuristics(of, standing, voted, question["membership"])]
    below = html.Div([*heuristics, _neighbours(project, of)], className="side")
    return html.Div([html.H1(said), note(INTRO), missing, *bag, below])


def _said(of: asked.Cell, sign: str) -> list[Part]:
    whole = f"{of.op1} {sign} {of.op2} = {of.result}" + (f", predicted token: {of.asked}" if of.asked != of.result else "")
    if of.correct:
        return [f"{whole}: {of.subject} is right, with probability {of.probability:.3f}"]
    instead = "no number" if of.predicted is None else of.predicted
    return [
        f"{whole}: ",
        html.Span(f"{of.subject} says {instead}", className="wrong"),
        f"; the answer has probability {of.probability:.3g}",
    ]


def _bag(explorer: Explorer, of: asked.Cell, standing: pl.DataFrame | None, live: "Live") -> tuple[list[Part], pl.DataFrame]:
    project = explorer.project
    with explorer.models.lock:
        spoken = live.speak(of.operator, of.op1, of.op2)
    rivals = asked.spoken(project, of.subject, spoken.logits)
    against, margin = asked.rival(project, of.subject, spoken.logits, of.asked)
    empty = pl.DataFrame(
        schema={"layer": pl.Int16, "neuron": pl.Int32, "heuristic": pl.String, "corrected": pl.Float32, "holds": pl.Boolean},
    )
    known = empty if standing is None else standing
    voted = asked.votes(project, of, against, spoken.neurons, spoken.scale, known)
    parts = asked.parts(voted, margin)
    answers = rivals.with_columns(pl.when(pl.col("number") == of.asked).then(pl.lit("the answer")).otherwise(pl.lit("")).alias("is"))
    late = asked.first_late(project, of.subject)
    query = sql(asked.VOTES, of.keys() | {"first": late, "answer": of.asked, "rival": against})
    caption = (
        f"Logits for {of.asked} (to the right of zero) or for its strongest rival {against} "
        f"(to the left), part by part. They add up to {margin:+.2f}, "
        f"the lead of the answer's logit over the rival's. Each of the {voted.height:,} late "
        "neurons counts once, for its best heuristic "
        "that holds here."
    )
    names = [f"{row['part']}" + (f" ({row['neurons']})" if row["neurons"] else "") for row in parts.iter_rows(named=True)]
    drawn = charts.steps(names, parts["voted"].to_list(), f"{of.asked} against {against}", "logits for the answer against its rival")
    scale = f"The final norm multiplies each vote by {spoken.scale:.3f} here. The query leaves that out."
    neurons = voted.head(40).select("layer", "neuron", "heuristic", "activation", "vote", "voted")
    left = table(answers, f"Predictions of {of.subject}: the most likely tokens")
    right = table(
        neurons,
        "The neurons with the largest votes; voted = activation · vote · scale, in logits",
        to_neuron(of.subject, of.operator),
    )
    again = html.P(to_silence(of.subject, question_of(of, project.symbols), voted.head(5)))
    return [
        section(
            "What heuristics add to the answer",
            figure("votes", drawn, caption, query, note(scale)),
        ),
        html.Div(
            [section("The answer and its rivals", left), section("Neurons", right, again)],
            className="side",
        ),
    ], voted


def question_of(of: asked.Cell, symbols: dict[str, str]) -> str:
    return f"{of.op1}{symbols[of.operator]}{of.op2}"


def _heuristics(of: asked.Cell, standing: pl.DataFrame, voted: pl.DataFrame | None, membership: str) -> Part:
    said = asked.heuristics(standing, voted)
    caption = f"{said['holds'].sum()} of {said.height} heuristics hold here" + (
        "; voted: sum over all late neurons of each, in logits." if voted is not None else "."
    )
    query = sql(asked.STANDING, {"subject": of.subject, "operator": of.operator, "membership": membership})
    return section("Every heuristic on this prompt", table(said, caption, most=60), query)


def _neighbours(project: Project, of: asked.Cell) -> Part:
    around = asked.neighbours(project, of)
    op1, op2 = around["op1"].to_numpy(), around["op2"].to_numpy()
    corner = int(op1.min()), int(op2.min())
    at = op1 - corner[0], op2 - corner[1]
    shape = int(at[0].max()) + 1, int(at[1].max()) + 1
    values, facts = np.full(shape, np.nan), np.full((*shape, 2), np.nan)
    values[at] = around["answer_probability"].to_numpy()
    facts[at] = around.select("result", "predicted").to_numpy()
    hover = "op1 %{y}, op2 %{x}<br>answer %{customdata[0]}<br>prediction %{customdata[1]}<br>probability of the answer %{z:.3f}"
    drawn = charts.heat(values, facts, hover, corner=corner, size=420)
    lowest = charts.sequential(drawn, values)
    charts.marked(drawn, of.op1, of.op2)
    wrong = around.filter(~pl.col("correct"))
    charts.crossed(drawn, wrong["op1"].to_list(), wrong["op2"].to_list())
    caption = (
        f"The cells around {of.op1}, {of.op2}: the answer's probability, from {lowest:.3g} (light) "
        f"to 1 (dark); × where {of.subject} fails; grey is no cell. "
        f"{wrong.height} of {around.height} fail."
    )
    query = sql(asked.NEIGHBOURS, of.keys() | {"reach": asked.REACH})
    below = table(wrong, "Cells that fail", to_prompt(of.subject, project.symbols, of.operator)) if wrong.height else None
    return section("Its neighbours in the grid", figure("neighbours", drawn, caption, query, below))
