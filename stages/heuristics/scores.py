"""Score every heuristic of the catalogue on every neuron, and keep what is clearly above chance.

Heuristics of the result are scored on contributions, activation times value logit of the cell's
answer. All others are scored on activations.

Table scores: how well heuristics describe neurons
    subject           VARCHAR   the model
    operator          VARCHAR   add, subtract, multiply or divide
    layer             SMALLINT  decoder layer, from 0
    neuron            INTEGER   neuron of the layer's MLP, from 0
    heuristic         VARCHAR   name of a heuristic in the table heuristics, or of a set of results
                                found on this neuron's own map
    kind              VARCHAR   kind of the heuristic, as in the table heuristics, or multi-result,
                                or carry or borrow for models that predict one token of several
    quantity          VARCHAR   what the heuristic is about: op1, op2, result, both, custom, or
                                asked (the number that the predicted token stands for)
    side              VARCHAR   top or bottom: whether the map's largest or smallest values are
                                described
    score             FLOAT     share of the map's k largest (or smallest) cells that satisfy the
                                heuristic, 0 to 1, where k is the number of all cells that satisfy
                                it
    chance_score      FLOAT     share of all cells that satisfy the heuristic, 0 to 1: the score of
                                chance
    chance_corrected  FLOAT     chance-corrected score, (score - chance_score) / (1 - chance_score):
                                0 is chance, 1 is perfect
    strength          FLOAT     mean of the map over the heuristic's cells, in root mean squares of
                                the map; 0 if the map is 0
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

from stages.heuristics.grids import OperandGrids
from stages.heuristics.settings import Scores
from stages.lib import heuristics
from stages.lib.core.digest import digest
from stages.lib.core.settings import load
from stages.lib.heuristics.answer_sets import find
from stages.lib.heuristics.grid import Group, OperandGrid
from stages.lib.heuristics.scores import scores, strengths
from stages.lib.subject import Subject
from stages.lib.units.parts import Parts
from stages.lib.units.pool import Report, silent
from stages.lib.units.work import carry_out

SCHEMA = {
    "subject": pl.String,
    "operator": pl.String,
    "layer": pl.Int16,
    "neuron": pl.Int32,
    "heuristic": pl.String,
    "kind": pl.String,
    "quantity": pl.String,
    "side": pl.String,
    "score": pl.Float32,
    "chance_score": pl.Float32,
    "chance_corrected": pl.Float32,
    "strength": pl.Float32,
}
KEYS = ["subject", "operator", "layer", "neuron"]


class ScoresWork:
    """The scores of one model's neurons."""

    counts, few = "neuron", 200

    def __init__(self, name: str):
        self.subject, self.settings = Subject.named(name), load(Scores)
        per_unit, least_cells = self.settings.neurons_per_unit, self.settings.least_cells
        self.grids = OperandGrids(self.subject, per_unit, least_cells)
        self.units, self.title = self.grids.units, f"scores {name}"
        key = digest([Path(__file__), heuristics, *self.grids.inputs], self.settings)
        self.parts = Parts(self.subject.path("heuristics/scores.parquet"), key)

    def missing(self) -> list[int]:
        return self.parts.missing(len(self.units))

    def do(self, number: int, report: Report = silent) -> None:
        grid, layer, neurons = self.grids.read(number)
        frames = [pl.DataFrame(schema=SCHEMA)]
        for neuron, activations, logits in neurons:
            values, weights = activations.ravel()[grid.cells], logits[grid.results]
            rows = _neuron(grid, values, weights, self.settings)
            keys = zip(KEYS, (self.subject.name, grid.operator, layer, neuron), strict=True)
            rows = rows.with_columns(pl.lit(key, SCHEMA[name]).alias(name) for name, key in keys)
            frames.append(rows.select(list(SCHEMA)))
            report(1)
        self.parts.write(number, pl.concat(frames).sort("neuron", "heuristic", "side"))

    def finish(self) -> None:
        self.parts.finish(self.grids.layers(), pl.DataFrame(schema=SCHEMA))


def _neuron(
    grid: OperandGrid, activations: np.ndarray, logits: np.ndarray, settings: Scores
) -> pl.DataFrame:
    """Return one neuron's rows; activations, logits (of the cells' answers): (cells,)."""
    contributions = activations * logits
    frames = [_group(grid.operands, activations), _group(grid.answers, contributions)]
    if grid.operator in settings.answer_sets.operators:
        answer_set = find(contributions, grid.results, settings.answer_sets)
        if answer_set is not None:
            row = {
                "heuristic": answer_set.name,
                "kind": "multi-result",
                "quantity": "result",
                "side": "top",
                "score": answer_set.score,
                "chance_score": answer_set.share,
                "strength": answer_set.strength,
            }
            frames.append(_rows({name: np.array([value]) for name, value in row.items()}))
    return pl.concat(frames).filter(
        pl.col("chance_corrected") >= settings.smallest_chance_corrected
    )


def _group(group: Group, values: np.ndarray) -> pl.DataFrame:
    """Return the rows of all heuristics that are scored on this map (cells,), top before bottom."""
    columns = {
        "heuristic": group.names,
        "kind": group.kinds,
        "quantity": group.quantities,
        "chance_score": group.share,
        "strength": strengths(values, group.sets),
    }
    twice = {name: np.tile(column, 2) for name, column in columns.items()}
    sides = np.repeat(np.array(["top", "bottom"], object), len(group.names))
    return _rows(twice | {"side": sides, "score": scores(values, group.sets).ravel()})


def _rows(columns: dict[str, np.ndarray]) -> pl.DataFrame:
    """Add the chance-corrected score, and put the columns in order."""
    score, chance = (columns[name].astype(np.float64) for name in ("score", "chance_score"))
    whole = columns | {"chance_corrected": (score - chance) / (1 - chance)}
    schema = {name: kind for name, kind in SCHEMA.items() if name not in KEYS}
    return pl.DataFrame({name: whole[name] for name in schema}, schema=schema, strict=False)


def main(name: str) -> None:
    carry_out(ScoresWork, name)


if __name__ == "__main__":
    main(sys.argv[1])
