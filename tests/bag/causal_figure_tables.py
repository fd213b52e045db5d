"""Made tables of the causal tests: of add and of subtract, which has no called neurons, and of divide, which is never answered."""

from itertools import pairwise
from typing import Any

import numpy as np

from tests.circuit.figure_tables import RNG, Tables, found, made

CRITERION = {"add": "fdr", "subtract": "threshold"}  # by which each operator is to be shown
CRITERIA = {"add": ["label", "fdr", "threshold"], "subtract": ["label", "threshold"]}
HEURISTICS, COUNTS, LAYERS, NEURONS, CELLS = 6, [0, 5, 10], [1, 2], 60, 300
GAINS = {"carries": 0.1, "split": 0.3, "slack": 0.4, "units of op1": 0.2}
VALUES = {
    "carries": ["0"],
    "split": ["train", "held-out"],
    "slack": ["16..31", "2..3", "8..15", "1"],
    "units of op1": ["9", "0"],
}


def by_heuristic() -> list[dict[str, Any]]:
    return [
        {"operator": o, "criterion": m, "heuristic": f"op1 in {h}..9", "ablation": a, "arm": arm}
        for o, members in CRITERIA.items() for m in members for h in range(HEURISTICS)
        for a in ("mean", "zero") for arm in ("control", "heuristic")
    ]  # fmt: skip


def by_prompt() -> list[dict[str, Any]]:
    return [
        {"operator": o, "criterion": m, "arm": arm, "ablation": a, "neurons_per_layer": n, "neurons": 1.9 * n}
        for o, members in CRITERIA.items() for m in members[1:] for arm in ("contaminated", "control", "count", "heuristic", "matched")
        for a in ("mean", "zero") for n in COUNTS
    ]  # fmt: skip


def by_neuron() -> list[dict[str, Any]]:
    """P-values of whole twentieths, the edges of bins, and some neurons with hardly any to compare with."""
    return [
        {"operator": o, "layer": layer, "neuron": n, "heuristic": "op1 in 0..9", "criterion": m, "ablation": a,
         "null_neurons": 99 if n % 5 else 3, "p_value": int(RNG.integers(1, 21)) / 20 if n % 2 else float(RNG.uniform(0.01, 1))}
        for o, members in CRITERIA.items() for m in members[-1 if o == "subtract" else 0:] for layer in LAYERS
        for n in range(NEURONS) for a in ("mean", "zero")
    ]  # fmt: skip


def bags() -> list[dict[str, Any]]:
    kept = [
        (o, m, k)
        for o, members in CRITERIA.items()
        for m in members
        for k in ("heuristic", "random", "rest")
    ]
    kept += [(o, None, k) for o in CRITERIA for k in ("everything", "nothing")]
    return [
        {
            "operator": o,
            "criterion": m,
            "with_activations": k,
            "ablation": a,
            "neurons": int(RNG.integers(999)),
        }
        for o, m, k in kept
        for a in ("mean", "zero")
    ]


def cells() -> list[dict[str, Any]]:
    """Of add, 10 in 11 are right; of subtract, all but 4."""
    return [
        {"operator": o, "op1": n, "op2": 0, "criterion": m, "correct": bool(n % 11) if o == "add" else n > 3,
         "associated_neurons": 0 if o == "subtract" and m == "fdr" else int(RNG.integers(100)), "answer_contribution": RNG.normal()}
        for o in CRITERIA for n in range(CELLS) for m in ("fdr", "threshold")
    ]  # fmt: skip


def tables() -> Tables:
    failures = made("failures", cells())
    compared = []
    for o, m in failures.select("operator", "criterion").unique(maintain_order=True).iter_rows():
        correct = failures.filter(operator=o, criterion=m)["correct"].to_numpy()
        counts = {"cells_correct": int(correct.sum()), "cells_incorrect": int((~correct).sum())}
        compared += [
            {"operator": o, "criterion": m, "measure": x} | counts
            for x in ("answer_contribution", "associated_neurons")
        ]
    inputs = [
        {"operator": o, "feature": f, "value": v, "gain": GAINS[f], "cells": (n := int(RNG.integers(50, 90))), "failures": (k := int(RNG.integers(50))),
         "share": k / n}
        for o in CRITERIA for f, values in VALUES.items() for v in values
    ]  # fmt: skip
    tested = [
        {"operator": o, "criterion": m, "ablation": a, "measure": x, "heuristics": HEURISTICS}
        for o, members in CRITERIA.items() for m in members for a in ("mean", "zero") for x in ("accuracy", "logit")
    ]  # fmt: skip
    return {
        "knockouts_by_heuristic": made("knockouts_by_heuristic", by_heuristic()), "knockout_tests": made("knockout_tests", tested),
        "knockouts_by_prompt": made("knockouts_by_prompt", by_prompt()), "knockouts_by_neuron": made("knockouts_by_neuron", by_neuron()),
        "bag_alone": made("bag_alone", bags()), "failures": failures, "failure_tests": made("failure_tests", compared),
        "failure_inputs": made("failure_inputs", inputs), "pairs_found": found([*CRITERION]),
        "late_layers": made("late_layers", [{"first_layer": 1, "layers": 3}]),
        "probes": made("probes", [{"operator": o, "position": "last"} for o in CRITERION]),
        "heuristic_neurons": made("heuristic_neurons", members()),
        "label_limits": made("label_limits", [{"operator": o} for o in CRITERION]),
    }  # fmt: skip


def members() -> list[dict[str, Any]]:
    """Two neurons in each layer stand for one heuristic."""
    heuristic = {"heuristic": "op1 in 0..9", "late": True}
    neurons = [{"layer": layer, "neuron": neuron} for layer in LAYERS for neuron in range(2)]
    operators = [
        {
            "operator": o,
            "criterion": m,
        }
        for o, several in CRITERIA.items()
        for m in several
    ]
    return [operator | neuron | heuristic for operator in operators for neuron in neurons]


def histogram(values: np.ndarray, edges: np.ndarray) -> list[float]:
    """Shares of the values in each bin (low, high]."""
    return [
        float(((values > low + 1e-9) & (values <= high + 1e-9)).mean())
        for low, high in pairwise(edges)
    ]
