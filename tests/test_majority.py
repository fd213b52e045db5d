"""Every table with an accuracy has that of the most frequent answer, which it has to exceed."""

from stages.lib.dictionary import tables
from tests.micro import ROOT

# Tables whose accuracies have no such column, and why.
WITHOUT = {
    "late_layers": "a mean of accuracies in probes, which has the column",
    "training": "the log of a training, without answers; accuracy has the trained model's",
}


def test_every_accuracy_has_that_of_the_most_frequent_answer():
    """The template of `bag new experiment` is among the queries below stages/circuit."""
    with_accuracy, without = set(), set()
    documented = tables(ROOT / "stages/circuit") | tables(ROOT / "stages")
    for name, table in documented.items():
        columns = " ".join(table.columns)
        if columns.startswith("accuracy") or " accuracy" in columns:
            with_accuracy.add(name)
            if "majority" not in columns:
                without.add(name)
    assert {"effects", "accuracy", "probes", "bag_alone"} <= with_accuracy
    assert without == WITHOUT.keys()
