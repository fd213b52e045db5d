"""Make tables of the causal tests.

Addition has neurons by every criterion, subtraction has none that are called, and division is never
answered correctly.
"""

from itertools import product
from typing import Any

from tests.circuit.figure_tables import RNG, Tables, crossed, made, pairs_found_table

CRITERION = {"add": "fdr", "subtract": "threshold"}  # criterion with which each operator is shown
OPERATORS = crossed([{}], operator=CRITERION)
ADD = crossed([{"operator": "add"}], criterion=["label", "fdr", "threshold"])
SUBTRACT = crossed([{"operator": "subtract"}], criterion=["label", "threshold"])
KEYS = [*ADD, *SUBTRACT]
NOT_LABELS = [*ADD[1:], *SUBTRACT[1:]]
HEURISTICS, COUNTS, LAYERS, NEURONS, CELLS = 6, [0, 5, 10], [1, 2], 60, 300
ABLATIONS = ["mean", "zero"]
ARMS = ["contaminated", "control", "count", "heuristic", "matched"]
GAINS = {"carries": 0.1, "split": 0.3, "slack": 0.4, "units of op1": 0.2}
VALUES = {
    "carries": ["0"],
    "split": ["train", "held-out"],
    "slack": ["16..31", "2..3", "8..15", "1"],
    "units of op1": ["9", "0"],
}


def by_heuristic() -> list[dict[str, Any]]:
    heuristics = [f"op1 in {h}..9" for h in range(HEURISTICS)]
    arms = ["control", "heuristic"]
    return crossed(KEYS, heuristic=heuristics, ablation=ABLATIONS, arm=arms)


def by_prompt() -> list[dict[str, Any]]:
    rows = crossed(NOT_LABELS, arm=ARMS, ablation=ABLATIONS, neurons_per_layer=COUNTS)
    for row in rows:
        row["neurons"] = 1.9 * row["neurons_per_layer"]
    return rows


def by_neuron() -> list[dict[str, Any]]:
    """Return p-values at the edges of bins, and some neurons with hardly any to compare with."""
    keys = [*ADD, SUBTRACT[-1]]
    rows = crossed(keys, layer=LAYERS, neuron=range(NEURONS), ablation=ABLATIONS)
    for row in rows:
        row |= {
            "heuristic": "op1 in 0..9",
            "null_neurons": 99 if row["neuron"] % 5 else 3,
            "p_value": int(RNG.integers(1, 21)) / 20,
        }
    return rows


def bags() -> list[dict[str, Any]]:
    kept = ["heuristic", "matched", "random", "rest", "matched_rest", "random_rest"]
    rows = crossed(KEYS, kept=kept, ablation=ABLATIONS)
    rows += crossed(OPERATORS, kept=["everything", "nothing"], ablation=ABLATIONS)
    for row in rows:
        row["neurons"] = int(RNG.integers(999))
    return rows


def steered() -> list[dict[str, Any]]:
    """Return rows of every arm, also of the control that sets the result's own digit."""
    places = crossed(OPERATORS, place=["carry", "ones", "tens"], target=["other", "own"])
    rows = crossed(places, arm=["labelled", "matched", "random", "separating"], neurons=[50, 200])
    return rows + crossed(places, arm=["all"], neurons=[1024])


def cells() -> list[dict[str, Any]]:
    """Return cells of which 10 in 11 are correct for addition, and all but 4 for subtraction."""
    rows = crossed(OPERATORS, op1=range(CELLS), op2=[0], criterion=["fdr", "threshold"])
    for row in rows:
        is_add = row["operator"] == "add"
        row |= {
            "correct": bool(row["op1"] % 11) if is_add else row["op1"] > 3,
            "associated_neurons": int(RNG.integers(100)),
            "answer_contribution": RNG.normal(),
        }
        if not is_add and row["criterion"] == "fdr":
            row["associated_neurons"] = 0
    return rows


def inputs() -> list[dict[str, Any]]:
    rows = []
    for operator, (feature, values) in product(CRITERION, VALUES.items()):
        key = {"operator": operator, "feature": feature, "gain": GAINS[feature]}
        for value in values:
            cells, wrong = int(RNG.integers(50, 90)), int(RNG.integers(50))
            counts = {"cells": cells, "failures": wrong, "share": wrong / cells}
            rows.append(key | counts | {"value": value})
    return rows


def compared() -> list[dict[str, Any]]:
    counts = {"add": (272, 28), "subtract": (296, 4)}
    measures = ["answer_contribution", "associated_neurons"]
    rows = crossed(OPERATORS, criterion=["fdr", "threshold"], measure=measures)
    for row in rows:
        row["cells_correct"], row["cells_incorrect"] = counts[row["operator"]]
    return rows


def members() -> list[dict[str, Any]]:
    """Return two neurons of each layer that have one heuristic."""
    return crossed(KEYS, layer=LAYERS, neuron=range(2), heuristic=["op1 in 0..9"], late=[True])


def probed() -> list[dict[str, Any]]:
    """Return probes that read the answer after layer 1, and no better than chance after layer 2."""
    rows = crossed(OPERATORS, layer=range(3), position=["last"])
    for row in rows:
        accuracy = 0.9 if row["layer"] == 1 else 0.1
        row |= {"accuracy": accuracy, "shuffled_accuracy": 0.0, "majority_accuracy": 0.1}
    return rows


def tables() -> Tables:
    measures = ["accuracy", "logit"]
    rows = {
        "knockouts_by_heuristic": by_heuristic(),
        "knockout_tests": crossed(
            KEYS, ablation=ABLATIONS, measure=measures, heuristics=[HEURISTICS]
        ),
        "knockouts_by_prompt": by_prompt(),
        "knockouts_by_neuron": by_neuron(),
        "bag_alone": bags(),
        "steering": steered(),
        "failures": cells(),
        "failure_tests": compared(),
        "failure_inputs": inputs(),
        "late_layers": [{"first_layer": 1, "layers": 3}],
        "probes": probed(),
        "heuristic_neurons": members(),
        "label_limits": OPERATORS,
    }
    known = {name: made(name, several) for name, several in rows.items()}
    return known | {"pairs_found": pairs_found_table([*CRITERION])}
