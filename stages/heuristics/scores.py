"""Scores every heuristic of the catalogue on every neuron, and keeps what is clearly better than chance.

Heuristics of the result are scored on activation · value logit of the cell's answer, all others on the activation alone.

Table scores: how well heuristics describe neurons
    subject    VARCHAR   the model
    operator   VARCHAR   add, subtract, multiply or divide
    layer      SMALLINT  decoder layer, from 0
    neuron     INTEGER   neuron of the layer's MLP, from 0
    heuristic  VARCHAR   as in heuristics, or a set of results found on this neuron's own map
    kind       VARCHAR   as in heuristics, or multi-result
    quantity   VARCHAR   as in heuristics
    side       VARCHAR   top or bottom: whether the map's largest or smallest values were taken
    score      FLOAT     share of the map's k first (or last) cells that satisfy the heuristic, k being how many cells do
    share      FLOAT     of all cells that satisfy it: the score of chance
    corrected  FLOAT     (score - share) / (1 - share): 0 is chance, 1 is perfect
    strength   FLOAT     mean of the map over the heuristic's cells, in root mean squares of the map; 0 where the map is 0
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

from stages.heuristics.settings import Scores
from stages.heuristics.squares import Squares
from stages.lib import heuristics
from stages.lib.core.digest import digest
from stages.lib.core.settings import load
from stages.lib.heuristics.answer_sets import find
from stages.lib.heuristics.scores import scores, strengths
from stages.lib.heuristics.square import Group, Square
from stages.lib.subject import Subject
from stages.lib.units.parts import Parts
from stages.lib.units.pool import Report, silent
from stages.lib.units.work import carry_out

SCHEMA = {
    "subject": pl.String, "operator": pl.String, "layer": pl.Int16, "neuron": pl.Int32, "heuristic": pl.String, "kind": pl.String,
    "quantity": pl.String, "side": pl.String, "score": pl.Float32, "share": pl.Float32, "corrected": pl.Float32, "strength": pl.Float32,
}  # fmt: skip


class ScoresWork:
    """The scores of one subject's neurons."""

    counts, few = "neuron", 200

    def __init__(self, name: str):
        self.subject, self.settings = Subject.named(name), load(Scores)
        self.squares = Squares(self.subject, self.settings.neurons_per_unit, self.settings.least_cells)
        self.units, self.title = self.squares.units, f"scores {name}"
        key = digest([Path(__file__), heuristics, *self.squares.inputs], self.settings)
        self.parts = Parts(self.subject.path("heuristics/scores.parquet"), key)

    def missing(self) -> list[int]:
        return self.parts.missing(len(self.units))

    def do(self, number: int, report: Report = silent) -> None:
        square, layer, neurons = self.squares.of(number)
        frames = [pl.DataFrame(schema=SCHEMA)]
        for neuron, activations, logits in neurons:
            found = _neuron(square, activations.ravel()[square.cells], logits[square.results], self.settings)
            keys = {"subject": self.subject.name, "operator": square.operator, "layer": layer, "neuron": neuron}
            frames.append(pl.concat(found).select(*(pl.lit(value, SCHEMA[key]).alias(key) for key, value in keys.items()), pl.all()))
            report(1)
        self.parts.write(number, pl.concat(frames).sort("neuron", "heuristic", "side"))

    def finish(self) -> None:
        self.parts.finish(self.squares.layers(), pl.DataFrame(schema=SCHEMA))


def _neuron(square: Square, activations: np.ndarray, logits: np.ndarray, settings: Scores) -> list[pl.DataFrame]:
    """One neuron's rows; activations and value logits of the answers (cells,)."""
    contributions = activations * logits
    frames = [_group(square.operands, activations), _group(square.answers, contributions)]
    if square.operator in settings.answer_sets.operators and (found := find(contributions, square.results, settings.answer_sets)):
        texts = {"heuristic": found.name, "kind": "multi-result", "quantity": "result", "side": "top"}
        row = texts | {"score": found.score, "share": found.share, "strength": found.strength}
        frames.append(_rows({name: np.array([value]) for name, value in row.items()}))
    return [frame.filter(pl.col("corrected") >= settings.smallest_corrected) for frame in frames]


def _group(group: Group, values: np.ndarray) -> pl.DataFrame:
    """The rows of all heuristics that are scored on this map (cells,)."""
    once = {"heuristic": group.names, "kind": group.kinds, "quantity": group.quantities, "share": group.share}
    sides = np.repeat(np.array(["top", "bottom"], object), len(group.names))
    twice = {name: np.tile(column, 2) for name, column in (once | {"strength": strengths(values, group.sets)}).items()}
    return _rows(twice | {"side": sides, "score": scores(values, group.sets).ravel()})


def _rows(columns: dict[str, np.ndarray]) -> pl.DataFrame:
    score, share = (columns[name].astype(np.float64) for name in ("score", "share"))
    whole = columns | {"corrected": (score - share) / (1 - share)}
    names = [name for name in SCHEMA if name in whole]
    return pl.DataFrame({name: whole[name] for name in names}, schema={name: SCHEMA[name] for name in names}, strict=False)


def main(name: str) -> None:
    carry_out(ScoresWork, name)


if __name__ == "__main__":
    main(sys.argv[1])
