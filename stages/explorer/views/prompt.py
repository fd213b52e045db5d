"""Explain a prompt: the answer and its rivals, what neurons and heuristics add, and the neighbours.

A late neuron's contribution, in logits, is its activation · (direct logit attribution of the answer
- direct logit attribution of its strongest rival) · scale. The attributions are those of the table
value_logits; the scale is the factor of the final norm on this prompt. For a model that predicts
one token of the answer, the answer is the number that this token stands for.

The contributions and the rest, which is everything else that writes into the residual stream
(embeddings, attention, earlier layers), add up to the lead of the answer's logit over the rival's.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from dash import html

from stages.explorer import charts
from stages.explorer.explorer import Explorer
from stages.explorer.parts import Field, Part, alert, figure, labelled, note, section, sql, table
from stages.explorer.project import ExplorerError, Project
from stages.explorer.question import Question, parse_prompt
from stages.explorer.views.links import to_ablation, to_neuron, to_prompt
from stages.lib.core.vocabulary import CRITERIA
from stages.lib.heuristics.members import listed

if TYPE_CHECKING:
    from stages.explorer.live import Live, Prediction

CELL = """
    select result, predicted, correct, answer_probability
    from cells left join predictions using (operator, op1, op2)
    where subject = $subject and operator = $operator and op1 = $op1 and op2 = $op2
"""
NUMBERS = "select number, token from numbers where subject = $subject order by number"
LATE = "select first_layer from late_layers where subject = $subject"
NEURON_HEURISTICS = """
    select layer, neuron, heuristic, chance_corrected from heuristic_neurons
    where subject = $subject and operator = $operator and criterion = $criterion
    order by layer, neuron, chance_corrected desc, heuristic
"""
CATALOGUE = """
    select operator, heuristic, kind, quantity, predicate from heuristics
    where operator = $operator
"""
CONTRIBUTIONS = """
    select layer, neuron, activation, for_answer.logit - for_rival.logit as logit_difference,
        activation * logit_difference as contribution
    from activations
    join value_logits as for_answer using (subject, layer, neuron)
    join value_logits as for_rival using (subject, layer, neuron)
    where subject = $subject and operator = $operator and op1 = $op1 and op2 = $op2
        and layer >= $first and for_answer.number = $answer and for_rival.number = $rival
    order by abs(contribution) desc, layer, neuron
"""
NEIGHBOURS = """
    select op1, op2, result, predicted, correct, answer_probability
    from cells join predictions using (operator, op1, op2)
    where subject = $subject and operator = $operator
        and op1 between $op1 - $reach and $op1 + $reach
        and op2 between $op2 - $reach and $op2 + $reach
    order by op1, op2
"""
NO_HEURISTIC = "neurons without a heuristic that holds here"
REST = "rest: embeddings, attention, earlier layers"
REACH = 7  # cells around the prompt's
PARTS, LISTED = 12, 40  # heuristics and neurons that the page shows at most
KNOWN = {
    "layer": pl.Int16,
    "neuron": pl.Int32,
    "heuristic": pl.String,
    "chance_corrected": pl.Float32,
    "holds": pl.Boolean,
}
UNKNOWN = pl.DataFrame(schema=KNOWN)  # heuristics of neurons, where none are known
INTRO = (
    "A cell is a prompt with an answer of one token. A neuron's contribution is its activation · "
    "its direct logit attribution: what the neuron adds to the answer's logit. A linear probe "
    "reads the answer after each late layer."
)
COUNTED = {
    "label": (
        "if it is a label: it passes the threshold and the false discovery rate, and is not "
        "redundant"
    ),
    "fdr": "if it passes the threshold and the false discovery rate",
    "threshold": "if its score passes the threshold, without a test against chance",
}
HOVER = (
    "op1 %{y}, op2 %{x}<br>answer %{customdata[0]}<br>prediction %{customdata[1]}<br>"
    "probability of the answer %{z:.3f}"
)


@dataclass(frozen=True)
class Cell:
    """A prompt of the grid and what the tables have about it.

    target: the number to predict, which is the result, or what a token of the result stands for.
    """

    subject: str
    operator: str
    op1: int
    op2: int
    result: int
    target: int
    predicted: int | None
    correct: bool | None
    probability: float | None

    def keys(self) -> dict[str, object]:
        """Return the values by which tables know the cell."""
        return {name: getattr(self, name) for name in ("subject", "operator", "op1", "op2")}


def load_cell(project: Project, subject: str, operator: str, op1: int, op2: int) -> Cell:
    """Return a cell. Raises ExplorerError if the model's grid does not have it."""
    project.need(subject, "predictions")
    rows = project.ask(CELL, subject=subject, operator=operator, op1=op1, op2=op2).rows()
    if not rows or rows[0][2] is None:
        allowed = (
            "operands and answer are whole numbers within its grid, and the answer has the token "
            "that is predicted"
        )
        prompt = f"{op1}{project.symbols[operator]}{op2}"
        raise ExplorerError(f"{prompt} is not a cell of {subject}: {allowed}.")
    result, predicted, correct, probability = rows[0]
    targets = project.targets(subject)
    target = result if targets is None else int(targets[result])
    return Cell(subject, operator, op1, op2, result, target, predicted, correct, probability)


def neighbours(project: Project, cell: Cell) -> pl.DataFrame:
    """Return the predictions for the cells around a cell."""
    return project.ask(NEIGHBOURS, **cell.keys(), reach=REACH)


def neuron_heuristics(project: Project, cell: Cell, criterion: str) -> pl.DataFrame:
    """Return the heuristics of neurons, and whether each holds for a cell.

    The columns are layer, neuron, heuristic, chance_corrected and holds.
    """
    project.need(cell.subject, "heuristic_neurons")
    keys = {"subject": cell.subject, "operator": cell.operator}
    rows = project.ask(NEURON_HEURISTICS, **keys, criterion=criterion)
    names = rows["heuristic"].unique(maintain_order=True).to_list()
    holds: list[bool] = []
    if names:
        known = listed(project.ask(CATALOGUE, operator=cell.operator), cell.operator, names)
        tests = ", ".join(f"({heuristic.predicate})::boolean" for heuristic in known)
        quantities = f"{cell.op1} as op1, {cell.op2} as op2, {cell.result} as result"
        values = f"select {quantities}, {cell.target} as asked"
        holds = project.ask(f"select [{tests}] from ({values})").item().to_list()
    schema = {"heuristic": pl.String, "holds": pl.Boolean}
    answers = pl.DataFrame({"heuristic": names, "holds": holds}, schema)
    return rows.join(answers, on="heuristic", how="left", maintain_order="left")


def first_layer(project: Project, subject: str) -> tuple[int, str]:
    """Return the first layer whose neurons are shown, and what a caption calls these neurons.

    It is the first late layer, or 0 if no late layers are known.
    """
    if not project.has("late_layers", subject):
        return 0, "neurons of all layers (late layers are unknown)"
    first = next(iter(project.ask(LATE, subject=subject)["first_layer"]), None)
    if first is None:
        return 0, "neurons of all layers (the model has no late layers)"
    return first, "late neurons"


def predictions(
    project: Project,
    subject: str,
    logits: np.ndarray,
    most: int = 8,
) -> pl.DataFrame:
    """Return the most likely tokens: number (null if it is none), token, logit, probability.

    logits: (vocabulary,).
    """
    numbers = project.ask(NUMBERS, subject=subject)
    probability = np.exp(logits - logits.max())
    probability /= probability.sum()
    first = np.argsort(-logits, kind="stable")[:most]
    columns = {"logit": logits[first], "probability": probability[first]}
    rows = pl.DataFrame({"token": first.astype(np.int32), **columns})
    joined = rows.join(numbers, on="token", how="left", maintain_order="left")
    return joined.select("number", "token", "logit", "probability")


def strongest_rival(
    project: Project,
    subject: str,
    logits: np.ndarray,
    answer: int,
) -> tuple[int, float]:
    """Return the most likely other number, and the lead of the answer's logit over its logit.

    logits: (vocabulary,).
    """
    numbers = project.ask(NUMBERS, subject=subject)
    known, of_numbers = numbers["number"].to_numpy(), logits[numbers["token"].to_numpy()]
    others = np.where(known == answer, -np.inf, of_numbers)
    rival = int(numbers["number"][int(others.argmax())])
    return rival, float(of_numbers[known == answer][0] - others.max())


def contributions(
    project: Project,
    cell: Cell,
    rival: int,
    prediction: "Prediction",
    heuristics: pl.DataFrame,
) -> pl.DataFrame:
    """Return what each neuron adds to the answer's lead over a rival, largest first.

    The neurons are those of late layers, or of all layers if no late layers are known.

    The columns are layer, neuron, activation, logit_difference, contribution and heuristic: the
    neuron's best heuristic that holds here, null without one. heuristics: see neuron_heuristics.
    """
    project.need(cell.subject, "value_logits")
    store, frames = project.value_logits(cell.subject), []
    first, _ = first_layer(project, cell.subject)
    for layer in range(first, len(prediction.neurons)):
        logits = store.read(layer, slice(None), slice(None)).astype(np.float64)
        columns = {
            "layer": layer,
            "neuron": np.arange(len(logits)),
            "activation": prediction.neurons[layer],
            "logit_difference": logits[:, cell.target] - logits[:, rival],
        }
        frames.append(pl.DataFrame(columns))
    rows = pl.concat(frames).cast({"layer": pl.Int16, "neuron": pl.Int32})
    product = pl.col("activation") * pl.col("logit_difference") * prediction.scale
    best = heuristics.filter("holds").unique(["layer", "neuron"], keep="first", maintain_order=True)
    joined = rows.with_columns(contribution=product).join(
        best.select("layer", "neuron", "heuristic"),
        on=["layer", "neuron"],
        how="left",
        maintain_order="left",
    )
    order = (pl.col("contribution").abs(), "layer", "neuron")
    return joined.sort(*order, descending=[True, False, False])


def summed(rows: pl.DataFrame, margin: float, most: int = PARTS) -> pl.DataFrame:
    """Return what adds up to the answer's lead: part, neurons, contribution.

    The parts are the heuristics that contribute most, the others together, and the rest. rows: see
    contributions; margin: the lead, in logits.
    """
    total = pl.col("contribution").sum()
    named = rows.drop_nulls("heuristic").group_by("heuristic").agg(neurons=pl.len(), total=total)
    named = named.sort(pl.col("total").abs(), "heuristic", descending=[True, False])
    named = named.select("neurons", part="heuristic", contribution="total")
    first, others = named.head(most), named.slice(most)
    without = rows.filter(pl.col("heuristic").is_null())
    rest = margin - float(rows["contribution"].to_numpy().sum())
    more: list[tuple] = [
        (NO_HEURISTIC, without.height, without["contribution"].sum()),
        (REST, None, rest),
    ]
    if others.height:
        name = f"{others.height} other heuristics"
        more.insert(0, (name, others["neurons"].sum(), others["contribution"].sum()))
    schema: Any = {"part": pl.String, "neurons": pl.UInt32, "contribution": pl.Float64}
    first = first.sort("contribution", "part", descending=[True, False]).select(*schema)
    return pl.concat([first.cast(schema), pl.DataFrame(more, schema, orient="row")])


def by_heuristic(heuristics: pl.DataFrame, rows: pl.DataFrame | None) -> pl.DataFrame:
    """Return every heuristic, whether it holds here, its neurons and their contribution.

    rows: see contributions; without them the neurons of all layers count.
    """
    holds = pl.col("holds").first()
    if rows is None:
        counts = heuristics.group_by("heuristic").agg(holds, neurons=pl.len())
        return counts.sort("holds", "neurons", "heuristic", descending=[True, True, False])
    keys = ["layer", "neuron"]
    late = heuristics.join(rows.select(*keys, "contribution"), on=keys)
    total = pl.col("contribution").sum()
    sums = late.group_by("heuristic").agg(holds, neurons=pl.len(), contribution=total)
    order = ("holds", pl.col("contribution").abs(), "heuristic")
    return sums.sort(*order, descending=[True, True, False])


def fields(explorer: Explorer, question: Question) -> list[Field]:
    """Return the model, the prompt, and when a neuron counts for a heuristic."""
    project, subject = explorer.project, question.subject(explorer.project)
    example = project.example(subject)
    return [
        Field("subject", "Model", subject, "choice", project.subjects),
        Field("prompt", "Prompt", question.get("prompt", example), hint=example),
        membership_field(question),
    ]


def membership_field(question: Question) -> Field:
    """Return the field that selects when a neuron counts for a heuristic."""
    value = question.choice("criterion", list(CRITERIA), "fdr")
    label = "A neuron counts for a heuristic"
    return Field("criterion", label, value, "choice", labelled(COUNTED))


def content(explorer: Explorer, question: Question) -> Part:
    """Return the explanation, as far as tables and the model are loaded."""
    project = explorer.project
    operator, op1, op2 = parse_prompt(question["prompt"], project.symbols)
    cell = load_cell(project, question["subject"], operator, op1, op2)
    heuristics, missing, rows = None, None, None
    try:
        heuristics = neuron_heuristics(project, cell, question["criterion"])
    except ExplorerError as error:
        missing = alert(str(error))
    explanation = [note("The model is being loaded. Rivals and contributions follow.")]
    try:
        live = explorer.models.ready(cell.subject)
        if live:
            known = UNKNOWN if heuristics is None else heuristics
            explanation, rows = _explanation(explorer, cell, known, live)
    except ExplorerError as error:
        explanation = [alert(str(error))]
    below = [_neighbours(project, cell)]
    if heuristics is not None:
        below.insert(0, _heuristics(cell, heuristics, rows, question["criterion"]))
    title = html.H1(_headline(cell, project.symbols[operator]))
    return html.Div([title, note(INTRO), missing, *explanation, html.Div(below, className="side")])


def _headline(cell: Cell, sign: str) -> list[Part]:
    prompt = f"{cell.op1} {sign} {cell.op2} = {cell.result}"
    if cell.target != cell.result:
        prompt += f", predicted token: {cell.target}"
    if cell.correct:
        return [f"{prompt}: {cell.subject} is right, with probability {cell.probability:.3f}"]
    instead = "no number" if cell.predicted is None else cell.predicted
    return [
        f"{prompt}: ",
        html.Span(f"{cell.subject} predicts {instead}", className="wrong"),
        f"; the answer has probability {cell.probability:.3g}",
    ]


def _explanation(
    explorer: Explorer,
    cell: Cell,
    heuristics: pl.DataFrame,
    live: "Live",
) -> tuple[list[Part], pl.DataFrame]:
    """Return what the model adds to the page, and the contributions of its neurons."""
    project = explorer.project
    with explorer.models.lock:
        prediction = live.predict(cell.operator, cell.op1, cell.op2)
    rival, margin = strongest_rival(project, cell.subject, prediction.logits, cell.target)
    rows = contributions(project, cell, rival, prediction, heuristics)
    drawn = _contributions(cell, rival, margin, rows)
    first, neurons = first_layer(project, cell.subject)
    values = {"first": first, "answer": cell.target, "rival": rival}
    query = sql(CONTRIBUTIONS, cell.keys() | values)
    scale = (
        f"The final norm multiplies each contribution by {prediction.scale:.3f} here. The query "
        "leaves that out."
    )
    caption = _contributions_caption(cell, rival, margin, f"{rows.height:,} {neurons}")
    below = [_answers(project, cell, prediction.logits), _neurons(project, cell, rows)]
    return [
        section(
            "What heuristics add to the answer",
            figure("contributions", drawn, caption, query, note(scale)),
        ),
        html.Div(below, className="side"),
    ], rows


def _contributions(cell: Cell, rival: int, margin: float, rows: pl.DataFrame) -> charts.Figure:
    parts = summed(rows, margin)
    names = []
    for name, neurons in parts.select("part", "neurons").iter_rows():
        names.append(f"{name} ({neurons})" if neurons else name)
    label = "logits for the answer against its rival"
    total = f"{cell.target} against {rival}"
    return charts.steps(names, parts["contribution"].to_list(), total, label)


def _contributions_caption(cell: Cell, rival: int, margin: float, neurons: str) -> str:
    return (
        f"Logits for {cell.target} (to the right of zero) or for its strongest rival {rival} (to "
        f"the left), part by part. They add up to {margin:+.2f}, the lead of the answer's logit "
        f"over the rival's. Each of the {neurons} counts once, for its best "
        "heuristic that holds here."
    )


def _answers(project: Project, cell: Cell, logits: np.ndarray) -> Part:
    is_answer = pl.col("number") == cell.target
    mark = pl.when(is_answer).then(pl.lit("the answer")).otherwise(pl.lit(""))
    rows = predictions(project, cell.subject, logits).with_columns(mark.alias("is"))
    caption = f"Predictions of {cell.subject}: the most likely tokens"
    return section("The answer and its rivals", table(rows, caption))


def _neurons(project: Project, cell: Cell, rows: pl.DataFrame) -> Part:
    """Return the neurons that contribute most, and a link that ablates the first of them."""
    columns = ("layer", "neuron", "heuristic", "activation", "logit_difference", "contribution")
    caption = (
        "The neurons with the largest contributions: activation · logit difference · scale, in "
        "logits"
    )
    links = to_neuron(cell.subject, cell.operator)
    prompt = f"{cell.op1}{project.symbols[cell.operator]}{cell.op2}"
    ablation = html.P(to_ablation(cell.subject, prompt, rows.head(5)))
    return section("Neurons", table(rows.head(LISTED).select(columns), caption, links), ablation)


def _heuristics(
    cell: Cell,
    heuristics: pl.DataFrame,
    rows: pl.DataFrame | None,
    criterion: str,
) -> Part:
    sums = by_heuristic(heuristics, rows)
    caption = f"{sums['holds'].sum()} of {sums.height} heuristics hold here"
    if rows is not None:
        caption += "; contribution: sum over the neurons of each, in logits"
    keys = {"subject": cell.subject, "operator": cell.operator, "criterion": criterion}
    shown = table(sums, f"{caption}.", most=60)
    return section("Every heuristic on this prompt", shown, sql(NEURON_HEURISTICS, keys))


def _neighbours(project: Project, cell: Cell) -> Part:
    around = neighbours(project, cell)
    wrong = around.filter(~pl.col("correct"))
    drawn, lowest = _neighbour_map(around)
    charts.marked(drawn, cell.op1, cell.op2)
    charts.crossed(drawn, wrong["op1"].to_list(), wrong["op2"].to_list())
    caption = (
        f"The cells around {cell.op1}, {cell.op2}: the answer's probability, from {lowest:.3g} "
        f"(light) to 1 (dark); × where {cell.subject} fails; grey is no cell. "
        f"{wrong.height} of {around.height} fail."
    )
    query = sql(NEIGHBOURS, cell.keys() | {"reach": REACH})
    below = None
    if wrong.height:
        links = to_prompt(cell.subject, project.symbols, cell.operator)
        below = table(wrong, "Cells that fail", links)
    drawn_with_query = figure("neighbours", drawn, caption, query, below)
    return section("Its neighbours in the grid", drawn_with_query)


def _neighbour_map(around: pl.DataFrame) -> tuple[charts.Figure, float]:
    """Return a map of the answer's probability, and the lowest probability."""
    op1, op2 = around["op1"].to_numpy(), around["op2"].to_numpy()
    corner = int(op1.min()), int(op2.min())
    place = op1 - corner[0], op2 - corner[1]
    shape = int(place[0].max()) + 1, int(place[1].max()) + 1
    values, facts = np.full(shape, np.nan), np.full((*shape, 2), np.nan)
    values[place] = around["answer_probability"].to_numpy()
    facts[place] = around.select("result", "predicted").to_numpy()
    drawn = charts.heat(values, facts, HOVER, corner=corner, size=420)
    return drawn, charts.sequential(drawn, values)
