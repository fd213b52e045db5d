"""A prompt explained: what the subject says, which neurons voted for it, and what each heuristic says of it.

A late neuron's vote is activation · (value logit of the answer - value logit of its strongest rival) · scale, in logits: value logits are
those of the table, and the scale is the final norm's on this prompt. Of a subject that is asked for one token of the answer, the answer is
the number that this token stands for. Votes, and the rest, which is everything else that writes into the stream (embeddings, attention,
earlier layers), add up to by how much the answer's logit is above the rival's.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from stages.explorer.project import ExplorerError, Project
from stages.lib.heuristics.members import listed

CELL = """
    select result, predicted, correct, answer_probability
    from cells left join predictions using (operator, op1, op2)
    where subject = $subject and operator = $operator and op1 = $op1 and op2 = $op2
"""
NUMBERS = "select number, token from numbers where subject = $subject order by number"
LATE = "select first_layer from late_layers where subject = $subject"
STANDING = """
    select layer, neuron, heuristic, corrected from heuristic_neurons
    where subject = $subject and operator = $operator and membership = $membership
    order by layer, neuron, corrected desc, heuristic
"""
CATALOGUE = "select operator, heuristic, kind, quantity, predicate from heuristics where operator = $operator"
VOTES = """
    select layer, neuron, activation, votes_for.logit - votes_against.logit as vote, activation * vote as voted
    from activations
    join value_logits as votes_for using (subject, layer, neuron)
    join value_logits as votes_against using (subject, layer, neuron)
    where subject = $subject and operator = $operator and op1 = $op1 and op2 = $op2 and layer >= $first
        and votes_for.number = $answer and votes_against.number = $rival
    order by abs(voted) desc, layer, neuron
"""
NEIGHBOURS = """
    select op1, op2, result, predicted, correct, answer_probability
    from cells join predictions using (operator, op1, op2)
    where subject = $subject and operator = $operator and op1 between $op1 - $reach and $op1 + $reach
        and op2 between $op2 - $reach and $op2 + $reach
    order by op1, op2
"""
NO_HEURISTIC = "late neurons without a heuristic that holds here"
REST = "rest: embeddings, attention, earlier layers"
REACH = 7  # cells around the prompt's


@dataclass(frozen=True)
class Cell:
    """A prompt of the grid and what the tables say of it. asked: the number asked for, the result or what a token of it stands for."""

    subject: str
    operator: str
    op1: int
    op2: int
    result: int
    asked: int
    predicted: int | None
    correct: bool | None
    probability: float | None

    def keys(self) -> dict[str, object]:
        return {"subject": self.subject, "operator": self.operator, "op1": self.op1, "op2": self.op2}


def cell(project: Project, subject: str, operator: str, op1: int, op2: int) -> Cell:
    """Raises ExplorerError where the grid has no such cell, or the subject was never asked."""
    project.need(subject, "predictions")
    rows = project.ask(CELL, subject=subject, operator=operator, op1=op1, op2=op2).rows()
    if not rows or rows[0][2] is None:
        sign = project.symbols[operator]
        raise ExplorerError(
            f"{op1}{sign}{op2} is no cell that {subject} was asked: operands and answer are whole numbers within its grid, the answer with "
            "the token that is asked for."
        )
    result, predicted, correct, probability = rows[0]
    numbers = project.asked(subject)
    asked = result if numbers is None else int(numbers[result])
    return Cell(subject, operator, op1, op2, result, asked, predicted, correct, probability)


def neighbours(project: Project, of: Cell) -> pl.DataFrame:
    """What is said around it in the grid."""
    return project.ask(NEIGHBOURS, **of.keys(), reach=REACH)


def holding(project: Project, of: Cell, membership: str) -> pl.DataFrame:
    """Neurons with the heuristics that they stand for and whether each holds of this cell: layer, neuron, heuristic, corrected, holds."""
    project.need(of.subject, "heuristic_neurons")
    rows = project.ask(STANDING, subject=of.subject, operator=of.operator, membership=membership)
    names = rows["heuristic"].unique(maintain_order=True).to_list()
    known = listed(project.ask(CATALOGUE, operator=of.operator), of.operator, names)
    tried = ", ".join(f"({heuristic.predicate})::boolean" for heuristic in known)
    here = f"select [{tried}] from (select {of.op1} as op1, {of.op2} as op2, {of.result} as result, {of.asked} as asked)"
    holds = project.ask(here).item().to_list() if names else []
    schema = {"heuristic": pl.String, "holds": pl.Boolean}
    return rows.join(pl.DataFrame({"heuristic": names, "holds": holds}, schema), on="heuristic", how="left", maintain_order="left")


def first_late(project: Project, subject: str) -> int:
    """The first layer that counts as late; 0, all of them, where that is not known."""
    if not project.has("late_layers", subject):
        return 0
    rows = project.ask(LATE, subject=subject).rows()
    return (rows[0][0] if rows else None) or 0


def spoken(project: Project, subject: str, logits: np.ndarray, most: int = 8) -> pl.DataFrame:
    """The likeliest answers: number (null where the token is none), token, logit, probability."""
    numbers = project.ask(NUMBERS, subject=subject)
    probability = np.exp(logits - logits.max())
    probability /= probability.sum()
    first = np.argsort(-logits, kind="stable")[:most]
    rows = pl.DataFrame({"token": first.astype(np.int32), "logit": logits[first], "probability": probability[first]})
    return rows.join(numbers, on="token", how="left", maintain_order="left").select("number", "token", "logit", "probability")


def rival(project: Project, subject: str, logits: np.ndarray, answer: int) -> tuple[int, float]:
    """The likeliest number but for the answer, and by how much the answer's logit is above its."""
    numbers = project.ask(NUMBERS, subject=subject)
    of = logits[numbers["token"].to_numpy()]
    others = np.where(numbers["number"].to_numpy() == answer, -np.inf, of)
    strongest = int(numbers["number"][int(others.argmax())])
    return strongest, float(of[numbers["number"].to_numpy() == answer][0] - others.max())


def votes(project: Project, of: Cell, against: int, neurons: list[np.ndarray], scale: float, standing: pl.DataFrame) -> pl.DataFrame:
    """Each late neuron's vote: layer, neuron, activation, vote, voted, heuristic (its best that holds here, null without), largest first.

    neurons: of each layer the activations (neurons,); standing: as of `holding`.
    """
    project.need(of.subject, "value_logits")
    store, frames = project.votes(of.subject), []
    for layer in range(first_late(project, of.subject), len(neurons)):
        logits = store.read(layer, slice(None), slice(None)).astype(np.float64)
        vote = logits[:, of.asked] - logits[:, against]
        frames.append(pl.DataFrame({"layer": layer, "neuron": np.arange(len(vote)), "activation": neurons[layer], "vote": vote}))
    best = standing.filter("holds").unique(["layer", "neuron"], keep="first", maintain_order=True).select("layer", "neuron", "heuristic")
    found = pl.concat(frames).with_columns(pl.col("layer").cast(pl.Int16), pl.col("neuron").cast(pl.Int32))
    found = found.with_columns(voted=pl.col("activation") * pl.col("vote") * scale)
    joined = found.join(best, on=["layer", "neuron"], how="left", maintain_order="left")
    return joined.sort(pl.col("voted").abs(), "layer", "neuron", descending=[True, False, False])


def parts(voted: pl.DataFrame, margin: float, most: int = 12) -> pl.DataFrame:
    """What adds up to the margin: part, neurons, voted. The heuristics that say most, the others together, and the rest."""
    named = voted.drop_nulls("heuristic").group_by("heuristic").agg(neurons=pl.len(), voted=pl.col("voted").sum())
    named = named.sort(pl.col("voted").abs(), "heuristic", descending=[True, False]).rename({"heuristic": "part"})
    first, others = named.head(most).sort("voted", "part", descending=[True, False]), named.slice(most)
    without = voted.filter(pl.col("heuristic").is_null())
    rest = margin - float(voted["voted"].to_numpy().sum())
    rows: list[tuple] = [(NO_HEURISTIC, without.height, without["voted"].sum()), (REST, None, rest)]
    if others.height:
        rows.insert(0, (f"{others.height} other heuristics", others["neurons"].sum(), others["voted"].sum()))
    schema = {"part": pl.String, "neurons": pl.UInt32, "voted": pl.Float64}
    return pl.concat([first.cast(schema), pl.DataFrame(rows, schema, orient="row")])  # type: ignore[arg-type]


def heuristics(standing: pl.DataFrame, voted: pl.DataFrame | None) -> pl.DataFrame:
    """What every heuristic says: heuristic, whether it holds here, its late neurons, and their votes for the answer, where known."""
    if voted is None:
        return (
            standing.group_by("heuristic")
            .agg(pl.col("holds").first(), neurons=pl.len())
            .sort("holds", "neurons", "heuristic", descending=[True, True, False])
        )
    late = standing.join(voted.select("layer", "neuron", "voted"), on=["layer", "neuron"])
    said = late.group_by("heuristic").agg(pl.col("holds").first(), neurons=pl.len(), voted=pl.col("voted").sum())
    return said.sort("holds", pl.col("voted").abs(), "heuristic", descending=[True, True, False])
