"""Contributions of heuristic neurons: the real stage against sums cell by cell."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from stages.bag import failures
from stages.lib.core.hdf5_store import LayerWriter, writing
from tests.bag.knocked import EVEN, LOW, MEANS, Prompt, catalogue, documented
from tests.bag.test_failure_tests import concluded
from tests.made import ask, late_layers
from tests.micro import alone

SIDE, LIMIT, NEURONS, LAYERS = 12, 15, 10, (0, 1, 2)
OP1, OP2 = np.indices((SIDE, SIDE))
RESULTS = {
    "add": OP1 + OP2,
    "divide": np.where((OP1 > 0) & (OP2 > 0), OP1 // np.maximum(OP2, 1), -1),
}
Matches = list[
    tuple[str, int, int, str, str, float, float]
]  # operator, layer, neuron, heuristic, side, chance_corrected, q_value


class Project:
    """A folder with the stage's inputs: random stores and the matches that a test gives.

    Stores hold whole numbers, whose sums are exact.
    """

    def __init__(
        self,
        folder: Path,
        seed: int = 0,
        right: Callable[[str, int, int, int], bool] | None = None,
        part: float = 8,
    ):
        self.folder, self.data, rng = folder, folder / "data/s", np.random.default_rng(seed)
        size = len(LAYERS), NEURONS
        self.values = {}
        for operator in RESULTS:
            self.values[operator] = rng.integers(-40, 40, (*size, SIDE, SIDE)) / part
        self.votes = rng.integers(-40, 40, (*size, LIMIT + 1)) / part
        for operator, results in RESULTS.items():
            attributes = {"operator": operator}
            columns = {"result": np.where(results <= LIMIT, results, -1)}
            with writing(self.data / f"store/activations/{operator}.h5") as file:
                axes = {"neuron": NEURONS, "op1": SIDE, "op2": SIDE}
                writer = LayerWriter(
                    file, [*LAYERS], axes, "float16", (4, 5, SIDE), attributes, columns=columns
                )
                for layer in LAYERS:
                    writer.write(layer, 0, self.values[operator][layer])
        with writing(self.data / "store/value_logits.h5") as file:
            writer = LayerWriter(
                file,
                [*LAYERS],
                {"neuron": NEURONS, "number": LIMIT + 1},
                "float32",
                (4, LIMIT + 1),
                {},
            )
            for layer in LAYERS:
                writer.write(layer, 0, self.votes[layer])
        self.cells = []
        for operator, results in RESULTS.items():
            for a, b in np.argwhere(results[:SIDE, :SIDE] >= 0).tolist():
                self.cells.append((operator, a, b, int(results[a, b])))
        self.predicted: dict[tuple[str, int, int], int | None] = {}
        for operator, a, b, result in self.cells:
            if result <= LIMIT:
                is_right = right(operator, a, b, result) if right else rng.random() < 0.6
                wrong = [None, *range(result), *range(result + 1, LIMIT + 1)]
                self.predicted[operator, a, b] = (
                    result if is_right else wrong[rng.integers(len(wrong))]
                )
        self._write()

    def _write(self) -> None:
        key = {"operator": pl.String, "op1": pl.Int32, "op2": pl.Int32}
        cells = pl.DataFrame(self.cells, schema=key | {"result": pl.Int32}, orient="row")
        rows = []
        for (operator, a, b), predicted in self.predicted.items():
            rows.append((operator, a, b, predicted, predicted == int(RESULTS[operator][a, b])))
        schema = key | {"predicted": pl.Int32, "correct": pl.Boolean}
        predictions = pl.DataFrame(rows, schema=schema, orient="row")
        for name, table in {
            "corpus/cells": cells,
            "heuristics/heuristics": catalogue(RESULTS),
            "s/store/predictions": predictions,
        }.items():
            (self.folder / f"data/{name}").parent.mkdir(parents=True, exist_ok=True)
            table.sample(fraction=1, shuffle=True, seed=1).write_parquet(
                self.folder / f"data/{name}.parquet"
            )

    def run(
        self, matches: Matches, first_layer: int | None, neurons_at_once: int = 4
    ) -> pl.DataFrame:
        """Return what the real query and stage write, at threshold 0.4 and level 0.05."""
        names = ["operator", "layer", "neuron", "heuristic", "side", "chance_corrected", "q_value"]
        types = {
            "layer": pl.Int16,
            "neuron": pl.Int32,
            "chance_corrected": pl.Float32,
            "q_value": pl.Float64,
        }
        table = pl.DataFrame(
            matches, schema=names, schema_overrides=types, orient="row"
        ).with_columns(nonredundant=pl.lit(True))
        setting = pl.DataFrame({"threshold": [0.4], "level": [0.05]})
        loaded = ask(
            "heuristic_neurons",
            {"matches": table, "label_setting": setting, "late_layers": late_layers(first_layer)},
        )
        (self.data / "heuristics").mkdir(exist_ok=True)
        loaded.sample(fraction=1, shuffle=True, seed=2).write_parquet(
            self.data / "heuristics/heuristic_neurons.parquet"
        )
        (self.folder / "params.yaml").write_text(
            yaml.safe_dump(alone("s") | {"failures": {"neurons_at_once": neurons_at_once}})
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            failures.main("s")
        return documented(self.data / "bag/failures.parquet")

    def expected(self, matches: Matches, first_layer: int | None) -> list[tuple]:
        """The table's rows, cell by cell and neuron by neuron."""
        rows = []
        for operator, a, b, result in self.cells:
            if (operator, a, b) not in self.predicted:
                continue
            predicted = self.predicted[operator, a, b]
            prompt = Prompt(operator, 0, a, b, result)
            for criterion, level in (("fdr", 0.05), ("threshold", 1.0)):
                about = set()
                for o, layer, neuron, name, _, chance_corrected, q_value in matches:
                    is_late = first_layer is not None and layer >= first_layer
                    passes = np.float32(chance_corrected) >= 0.4 and q_value <= level
                    if o == operator and is_late and passes and MEANS[name](prompt):
                        about.add((layer, neuron))
                sums = [0.0, 0.0]
                for layer, neuron in sorted(about):
                    activation = self.values[operator][layer, neuron, a, b]
                    for i, number in enumerate((result, predicted or 0)):
                        sums[i] += activation * self.votes[layer, neuron, number]
                rows.append(
                    (
                        "s",
                        operator,
                        a,
                        b,
                        criterion,
                        predicted == result,
                        len(about),
                        sums[0],
                        None if predicted is None else sums[1],
                    )
                )
        return sorted(rows)


def some_matches(seed: int) -> Matches:
    """Return random matches on both sides of threshold and level.

    Divisions of an odd seed have no neuron that is called.
    """
    rng = np.random.default_rng(seed)
    least = {"add": 0.0, "divide": 0.1 * (seed % 2)}
    possible = list(product(LAYERS, range(NEURONS), MEANS, ("top", "bottom")))
    matches = []
    for operator in RESULTS:
        for i in rng.choice(len(possible), 60, replace=False):
            q_value = max(rng.choice([0.01, 0.05, 0.06, 0.9]), least[operator])
            matches.append((operator, *possible[i], rng.uniform(0.2, 1), q_value))
    return matches


@pytest.mark.parametrize(("seed", "first_layer"), [(0, 1), (1, 1), (2, 0), (3, 2), (4, None)])
def test_every_cell_has_what_its_neurons_add_up_to(
    tmp_path: Path, seed: int, first_layer: int | None
):
    project, matches = Project(tmp_path, seed), some_matches(seed)
    table = project.run(matches, first_layer)
    assert table.rows() == project.expected(matches, first_layer)
    counts = (
        table.group_by("operator", "criterion")
        .agg(pl.col("associated_neurons").max())
        .sort("operator", "criterion")
    )
    is_late = first_layer is not None
    called_divisions = is_late and seed % 2 == 0
    expected = [is_late, is_late, called_divisions, is_late]
    assert (counts["associated_neurons"] > 0).to_list() == expected
    for operator, results in RESULTS.items():
        assert (
            len(table.filter(operator=operator)) == 2 * ((results >= 0) & (results <= LIMIT)).sum()
        )


def test_the_same_bytes_however_many_maps_are_in_memory(tmp_path: Path):
    project, matches, written = Project(tmp_path, part=7.3), some_matches(5), set()
    for neurons_at_once in (1, 3, 99):
        project.run(matches, 0, neurons_at_once)
        written.add((project.data / "bag/failures.parquet").read_bytes())
    assert len(written) == 1


def test_cells_that_fail_for_want_of_heuristics_show_it(tmp_path: Path):
    """Sums are right where either heuristic holds, divisions by chance."""
    rng = np.random.default_rng(1)
    project = Project(
        tmp_path,
        right=lambda o, a, b, r: a % 2 == 0 or b <= 6 if o == "add" else rng.random() < 0.5,
    )
    matches: Matches = []
    for operator in RESULTS:
        for neuron, heuristic in enumerate([EVEN, EVEN, LOW]):
            matches.append((operator, 1, neuron, heuristic, "top", 0.9, 0.01))
    rows = concluded(project.run(matches, 1))
    for criterion in ("fdr", "threshold"):
        planted = rows["add", criterion, "associated_neurons"]
        chance = rows["divide", criterion, "associated_neurons"]
        assert (planted["mean_incorrect"], planted["auc"], planted["auc_ci_low"]) == (0, 0, 0)
        assert planted["auc_ci_high"] < 0.3
        assert planted["d_ci_high"] < -1
        assert chance["d_ci_low"] < 0 < chance["d_ci_high"]
        assert chance["auc_ci_low"] < 0.5 < chance["auc_ci_high"]
