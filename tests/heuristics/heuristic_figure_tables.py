"""A made subject for the figures about heuristics: stores in which a few neurons are heuristics, and tables that say so."""

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
    (0, 0, "op1 in 3..8", "range", "op1", 0.9), (0, 1, "op2 in 0..9", "range", "op2", 0.7), (1, 2, "op1 in 0..9", "range", "op1", 0.6),
    (1, 3, "result mod 3 = 1", "modulo", "result", 0.8), (1, 4, "result in {3, 7}", "multi-result", "result", 0.75),
]  # fmt: skip


def activations(layer: int, operator: str) -> np.ndarray:
    return (
        np.random.default_rng(layer + 10 * list(OPERATORS).index(operator))
        .normal(size=(NEURONS, SIDE, SIDE))
        .astype(np.float16)
    )


def value_logits(layer: int) -> np.ndarray:
    return np.random.default_rng(100 + layer).normal(size=(NEURONS, 2 * SIDE)).astype(np.float32)


def results(operator: str) -> np.ndarray:
    """The answers over the grid, -1 where there is none."""
    return np.maximum(OPERATORS[operator](OP1, OP2), -1)


def labels() -> list[dict[str, Any]]:
    names = ["layer", "neuron", "heuristic", "kind", "quantity", "chance_corrected"]
    return [
        {"operator": "add", "side": "bottom" if row[1] == 2 else "top", "direct": row[1] == 3}
        | dict(zip(names, row, strict=True))
        for row in LABELS
    ]


def tables() -> Tables:
    classified = [
        {"operator": o, "layer": layer, "quantities": q, "criterion": c, "threshold": t} | ({"null_share": None} if c == "fdr" else {})
        for o in OPERATORS for layer in (0, 1, 2) for q in ("any", "operands", "result") for c in ("raw", "chance_corrected", "fdr") for t in THRESHOLDS
    ]  # fmt: skip
    both = [
        {"operator": "add", "layer": r["layer"], "neuron": r["neuron"], "theory": theory,
         "map": "contribution" if r["quantity"] == "result" else "activation"}
        for r in labels() for theory in ("heuristics", "fourier")
    ]  # fmt: skip
    matches = made(
        "matches",
        [
            *labels(),
            *(
                {"operator": "subtract", "layer": 0, "neuron": n, "heuristic": "h", "side": "top"}
                for n in range(4)
            ),
        ],
    )
    labelled = (
        made("labels", labels())
        .drop("score")
        .join(matches.select("neuron", "heuristic", "score"), on=["neuron", "heuristic"])
    )
    return {
        "labels": labelled,
        "label_limits": made(
            "label_limits",
            [
                {
                    "operator": o,
                    "neurons": 500,
                    "draws": 120,
                    "controlled": 0,
                    "too_few_draws": False,
                }
                for o in OPERATORS
            ],
        ),
        "matches": matches,
        "classified_share": made("classified_share", classified),
        "explained": made("explained", both),
    }


def calibration() -> Tables:
    rows = [
        {"threshold": t, "level": q, "grade": g, "kind": k, "neurons": 20, "labelled_neurons": int(20 * q) - (t > 0.5)}
        for t in THRESHOLDS for q in LEVELS for g in GRADES for k in ["all", *KINDS]
    ]  # fmt: skip
    return {
        "label_calibration": made("label_calibration", rows),
        "label_setting": made("label_setting", [{"threshold": THRESHOLD, "level": LEVEL}]),
    }


def write(folder: Path, subject: Tables, chosen: Tables) -> None:
    """The project's folder as the stages find it."""
    for chapter in ("corpus", "heuristics", "s/heuristics", "s/store/activations"):
        (folder / "data" / chapter).mkdir(parents=True)
    (folder / "params.yaml").write_text(yaml.safe_dump({"portraits": PORTRAITS}))
    for name, table in (subject | chosen).items():
        table.write_parquet(
            folder / "data" / ("s" if name in subject else "") / "heuristics" / f"{name}.parquet"
        )
    cells = [
        {"operator": o, "op1": a, "op2": b, "result": r}
        for o in OPERATORS
        for (a, b), r in np.ndenumerate(results(o))
        if r >= 0
    ]
    made("cells", cells).write_parquet(folder / "data/corpus/cells.parquet")
    catalogue = [
        {
            "operator": "add",
            "heuristic": "op1 in 3..8",
            "kind": "range",
            "quantity": "op1",
            "predicate": "op1 between 3 and 8",
        }
    ]
    pl.DataFrame(catalogue).write_parquet(folder / "data/heuristics/heuristics.parquet")
    for operator in OPERATORS:
        with hdf5_store.writing(folder / f"data/s/store/activations/{operator}.h5") as file:
            axes, columns = (
                {"neuron": NEURONS, "op1": SIDE, "op2": SIDE},
                {"result": results(operator)},
            )
            writer = hdf5_store.LayerWriter(
                file, [0, 1], axes, "float16", (4, 8, SIDE), {"operator": operator}, columns=columns
            )
            for layer in (0, 1):
                writer.write(layer, 0, activations(layer, operator))
    with hdf5_store.writing(folder / "data/s/store/value_logits.h5") as file:
        writer = hdf5_store.LayerWriter(
            file, [0, 1], {"neuron": NEURONS, "number": 2 * SIDE}, "float32", (4, 2 * SIDE), {}
        )
        for layer in (0, 1):
            writer.write(layer, 0, value_logits(layer))
