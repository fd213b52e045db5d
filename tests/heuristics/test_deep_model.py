"""Permutation tests on a deep model, most of whose neurons do not depend on the numbers."""

from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from stages.heuristics import catalogue, figures, heuristic_overlaps, permutation_tests, scores
from stages.heuristics.null_distribution.rounds import Standing, next_draws
from stages.heuristics.permutation_tests import PermutationTestsWork
from stages.heuristics.settings import PermutationTests
from stages.lib.core.hdf5_store import LayerWriter, writing
from stages.lib.core.tables import read_table, write_table
from tests.made import Tables, ask
from tests.micro import SHIPPED, alone

SIDE, LAYERS, WIDTH, LEVEL = 40, 24, 28, 0.05
OP1, OP2 = np.indices((SIDE, SIDE))
GRIDS = {"op1": OP1, "op2": OP2, "result": OP1 + OP2}
GRID = SHIPPED["heuristics"]["grids"]["paper"] | {"moduli": [3, 4, 5, 7], "patterns": ["..d"]}
SECTIONS = ("heuristics", "scores", "permutation_tests", "labels", "overlaps")
SETTINGS = PermutationTests(**SHIPPED["permutation_tests"])
Truth = dict[tuple[int, int], str]  # layer, neuron -> its planted heuristic


def remainders(quantities: Iterable[str], divisors: Iterable[int]) -> dict[str, np.ndarray]:
    """Heuristic -> its cells (op1, op2)."""
    cells = {}
    for quantity, divisor in product(quantities, divisors):
        for remainder in range(divisor):
            name = f"{quantity} mod {divisor} = {remainder}"
            cells[name] = GRIDS[quantity] % divisor == remainder
    return cells


def ranges(quantities: Iterable[str]) -> dict[str, np.ndarray]:
    """Heuristic -> its cells (op1, op2)."""
    cells = {}
    for quantity, start in product(quantities, range(0, SIDE, 10)):
        own = GRIDS[quantity]
        cells[f"{quantity} in {start}..{start + 9}"] = (own >= start) & (own < start + 10)
    return cells


PLANTED = {  # layer -> what its neurons implement
    20: remainders(["op1", "op2"], [3, 4]),
    21: ranges(["op1", "op2"]),
    22: remainders(["result"], [3, 4, 5]),
}


def random_map(random: np.random.Generator) -> np.ndarray:
    """A map (op1, op2) that is as likely with any other order of the numbers.

    It is noise, a sum of random functions, or a random network of random embeddings.
    """
    noise = random.normal(size=(SIDE, SIDE))
    first, second = random.normal(size=(2, SIDE, 1, 8))
    hidden = np.tanh(first + second.swapaxes(0, 1))
    maps = (
        noise,
        first[..., 0] + second[..., 0].T + noise / 2,
        np.maximum(hidden @ random.normal(size=8), 0),
    )
    return maps[random.integers(3)]


def model(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, Truth]:
    """Activations (layer, neuron, op1, op2), value logits (layer, neuron, result), the truth."""
    activations = np.empty((LAYERS, WIDTH, SIDE, SIDE))
    for layer, neuron in np.ndindex(LAYERS, WIDTH):
        activations[layer, neuron] = random_map(random)
    logits = random.normal(size=(LAYERS, WIDTH, 2 * SIDE - 1))
    truth = {}
    for layer, heuristics in PLANTED.items():
        for neuron, (name, cells) in enumerate(heuristics.items()):
            activations[layer, neuron] = cells + random.random((SIDE, SIDE)) / 5
            logits[layer, neuron] = 1 + random.random(2 * SIDE - 1) / 5
            truth[layer, neuron] = name
    return activations, logits, truth


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    """A folder with the stores of such a model, the catalogue, and the scores of its neurons."""
    folder = tmp_path_factory.mktemp("deep")
    activations, logits, truth = model(np.random.default_rng(0))
    layers, results = list(range(LAYERS)), GRIDS["result"]
    with writing(folder / "data/deep/store/activations/add.h5") as file:
        axes, shape = {"neuron": WIDTH, "op1": SIDE, "op2": SIDE}, (16, SIDE, SIDE)
        keys, columns = {"subject": "deep", "operator": "add"}, {"result": results}
        writer = LayerWriter(file, layers, axes, "float16", shape, keys, columns=columns)
        for layer in layers:
            writer.write(layer, 0, activations[layer])
    with writing(folder / "data/deep/store/value_logits.h5") as file:
        axes, shape = {"neuron": WIDTH, "number": 2 * SIDE - 1}, (16, 2 * SIDE - 1)
        writer = LayerWriter(file, layers, axes, "float32", shape, {"subject": "deep"})
        for layer in layers:
            writer.write(layer, 0, logits[layer])
    columns = {quantity: values.ravel() for quantity, values in GRIDS.items()}
    cells = pl.DataFrame({"operator": "add", **columns})
    write_table(cells, folder / "data/corpus/cells.parquet")
    write_params(folder)
    with pytest.MonkeyPatch.context() as patch:
        within(folder, patch)
        catalogue.main()
        scores.main("deep")
        heuristic_overlaps.main("deep")
    return folder, truth


def write_params(folder: Path, **draws: int) -> None:
    """Write the settings of the chapter; draws: other values in the section permutation_tests."""
    settings = alone("deep", operators=["add"]) | {name: SHIPPED[name] for name in SECTIONS}
    settings["heuristics"] = {"grid": "paper", "grids": {"paper": GRID}, "custom": {}}
    settings["permutation_tests"] = settings["permutation_tests"] | draws
    (folder / "params.yaml").write_text(yaml.safe_dump(settings))


def within(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.chdir(folder)
    patch.setenv("BAG_WORKERS", "1")


def labelled(folder: Path, monkeypatch: pytest.MonkeyPatch, **draws: int) -> Tables:
    """The tables of the model's permutation tests, and of the queries that follow."""
    within(folder, monkeypatch)
    write_params(folder, **draws)
    permutation_tests.main("deep")
    names = ("permutation_tests", "naming", "scores", "heuristic_overlaps")
    tables = {name: read_table(f"data/deep/heuristics/{name}.parquet") for name in names}
    tables["matches"] = ask("matches", tables, **SHIPPED["matches"])
    tables["label_setting"] = pl.DataFrame({"threshold": 0.4, "level": LEVEL})
    return tables | {
        "labels": ask("labels", tables),
        "label_limits": ask("label_limits", tables, level=LEVEL),
    }


def test_a_deep_model_gets_enough_draws_for_its_labels(
    project: tuple[Path, Truth], monkeypatch: pytest.MonkeyPatch
):
    folder, truth = project
    tables = labelled(folder, monkeypatch)
    [limits] = tables["label_limits"].rows(named=True)
    assert limits["neurons"] == LAYERS * WIDTH
    assert limits["neurons"] / (LEVEL * 121) > 1.5 * len(truth)  # 120 draws allow no label
    assert limits["needed"] <= limits["at_floor"]
    assert not limits["too_few_draws"]
    same = {*tables["heuristic_overlaps"].filter("same").select("heuristic", "other").rows()}
    labels = tables["labels"].select("layer", "neuron", "heuristic").rows()
    right = []
    for layer, neuron, name in labels:
        planted = truth.get((layer, neuron))
        if planted == name or (planted, name) in same:
            right.append((layer, neuron))
    assert len(right) / len(labels) >= 0.98
    assert len({*right}) / len(truth) >= 0.97
    many = (
        tables["permutation_tests"].filter(pl.col("draws") > 120).select("layer", "neuron").unique()
    )
    assert len(many) < len(truth) + 0.02 * limits["neurons"]  # few neurons take many draws


def test_later_rounds_count_the_relabellings_of_the_neurons_that_they_test(
    project: tuple[Path, Truth], monkeypatch: pytest.MonkeyPatch
):
    """The time left follows from the count, and what is decided or done takes no time."""
    folder, truth = project
    within(folder, monkeypatch)
    write_params(folder)
    tests = PermutationTestsWork("deep")
    neurons, counts = [], []
    first = 0
    while True:
        draws = []
        for number, unit in enumerate(tests.units[first:], first):
            reports: list[int] = []
            tests.do(number, reports.append)
            assert sum(reports) == unit.size
            draws += tests.candidates.read(number)["draws"].to_list()
        counts.append(tests.counts)
        size = sum(unit.size for unit in tests.units)  # of this round alone
        neurons.append(size if first == 0 else size / max(draws))
        first = len(tests.units)
        if not tests.finish():
            break
    assert neurons[0] == LAYERS * WIDTH
    assert len(neurons) > 1
    assert 0.97 * len(truth) <= min(neurons) <= max(neurons[1:]) < LAYERS * WIDTH / 4
    assert counts == ["neuron"] + ["relabelling"] * (len(neurons) - 1)


def test_too_few_draws_for_any_label_are_reported(
    project: tuple[Path, Truth], monkeypatch: pytest.MonkeyPatch
):
    folder, truth = project
    tables = labelled(folder, monkeypatch, most_draws=120)
    assert tables["labels"].is_empty()
    [limits] = tables["label_limits"].rows(named=True)
    expected = {"draws": 120, "needed": 112, "controlled": 0, "too_few_draws": True}
    assert limits == limits | expected
    assert len(truth) * 0.97 <= limits["at_floor"] < 112
    portraits = figures.Portraits(**SHIPPED["portraits"])
    study = figures.Study("deep", ["add"], tables, tables["matches"], 0.4, portraits)
    assert figures.why_none(study, "add") == (
        "no label is possible with 120 draws: at least 112 neurons at the floor are needed, "
        f"{limits['at_floor']} are"
    )


@pytest.mark.parametrize(
    ("tests", "draws", "exceedances", "expected"),
    [
        (1000, 120, [], None),  # chance explains every neuron
        (1000, 120, [0] * 300, None),  # 16.5 % at the floor are enough
        (1000, 120, [0] * 58, 800),  # 50 more than by chance: 2 x 1000 / (0.05 x 50)
        (1000, 120, [0, 1, 4], 960),  # eight times as many, until few are left by chance
        (10**9, 120, [0] * 100, None),  # no possible number of draws is enough
    ],
)
def test_draws_follow_from_the_tests_and_from_the_neurons_at_the_floor(
    tests: int, draws: int, exceedances: list[int], expected: int | None
):
    planned = next_draws(Standing(tests, draws, np.array(exceedances)), SETTINGS, LEVEL)
    if expected is None:
        assert planned is None
    else:
        assert planned == pytest.approx(expected, rel=0.01)
