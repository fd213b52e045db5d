"""Scores heuristics again with the operands relabelled at random: what of a neuron's scores is due to the numbers.

null/relabelled.py defines the null, null/p_values.py when a neuron gets no more draws, and
null/rounds.py how many draws a round has. The first round tests every neuron. Each further round
tests the undecided ones, until labels need no smaller p-values. Workers share the units
(stages/lib/units/work.py); an interrupted run resumes.

Table nulls: candidates, pairs of neuron and heuristic clearly above chance, against relabelled operands
    subject         VARCHAR   the model
    operator        VARCHAR   add, subtract, multiply or divide
    layer           SMALLINT  decoder layer, from 0
    neuron          INTEGER   neuron of the layer's MLP, from 0
    heuristic       VARCHAR   as in scores
    side            VARCHAR   top or bottom
    corrected       FLOAT     as in scores, but ties, and answers' contributions within .2 percent, count by chance
    null_corrected  FLOAT     its mean under relabelling, of the first 1000 draws at most
    null_deviation  FLOAT     its standard deviation, of the same draws
    z               FLOAT     by how much the true labels score more, in units of the heuristic's size (stages/heuristics/null/p_values.py)
    p_value         DOUBLE    share of draws, the true labels among them, that score at least as much on this heuristic
    p_family        DOUBLE    share of draws whose largest z over all heuristics and sides of the neuron reaches this z
    draws           INTEGER   relabellings that the neuron got in its last round; p-values are
                              at least 1 / (draws + 1)

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

import json
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl

from stages.heuristics import null
from stages.heuristics.null.p_values import GROUPS, MEASURES, Judged, judged, steps_to
from stages.heuristics.null.relabelled import permutations
from stages.heuristics.null.rounds import Standing, next_draws
from stages.heuristics.settings import Labels, Nulls, Scores
from stages.heuristics.squares import Squares
from stages.lib import heuristics
from stages.lib.core.digest import digest
from stages.lib.core.files import replacing
from stages.lib.core.settings import load
from stages.lib.heuristics.square import Square
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
    """One subject's neurons under relabelled operands, in rounds.

    a_round: units of a round; unit u of round r has the number r * a_round + u.
    """

    counts, few = "neuron", 20

    def __init__(self, name: str):
        self.subject, self.settings, self.level = (
            Subject.named(name),
            load(Nulls),
            load(Labels).level,
        )
        self.sets, least_cells = load(Scores).answer_sets, load(Scores).least_cells
        self.squares = Squares(self.subject, self.settings.neurons_per_unit, least_cells)
        self.units, self.title = [*self.squares.units], f"nulls {name}"
        self.a_round = len(self.units)
        key = digest(
            [Path(__file__), null, heuristics, *self.squares.inputs],
            self.settings,
            self.level,
            self.sets,
            least_cells,
        )
        self.parts = {table: Parts(self.subject.path(f"heuristics/{table}.parquet"), key) for table in SCHEMAS}
        self.candidates = self.parts["nulls"]
        self.labels = lru_cache(16)(permutations)

    def missing(self) -> list[int]:
        first = [part.missing(self.a_round) for part in self.parts.values()]
        return sorted({*chain(*first), *self.candidates.missing(len(self.units))})

    def do(self, number: int, report: Report = silent) -> None:
        """Judge a unit's neurons: all of them in the first round, later the undecided ones."""
        round_number, unit = divmod(number, self.a_round)
        if round_number:
            self._again(number, unit, round_number)
            return
        square, layer, neurons = self.squares.of(unit)
        judgements = {}
        for neuron, activations, logits in neurons:
            maps = activations, logits
            judgements[neuron] = self._judged(square, 0, self.settings.least_draws, *maps)
            report(1)
        for table, frame in tables(judgements, self._keys(square, layer), self.settings).items():
            self.parts[table].write(unit, frame)

    def finish(self) -> bool:
        """Plan another round, or put all parts together once no operator needs any."""
        before = len(self.units) - self.a_round
        if plan := self._plan(before):
            with replacing(self._plan_file(len(self.units))) as partial_file:
                partial_file.write_text(json.dumps(plan), encoding="utf-8")
            self.units += self.squares.units
            return True
        for table, part in self.parts.items():
            offset = before if table == "nulls" else 0
            groups = [[offset + unit for unit in units] for units in self.squares.layers()]
            part.finish(
                groups,
                pl.DataFrame(schema=SCHEMAS[table]),
                _added if table == "null_shares" else pl.concat,
            )
        return False

    def _again(self, number: int, unit: int, round_number: int) -> None:
        """Judge a unit's undecided neurons anew, by relabellings of this round alone."""
        frame = self.candidates.read(number - self.a_round)
        plan = json.loads(self._plan_file(number - unit).read_text(encoding="utf-8"))
        draws = plan.get(self.units[unit].group)
        again = undecided(frame, self.settings.exceedances)["neuron"].to_list() if draws else []
        if again:
            square, layer, neurons = self.squares.of(unit)
            judge = partial(self._judged, square, round_number, draws)
            judged_again = {n: judge(a, v) for n, a, v in neurons if n in again}
            anew = _candidates(judged_again, self._keys(square, layer))
            others = frame.filter(~pl.col("neuron").is_in(again))
            frame = pl.concat([others, anew]).sort("neuron", "heuristic", "side")
        self.candidates.write(number, frame)

    def _judged(
        self,
        square: Square,
        round_number: int,
        draws: int,
        activations: np.ndarray,
        logits: np.ndarray,
    ) -> Judged:
        numbers = steps_to(draws, self.settings.first_draws)
        steps = (self.labels(square, step, self.settings.seed, round_number) for step in numbers)
        return judged(square, activations, logits, steps, self.settings, self.sets)

    def _plan(self, before: int) -> dict[str, int]:
        """Return the draws of the next round by operator.

        before: number of the last round's first unit.
        """
        frames: dict[str, list[pl.DataFrame]] = {}
        tests: dict[str, int] = {}
        for number, unit in enumerate(self.squares.units):
            operator = str(unit.group)
            tests[operator] = tests.get(operator, 0) + unit.size
            last = self.candidates.read(before + number)
            frames.setdefault(operator, []).append(undecided(last, self.settings.exceedances))
        plan = {}
        for operator, parts in frames.items():
            frame = pl.concat(parts)
            standing = Standing(
                tests[operator],
                int(frame["draws"].to_numpy().max(initial=0)),
                frame["exceedances"].to_numpy(),
            )
            if draws := next_draws(standing, self.settings, self.level):
                plan[operator] = draws
        return plan

    def _plan_file(self, number: int) -> Path:
        """Where the plan of a round is kept; number: that of its first unit."""
        return self.candidates.beside(number, ".json")

    def _keys(self, square: Square, layer: int) -> dict[str, str | int]:
        return {"subject": self.subject.name, "operator": square.operator, "layer": layer}


def undecided(candidates: pl.DataFrame, exceedances: int) -> pl.DataFrame:
    """Return the neurons whose best score fewer relabellings reach: neuron, draws, exceedances.

    candidates: rows of the table nulls, of one layer.
    """
    reached = (pl.col("p_family") * (pl.col("draws") + 1)).round().cast(pl.Int64) - 1
    neurons = candidates.group_by("neuron", maintain_order=True)
    best = neurons.agg(pl.col("draws").first(), exceedances=reached.min())
    return best.filter(pl.col("exceedances") < exceedances)


def _added(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Counts of neurons of several parts of a layer, whose rows are the same, as those of the whole."""
    return frames[0].with_columns(neurons=pl.sum_horizontal(frame["neurons"] for frame in frames))


def tables(of: dict[int, Judged], keys: dict[str, str | int], settings: Nulls) -> dict[str, pl.DataFrame]:
    """The rows of some neurons of one layer, by table. of: neuron -> what was found; keys: subject, operator and layer."""
    bests = np.array([found.bests for found in of.values()])  # (neurons, draws, groups, measures)
    counts = [
        {
            "draw": draw,
            "quantities": group,
            "measure": measure,
            "threshold": threshold,
            "neurons": int(reached),
        }
        for g, group in enumerate(GROUPS)
        for m, measure in enumerate(MEASURES)
        for threshold in settings.thresholds
        for draw, reached in enumerate((bests[:, :, g, m] >= np.float32(threshold)).sum(0))
    ]
    correlations, p_values = zip(*(found.naming for found in of.values()), strict=True)
    naming = {"neuron": list(of), "correlation": list(correlations), "p_value": list(p_values)}
    return {
        "nulls": _candidates(of, keys),
        "null_shares": _frame("null_shares", keys, {name: [row[name] for row in counts] for name in counts[0]}),
        "naming": _frame("naming", keys, naming),
    }


def _candidates(judgements: dict[int, Judged], keys: Mapping[str, str | int]) -> pl.DataFrame:
    """The rows of the table nulls of some neurons of one layer."""
    frames = [pl.DataFrame(schema=SCHEMAS["nulls"])]
    for neuron, judgement in judgements.items():
        frames.append(_frame("nulls", {**keys, "neuron": neuron}, judgement.candidates))
    return pl.concat(frames).sort("neuron", "heuristic", "side")


def _frame(table: str, keys: Mapping[str, str | int], columns: Mapping[str, Sequence | np.ndarray]) -> pl.DataFrame:
    schema = SCHEMAS[table]
    frame = pl.DataFrame(columns, schema={name: schema[name] for name in columns}, strict=False)
    return frame.select((pl.lit(keys[name]) if name in keys else pl.col(name)).cast(kind).alias(name) for name, kind in schema.items())


def main(name: str) -> None:
    carry_out(NullsWork, name)


if __name__ == "__main__":
    main(sys.argv[1])
