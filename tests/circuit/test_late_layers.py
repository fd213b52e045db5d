"""late_layers.sql on planted accuracies of probes."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from stages.lib.drawing.reasons import no_late_layer
from tests.made import ask

PROBES = {
    "subject": pl.String,
    "operator": pl.String,
    "layer": pl.Int16,
    "position": pl.String,
    "accuracy": pl.Float64,
    "shuffled_accuracy": pl.Float64,
    "majority_accuracy": pl.Float64,
}
READABLE, LEAST_PLATEAU = 0.8, 0.5
Layers = list[float | None]  # of an operator, the accuracy after each layer


def probes(
    accuracies: dict[str, Layers],
    majority: float | None = 0.1,
    shuffled: float | None = 0.0,
) -> pl.DataFrame:
    """Return the table probes from accuracies at the last position by operator.

    All other positions have an accuracy of 1. An operator without a probe has no controls.
    """
    rows: list[tuple[Any, ...]] = []
    for operator, values in accuracies.items():
        for layer, value in enumerate(values):
            controls = (None, None) if value is None else (shuffled, majority)
            rows.append(("s", operator, layer, "op1", 1.0, *controls))
            rows.append(("s", operator, layer, "last", value, *controls))
    return pl.DataFrame(rows, schema=PROBES, orient="row")


def late_layers(accuracies: dict[str, Layers], **controls: float | None) -> tuple[Any, ...]:
    """Return first_layer, layers and accuracy. controls: as probes takes them."""
    [(subject, *answer)] = ask(
        "late_layers",
        {"probes": probes(accuracies, **controls)},
        readable=READABLE,
        least_plateau=LEAST_PLATEAU,
    ).rows()
    assert subject == "s"
    return tuple(answer)


@pytest.mark.parametrize(
    ("accuracies", "first", "accuracy"),
    [
        # from a baseline of 0.1, 0.74 is 0.8 of the way to 0.9, and 0.73 is less
        ({"add": [0.1, 0.741, 0.9]}, 1, 0.741),
        ({"add": [0.1, 0.73, 0.9]}, 2, 0.9),
        # a layer from which the answer cannot be read is not late, nor is any before it
        ({"add": [0.1, 0.8, 0.4, 0.9]}, 3, 0.9),
        # so that the answer has to be read after the last layer
        ({"add": [0.1, 0.9, 0.4]}, None, None),
        # each operator has a plateau of its own, and the mean over those that count decides
        ({"add": [0.9, 0.9, 0.9], "divide": [0.1, 0.41, 0.6]}, 1, 0.655),
        ({"add": [0.9, 0.9, 0.9], "divide": [0.1, 0.39, 0.6]}, 2, 0.75),
        ({"add": [0.9, 0.9, 0.9], "divide": [0.1, 0.41, 1.0]}, 2, 0.95),
        # one that cannot be read, or has no probe, does not count; the mean has all that have one
        ({"add": [0.2, 0.9], "divide": [0.2, 0.5]}, 1, 0.7),
        ({"add": [0.2, 0.9], "divide": [None, None]}, 1, 0.9),
        ({"add": [0.1, 0.5]}, None, None),
        ({"add": [None, None]}, None, None),
    ],
)
def test_late_layers_begin_near_the_best_layer_of_the_operators(
    accuracies: dict[str, Layers],
    first: int | None,
    accuracy: float | None,
):
    expected = None if accuracy is None else pytest.approx(accuracy)
    assert late_layers(accuracies) == (first, len(accuracies["add"]), expected)


UNREADABLE = (
    "after the last layer, probes reach 0.38 of their best layer's accuracy above the baseline, "
    "at least 0.80 is needed"
)


@pytest.mark.parametrize(
    ("accuracies", "reason"),
    [
        ({"add": [None, None]}, "too few prompts are answered correctly for a probe"),
        (
            {"add": [0.1, 0.5], "divide": [0.3, 0.2], "multiply": [None, None]},
            "the best probe has accuracy 0.50, at least 0.55 is needed (baseline 0.10)",
        ),
        ({"add": [0.1, 0.9, 0.4]}, UNREADABLE),
        ({"add": [0.1, 0.9, 0.4], "divide": [0.1, 0.5, 0.5]}, UNREADABLE),
    ],
)
def test_figures_name_the_reason_why_no_layer_is_late(accuracies: dict[str, Layers], reason: str):
    assert late_layers(accuracies)[0] is None
    why = no_late_layer(probes(accuracies), LEAST_PLATEAU, READABLE)
    assert why == f"no layer is late: {reason}"


def test_the_probe_that_comes_nearest_is_named_with_its_own_baseline():
    """Its accuracy is not the largest: that of another operator is no better than its baseline."""
    add, divide = probes({"add": [0.2, 0.4]}), probes({"divide": [0.9, 0.91]}, majority=0.9)
    why = no_late_layer(pl.concat([add, divide]), LEAST_PLATEAU, READABLE)
    assert why.endswith("has accuracy 0.40, at least 0.55 is needed (baseline 0.10)")


def test_without_probes_there_are_no_layers():
    assert late_layers({}) == (None, None, None)


def test_the_better_of_both_controls_is_the_baseline():
    reads_more = {"add": [0.86, 0.9, 0.95]}
    assert late_layers(reads_more, majority=0.1)[0] == 0
    assert late_layers(reads_more, majority=0.7)[0] == 1
    assert late_layers(reads_more, majority=0.1, shuffled=0.7)[0] == 1


@pytest.mark.parametrize("controls", [{"majority": 1.0}, {"majority": None}, {"shuffled": None}])
def test_without_a_baseline_below_1_an_operator_does_not_count(controls: dict[str, float | None]):
    assert late_layers({"add": [0.2, 1.0]}, **controls)[0] is None


def test_a_first_digit_that_is_read_from_what_stands_before_makes_no_layer_late():
    """Qwen2.5-Coder-0.5B as measured with the probes of this pipeline, its first answer digit."""
    early = [
        0.62,
        0.77,
        0.78,
        0.83,
        0.85,
        0.85,
        0.84,
        0.83,
        0.82,
        0.83,
        0.86,
        0.88,
        0.89,
        0.89,
        0.87,
        0.88,
    ]
    rising = [0.91, 0.94, 0.98, 0.99, 0.99, 1.0, 1.0, 1.0]
    assert late_layers({"add": early + rising}, majority=0.54) == (16, 24, 0.91)


def test_late_layers_begin_after_an_operator_that_is_read_early():
    digits: dict[str, Layers] = {
        "add": [0.85, 0.89, 0.99, 1.0],
        "subtract": [0.57, 0.66, 0.98, 1.0],
    }
    assert late_layers(digits, majority=0.34)[0] == 2


def test_noise_around_the_most_frequent_answer_makes_no_layer_late():
    noise = np.random.default_rng(0).normal(0.66, 0.03, (2, 24)).tolist()
    accuracies: dict[str, Layers] = {"add": noise[0], "subtract": noise[1]}
    assert late_layers(accuracies, majority=0.66) == (None, 24, None)
