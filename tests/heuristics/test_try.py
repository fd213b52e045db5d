"""`bag try`: scores are the stage's, planted neurons are found, noise is not."""

import io
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages.heuristics import scores as stage
from stages.heuristics import trial
from stages.heuristics.null_distribution.answers import answer_hits
from stages.heuristics.null_distribution.operands import operand_hits
from stages.heuristics.settings import Scores
from stages.heuristics.trial import Budget
from stages.heuristics.try_predicate import best_neurons, main, parser, scope_of
from stages.lib.core.hdf5_store import LayerStore, LayerWriter, writing
from stages.lib.core.settings import files, load
from stages.lib.core.shards import store_of
from stages.lib.core.tables import write_table
from stages.lib.heuristics.grid import OperandGrid
from stages.lib.heuristics.names import parse
from stages.lib.sql.database import Database
from tests.micro import ROOT

SIZE, NEURONS, LAYERS = 30, 24, (0, 2)
BOTH_EVEN = "op1 % 2 = 0 and op2 % 2 = 0"
CATALOGUE = ["op1 mod 2 = 0", "op1 = op2", "op2 in 10..19", "result in 10..19"]
OP1, OP2 = np.indices((SIZE, SIZE))
RESULTS = {"add": OP1 + OP2, "subtract": np.where(OP1 >= OP2, OP1 - OP2, -1)}
# neurons of layer 2; all others are sums of random functions of op1 and op2
PLANTED = {3: ("both even", 1), 5: ("both even", -1), 7: ("result in 10..19", 1)}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with the shipped settings, and the stores of a made-up model, abacus."""
    root = tmp_path_factory.mktemp("project")
    for file in files(ROOT):
        target = root / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    folder, rows = root / "data/abacus", []
    logits = np.random.default_rng(1).normal(1, 0.2, (NEURONS, 2 * SIZE)).astype(np.float32)
    axes = {"neuron": NEURONS, "number": 2 * SIZE}
    with writing(folder / "store/value_logits.h5") as file:
        writer = LayerWriter(file, [*LAYERS], axes, "float32", (NEURONS, 2 * SIZE), {})
        for layer in LAYERS:
            writer.write(layer, 0, logits)
    for operator, results in RESULTS.items():
        _write_store(folder / f"store/activations/{operator}.h5", operator, logits)
        cells = results >= 0
        columns = {"op1": OP1[cells], "op2": OP2[cells], "result": results[cells]}
        rows.append(pl.DataFrame(columns).with_columns(operator=pl.lit(operator)))
    write_table(pl.concat(rows), root / "data/corpus/cells.parquet")
    write_table(catalogue(), root / "data/heuristics/heuristics.parquet")
    label = {"operator": "add", "layer": 2, "neuron": 7, "rank": 1, "heuristic": "result in 10..19"}
    types = {"layer": pl.Int16, "neuron": pl.Int32}
    write_table(pl.DataFrame([label]).cast(types), folder / "heuristics/labels.parquet")
    write_table(pl.DataFrame({"first_layer": [2]}), folder / "circuit/late_layers.parquet")
    return root


def _write_store(path: Path, operator: str, logits: np.ndarray) -> None:
    results, random = RESULTS[operator], np.random.default_rng(len(operator))
    members = {
        "both even": (OP1 % 2 == 0) & (OP2 % 2 == 0),
        "result in 10..19": (results >= 10) & (results < 20),
    }
    axes = {"neuron": NEURONS, "op1": SIZE, "op2": SIZE}
    columns, shape = {"result": results}, (NEURONS, SIZE, SIZE)
    with writing(path) as file:
        attributes = {"operator": operator}
        writer = LayerWriter(file, [*LAYERS], axes, "float16", shape, attributes, columns=columns)
        for layer in LAYERS:
            rows, cross = (
                random.normal(size=(NEURONS, SIZE, 1)),
                random.normal(size=(NEURONS, SIZE)),
            )
            maps = rows + cross[:, None] + random.normal(size=shape) / 2
            for neuron, (name, sign) in PLANTED.items() if layer == 2 else ():
                maps[neuron] = sign * (4 * members[name] + random.normal(size=(SIZE, SIZE)))
                if name.startswith("result"):
                    maps[neuron] /= logits[neuron][results]
            writer.write(layer, 0, maps.astype(np.float32))


def catalogue() -> pl.DataFrame:
    """Return the catalogue of both operators."""
    rows = []
    for operator, results in RESULTS.items():
        cells = pl.DataFrame({"op1": OP1.ravel(), "op2": OP2.ravel(), "result": results.ravel()})
        for heuristic in map(parse, CATALOGUE):
            holds = pl.sql_expr(heuristic.predicate)
            count = cells.filter(pl.col("result") >= 0, holds).height
            text = heuristic.name, heuristic.kind, heuristic.quantity, heuristic.predicate
            rows.append((operator, *text, count, True))
    columns = ["operator", "heuristic", "kind", "quantity", "predicate", "cells", "usable"]
    return pl.DataFrame(rows, columns, orient="row")


def tried(project: Path, *arguments: str) -> tuple[list[dict], str]:
    """Run `bag try` in a project. Returns the rows that it prints, and its remarks."""
    printed, remarks = io.StringIO(), io.StringIO()
    with chdir(project), redirect_stdout(printed), redirect_stderr(remarks):
        main([*arguments, "--json"])
    return json.loads(printed.getvalue()), remarks.getvalue()


def prepared(project: Path, operator: str, text: str, mapped: str | None = None) -> trial.Trial:
    """Return the trial of a text. Call it in the project."""
    database = Database({"cells": [project / "data/corpus/cells.parquet"]}, threads=1)
    store = store_of(project / "data/abacus/store/activations", operator)
    heuristic = trial.heuristic_of(database, text, store, catalogue())
    return trial.prepared(database, trial.on_map(database, heuristic, mapped), store, 10)


def best_of(each: trial.Trial, text: str, best: str) -> tuple[pl.DataFrame, list[trial.NeuronTest]]:
    """Return the best neurons and their tests, without drawing them. Call it in the project."""
    options = parser().parse_args([text, "--operator", each.grid.operator, "--best", best])
    scope = scope_of(options)
    with ThreadPoolExecutor(2) as threads:
        return best_neurons(each, scope, options.best, Budget(scope.neurons, 0.05), threads)


@pytest.mark.parametrize("operator", RESULTS)
def test_scores_are_those_of_the_stage(project: Path, operator: str):
    """Every heuristic of the catalogue, both sides, bit by bit; planted neurons are among these."""
    store = store_of(project / "data/abacus/store/activations", operator)
    logits = LayerStore(project / "data/abacus/store/value_logits.h5")
    database = Database({"cells": [project / "data/corpus/cells.parquet"]}, threads=1)
    grid = OperandGrid(database, catalogue(), store, 10)
    with chdir(project):
        settings = load(Scores).model_copy(update={"smallest_chance_corrected": -1e9})
    expected = []
    for neuron, activations, weights in grid.neurons(2, logits, range(8)):
        values = activations.ravel()[grid.cells]
        rows = stage._neuron(grid, values, weights[grid.results], settings)
        expected.append(rows.with_columns(neuron=pl.lit(neuron, pl.Int32)))
    whole = pl.concat(expected)
    columns = ["neuron", "side", "score", "chance_score", "chance_corrected"]
    with ThreadPoolExecutor(2) as threads:
        for name in CATALOGUE:
            each = prepared(project, operator, parse(name).predicate)
            assert each.heuristic.name == name
            own = trial.scored(each, logits, [2], 7, threads, int).filter(pl.col("neuron") < 8)
            table = whole.filter(heuristic=name).sort("neuron", "side")
            assert own.sort("neuron", "side").select(columns).equals(table.select(columns))


@pytest.mark.parametrize("operator", RESULTS)
@pytest.mark.parametrize(
    ("text", "mapped"),
    [
        (BOTH_EVEN, None),
        ("op1 < 20", None),
        ("result in 10..19", None),
        ("result < 20", "contribution"),
    ],
)
def test_hits_are_those_of_the_permutation_tests(
    project: Path, operator: str, text: str, mapped: str | None
):
    """Sets of less and of more than half of the cells, on blocks of the grid and on others."""
    each = prepared(project, operator, text, mapped)
    grid, group = each.grid, each.group
    logits = LayerStore(project / "data/abacus/store/value_logits.h5")
    labels = trial.permutations(grid, range(9), 5)
    neurons = grid.neurons(2, logits, range(2, 5))
    tests = [trial.NeuronTest(each, *maps) for _, *maps in neurons]
    with ThreadPoolExecutor(2) as threads:
        own = trial._corrected(each, tests, labels, threads)
    for test, corrected in zip(tests, own, strict=True):
        neuron = test.neuron
        if each.of_result:
            maps = neuron.activations, neuron.logits
            hits = answer_hits(grid, *maps, labels, trial.NO_SETS).hits
        else:
            hits = operand_hits(grid, neuron.ranks, neuron.order, labels)
        scores = (hits / group.sets.k - group.share) / (1 - group.share)
        np.testing.assert_array_equal(corrected, scores[:, :, 0].astype(np.float32))


def test_planted_neurons_are_found_and_drawn(project: Path, tmp_path: Path):
    before = sorted(project.rglob("*"))
    plot = tmp_path / "maps.png"
    rows, remarks = tried(project, BOTH_EVEN, "--best", "4", "--plot", str(plot))
    found_neurons = [(row["layer"], row["neuron"], row["side"]) for row in rows]
    assert sorted(found_neurons[:2]) == [(2, 3, "top"), (2, 5, "bottom")]
    assert all(row["q_value"] <= 0.05 and row["score"] > 0.9 for row in rows[:2])
    assert all(row["q_value"] > 0.05 for row in rows[2:])
    assert "48 tests" in remarks
    assert "not in the catalogue" in remarks
    assert str(plot) in remarks
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert sorted(project.rglob("*")) == before


def test_a_heuristic_of_the_result_is_scored_on_contributions(project: Path, tmp_path: Path):
    plot = "--plot", str(tmp_path / "maps.png")
    same_cells = "result >= 10 and result < 20"
    rows, remarks = tried(project, same_cells, "--layers", "late", "--best", "1", *plot)
    assert (rows[0]["neuron"], rows[0]["label"]) == (7, "result in 10..19")
    assert rows[0]["q_value"] <= 0.05
    assert "contributions" in remarks
    assert "24 tests" in remarks
    with chdir(project):
        on_activations = prepared(project, "add", same_cells, "activation")
        other, _ = best_of(on_activations, same_cells, "1")
    assert not on_activations.of_result
    assert other["score"][0] < rows[0]["score"]


def test_a_predicate_that_no_neuron_implements_gives_none(project: Path):
    with chdir(project):
        for number in range(3):
            noise = f"hash(op1 * 1000 + op2 + {number}) % 2 = 0"
            rows, _ = best_of(prepared(project, "subtract", noise), noise, "5")
            assert (rows["q_value"] > 0.05).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["op3 = 1"], ["'op3 = 1'", "op1, op2 and result", "op3"]),
        (["op1 + 1"], ["its type is BIGINT", "BOOLEAN"]),
        (["op1 ="], ["'op1 ='", "syntax error"]),
        (["op1 = 1), (op2 = 1"], ["BOOLEAN, BOOLEAN"]),
        (["op1 = 1 -- odd"], ["op1 = 1 -- odd"]),
        (["count(*) > 1"], ["1 values, not 900"]),
        (["random() < 0.5"], ["other cells each time"]),
        (["op1 < 100"], ["900 of the 900 cells of add", "10 to 890", "scores.least_cells"]),
        (["op1 = 1 and op2 < 9"], ["9 of the 900 cells", "10 to 890"]),
        (["asked = 3"], ["'asked = 3'", "use result"]),
        (["op1 < 9", "--subject", "nobody"], ["'nobody'", "abacus"]),
        (["op1 < 9", "--subject", "planted"], ["planted has no store", "dvc repro"]),
        (["op1 < 9", "--operator", "divide"], ["'divide'", "add, subtract"]),
        (["op1 < 9", "--layers", "0,1"], ["'1' is not a layer", "0, 2"]),
        (["op1 < 9", "--best", "0"], ["--best 0", "1 to 100"]),
        (["op1 < 9", "--draws", "0"], ["--draws 0"]),
        (["op1 < 9", "--map", "contribution"], ["result alone", "--map activation"]),
        (["op1 < 9", "--plot", "maps.svg"], ["maps.svg", ".png"]),
        (["op1 < 9", "--plot", "nowhere/maps.png"], ["nowhere is not a folder"]),
    ],
)
def test_what_cannot_be_tried_is_refused(project: Path, arguments: list[str], words: list[str]):
    with pytest.raises(SystemExit) as refusal:
        tried(project, *arguments)
    for word in words:
        assert word in str(refusal.value)


def test_rates_of_false_discoveries_count_every_neuron():
    p_values = np.array([0.02, 0.001, 0.001, 1])
    np.testing.assert_allclose(trial.q_values(p_values, 20), [0.4 / 3, 0.01, 0.01, 1])


def test_the_scores_are_those_of_the_table(micro: Path, tmp_path: Path):
    plot = "--plot", str(tmp_path / "maps.png")
    table = pl.read_parquet(micro / "data/abacus/heuristics/scores.parquet")
    for name in ("op1 mod 2 = 0", "result mod 5 = 0"):
        rows, _ = tried(micro, name, "--operator", "add", *plot)
        stored = table.filter(operator="add", heuristic=name)
        best = stored.sort("chance_corrected", descending=True)["chance_corrected"][0]
        assert rows[0]["chance_corrected"] == pytest.approx(best, rel=1e-7)
        for row in rows:
            keys = {key: row[key] for key in ("layer", "neuron", "side")}
            kept = stored.filter(**keys)["score"]
            assert row["chance_corrected"] < 0.2 or np.float32(row["score"]) == kept.item()
