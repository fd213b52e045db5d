"""Fit the conditions that a table names for each neuron: its labels, or its discovered predicate.

Unlike the terms of atoms.py, conditions are not chosen here. A theory predicts a neuron's map as an
intercept and one coefficient for each of its conditions, by least squares on training cells, and a
neuron without a condition as its mean. In the control, the neurons of a layer that have conditions
exchange them at random, so that none keeps its own, and coefficients are fitted anew.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from stages.lib.core.hdf5_store import LayerStore
from stages.lib.heuristics import answer_tokens
from stages.lib.heuristics.members import listed
from stages.lib.sql.database import Database
from stages.theories import description

AT_ONCE = 500  # predicates in a query
RIDGE = 1e-9  # keeps the system solvable where conditions depend on each other
NEURON = ["layer", "neuron"]


@dataclass(frozen=True, eq=False)
class Conditions:
    """What a table says of the late neurons of one operator.

    rows: layer, neuron and predicate (in SQL), each once; choices: number of conditions from which
    a table chose, None if they cannot be listed; bits: layer -> mean bits of a neuron.
    """

    rows: pl.DataFrame
    choices: int | None
    bits: dict[int, float]

    @classmethod
    def labels(
        cls,
        table: pl.DataFrame,
        catalogue: pl.DataFrame,
        store: LayerStore,
        late: list[int],
        samples: int,
    ) -> "Conditions":
        """Return the labels of an operator's neurons.

        table: labels; store: the operator's activations; samples: number of training cells
        """
        operator, numbers = store.attributes["operator"], answer_tokens.numbers(store)
        known = listed(catalogue, operator)
        choices = len(known)
        if numbers is not None:
            choices += sum(1 for _ in answer_tokens.names(known, operator, int(numbers.max())))
        own = table.filter(pl.col("layer").is_in(late), operator=operator)
        names = own["heuristic"].unique().sort().to_list()
        predicates = [heuristic.predicate for heuristic in listed(catalogue, operator, names)]
        predicate = pl.col("heuristic").replace_strict(names, predicates, return_dtype=pl.String)
        rows = own.select(*NEURON, predicate=predicate).unique().sort(*NEURON, "predicate")
        bits = {}
        for layer in late:
            counts = rows.filter(layer=layer).group_by("neuron").len()["len"].to_list()
            counts += [0] * (store.axes["neuron"] - len(counts))
            lengths = [description.varying(choices, count, samples) for count in counts]
            bits[layer] = float(np.mean(lengths))
        return cls(rows, choices, bits)

    @classmethod
    def discovered(
        cls, table: pl.DataFrame, store: LayerStore, late: list[int], samples: int
    ) -> "Conditions":
        """Return the discovered predicates of an operator's neurons; arguments as for labels."""
        operator, neurons = store.attributes["operator"], store.axes["neuron"]
        own = table.filter("discovered", pl.col("layer").is_in(late), operator=operator)
        bits = {}
        for layer in late:
            lengths = own.filter(layer=layer)["bits"].cast(pl.Float64)
            coefficients = description.coefficients(lengths.len(), samples)
            bits[layer] = 1 + (float(lengths.sum()) + coefficients) / neurons
        return cls(own.select(*NEURON, "predicate").sort(NEURON), None, bits)

    def of_layer(
        self, layer: int, neurons: int, database: Database, cells: dict[str, np.ndarray], seed: int
    ) -> "LayerConditions":
        """Evaluate the conditions of a layer's neurons, and draw the exchange.

        cells: column of the predicates -> its value in each cell (cells,)
        """
        rows = self.rows.filter(layer=layer)
        predicates = rows["predicate"].unique().sort()
        numbers = dict(zip(predicates, range(len(predicates)), strict=True))
        lists = [list[int]() for _ in range(neurons)]
        for neuron, predicate in rows.select("neuron", "predicate").rows():
            lists[neuron].append(numbers[predicate])
        own = np.full((neurons, max(map(len, lists))), len(predicates))
        for row, conditions in zip(own, lists, strict=True):
            row[: len(conditions)] = conditions
        satisfied = evaluate(database, predicates.to_list(), cells)
        holds = np.concatenate([satisfied, np.zeros((1, satisfied.shape[1]), bool)])
        having = np.flatnonzero([len(conditions) > 0 for conditions in lists])
        circle = np.random.default_rng([seed, layer]).permutation(having)
        exchanged = np.full_like(own, len(predicates))
        if len(circle) > 1:
            exchanged[circle] = own[np.roll(circle, 1)]
        return LayerConditions(holds, own, exchanged)


@dataclass(frozen=True, eq=False)
class LayerConditions:
    """The conditions of one layer's neurons.

    holds: (conditions + 1, cells) bool, in which cells each holds; the last row stands for none;
    own, exchanged: (neurons, most) rows of `holds`, of the neuron itself and of another neuron.
    """

    holds: np.ndarray
    own: np.ndarray
    exchanged: np.ndarray

    def fit(self, conditions: np.ndarray, values: np.ndarray, training: int) -> np.ndarray:
        """Return predictions for the cells after the training cells, (neurons, cells).

        conditions: (neurons, most) rows of `holds`
        values: (neurons, cells) activations, of mean 0 over training cells
        """
        predicted = np.zeros((len(values), values.shape[1] - training))
        having = np.flatnonzero((conditions < len(self.holds) - 1).any(axis=1))
        terms = self.holds[conditions[having]].astype(np.float64)
        terms -= terms[:, :, :training].mean(axis=2, keepdims=True)
        trained = terms[:, :, :training]
        gram = trained @ trained.transpose(0, 2, 1)
        gram += RIDGE * training * np.eye(gram.shape[1])
        products = trained @ values[having, :training, None]
        sizes = np.linalg.solve(gram, products)
        predicted[having] = (sizes.transpose(0, 2, 1) @ terms[:, :, training:])[:, 0]
        return predicted


def evaluate(database: Database, predicates: list[str], cells: dict[str, np.ndarray]) -> np.ndarray:
    """Return in which cells predicates hold: (predicates, cells) bool, null counts as false.

    cells: column of the predicates -> its value in each cell (cells,)
    """
    numbers = {name: values.tolist() for name, values in cells.items()}
    count = len(numbers["op1"])
    columns = ", ".join(f"unnest(${name}::integer[]) as {name}" for name in cells)
    holds = np.zeros((len(predicates), count), bool)
    for first in range(0, len(predicates), AT_ONCE):
        part = predicates[first : first + AT_ONCE]
        wanted = ", ".join(f"({text})::boolean as _{n}" for n, text in enumerate(part))
        query = f"""
            select {wanted}
            from (select {columns}, unnest(range({count})) as place)
            order by place
        """
        table = database.sql(query, **numbers).pl().fill_null(False)
        holds[first : first + len(part)] = table.to_numpy().T
    return holds
