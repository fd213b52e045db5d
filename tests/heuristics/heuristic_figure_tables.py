"""A made model for the figures about heuristics: its store, its catalogue and its tables."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from stages.lib.core import hdf5_store
from tests.circuit.figure_tables import Tables, made

SIDE, NEURONS, THRESHOLD, LEVEL = 24, 6, 0.5, 0.1
OPERATORS = {"add": np.add, "subtract": np.subtract}
THRESHOLDS, LEVELS, KINDS = [0.3, 0.5, 0.7], [0.05, 0.1, 1.0], ["modulo", "range"]
GRADES = ["all", "exact", "partial", "soft", "mixture", "noise"]
PORTRAITS = {"numbers": 3, "detail": 8, "layers": 2, "published": 0.6}
OP1, OP2 = np.indices((SIDE, SIDE))
# layer, neuron, heuristic, kind, quantity, chance_corrected: labels of add; subtract has none
LABELS: list[tuple[int, int, str, str, str, float]] = [
    (0, 0, "op1 in 3..8", "range", "op1", 0.9),
    (0, 1, "op2 in 0..9", "range", "op2", 0.7),
    (1, 2, "op1 in 0..9", "range", "op1", 0.6),
    (1, 3, "result mod 3 = 1", "modulo", "result", 0.8),
    (1, 4, "result in {3, 7}", "multi-result", "result", 0.75),
]
# layer, neuron, verdict, verdict of the control
VOTES: list[tuple[int, int, str, str | None]] = [
    (1, 0, "kept", "kept"),
    (1, 1, "kept", "lost"),
    (1, 2, "inverted", "inverted"),
    (1, 3, "lost", None),
    (2, 0, "kept", "lost"),
]


def activations(layer: int, operator: str) -> np.ndarray:
    """A layer's activations, (neuron, op1, op2) float16."""
    random = np.random.default_rng(layer + 10 * list(OPERATORS).index(operator))
    return random.normal(size=(NEURONS, SIDE, SIDE)).astype(np.float16)


def value_logits(layer: int) -> np.ndarray:
    """A layer's value logits, (neuron, result) float32."""
    random = np.random.default_rng(100 + layer)
    return random.normal(size=(NEURONS, 2 * SIDE)).astype(np.float32)


def results(operator: str) -> np.ndarray:
    """The answers over the grid, -1 for none."""
    return np.maximum(OPERATORS[operator](OP1, OP2), -1)


def crossed(**keys: Any) -> list[dict[str, Any]]:
    """A row for each combination of these values."""
    return [dict(zip(keys, row, strict=True)) for row in product(*keys.values())]


def labels() -> list[dict[str, Any]]:
    """The rows of the table labels; one is at the bottom, and one is direct."""
    names = ["layer", "neuron", "heuristic", "kind", "quantity", "chance_corrected"]
    rows = []
    for values in LABELS:
        row = {"operator": "add", "side": "top"} | dict(zip(names, values, strict=True))
        row["direct"] = row["neuron"] == 3
        if row["neuron"] == 2:
            row["side"] = "bottom"
        rows.append(row)
    return rows


def tables() -> Tables:
    """The tables of the model."""
    criteria = ("raw", "chance_corrected", "fdr")
    classified = crossed(
        operator=OPERATORS,
        layer=range(3),
        quantities=("any", "operands", "result"),
        criterion=criteria,
        threshold=THRESHOLDS,
    )
    for row in classified:
        if row["criterion"] == "fdr":
            row["null_share"] = None
    explained = []
    for row in labels():
        keys = {key: row[key] for key in ("operator", "layer", "neuron")}
        keys["map"] = "contribution" if row["quantity"] == "result" else "activation"
        explained += [keys | {"theory": "heuristics"}, keys | {"theory": "fourier"}]
    unlabelled = crossed(
        operator=["subtract"], layer=[0], neuron=range(4), heuristic=["h"], side=["top"]
    )
    matches = made("matches", labels() + unlabelled)
    scores = matches.select("neuron", "heuristic", "score")
    limits = crossed(
        operator=OPERATORS, neurons=[500], draws=[120], controlled=[0], too_few_draws=[False]
    )
    votes = []
    for layer, neuron, verdict, control in VOTES:
        keys = {"operator": "add", "layer": layer, "neuron": neuron}
        votes.append(keys | {"verdict": verdict, "control_verdict": control})
    return {
        "label_votes": made("label_votes", votes),
        "labels": made("labels", labels()).drop("score").join(scores, on=["neuron", "heuristic"]),
        "label_limits": made("label_limits", limits),
        "matches": matches,
        "classified_share": made("classified_share", classified),
        "explained": made("explained", explained),
    }


def calibration() -> Tables:
    """The tables of the calibration, which all models share."""
    rows = crossed(
        threshold=THRESHOLDS, level=LEVELS, grade=GRADES, kind=["all", *KINDS], neurons=[20]
    )
    for row in rows:
        row["labelled_neurons"] = int(20 * row["level"]) - (row["threshold"] > 0.5)
    setting = {"threshold": THRESHOLD, "level": LEVEL}
    return {
        "label_calibration": made("label_calibration", rows),
        "label_setting": made("label_setting", [setting]),
    }


def write(folder: Path, own: Tables, shared: Tables) -> None:
    """Write a project's folder; own: tables of the model s; shared: tables of the calibration."""
    data = folder / "data"
    for chapter in ("corpus", "heuristics", "s/heuristics", "s/store/activations"):
        (data / chapter).mkdir(parents=True)
    (folder / "params.yaml").write_text(yaml.safe_dump({"portraits": PORTRAITS}))
    for name, table in own.items():
        table.write_parquet(data / f"s/heuristics/{name}.parquet")
    for name, table in shared.items():
        table.write_parquet(data / f"heuristics/{name}.parquet")
    cells = []
    for operator in OPERATORS:
        columns = {"op1": OP1.ravel(), "op2": OP2.ravel(), "result": results(operator).ravel()}
        cells.append(pl.DataFrame({"operator": operator, **columns}))
    pl.concat(cells).filter(pl.col("result") >= 0).write_parquet(data / "corpus/cells.parquet")
    heuristic = {"heuristic": "op1 in 3..8", "kind": "range", "quantity": "op1"}
    row = {"operator": "add", **heuristic, "predicate": "op1 between 3 and 8"}
    pl.DataFrame([row]).write_parquet(data / "heuristics/heuristics.parquet")
    axes, shape = {"neuron": NEURONS, "op1": SIDE, "op2": SIDE}, (4, 8, SIDE)
    for operator in OPERATORS:
        keys, columns = {"operator": operator}, {"result": results(operator)}
        with hdf5_store.writing(data / f"s/store/activations/{operator}.h5") as file:
            writer = hdf5_store.LayerWriter(
                file, [0, 1], axes, "float16", shape, keys, columns=columns
            )
            for layer in (0, 1):
                writer.write(layer, 0, activations(layer, operator))
    axes = {"neuron": NEURONS, "number": 2 * SIDE}
    with hdf5_store.writing(data / "s/store/value_logits.h5") as file:
        writer = hdf5_store.LayerWriter(file, [0, 1], axes, "float32", (4, 2 * SIDE), {})
        for layer in (0, 1):
            writer.write(layer, 0, value_logits(layer))
