"""Faulty sizes k of the published code: small maps by hand, and neurons that they gain and lose."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from stages.claims import fault_scores
from stages.lib.core.hdf5_store import LayerWriter, writing
from stages.lib.heuristics.names import parse
from tests.circuit.prompted import result
from tests.made import frame
from tests.micro import SHIPPED, alone, merged

M, NEURONS, NUMBERS = 20, 12, 2 * 20
OP1, OP2 = np.indices((M, M))
RESULTS = {
    "add": OP1 + OP2,
    "subtract": np.where(OP1 >= OP2, OP1 - OP2, -1),
    "multiply": np.where(OP1 * OP2 <= 12, OP1 * OP2, -1),
    "divide": np.where((OP2 > 0) & (OP1 > 0), OP1 // np.maximum(OP2, 1), -1),
}
RANGE, MODULO = "op2 range with op1's size", "result modulo with (M // n)^2"
OPERANDS = [
    "op1 in 0..3",
    "op1 in 5..9",
    "op1 in 12..19",
    "op1 in 15..400",
    "op2 in 0..3",
    "op2 in 5..9",
    "op2 in 12..19",
    "op2 in 15..400",
    "op1 mod 2 = 0",
    "op2 mod 9 = 4",
    "op1 = op2",
]
RESULT = [
    "result mod 2 = 0",
    "result mod 2 = 1",
    "result mod 3 = 1",
    "result mod 9 = 4",
    "result mod 25 = 3",
    "result in 0..1",
    "result ~ ..1",
]
GROUPS = {"operands": OPERANDS, "result": RESULT}
PUBLISHED, OTHERS = 0.5, [0.3, 0.65, 0.9]  # thresholds


def holds(name: str, a: np.ndarray, b: np.ndarray, r: np.ndarray) -> np.ndarray:
    quantities = {"op1": a, "op2": b, "result": r}
    within = re.fullmatch(r"(op1|op2|result) in (\d+)\.\.(\d+)", name)
    if within:
        quantity = quantities[within[1]]
        return (quantity >= int(within[2])) & (quantity <= int(within[3]))
    condition = name.replace("result ~ ..1", "result % 10 = 1")
    return eval(condition.replace("mod", "%").replace("=", "=="), quantities)


def project(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    cap: int,
    maps: dict[str, np.ndarray],
    votes: np.ndarray,
    names: list[str],
) -> None:
    """Write what the stage reads.

    maps: operator -> (layers, neurons, op1, op2); votes: value logits (layers, neurons, numbers).
    """
    (folder / "data/s/store/activations").mkdir(parents=True)
    layers = list(range(len(votes)))
    with writing(folder / "data/s/store/value_logits.h5") as file:
        writer = LayerWriter(
            file, layers, {"neuron": votes.shape[1], "number": NUMBERS}, "float32", (4, NUMBERS), {}
        )
        for layer in layers:
            writer.write(layer, 0, votes[layer])
    cells, catalogue = [], []
    for operator, values in maps.items():
        axes = {"neuron": values.shape[1], "op1": M, "op2": M}
        with writing(folder / f"data/s/store/activations/{operator}.h5") as file:
            writer = LayerWriter(
                file,
                layers,
                axes,
                "float16",
                (4, M, M),
                {"operator": operator},
                columns={"result": RESULTS[operator]},
            )
            for layer in layers:
                writer.write(layer, 0, values[layer])
        valid = RESULTS[operator] >= 0
        cells.append(
            frame(
                operator=operator, op1=OP1[valid], op2=OP2[valid], result=RESULTS[operator][valid]
            )
        )
        for heuristic in map(parse, names):
            row = (heuristic.name, heuristic.kind, heuristic.quantity, heuristic.predicate, True)
            catalogue.append((operator, *row))
    for chapter in ("corpus", "heuristics"):
        (folder / "data" / chapter).mkdir()
    pl.concat(cells).write_parquet(folder / "data/corpus/cells.parquet")
    columns = ["operator", "heuristic", "kind", "quantity", "predicate", "usable"]
    pl.DataFrame(catalogue, schema=columns, orient="row").write_parquet(
        folder / "data/heuristics/heuristics.parquet"
    )
    changes = {
        "scores": {"neurons_per_unit": 5},
        "permutation_tests": {"thresholds": OTHERS, "smallest_chance_corrected": min(OTHERS)},
        "faults": {"published": PUBLISHED, "prompts": 3, "fault_seed": 0, "cap": cap},
    }
    settings = merged(SHIPPED, alone("s") | changes)
    (folder / "params.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.chdir(folder)


def size(name: str, fault: str, operator: str, covered: int, cap: int) -> int:
    """The k of a heuristic under a fault, from the faults' description."""
    valid = RESULTS[operator] >= 0
    if fault in (RANGE, "both") and name.startswith("op2 in"):
        return int(holds(name.replace("op2", "op1"), OP1[valid], OP2[valid], OP1[valid]).sum())
    modulo = re.match(r"result mod (\d+)", name)
    if fault in (MODULO, "both") and modulo:
        k = min((M // int(modulo[1])) ** 2, int(valid.sum()))
        return min(k, cap) if operator in ("multiply", "divide") else k
    return covered


def scored(
    name: str, fault: str, operator: str, cap: int, activations: np.ndarray, votes: np.ndarray
) -> float:
    """Return the better side's score of one heuristic on one neuron.

    activations: (op1, op2); votes: value logits (numbers,).
    """
    valid = RESULTS[operator] >= 0
    a, b, r = OP1[valid], OP2[valid], RESULTS[operator][valid]
    inside = holds(name, a, b, r)
    values = activations[valid] * (votes[r] if name.startswith("result") else np.float32(1))
    k = size(name, fault, operator, int(inside.sum()), cap)
    if not 0 < inside.sum() < len(inside) or k == 0:
        return 0.0
    order = np.argsort(-values, kind="stable")
    return max(inside[order[:k]].sum(), inside[order[len(order) - k :]].sum()) / k


@pytest.mark.parametrize("cap", [5, 1000])
def test_the_table_counts_what_sorting_with_the_faulty_sizes_gives(
    cap: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Random maps have many ties.

    For multiply the larger cap leaves sizes above the number of cells, and (M // 25)^2 is 0.
    """
    random = np.random.default_rng(cap)
    maps = {}
    for operator in RESULTS:
        maps[operator] = random.integers(-6, 7, (2, NEURONS, M, M)).astype(np.float16)
    maps["subtract"][0] += 4 * (np.float16(OP2) < random.integers(1, 5, (NEURONS, 1, 1)))
    votes = random.integers(-3, 4, (2, NEURONS, NUMBERS)).astype(np.float32)
    project(tmp_path, monkeypatch, cap, maps, votes, [*OPERANDS, *RESULT])
    fault_scores.main("s")
    table = result(tmp_path / "data/s", "fault_scores")
    expected = []
    for operator, values in maps.items():
        for layer in (0, 1):
            best = {}
            for fault in ("none", RANGE, MODULO, "both"):
                for group, names in GROUPS.items():
                    best[fault, group] = np.zeros(NEURONS)
                    for neuron, name in product(range(NEURONS), names):
                        maps_of = values[layer][neuron].astype(np.float32), votes[layer][neuron]
                        score = scored(name, fault, operator, cap, *maps_of)
                        best[fault, group][neuron] = max(best[fault, group][neuron], score)
                best[fault, "any"] = np.maximum(best[fault, "operands"], best[fault, "result"])
            for ((fault, group), scores), threshold in product(best.items(), [*OTHERS, PUBLISHED]):
                now = scores.astype(np.float32) >= np.float32(threshold)
                right = best["none", group].astype(np.float32) >= np.float32(threshold)
                counts = (NEURONS, now.sum(), (now & ~right).sum(), (right & ~now).sum())
                expected.append(("s", operator, layer, fault, group, threshold, *map(int, counts)))
    assert table.rows() == sorted(expected)
    changed = (
        table.filter((pl.col("gained") > 0) | (pl.col("lost") > 0))
        .select("operator", "fault")
        .unique()
    )
    assert set(changed.filter(fault=RANGE)["operator"]) == {
        "subtract"
    }  # the only operator whose cells are not symmetric
    assert set(changed.filter(fault=MODULO)["operator"]) >= {"add", "divide"}
    assert "none" not in changed["fault"]


def test_neurons_are_gained_and_lost_as_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """For subtract, op2 in 0..3 covers 74 cells and op1 in 0..3 only 10.

    For add, result mod 9 = 4 covers 43 cells, and (20 // 9)^2 is 4.
    """
    random = np.random.default_rng(0)
    maps = {
        "add": random.random((1, 4, M, M)).astype(np.float16),
        "subtract": random.random((1, 4, M, M)).astype(np.float16),
    }
    low = np.argwhere((OP1 >= OP2) & (OP2 <= 3))
    high = np.argwhere((OP1 >= OP2) & (OP2 >= 12))
    is_four = (OP1 + OP2) % 9 == 4
    fours, others = np.argwhere(is_four), np.argwhere(~is_four)
    for operator, neuron, places, height in (
        ("subtract", 0, random.permutation(low)[:10], 9),
        ("subtract", 1, high, 9),
        ("add", 2, random.permutation(fours)[:4], 9),
        ("add", 3, fours, 9),
        ("add", 3, random.permutation(others)[:4], 99),
    ):
        maps[operator][0, neuron, places[:, 0], places[:, 1]] = height
    names = ["op2 in 0..3", "op2 in 12..19", "result mod 9 = 4"]
    project(tmp_path, monkeypatch, 300, maps, np.ones((1, 4, NUMBERS), np.float32), names)
    fault_scores.main("s")
    written = pl.read_parquet(tmp_path / "data/s/claims/fault_scores.parquet").filter(threshold=0.9)
    keys, counts = ["operator", "fault", "quantities"], ["classified", "gained", "lost"]
    rows = written.select(*keys, *counts).rows_by_key(keys, unique=True)
    assert rows["subtract", "none", "any"] == (1, 0, 0)  # neuron 1
    for fault in (RANGE, "both"):
        assert rows["subtract", fault, "operands"] == (1, 1, 1)  # neuron 0 instead
    assert rows["add", "none", "result"] == (1, 0, 0)  # neuron 3
    for fault in (MODULO, "both"):
        assert rows["add", fault, "result"] == (1, 1, 1)  # neuron 2 instead
    assert rows["subtract", MODULO, "any"] == rows["subtract", "none", "any"]
    assert rows["add", RANGE, "any"] == rows["add", "none", "any"]
