"""Add up what each cell's heuristics contribute to its answer (Sec. 4.3, Fig. 9).

It should be less where the subject fails.
Reads data/corpus/cells.parquet, data/heuristics/heuristics.parquet, the subject's predictions.parquet and heuristic_neurons.parquet,
and its stores; writes data/<subject>/bag/failures.parquet. A neuron of the late layers is associated with a cell that satisfies one
or more of the neuron's heuristics, and counts once. Every cell that the subject was asked has its rows, also where no neuron counts.

Table failures: how many heuristic neurons each cell has, and what they add to its answer
    subject                  VARCHAR   the model
    operator                 VARCHAR   add, subtract, multiply or divide
    op1                      INTEGER   first operand
    op2                      INTEGER   second operand
    membership               VARCHAR   called or scored, as in heuristic_neurons: which neurons stand for which heuristics
    correct                  BOOLEAN   as in predictions
    associated_neurons       INTEGER   late neurons of which the cell satisfies a heuristic
    answer_contribution      FLOAT     sum over them of activation · value logit of the answer; 0 where there are none
    prediction_contribution  FLOAT     the same neurons' sum for what the subject says instead; null where that is no number
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

from stages.bag.settings import Failures
from stages.lib.core import progress
from stages.lib.core.layered import LayerStore, widen
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.core.words import OVERLAPPING_MEMBERSHIPS as MEMBERSHIPS
from stages.lib.heuristics import asked
from stages.lib.heuristics.members import listed, members
from stages.lib.sql.database import Database
from stages.lib.subject import Subject

KEYS = ["operator", "op1", "op2", "membership"]
CELLS = """
    select op1, op2, correct, predicted, if(correct is null, null, result) as answer
    from cells left join predictions using (operator, op1, op2) where operator = $operator order by op1, op2
"""
NEURONS = """
    select layer, neuron, list(heuristic order by heuristic) filter (membership = 'called') as called,
        list(heuristic order by heuristic) filter (membership = 'scored') as scored
    from heuristic_neurons where operator = $operator and late and membership in ('called', 'scored')
    group by layer, neuron order by layer, neuron
"""


def main(name: str) -> None:
    subject, settings = Subject.named(name), load(Failures)
    catalogue = read_table("data/heuristics/heuristics.parquet")
    own = map(subject.path, ("store/predictions.parquet", "heuristics/heuristic_neurons.parquet"))
    paths = [Path("data/corpus/cells.parquet"), *own]
    database = Database({path.stem: [path] for path in paths}, threads=1)
    votes = subject.votes()
    frames = [
        OperatorBag(database, catalogue, activations, votes).rows(settings.neurons_at_once, f"failures {name}")
        for activations in subject.squares()
    ]
    write_table(pl.concat(frames).select(pl.lit(name).alias("subject"), pl.all()).sort(KEYS), subject.path("bag/failures.parquet"))


class Sums:
    """What is added up for each cell over the neurons that it is associated with, in float64 and one neuron after the other."""

    def __init__(self, cells: int):
        self.neurons, self.answer, self.prediction = np.zeros(cells, np.int32), np.zeros(cells), np.zeros(cells)

    def add(self, associated: np.ndarray, answer: np.ndarray, prediction: np.ndarray) -> None:
        """One neuron: which cells it is about, and what it adds to the answer of each and to what is said there (cells,)."""
        self.neurons += associated
        self.answer += associated * answer  # faster than to add where it is
        self.prediction += associated * prediction


class OperatorBag:
    """One operator's cells, in order of op1, then op2, and the late neurons that stand for heuristics.

    Cells that the subject was not asked, having no token for the answer, are summed like the others and have no row.
    """

    def __init__(self, database: Database, catalogue: pl.DataFrame, activations: LayerStore, votes: LayerStore):
        self.database, self.catalogue, self.activations, self.votes = database, catalogue, activations, votes
        self.operator: str = activations.attributes["operator"]
        self.cells = database.sql(CELLS, operator=self.operator).pl()
        op1, op2, self.answers, self.said = self.cells.select("op1", "op2", "answer", "predicted").fill_null(0).to_numpy().astype(np.intp).T
        ends = activations.axes["op1"] - 1, activations.axes["op2"] - 1
        self.places = np.minimum(op1, ends[0]) * activations.axes["op2"] + np.minimum(op2, ends[1])  # in the square of prompts
        self.asked, self.voted = asked.numbers(activations), asked.voted(activations, self.answers)
        self.neurons = database.sql(NEURONS, operator=self.operator).pl()

    def rows(self, neurons_at_once: int, title: str) -> pl.DataFrame:
        """The operator's rows; so many maps in memory."""
        sums = {membership: Sums(len(self.cells)) for membership in MEMBERSHIPS}
        with progress.bar(total=len(self.neurons), desc=f"{title} {self.operator}", unit="neuron") as bar:
            blocks = self.neurons.with_columns(block=pl.col("neuron") // neurons_at_once)
            for (layer, block), some in blocks.group_by("layer", "block", maintain_order=True):
                self._add(layer, slice(block * neurons_at_once, (block + 1) * neurons_at_once), some, sums)
                bar.update(len(some))
        return pl.concat([self._frame(membership, of) for membership, of in sums.items()])

    def _add(self, layer: int, block: slice, neurons: pl.DataFrame, sums: dict[str, Sums]) -> None:
        """Adds the neurons of one block, each to every membership by which it has heuristics."""
        names = sorted(set(neurons["scored"].explode()))  # what is called is scored too
        row = {name: number for number, name in enumerate(names)}
        satisfied = members(self.database, self.operator, listed(self.catalogue, self.operator, names), self.asked)
        maps = widen(self.activations.read(layer, block, slice(None)))
        maps = maps.reshape(len(maps), -1)
        logits = self.votes.read(layer, block, slice(None))
        for neuron, *of in neurons.select("neuron", *MEMBERSHIPS).iter_rows():
            values, votes = maps[neuron - block.start].take(self.places).astype(np.float64), logits[neuron - block.start]
            answer, prediction = values * votes[self.voted], values * votes[self.said]
            for membership, heuristics in zip(MEMBERSHIPS, of, strict=True):
                if heuristics:
                    associated = np.logical_or.reduce(satisfied[[row[name] for name in heuristics]])
                    sums[membership].add(associated, answer, prediction)

    def _frame(self, membership: str, sums: Sums) -> pl.DataFrame:
        says_number = pl.col("predicted").is_not_null()
        return self.cells.select(
            pl.lit(self.operator).alias("operator"), "op1", "op2", pl.lit(membership).alias("membership"), "correct",
            pl.Series("associated_neurons", sums.neurons),
            pl.Series("answer_contribution", sums.answer).cast(pl.Float32),
            pl.when(says_number).then(pl.Series(sums.prediction)).cast(pl.Float32).alias("prediction_contribution"),
        ).filter(pl.col("correct").is_not_null())  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
