"""Scores heuristics again with the operands relabelled at random: what of a neuron's scores is due to the numbers.

null/relabelled.py says what the null is. Every neuron gets the draws of the first look; more only a neuron with a candidate whose best
score the draws before seldom reach. P-values smaller than every `hopeless` share stay valid: to stop can only keep a neuron from having
one. Workers share what is to be done (stages/lib/units/work.py); stopped half-way, it goes on behind what is finished.

Table nulls: candidates, pairs of neuron and heuristic clearly above chance, against relabelled operands
    subject         VARCHAR   the model
    operator        VARCHAR   add, subtract, multiply or divide
    layer           SMALLINT  decoder layer, from 0
    neuron          INTEGER   neuron of the layer's MLP, from 0
    heuristic       VARCHAR   as in scores
    side            VARCHAR   top or bottom
    corrected       FLOAT     as in scores, but ties, and answers' contributions within .2 percent, count by chance
    null_corrected  FLOAT     its mean under relabelling
    null_deviation  FLOAT     its standard deviation
    z               FLOAT     by how much the true labels score more, in units of the heuristic's size (stages/heuristics/null/p_values.py)
    p_value         DOUBLE    share of draws, the true labels among them, that score at least as much on this heuristic
    p_family        DOUBLE    share of draws whose largest z over all heuristics and sides of the neuron reaches this z
    draws           INTEGER   relabellings that the neuron got

Table null_shares: how many neurons reach a score with any heuristic, under each of the first draws
    subject     VARCHAR   the model
    operator    VARCHAR   add, subtract, multiply or divide
    layer       SMALLINT  decoder layer, from 0
    draw        INTEGER   number of the relabelling; 0 is the true labels
    quantities  VARCHAR   operands, result or any: whose heuristics
    measure     VARCHAR   raw (score) or corrected
    threshold   DOUBLE    the score
    neurons     INTEGER   neurons that reach it

Table naming: does a neuron fire where it names the answer?
    subject      VARCHAR   the model
    operator     VARCHAR   add, subtract, multiply or divide
    layer        SMALLINT  decoder layer, from 0
    neuron       INTEGER   neuron of the layer's MLP, from 0
    correlation  FLOAT     of activation and value logit of the cell's answer, over cells
    p_value      DOUBLE    share of draws, the true labels among them, whose correlation is at least as large
"""

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl

from stages.heuristics import null
from stages.heuristics.null.p_values import GROUPS, MEASURES, Judged, judged
from stages.heuristics.null.relabelled import permutations
from stages.heuristics.settings import Nulls, Scores
from stages.heuristics.squares import Squares
from stages.lib import heuristics
from stages.lib.core.digest import digest
from stages.lib.core.settings import load
from stages.lib.subject import Subject
from stages.lib.units.parts import Parts
from stages.lib.units.pool import Report, silent
from stages.lib.units.work import carry_out

SCHEMAS = {
    "nulls": {
        "subject": pl.String, "operator": pl.String, "layer": pl.Int16, "neuron": pl.Int32, "heuristic": pl.String, "side": pl.String,
        "corrected": pl.Float32, "null_corrected": pl.Float32, "null_deviation": pl.Float32, "z": pl.Float32, "p_value": pl.Float64,
        "p_family": pl.Float64, "draws": pl.Int32,
    },
    "null_shares": {
        "subject": pl.String, "operator": pl.String, "layer": pl.Int16, "draw": pl.Int32, "quantities": pl.String, "measure": pl.String,
        "threshold": pl.Float64, "neurons": pl.Int32,
    },
    "naming": {
        "subject": pl.String, "operator": pl.String, "layer": pl.Int16, "neuron": pl.Int32, "correlation": pl.Float32,
        "p_value": pl.Float64,
    },
}  # fmt: skip


class NullsWork:
    """One subject's neurons under relabelled operands."""

    counts, few = "neuron", 20

    def __init__(self, name: str):
        self.subject, self.settings, self.sets = Subject.named(name), load(Nulls), load(Scores).answer_sets
        self.squares = Squares(self.subject, self.settings.neurons_per_unit)
        self.units, self.title = self.squares.units, f"nulls {name}"
        key = digest([Path(__file__), null, heuristics, *self.squares.inputs], self.settings, self.sets)
        self.parts = {table: Parts(self.subject.path(f"heuristics/{table}.parquet"), key) for table in SCHEMAS}
        self.labels = lru_cache(1)(lambda square: permutations(square, self.settings.draws[square.operator], self.settings.seed))

    def missing(self) -> list[int]:
        return sorted({number for part in self.parts.values() for number in part.missing(len(self.units))})

    def do(self, number: int, report: Report = silent) -> None:
        square, layer, neurons = self.squares.of(number)
        labels, judgements = self.labels(square), {}
        for neuron, activations, logits in neurons:
            maps = square, activations, logits
            judgements[neuron] = judged(*maps, labels, self.settings, self.sets)
            report(1)
        keys: dict[str, str | int] = {"subject": self.subject.name, "operator": square.operator, "layer": layer}
        for table, frame in tables(judgements, keys, self.settings).items():
            self.parts[table].write(number, frame)

    def finish(self) -> None:
        for table, part in self.parts.items():
            part.finish(self.squares.layers(), pl.DataFrame(schema=SCHEMAS[table]), _added if table == "null_shares" else pl.concat)


def _added(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Counts of neurons of several parts of a layer, whose rows are the same, as those of the whole."""
    return frames[0].with_columns(neurons=pl.sum_horizontal(frame["neurons"] for frame in frames))


def tables(of: dict[int, Judged], keys: dict[str, str | int], settings: Nulls) -> dict[str, pl.DataFrame]:
    """The rows of some neurons of one layer, by table. of: neuron -> what was found; keys: subject, operator and layer."""
    candidates = [pl.DataFrame(schema=SCHEMAS["nulls"])]
    for neuron, found in of.items():
        candidates.append(_frame("nulls", {**keys, "neuron": neuron}, found.candidates))
    bests = np.array([found.bests for found in of.values()])  # (neurons, draws, groups, measures)
    counts = [
        {"draw": draw, "quantities": group, "measure": measure, "threshold": threshold, "neurons": int(reached)}
        for g, group in enumerate(GROUPS)
        for m, measure in enumerate(MEASURES)
        for threshold in settings.thresholds
        for draw, reached in enumerate((bests[:, :, g, m] >= np.float32(threshold)).sum(0))
    ]
    correlations, p_values = zip(*(found.naming for found in of.values()), strict=True)
    naming = {"neuron": list(of), "correlation": list(correlations), "p_value": list(p_values)}
    return {
        "nulls": pl.concat(candidates).sort("neuron", "heuristic", "side"),
        "null_shares": _frame("null_shares", keys, {name: [row[name] for row in counts] for name in counts[0]}),
        "naming": _frame("naming", keys, naming),
    }


def _frame(table: str, keys: Mapping[str, str | int], columns: Mapping[str, Sequence | np.ndarray]) -> pl.DataFrame:
    schema = SCHEMAS[table]
    frame = pl.DataFrame(columns, schema={name: schema[name] for name in columns}, strict=False)
    return frame.select((pl.lit(keys[name]) if name in keys else pl.col(name)).cast(kind).alias(name) for name, kind in schema.items())


def main(name: str) -> None:
    carry_out(NullsWork, name)


if __name__ == "__main__":
    main(sys.argv[1])
