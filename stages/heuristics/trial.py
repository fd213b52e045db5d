"""Score one predicate on a model's neurons, and compare the best scores with chance.

`bag try` (try_predicate.py) shows the result. Nothing is written. A score is the one that the stage
scores gives. Its null distribution is that of the stage permutation_tests, with fewer neurons:
only those that are shown are tested. All others count as tested, with a p-value of 1. So q-values
are valid, though the neurons shown were selected by their scores.
"""

import math
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import polars as pl

from stages.heuristics.null_distribution.p_values import KEPT, BestTally, steps_to
from stages.heuristics.null_distribution.relabelled import (
    Null,
    RelabelledNeuron,
    Relabellings,
    permutations,
)
from stages.heuristics.set_hits import (
    WeightedMaps,
    codes,
    count_on_activations,
    count_on_contributions,
    scaled,
)
from stages.heuristics.settings import PermutationTests
from stages.lib.core.hdf5_store import LayerStore
from stages.lib.core.vocabulary import QUANTITIES
from stages.lib.heuristics import answer_tokens
from stages.lib.heuristics.answer_sets import AnswerSets
from stages.lib.heuristics.grid import Group, Neuron, OperandGrid, answered
from stages.lib.heuristics.members import listed, members
from stages.lib.heuristics.names import Heuristic, is_name, parse
from stages.lib.heuristics.scores import members_of, scores
from stages.lib.sql.database import Database, DatabaseError, QueryError

CELLS = "select op1, op2, result from cells where operator = $operator order by op1, op2"
SIDES = ("top", "bottom")
OF_RESULT = ("result", "asked")  # quantities whose heuristics are scored on contributions
NO_SETS = AnswerSets(operators=[], results=2, first_cells=1, covers=1.0)  # none is searched for
# Multiple of the draws with which neurons that no draw reached yet can reach the level: some of
# them are there by chance.
MARGIN = 1.25
USUAL_DRAWS = 50_000  # some seconds, and enough for 2,000 neurons
PARTS = 8  # of a step of draws, which threads share


class TrialError(ValueError):
    """A predicate that cannot be scored: the value, what is allowed, and the fix."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A heuristic on the cells of one operator.

    grid: has no other heuristic; group: the heuristic, on the map on which it is scored.
    """

    heuristic: Heuristic
    grid: OperandGrid
    group: Group

    @property
    def of_result(self) -> bool:
        """Return whether contributions are scored, activation times value logit of the answer."""
        return self.heuristic.quantity in OF_RESULT

    @property
    def members(self) -> np.ndarray:
        """Return which cells satisfy the heuristic: (cells,) bool."""
        sets, own = self.group.sets, members_of(self.group.sets, 0)
        values: Iterable[np.ndarray] = [*sets.values, np.arange(len(self.grid.cells))]
        return np.isin(list(values)[sets.quantity[0]], own)

    def map(self, activations: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Return the values (cells,) that are scored.

        activations: (op1, op2) of the operand grid; logits: (results,) value logits.
        """
        values = activations.ravel()[self.grid.cells]
        return values * logits[self.grid.results] if self.of_result else values


def heuristic_of(
    database: Database, text: str, store: LayerStore, catalogue: pl.DataFrame
) -> Heuristic:
    """Return the heuristic that a text stands for: a heuristic's name or a SQL condition.

    A condition that the same cells satisfy as a heuristic of the catalogue is that heuristic. Any
    other is custom, as in the setting heuristics.custom. Raises TrialError if the text is neither.
    """
    operator = store.attributes["operator"]
    heuristic = parse(text) if is_name(text) else Heuristic(text, "custom", "custom", (), text)
    quantity = column_of(database, heuristic.predicate)
    if quantity == "asked":
        if answer_tokens.numbers(store) is None:
            problem = f"{text!r} is about the number that a token stands for"
            raise TrialError(f"{problem}, but this model predicts whole results; use result")
        return replace(heuristic, quantity="asked")
    _check_condition(database, heuristic.predicate, operator)
    twin = _twin(database, heuristic, operator, catalogue)
    if twin or heuristic.kind != "custom":
        return twin or heuristic
    # a heuristic of one operand is scored on the same map, and tested faster
    return replace(heuristic, quantity=quantity) if quantity in ("op1", "op2") else heuristic


def column_of(database: Database, predicate: str) -> str | None:
    """Return the only column that a predicate needs; None if it needs several, or others."""
    for quantity in (*QUANTITIES, "asked"):
        try:
            database.sql(f"select ({predicate}) from (select 1 as {quantity})")
        except (DatabaseError, QueryError):
            continue
        return quantity
    return None


def on_map(database: Database, heuristic: Heuristic, name: str | None) -> Heuristic:
    """Return the heuristic as one that is scored on a map: activation or contribution.

    name: None for the map on which the stage scores scores it. Raises TrialError if the heuristic
    has no such map.
    """
    if name is None or (name == "contribution") == (heuristic.quantity in OF_RESULT):
        return heuristic
    if heuristic.quantity == "asked":
        problem = f"{heuristic.name!r} is scored on contributions alone"
        raise TrialError(f"--map {name}: {problem}; use --map contribution")
    if name == "activation":
        return replace(heuristic, quantity="custom")
    if column_of(database, heuristic.predicate) != "result":
        problem = f"{heuristic.predicate!r} is not about result alone"
        raise TrialError(f"--map {name}: {problem}; use --map activation")
    return replace(heuristic, quantity="result")


def _check_condition(database: Database, predicate: str, operator: str) -> None:
    """Raise TrialError unless a predicate gives true or false for each cell, always the same."""
    query = f"select ({predicate}) as holds from ({CELLS})"
    try:
        relation = database.sql(query, operator=operator)
        types = ", ".join(map(str, relation.types))
        first, second = (database.sql(query, operator=operator).pl() for _ in range(2))
    except (DatabaseError, QueryError) as error:
        # the engine's further lines are about the query around the predicate
        raise _not_a_condition(predicate, str(error).splitlines()[0]) from None
    if types != "BOOLEAN":
        raise _not_a_condition(predicate, f"its type is {types}, not BOOLEAN")
    cells = database.sql(f"select count(*) from ({CELLS})", operator=operator).fetchall()[0][0]
    if len(first) != cells:
        raise _not_a_condition(predicate, f"it gives {len(first):,} values, not {cells:,}")
    if not first.equals(second):
        raise _not_a_condition(predicate, "it gives other cells each time")


def _not_a_condition(predicate: str, problem: str) -> TrialError:
    return TrialError(
        f"{predicate!r} must be a SQL condition on op1, op2 and result, such as "
        f"'op1 % 2 = 0 and op2 % 2 = 0', or a heuristic's name, such as 'op1 mod 2 = 0': {problem}"
    )


def _twin(
    database: Database, heuristic: Heuristic, operator: str, catalogue: pl.DataFrame
) -> Heuristic | None:
    """Return the catalogue's heuristic that the same cells satisfy, None if there is none.

    Of several, it is the one of this name, or the first.
    """
    [inside] = members(database, operator, [heuristic])
    alike = listed(catalogue.filter(cells=int(inside.sum())), operator)
    satisfied = members(database, operator, alike)
    twins = [alike[number] for number in np.flatnonzero((satisfied == inside).all(1))]
    return min(twins, key=lambda twin: twin.name != heuristic.name, default=None)


def prepared(
    database: Database, heuristic: Heuristic, store: LayerStore, least_cells: int
) -> Trial:
    """Return the trial of a heuristic on a store.

    Raises TrialError if fewer than `least_cells` cells satisfy the heuristic, or do not.
    """
    operator, numbers = store.attributes["operator"], answer_tokens.numbers(store)
    known = answered(database, operator, store.columns["result"])
    inside = members(database, operator, [heuristic], numbers)[0][known]
    size, cells = int(inside.sum()), len(inside)
    if not least_cells <= size <= cells - least_cells:
        raise TrialError(
            f"{heuristic.predicate!r} holds on {size:,} of the {cells:,} cells of {operator}; "
            f"allowed are {least_cells:,} to {cells - least_cells:,} (setting scores.least_cells): "
            "choose a predicate that more cells satisfy, or fewer"
        )
    row = vars(heuristic) | {"operator": operator, "heuristic": heuristic.name}
    columns = ["operator", "heuristic", "kind", "quantity", "predicate"]
    alone = pl.DataFrame({name: [row[name]] for name in columns})
    grid = OperandGrid(database, alone, store)
    grid.operands = _only(grid.operands, heuristic)
    grid.answers = _only(grid.answers, heuristic)
    group = grid.answers if heuristic.quantity in OF_RESULT else grid.operands
    return Trial(heuristic, grid, group)


def _only(group: Group, heuristic: Heuristic) -> Group:
    """Return a group with this heuristic alone, or with none.

    The grid of a model that predicts one token of several has heuristics of its own.
    """
    number = np.flatnonzero(group.names == heuristic.name)[:1]
    own = [members_of(group.sets, each) for each in number]
    sets = group.sets._replace(
        quantity=group.sets.quantity[number],
        k=group.sets.k[number],
        starts=np.cumsum([0, *map(len, own)]).astype(np.int32),
        members=np.concatenate([np.zeros(0, np.uint32), *own]),
    )
    names, kinds = group.names[number], group.kinds[number]
    return Group(names, kinds, group.quantities[number], group.share[number], sets)


def scored(
    trial: Trial,
    value_logits: LayerStore,
    layers: list[int],
    at_once: int,
    threads: Executor,
    report: Callable[[int], object],
) -> pl.DataFrame:
    """Return the scores of all neurons of some layers, best first: two rows for each neuron.

    at_once: neurons in memory; report: is called with the number of neurons just scored.
    """

    def both_sides(neuron: Neuron) -> np.ndarray:
        _, activations, logits = neuron
        return scores(trial.map(activations, logits), trial.group.sets)[:, 0]

    frames = []
    for layer in layers:
        for neurons in trial.grid.layer(layer, value_logits, at_once):
            values = np.concatenate(list(threads.map(both_sides, neurons)))
            numbers = np.repeat([neuron[0] for neuron in neurons], len(SIDES))
            columns = {"neuron": numbers, "side": [*SIDES] * len(neurons), "score": values}
            frames.append(pl.DataFrame(columns).with_columns(layer=layer))
            report(len(neurons))
    chance = float(trial.group.share[0])
    corrected = (pl.col("score").cast(pl.Float64) - chance) / (1 - chance)
    table = pl.concat(frames).select(
        pl.lit(trial.grid.operator).alias("operator"),
        pl.col("layer").cast(pl.Int16),
        pl.col("neuron").cast(pl.Int32),
        "side",
        "score",
        pl.lit(chance, pl.Float32).alias("chance_score"),
        corrected.cast(pl.Float32).alias("chance_corrected"),
    )
    order = ["chance_corrected", "layer", "neuron", "side"]
    return table.sort(order, descending=[True, False, False, True])  # top before bottom


@dataclass(frozen=True)
class Budget:
    """How many draws tests may have.

    neurons: for which q-values account; level: q-value to reach; draws: of all tests together, at
    most.
    """

    neurons: int
    level: float
    draws: int = USUAL_DRAWS

    def suffices(self, at_floor: int, draws: int) -> bool:
        """Return whether neurons that no draw reaches have a q-value of at most the level."""
        return self.level * at_floor * (draws + 1) >= self.neurons

    def needed(self, at_floor: int) -> int:
        """Return how many draws let this number of neurons reach the level (see rounds.py)."""
        return math.ceil(MARGIN * self.neurons / (self.level * at_floor))


class NeuronTest:
    """A permutation test of one neuron, whose draws come in steps (see p_values.judged)."""

    def __init__(self, trial: Trial, activations: np.ndarray, logits: np.ndarray):
        self.grid = trial.grid
        self.neuron = RelabelledNeuron(trial.grid, activations, logits, NO_SETS)
        self.forget()

    def forget(self) -> None:
        """Start anew, for a round with relabellings of its own."""
        self.null: Null | None = None
        self.tally: BestTally | None = None

    def add(self, corrected: np.ndarray) -> None:
        """Count more labellings, the first of all with the true labels.

        corrected: (draws, sides) chance-corrected scores.
        """
        more = Null(corrected[:, :, None], np.zeros(len(corrected)))
        if self.tally and self.tally.labellings + len(corrected) > KEPT + 1:
            self.tally.add(more)
            return
        self.null = self.null + more if self.null else more
        self.tally = BestTally(self.grid, self.null, -np.inf)

    @property
    def exceedances(self) -> float:
        """Return how many relabellings reach the neuron's better side."""
        return self.tally.exceedances if self.tally else 0

    def result(self, side: str) -> dict[str, float]:
        """Return what the draws tell about a side: columns of the table of `bag try`."""
        assert self.tally is not None
        assert self.null is not None
        number = SIDES.index(side)
        columns = self.tally.columns()
        relabelled = self.null.chance_corrected[1:, number, 0]
        return {
            "null_95": float(np.quantile(relabelled, 0.95)),
            "p_value": float(columns["p_family"][number]),
            "draws": int(columns["draws"][number]),
        }


def run_tests(
    trial: Trial,
    tests: list[NeuronTest],
    budget: Budget,
    settings: PermutationTests,
    threads: Executor,
) -> None:
    """Run the tests in rounds, until no further draws would label a neuron, or none are left.

    Each round has relabellings of its own. Their number follows from the rounds before.
    """
    draws, left = settings.least_draws, budget.draws
    undecided = _round(trial, tests, 0, draws, settings, threads)
    for number in count(1):
        at_floor = sum(test.exceedances == 0 for test in undecided)
        if not at_floor or budget.suffices(at_floor, draws):
            return
        planned = min(budget.needed(at_floor), settings.most_draws, left // len(undecided))
        if planned <= draws:
            return
        draws, left = planned, left - planned * len(undecided)
        undecided = _round(trial, undecided, number, draws, settings, threads)


def _round(
    trial: Trial,
    tests: list[NeuronTest],
    number: int,
    draws: int,
    settings: PermutationTests,
    threads: Executor,
) -> list[NeuronTest]:
    """Run tests until they are decided or have `draws` draws. Returns the undecided ones."""
    for test in tests:
        test.forget()
    undecided = tests
    for step in steps_to(draws, settings.first_draws):
        labels = permutations(trial.grid, step, settings.seed, number)
        corrected = _corrected(trial, undecided, labels, threads)
        for test, scores_of_neuron in zip(undecided, corrected, strict=True):
            test.add(scores_of_neuron)
        undecided = [test for test in undecided if test.exceedances < settings.exceedances]
        if not undecided:
            break
    return undecided


def _corrected(
    trial: Trial, tests: list[NeuronTest], labels: Relabellings, threads: Executor
) -> np.ndarray:
    """Return the chance-corrected scores under relabellings: (neurons, draws, sides) float32."""
    neurons, group = [test.neuron for test in tests], trial.group
    fill_hits = _contribution_hits if trial.of_result else _activation_hits
    hits = np.zeros((len(labels[0]), len(neurons), len(SIDES)))
    rows, columns, filled = (np.array_split(each, PARTS) for each in (*labels, hits))

    def fill(part: int) -> None:
        fill_hits(trial, neurons, (rows[part], columns[part]), filled[part])

    list(threads.map(fill, range(PARTS)))
    corrected = (hits / group.sets.k - group.share) / (1 - group.share)
    return corrected.astype(np.float32).transpose(1, 0, 2)


def _activation_hits(
    trial: Trial, neurons: list[RelabelledNeuron], labels: Relabellings, hits: np.ndarray
) -> None:
    held = codes(trial.grid.shape, trial.grid.cells, trial.members)
    count_on_activations(held, np.stack([neuron.order for neuron in neurons]), labels, hits)


def _contribution_hits(
    trial: Trial, neurons: list[RelabelledNeuron], labels: Relabellings, hits: np.ndarray
) -> None:
    weights = [scaled(each.activations, each.logits[trial.grid.results]) for each in neurons]
    maps = WeightedMaps(
        np.stack([neuron.activations for neuron in neurons]),
        np.stack(weights),
        trial.grid.stretches,
        trial.members,
    )
    count_on_contributions(maps, labels, hits)


def q_values(p_values: np.ndarray, neurons: int) -> np.ndarray:
    """Return false discovery rates (Benjamini and Hochberg), as the query matches does.

    p_values: (tested,); neurons: number of all neurons, of which those not tested have p = 1.
    """
    ordered = np.sort(p_values)
    labelled = np.searchsorted(ordered, ordered, side="right")
    rates = np.minimum(ordered * neurons / labelled, 1)
    smallest = np.minimum.accumulate(rates[::-1])[::-1]
    return smallest[np.searchsorted(ordered, p_values)]
