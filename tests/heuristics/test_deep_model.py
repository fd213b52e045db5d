"""Permutation tests on a deep model, most of whose neurons know nothing."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from stages.heuristics import catalogue, figures, heuristic_overlaps, permutation_tests, scores
from stages.heuristics.null_distribution.rounds import Standing, next_draws
from stages.heuristics.settings import PermutationTests
from stages.lib.core.hdf5_store import LayerWriter, writing
from stages.lib.core.tables import read_table, write_table
from tests.made import Tables, ask
from tests.micro import SHIPPED, alone

SIDE, LAYERS, WIDTH, LEVEL = 40, 24, 28, 0.05
OP1, OP2 = np.indices((SIDE, SIDE))
PLANTED = {  # layer -> what its neurons know
    20: {
        f"op{n} mod {m} = {r}": (op % m == r)
        for n, op in ((1, OP1), (2, OP2))
        for m in (3, 4)
        for r in range(m)
    },
    21: {
        f"op{n} in {a}..{a + 9}": (op >= a) & (op < a + 10)
        for n, op in ((1, OP1), (2, OP2))
        for a in (0, 10, 20, 30)
    },
    22: {f"result mod {m} = {r}": ((OP1 + OP2) % m == r) for m in (3, 4, 5) for r in range(m)},
}
GRID = SHIPPED["heuristics"]["grids"]["paper"] | {"moduli": [3, 4, 5, 7], "patterns": ["..d"]}
SECTIONS = ("heuristics", "scores", "permutation_tests", "labels", "overlaps")
SETTINGS = PermutationTests(**SHIPPED["permutation_tests"])


def knows_nothing(random: np.random.Generator) -> np.ndarray:
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


def model(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, dict[tuple[int, int], str]]:
    """Activations (layer, neuron, op1, op2), value logits (layer, neuron, number), planted names."""
    activations = np.array([[knows_nothing(random) for _ in range(WIDTH)] for _ in range(LAYERS)])
    logits = random.normal(size=(LAYERS, WIDTH, 2 * SIDE - 1))
    truth = {}
    for layer, known in PLANTED.items():
        for neuron, (name, holds) in enumerate(known.items()):
            activations[layer, neuron] = holds + random.random((SIDE, SIDE)) / 5
            logits[layer, neuron] = 1 + random.random(2 * SIDE - 1) / 5
            truth[layer, neuron] = name
    return activations, logits, truth


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[int, int], str]]:
    """A folder with the stores of such a model, the catalogue, and the scores of its neurons."""
    folder = tmp_path_factory.mktemp("deep")
    activations, logits, truth = model(np.random.default_rng(0))
    layers, common = list(range(LAYERS)), {"subject": "deep"}
    with writing(folder / "data/deep/store/activations/add.h5") as file:
        axes = {"neuron": WIDTH, "op1": SIDE, "op2": SIDE}
        writer = LayerWriter(
            file,
            layers,
            axes,
            "float16",
            (16, SIDE, SIDE),
            common | {"operator": "add"},
            columns={"result": OP1 + OP2},
        )
        for layer in layers:
            writer.write(layer, 0, activations[layer])
    with writing(folder / "data/deep/store/value_logits.h5") as file:
        writer = LayerWriter(
            file,
            layers,
            {"neuron": WIDTH, "number": 2 * SIDE - 1},
            "float32",
            (16, 2 * SIDE - 1),
            common,
        )
        for layer in layers:
            writer.write(layer, 0, logits[layer])
    cells = {
        "operator": "add",
        "op1": OP1.ravel(),
        "op2": OP2.ravel(),
        "result": (OP1 + OP2).ravel(),
    }
    write_table(pl.DataFrame(cells), folder / "data/corpus/cells.parquet")
    write_params(folder)
    with pytest.MonkeyPatch.context() as patch:
        within(folder, patch)
        catalogue.main()
        scores.main("deep")
        heuristic_overlaps.main("deep")
    return folder, truth


def write_params(folder: Path, **draws: int) -> None:
    settings = alone("deep", operators=["add"]) | {name: SHIPPED[name] for name in SECTIONS}
    settings["heuristics"] = {"grid": "paper", "grids": {"paper": GRID}, "custom": {}}
    (folder / "params.yaml").write_text(
        yaml.safe_dump(settings | {"permutation_tests": settings["permutation_tests"] | draws})
    )


def within(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.chdir(folder)
    patch.setenv("BAG_WORKERS", "1")


def labelled(folder: Path, monkeypatch: pytest.MonkeyPatch, **draws: int) -> Tables:
    """The tables of this model's permutation tests, with these settings, and of the queries on them."""
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


def test_a_deep_model_gets_draws_enough_for_its_labels(
    project: tuple[Path, Mapping],
    monkeypatch: pytest.MonkeyPatch,
):
    folder, truth = project
    tables = labelled(folder, monkeypatch)
    [limits] = tables["label_limits"].rows(named=True)
    assert limits["neurons"] == LAYERS * WIDTH
    assert limits["neurons"] / (LEVEL * 121) > 1.5 * len(
        truth
    )  # with 120 draws no label is possible
    assert limits["needed"] <= limits["at_floor"]
    assert not limits["too_few_draws"]
    same = tables["heuristic_overlaps"].filter("same").select("heuristic", "other").rows()
    pairs = tables["labels"].select("layer", "neuron", "heuristic").rows()
    right = [
        place
        for *place, name in pairs
        if truth.get(tuple(place)) == name or (truth.get(tuple(place)), name) in same
    ]
    assert len(right) / len(pairs) >= 0.98
    assert len({*map(tuple, right)}) / len(truth) >= 0.97
    many = tables["permutation_tests"].filter(pl.col("draws") > 120).select("layer", "neuron").unique()
    assert len(many) < len(truth) + 0.02 * limits["neurons"]  # draws are spent where they matter


def test_too_few_draws_for_any_label_are_told_as_such(
    project: tuple[Path, Mapping],
    monkeypatch: pytest.MonkeyPatch,
):
    folder, truth = project
    tables = labelled(folder, monkeypatch, most_draws=120)
    assert tables["labels"].is_empty()
    [limits] = tables["label_limits"].rows(named=True)
    assert (limits["draws"], limits["needed"], limits["controlled"], limits["too_few_draws"]) == (
        120,
        112,
        0,
        True,
    )
    assert len(truth) * 0.97 <= limits["at_floor"] < 112
    study = figures.Study("deep", ["add"], tables, 0.4, figures.Portraits(**SHIPPED["portraits"]))
    expected = "no label is possible with 120 draws: at least 112 neurons at the floor are needed, "
    expected += f"{limits['at_floor']} are"
    assert figures.why_none(study, "add") == expected


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
    assert planned == pytest.approx(expected, rel=0.01) if expected else planned is None
