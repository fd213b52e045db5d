"""late_layers.sql on planted accuracies of probes."""

import polars as pl
import pytest

from tests.made import ask

PROBES = {"subject": pl.String, "operator": pl.String, "layer": pl.Int16, "position": pl.String, "accuracy": pl.Float64,
          "shuffled_accuracy": pl.Float64, "majority_accuracy": pl.Float64, "answers": pl.Int32, "prompts": pl.Int64}  # fmt: skip


def late_layers(accuracies: dict[str, list[float | None]], control: float = 0.1, readable: float = 0.5) -> tuple:
    """first_layer, layers and accuracy, from accuracies at the last position by operator; all others are 1."""
    rows = [
        ("s", operator, layer, role, value if role == "last" else 1.0, *(None if value is None else control,) * 2, 9, 99)
        for operator, values in accuracies.items()
        for layer, value in enumerate(values)
        for role in ("op1", "last")
    ]
    [(subject, *found)] = ask("late_layers", {"probes": pl.DataFrame(rows, schema=PROBES, orient="row")}, readable=readable).rows()
    assert subject == "s"
    return tuple(found)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ({"add": [0.1, 0.6, 0.9], "divide": [0.2, 0.3, 0.5]}, (2, 3, 0.7)),  # the mean over operators counts
        ({"add": [0.1, 0.6, 0.4, 0.9]}, (1, 4, 0.6)),  # the first one, whatever follows
        ({"add": [0.1, 0.5], "divide": [None, None]}, (1, 2, 0.5)),  # an operator without a probe has no say
        ({"add": [0.1, 0.2]}, (None, 2, None)),
        ({"add": [None, None]}, (None, 2, None)),
        ({}, (None, None, None)),
    ],
)
def test_late_layers_begin_where_the_answer_is_first_read(accuracies: dict, expected: tuple):
    found = late_layers(accuracies)
    assert found[:2] == expected[:2]
    assert found[2] == (None if expected[2] is None else pytest.approx(expected[2]))


def test_a_probe_no_better_than_its_controls_reads_nothing():
    assert late_layers({"divide": [0.6, 0.8]}, control=0.7)[0] == 1
    assert late_layers({"divide": [0.6, 0.7]}, control=0.7)[0] is None
