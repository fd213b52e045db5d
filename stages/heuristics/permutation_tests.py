"""Run permutation tests: score heuristics again with the operands relabelled at random.

null_distribution/relabelled.py defines the null distribution, p_values.py there decides when a
neuron gets no more draws, and rounds.py how many draws a round has. The first round tests every
neuron. Each further round tests the undecided ones, until labels need no smaller p-values. Workers
share the units (stages/lib/units/work.py); an interrupted run resumes.

Table permutation_tests: tests of candidates, pairs of neuron and heuristic clearly above chance
    subject           VARCHAR   the model
    operator          VARCHAR   add, subtract, multiply or divide
    layer             SMALLINT  decoder layer, from 0
    neuron            INTEGER   neuron of the layer's MLP, from 0
    heuristic         VARCHAR   name of the heuristic, as in the table scores
    side              VARCHAR   top or bottom: whether the map's largest or smallest values are
                                described
    chance_corrected  FLOAT     chance-corrected score, 0 is chance, 1 is perfect; ties count as
                                they would on average, and so do contributions within 0.2 percent
    null_mean         FLOAT     mean of the chance-corrected score under relabelling, over the first
                                1000 draws at most
    null_std          FLOAT     standard deviation of the chance-corrected score under relabelling,
                                over the same draws
    z                 FLOAT     chance_corrected minus null_mean, in units that depend on the number
                                of values and cells of the heuristic
                                (stages/heuristics/null_distribution/p_values.py)
    p_value           DOUBLE    share of draws, true labels included, that score at least as much on
                                this heuristic
    p_family          DOUBLE    share of draws, true labels included, whose largest z over all
                                heuristics and sides of the neuron reaches this z
    draws             INTEGER   relabellings of the neuron in its last round; p-values are at least
                                1 / (draws + 1)

Table null_shares: how many neurons reach a score with any heuristic, under each of the first draws
    subject     VARCHAR   the model
    operator    VARCHAR   add, subtract, multiply or divide
    layer       SMALLINT  decoder layer, from 0
    draw        INTEGER   number of the relabelling; 0 is the true labels
    quantities  VARCHAR   which heuristics count: operands (about op1, op2 or both), result, or any
    measure     VARCHAR   kind of score: raw, or chance_corrected (for chance)
    threshold   DOUBLE    score to reach, 0 to 1
    neurons     INTEGER   number of the layer's neurons that reach the threshold

Table naming: whether a neuron is active where its value vector promotes the answer
    subject      VARCHAR   the model
    operator     VARCHAR   add, subtract, multiply or divide
    layer        SMALLINT  decoder layer, from 0
    neuron       INTEGER   neuron of the layer's MLP, from 0
    correlation  FLOAT     correlation of activation and value logit of the cell's answer, over
                           cells, -1 to 1
    p_value      DOUBLE    share of draws, true labels included, whose correlation is at least as
                           large
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import polars as pl

from stages.heuristics import null_distribution
from stages.heuristics.grids import OperandGrids
from stages.heuristics.null_distribution.p_values import GROUPS, MEASURES, Judged, judged, steps_to
from stages.heuristics.null_distribution.relabelled import permutations
from stages.heuristics.null_distribution.rounds import Standing, next_draws
from stages.heuristics.settings import Labels, PermutationTests, Scores
from stages.lib import heuristics
from stages.lib.core.digest import digest
from stages.lib.core.files import replacing
from stages.lib.core.settings import load
from stages.lib.heuristics.grid import OperandGrid
from stages.lib.subject import Subject
from stages.lib.units.parts import Parts
from stages.lib.units.pool import Report, silent
from stages.lib.units.work import carry_out

KEYS = {"subject": pl.String, "operator": pl.String, "layer": pl.Int16}
SCHEMAS = {
    "permutation_tests": KEYS
    | {
        "neuron": pl.Int32,
        "heuristic": pl.String,
        "side": pl.String,
        "chance_corrected": pl.Float32,
        "null_mean": pl.Float32,
        "null_std": pl.Float32,
        "z": pl.Float32,
        "p_value": pl.Float64,
        "p_family": pl.Float64,
        "draws": pl.Int32,
    },
    "null_shares": KEYS
    | {
        "draw": pl.Int32,
        "quantities": pl.String,
        "measure": pl.String,
        "threshold": pl.Float64,
        "neurons": pl.Int32,
    },
    "naming": KEYS | {"neuron": pl.Int32, "correlation": pl.Float32, "p_value": pl.Float64},
}


class PermutationTestsWork:
    """The permutation tests of one model's neurons, in rounds.

    a_round: units of a round; unit u of round r has the number r * a_round + u.
    """

    counts, few = "neuron", 20

    def __init__(self, name: str):
        self.subject, self.settings = Subject.named(name), load(PermutationTests)
        self.level, self.sets = load(Labels).level, load(Scores).answer_sets
        least_cells = load(Scores).least_cells
        self.grids = OperandGrids(self.subject, self.settings.neurons_per_unit, least_cells)
        self.units = [*self.grids.units]
        self.a_round = len(self.units)
        self.title = f"permutation_tests {name}, round 1"  # nothing is known of later rounds yet
        key = digest(
            [Path(__file__), null_distribution, heuristics, *self.grids.inputs],
            self.settings,
            self.level,
            self.sets,
            least_cells,
        )
        self.parts = {}
        for table in SCHEMAS:
            self.parts[table] = Parts(self.subject.path(f"heuristics/{table}.parquet"), key)
        self.candidates = self.parts["permutation_tests"]
        self.labels = lru_cache(16)(permutations)

    def missing(self) -> list[int]:
        """Return the units that have no part yet; rounds after the first write candidates alone."""
        missing = {*self.candidates.missing(len(self.units))}
        for part in self.parts.values():
            missing.update(part.missing(self.a_round))
        return sorted(missing)

    def do(self, number: int, report: Report = silent) -> None:
        """Judge a unit's neurons: all of them in the first round, later the undecided ones."""
        round_number, unit = divmod(number, self.a_round)
        if round_number:
            self._again(number, unit, round_number, report)
            return
        grid, layer, neurons = self.grids.read(unit)
        judge = partial(self._judged, grid, 0, self.settings.least_draws)
        judgements = {}
        for neuron, activations, logits in neurons:
            judgements[neuron] = judge(activations, logits)
            report(1)
        frames = tables(judgements, self._keys(grid, layer), self.settings)
        for table, frame in frames.items():
            self.parts[table].write(unit, frame)

    def finish(self) -> bool:
        """Plan another round, or put all parts together once no operator needs any."""
        before = len(self.units) - self.a_round
        waiting = [
            undecided(self.candidates.read(before + unit), self.settings.exceedances)
            for unit in range(self.a_round)
        ]
        plan = self._plan(waiting)
        if plan:
            with replacing(self._plan_file(len(self.units))) as partial_file:
                partial_file.write_text(json.dumps(plan), encoding="utf-8")
            self._append_round(plan, waiting)
            return True
        first_round = self.grids.layers()
        last_round = [[before + unit for unit in units] for units in first_round]
        for table, part in self.parts.items():
            groups = last_round if table == "permutation_tests" else first_round
            put_together = _added if table == "null_shares" else pl.concat
            part.finish(groups, pl.DataFrame(schema=SCHEMAS[table]), put_together)
        return False

    def _append_round(self, plan: Mapping[str, int], waiting: Sequence[pl.DataFrame]) -> None:
        """Add the units of another round, whose progress counts relabellings, by themselves.

        Operators differ in their relabellings. plan: these by operator; waiting: the undecided
        neurons of each unit.
        """
        self.units = [replace(unit, size=0) for unit in self.units]
        for unit, neurons in zip(self.grids.units, waiting, strict=True):
            size = len(neurons) * plan.get(str(unit.group), 0)
            self.units.append(replace(unit, size=size))
        self.counts, self.few = "relabelling", 2_000
        current = len(self.units) // self.a_round
        self.title = f"permutation_tests {self.subject.name}, round {current}"

    def _again(self, number: int, unit: int, round_number: int, report: Report) -> None:
        """Judge a unit's undecided neurons anew, by relabellings of this round alone."""
        frame = self.candidates.read(number - self.a_round)
        plan = json.loads(self._plan_file(number - unit).read_text(encoding="utf-8"))
        draws = plan.get(self.units[unit].group)
        neurons = undecided(frame, self.settings.exceedances)["neuron"].to_list()
        if draws and neurons:
            grid, layer, stored = self.grids.read(unit)
            judge = partial(self._judged, grid, round_number, draws)
            judgements = {}
            for neuron, activations, logits in stored:
                if neuron in neurons:
                    judgements[neuron] = judge(activations, logits)
                    report(draws)
            anew = _candidates(judgements, self._keys(grid, layer))
            others = frame.filter(~pl.col("neuron").is_in(neurons))
            frame = pl.concat([others, anew]).sort("neuron", "heuristic", "side")
        self.candidates.write(number, frame)

    def _judged(
        self,
        grid: OperandGrid,
        round_number: int,
        draws: int,
        activations: np.ndarray,
        logits: np.ndarray,
    ) -> Judged:
        numbers = steps_to(draws, self.settings.first_draws)
        seed = self.settings.seed, round_number
        steps = (self.labels(grid, step, *seed) for step in numbers)
        return judged(grid, activations, logits, steps, self.settings, self.sets)

    def _plan(self, waiting: list[pl.DataFrame]) -> dict[str, int]:
        """Return the draws of the next round by operator.

        waiting: the undecided neurons of each unit of the last round.
        """
        frames: dict[str, list[pl.DataFrame]] = {}
        tests: dict[str, int] = {}
        for unit, neurons in zip(self.grids.units, waiting, strict=True):
            operator = str(unit.group)
            tests[operator] = tests.get(operator, 0) + unit.size
            frames.setdefault(operator, []).append(neurons)
        plan = {}
        for operator, parts in frames.items():
            frame = pl.concat(parts)
            draws = int(frame["draws"].to_numpy().max(initial=0))
            standing = Standing(tests[operator], draws, frame["exceedances"].to_numpy())
            draws_of_next = next_draws(standing, self.settings, self.level)
            if draws_of_next:
                plan[operator] = draws_of_next
        return plan

    def _plan_file(self, number: int) -> Path:
        """Return the file of a round's plan; number: that of the round's first unit."""
        return self.candidates.beside(number, ".json")

    def _keys(self, grid: OperandGrid, layer: int) -> dict[str, str | int]:
        return {"subject": self.subject.name, "operator": grid.operator, "layer": layer}


def undecided(candidates: pl.DataFrame, exceedances: int) -> pl.DataFrame:
    """Return the neurons whose best score fewer relabellings reach: neuron, draws, exceedances.

    candidates: rows of the table permutation_tests, of one layer.
    """
    reached = (pl.col("p_family") * (pl.col("draws") + 1)).round().cast(pl.Int64) - 1
    neurons = candidates.group_by("neuron", maintain_order=True)
    best = neurons.agg(pl.col("draws").first(), exceedances=reached.min())
    return best.filter(pl.col("exceedances") < exceedances)


def _added(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Add up the counts of neurons in parts of a layer; all other columns are the same."""
    neurons = pl.sum_horizontal(frame["neurons"] for frame in frames)
    return frames[0].with_columns(neurons=neurons)


def tables(
    judgements: dict[int, Judged], keys: dict[str, str | int], settings: PermutationTests
) -> dict[str, pl.DataFrame]:
    """Return the rows of some neurons of one layer, by table.

    judgements: neuron -> its judgement; keys: subject, operator and layer.
    """
    values = judgements.values()
    bests = np.array(
        [judgement.bests for judgement in values]
    )  # (neurons, draws, groups, measures)
    thresholds = np.array(settings.thresholds)
    reached = (bests[..., None] >= thresholds.astype(np.float32)).sum(0)
    reached = reached.transpose(1, 2, 3, 0)  # (groups, measures, thresholds, draws)
    group, measure, threshold, draw = np.indices(reached.shape).reshape(4, -1)
    shares = {
        "draw": draw,
        "quantities": np.array(GROUPS, object)[group],
        "measure": np.array(MEASURES, object)[measure],
        "threshold": thresholds[threshold],
        "neurons": reached.ravel(),
    }
    correlations, p_values = zip(*(judgement.naming for judgement in values), strict=True)
    naming = {"neuron": list(judgements), "correlation": correlations, "p_value": p_values}
    return {
        "permutation_tests": _candidates(judgements, keys),
        "null_shares": _frame("null_shares", keys, shares),
        "naming": _frame("naming", keys, naming),
    }


def _candidates(judgements: dict[int, Judged], keys: Mapping[str, str | int]) -> pl.DataFrame:
    """Return the rows of the table permutation_tests of some neurons of one layer."""
    frames = [pl.DataFrame(schema=SCHEMAS["permutation_tests"])]
    for neuron, judgement in judgements.items():
        frames.append(_frame("permutation_tests", {**keys, "neuron": neuron}, judgement.candidates))
    return pl.concat(frames).sort("neuron", "heuristic", "side")


def _frame(
    table: str, keys: Mapping[str, str | int], columns: Mapping[str, Sequence | np.ndarray]
) -> pl.DataFrame:
    """Return rows of a table; keys: columns that have the same value in all of them."""
    schema = SCHEMAS[table]
    own = {name: kind for name, kind in schema.items() if name in columns}
    frame = pl.DataFrame({name: columns[name] for name in own}, schema=own, strict=False)
    constants = {name: pl.lit(value) for name, value in keys.items()}
    whole = frame.with_columns(**constants).select(list(schema))
    return whole.cast(schema)  # type: ignore[arg-type]


def main(name: str) -> None:
    carry_out(PermutationTestsWork, name)


if __name__ == "__main__":
    main(sys.argv[1])
