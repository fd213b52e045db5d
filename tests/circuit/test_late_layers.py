"""late_layers.sql on planted accuracies of probes."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.made import ask

PROBES = {
    "subject": pl.String, "operator": pl.String, "layer": pl.Int16, "position": pl.String,
    "accuracy": pl.Float64, "shuffled_accuracy": pl.Float64, "majority_accuracy": pl.Float64,
}  # fmt: skip
Layers = list[float | None]  # of an operator, the accuracy after each layer


def late_layers(
    accuracies: dict[str, Layers],
    majority: float | None = 0.1,
    shuffled: float | None = 0.0,
) -> tuple[Any, ...]:
    """Return first_layer, layers and accuracy from accuracies at the last position by operator.

    All other positions have an accuracy of 1. An operator without a probe has no controls.
    """
    rows: list[tuple[Any, ...]] = []
    for operator, values in accuracies.items():
        for layer, value in enumerate(values):
            controls = (None, None) if value is None else (shuffled, majority)
            rows.append(("s", operator, layer, "op1", 1.0, *controls))
            rows.append(("s", operator, layer, "last", value, *controls))
    probes = pl.DataFrame(rows, schema=PROBES, orient="row")
    [(subject, *answer)] = ask("late_layers", {"probes": probes}, readable=0.5).rows()
    assert subject == "s"
    return tuple(answer)


@pytest.mark.parametrize(
    ("accuracies", "first", "accuracy"),
    [
        # 0.6 of an accuracy of 0.9 is more than half-way from 0.1, 0.4 is not
        ({"add": [0.1, 0.6, 0.9]}, 1, 0.6),
        ({"add": [0.1, 0.4, 0.9]}, 2, 0.9),
        # a layer from which the answer cannot be read is not late, nor is any before it
        ({"add": [0.1, 0.6, 0.4, 0.9]}, 3, 0.9),
        # so that the answer has to be read after the last layer
        ({"add": [0.1, 0.9, 0.4]}, None, None),
        # each operator has a plateau of its own, and all that count have to be read
        ({"add": [0.9, 0.9, 0.9], "divide": [0.1, 0.36, 0.6]}, 1, 0.63),
        ({"add": [0.9, 0.9, 0.9], "divide": [0.1, 0.3, 0.6]}, 2, 0.75),
        # one that cannot be read, or has no probe, does not count; the mean has all that have one
        ({"add": [0.2, 0.9], "divide": [0.2, 0.5]}, 1, 0.7),
        ({"add": [0.2, 0.9], "divide": [None, None]}, 1, 0.9),
        ({"add": [0.1, 0.5]}, None, None),
        ({"add": [None, None]}, None, None),
    ],
)
def test_late_layers_begin_half_way_from_chance_to_the_best_layer(
    accuracies: dict[str, Layers],
    first: int | None,
    accuracy: float | None,
):
    expected = None if accuracy is None else pytest.approx(accuracy)
    assert late_layers(accuracies) == (first, len(accuracies["add"]), expected)


def test_without_probes_there_are_no_layers():
    assert late_layers({}) == (None, None, None)


def test_the_better_of_both_controls_is_the_baseline():
    reads_more = {"add": [0.7, 0.8, 0.9]}
    assert late_layers(reads_more, majority=0.1)[0] == 0
    assert late_layers(reads_more, majority=0.7)[0] == 1
    assert late_layers(reads_more, majority=0.1, shuffled=0.7)[0] == 1


@pytest.mark.parametrize("controls", [{"majority": 1.0}, {"majority": None}, {"shuffled": None}])
def test_without_a_baseline_below_1_an_operator_does_not_count(controls: dict[str, float | None]):
    assert late_layers({"add": [0.2, 1.0]}, **controls)[0] is None


def test_a_first_digit_that_is_mostly_1_makes_no_layer_late():
    """Like Qwen2.5-Coder-0.5B: 0.74 to 0.81 is little if 0.66 of all answers begin with 1."""
    early = [0.66, *np.linspace(0.74, 0.81, 16)]
    deep: dict[str, Layers] = {
        "add": [*early, 0.82, 0.86, 0.94, 0.99, 0.99, 0.99, 0.99],
        "subtract": [*early, 0.81, 0.87, 0.93, 0.98, 0.98, 0.97, 0.96],
    }
    assert late_layers(deep, majority=0.66) == (18, 24, pytest.approx(0.865))
    deep["subtract"][17] = deep["add"][17] = 0.84
    assert late_layers(deep, majority=0.66)[0] == 17


def test_late_layers_begin_when_the_last_operator_can_be_read():
    digits: dict[str, Layers] = {
        "add": [0.5, 0.9, 0.95, 0.99, 0.99, 0.99],
        "subtract": [0.5, 0.5, 0.52, 0.6, 0.9, 0.99],
    }
    assert late_layers(digits, majority=0.5)[0] == 4


def test_noise_around_the_most_frequent_answer_makes_no_layer_late():
    noise = np.random.default_rng(0).normal(0.66, 0.03, (2, 24)).tolist()
    accuracies: dict[str, Layers] = {"add": noise[0], "subtract": noise[1]}
    assert late_layers(accuracies, majority=0.66) == (None, 24, None)
