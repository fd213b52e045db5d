"""Check labels with measured changes: scores by brute force, and verdicts on planted neurons."""

import numpy as np
import polars as pl

from stages.heuristics.label_rescores import SCHEMA, ResultCells, rescored
from tests.made import ask

SIDE = 20
RESULTS = np.add.outer(np.arange(SIDE), np.arange(SIDE)).ravel()
HEURISTICS = {"result mod 2 = 0": RESULTS % 2 == 0, "result in 10..19": RESULTS // 10 == 1}
EVEN = np.where(np.arange(2 * SIDE - 1) % 2 == 0, 1.0, -1.0)  # logits of a neuron for even results


class Cells(ResultCells):
    """Cells of sums, and random activations that are larger if the result is even."""

    def __init__(self) -> None:
        self.names, self.numbers = list(HEURISTICS), RESULTS
        self.cells = np.arange(len(RESULTS))
        self.satisfied = np.array(list(HEURISTICS.values()))

    def activation(self, layer: int, neuron: int) -> np.ndarray:
        random = np.random.default_rng(neuron).random(len(RESULTS))
        return ((RESULTS % 2 == 0) + 0.1 * random).astype(np.float32)


class ValueLogits:
    """The same value logits for every neuron."""

    def read(self, layer: int, neurons: slice, numbers: slice) -> np.ndarray:
        return EVEN[None]


def labels(changes: dict[int, np.ndarray], layer: int = 1) -> pl.DataFrame:
    """Return labels with the changes of each neuron, at the top for all but the last neuron."""
    rows = []
    for neuron, values in changes.items():
        for name in HEURISTICS:
            side = "bottom" if neuron == max(changes) else "top"
            rows.append(("add", layer, neuron, name, side, values.tolist()))
    columns = ["operator", "layer", "neuron", "heuristic", "side", "changes"]
    return pl.DataFrame(rows, schema=columns, orient="row")


def tables(labelled: pl.DataFrame) -> pl.DataFrame:
    neurons = labelled.partition_by("neuron")
    frames = [rescored(Cells(), rows, labelled, ValueLogits()) for rows in neurons]
    return pl.concat(frames).with_columns(subject=pl.lit("s")).cast(SCHEMA)


def test_scores_are_shares_of_the_largest_cells():
    random = np.random.default_rng(0)
    changes = {neuron: random.normal(size=len(EVEN)) for neuron in (3, 5, 8)}
    table = tables(labels(changes))
    after = {3: 5, 5: 8, 8: 3}
    for row in table.iter_rows(named=True):
        neuron = row["neuron"]
        own, activation = HEURISTICS[row["heuristic"]], Cells().activation(1, neuron)
        names = {"direct": EVEN, "causal": changes[neuron], "control": changes[after[neuron]]}
        for name, logits in names.items():
            values = activation * logits[RESULTS].astype(np.float32)
            order = np.argsort(-values, kind="stable")
            both = own[order][: own.sum()].mean(), own[order][-own.sum() :].mean()
            if row["side"] == "bottom":
                both = both[::-1]
            np.testing.assert_allclose(row[name], both[0], rtol=1e-6)
            if name != "direct":
                np.testing.assert_allclose(row[f"{name}_other_side"], both[1], rtol=1e-6)
            naming = np.corrcoef(activation, logits[RESULTS])[0, 1]
            np.testing.assert_allclose(row[f"{name}_naming"], naming, atol=1e-4)
        np.testing.assert_allclose(row["chance_score"], own.mean(), rtol=1e-6)


def test_an_inverted_vote_inverts_the_label():
    """Neuron 0 promotes what its value vector promotes, 1 the opposite, and 2 random numbers."""
    changes = {0: EVEN, 1: -EVEN, 2: np.random.default_rng(1).normal(size=len(EVEN))}
    labelled = labels(changes).filter(heuristic="result mod 2 = 0").with_columns(side=pl.lit("top"))
    given = {"label_rescores": tables(labelled)}
    given["labels"] = labelled.with_columns(direct=True)
    given["label_setting"] = pl.DataFrame({"threshold": [0.5], "level": [0.05]})
    table = ask("label_votes", given)
    assert table["verdict"].to_list() == ["kept", "inverted", "lost"]
    assert table["control_verdict"].to_list() == ["inverted", "lost", "kept"]
    np.testing.assert_allclose(table["direct"], 1)
    assert table["causal_naming"][0] > 0.9
    assert table["causal_naming"][1] < -0.9


def test_a_neuron_alone_has_no_control():
    row = tables(labels({4: EVEN})).row(0, named=True)
    assert row["control"] is row["control_naming"] is None
    assert row["causal"] is not None
