"""Discovered predicates: planted maps, noise, the search against brute force, and the queries."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from stages.heuristics import discovery_search
from stages.heuristics.discovery import grammar
from stages.heuristics.discovery.search import NONE, Predicate, holds, search, space
from stages.heuristics.discovery_search import SCHEMA, Language
from stages.lib.heuristics.grid import Group
from stages.lib.heuristics.scores import sets
from stages.lib.sql.database import Database
from tests.made import ask

SIDE, LEAST = 120, 10
RANDOM = np.random.default_rng(0)
OP1, OP2 = np.indices((SIDE, SIDE)).reshape(2, -1)[:, RANDOM.permutation(SIDE**2)]


class Sums:
    """The grammar of sums of operands below `side`, and its cells in random order."""

    def __init__(self, op1: np.ndarray, op2: np.ndarray, least: int):
        self.quantities = np.stack([op1, op2, op1 + op2, grammar.relations(op1, op2)])
        largest = dict(zip(("op1", "op2", "result"), self.quantities.max(1).tolist(), strict=False))
        self.views = grammar.views(largest)
        labels = largest["op1"] + largest["op2"] + 2
        self.space = space(self.quantities, self.views, labels, least)

    def search(self, values: np.ndarray) -> Predicate:
        return search(values.astype(np.float32), self.space, 0.0)[0]

    def text(self, description: Predicate) -> str:
        atoms = [atom for atom in description.atoms.tolist() if atom[0] != NONE]
        return " and ".join(self.views[view].text(low, high) for view, low, high in atoms)


@pytest.fixture(scope="module")
def sums() -> Sums:
    return Sums(OP1, OP2, LEAST)


PLANTED = {
    "op1 between 37 and 81": 1,
    "result % 7 = 3": 1,
    "op2 // 10 % 10 = 4": 1,
    "op1 % 10 + op2 % 10 >= 10": 1,
    "op1 % 10 >= op2 % 10": 1,
    "op1 <= 59 and op2 % 2 = 1": 2,
    "result between 70 and 129 and op1 % 5 = 2": 2,
    "result % 10 = 3 and op1 % 10 + op2 % 10 < 10": 2,
    "op1 between 30 and 49 and op2 between 80 and 99": 2,
    "result between 143 and 160 and op1 >= 61": 2,
}


@pytest.mark.parametrize("predicate", PLANTED)
def test_a_planted_predicate_is_found_also_among_noise(sums: Sums, predicate: str):
    """Its text is SQL that the same cells satisfy, and its atoms are no more than planted."""
    frame = pl.DataFrame({"op1": OP1, "op2": OP2, "result": OP1 + OP2})
    planted = _satisfied(frame, predicate)
    for noise in (0.0, 0.3):
        values = planted + noise * np.random.default_rng(1).normal(size=len(planted))
        description = sums.search(values)
        inside = holds(sums.quantities, description, sums.space)
        agreement = max((inside == planted).mean(), (inside != planted).mean())
        assert agreement > (0.995 if noise else 1 - 1e-9)
        assert (description.atoms[:, 0] != NONE).sum() <= PLANTED[predicate]
        assert (_satisfied(frame, sums.text(description)) == inside).all()
        expected = np.corrcoef(inside, values)[0, 1] ** 2
        assert description.share == pytest.approx(expected, abs=1e-5)


def _satisfied(frame: pl.DataFrame, condition: str) -> np.ndarray:
    database = Database({}, threads=1)
    database.connection.register("cells", frame.with_row_index())
    query = f"select {condition} from cells order by index"
    return np.array(database.connection.sql(query).fetchall())[:, 0].astype(bool)


def test_a_map_of_noise_or_of_one_value_has_no_predicate(sums: Sums):
    for seed in range(5):
        description = sums.search(np.random.default_rng(seed).normal(size=len(OP1)))
        assert (description.atoms == NONE).all()
        assert description.gain == 0
    assert (sums.search(np.full(len(OP1), 0.3)).atoms == NONE).all()


@hypothesis_settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_atoms_are_those_of_brute_force_and_conjunctions_are_no_worse(seed: int, least: int):
    random = np.random.default_rng(seed)
    op1, op2 = np.indices((13, 13)).reshape(2, -1)
    kept = random.permutation(len(op1))[: random.integers(60, len(op1))]
    small = Sums(op1[kept], op2[kept], least)
    values = random.normal(size=len(kept)) + 2 * (small.quantities[2] > 9)
    description, bits = small.search(values), grammar.bits(small.views)
    best = 0.0
    for number, view in enumerate(small.views):
        codes = view.codes[small.quantities[small.space.quantity[number]]]
        for low, high in product(range(view.size), repeat=2):
            inside = (codes >= low) & (codes <= high)
            if low <= high and least <= inside.sum() <= len(kept) - least:
                share = np.corrcoef(inside, values)[0, 1] ** 2
                length = bits[number, int(low < high)] + 1
                best = max(best, small.space.samples / 2 * np.log2(1 / (1 - share)) - length)
    if (description.atoms[1] == NONE).all():
        assert description.gain == pytest.approx(best, abs=1e-3)
    else:
        assert description.gain > best - 1e-3


def searched(seed: int, neurons: int, effect: float) -> pl.DataFrame:
    """Return rows of the table discovery_search, of which a third have a larger gain."""
    random = np.random.default_rng(seed)
    gain, decoy = random.exponential(10, (2, neurons)).round(1)
    gain[: neurons // 3] += effect
    gain[gain < 4], decoy[decoy < 4] = 0, 0
    has, named = gain > 0, random.random(neurons) < 0.5
    frame = pl.DataFrame({"neuron": np.arange(neurons, dtype=np.int32), "gain": gain})
    frame = frame.with_columns(
        subject=pl.lit("s"),
        operator=pl.lit("add"),
        layer=pl.lit(0, pl.Int16),
        predicate=pl.when(pl.Series(has)).then(pl.lit("op1 = 1")),
        atoms=pl.Series(has * random.integers(1, 3, neurons)),
        bits=pl.lit(12.0),
        decoy_gain=pl.Series(decoy),
        side=pl.lit("top"),
        explained_training=pl.lit(0.5),
        explained=pl.Series(random.random(neurons)),
        sum_explained=pl.Series(random.random(neurons)),
        same_as=pl.when(pl.Series(named)).then(pl.lit("a")),
        catalogue=pl.lit("a"),
        catalogue_bits=pl.lit(10.0),
        catalogue_gain=pl.Series(gain - random.integers(-1, 2, neurons)),
        catalogue_explained=pl.Series(random.random(neurons)),
        short=pl.lit("op1 = 1"),
        short_explained=pl.lit(0.1),
    )
    return frame.select(list(SCHEMA)).cast(SCHEMA)  # type: ignore[arg-type]


@pytest.mark.parametrize("effect", [0.0, 60.0])
def test_decoys_control_false_discoveries(effect: float):
    table = searched(0, 210, effect)
    discovered = ask("discovered", {"discovery_search": table}, subject="s", level=0.1)
    expected = {}
    gains = table.select("neuron", "gain", "decoy_gain").rows()
    for neuron, gain, decoy in gains:
        if gain > decoy:
            rates = []
            leads = {abs(g - d) for _, g, d in gains if 0 < abs(g - d) <= gain - decoy}
            for threshold in leads:
                wins = sum(g - d >= threshold for _, g, d in gains)
                lost = sum(d - g >= threshold for _, g, d in gains)
                rates.append((lost + 1) / max(wins, 1))
            expected[neuron] = min(1, *rates)
    own = discovered.drop_nulls("q_value")
    assert dict(own.select("neuron", "q_value").rows()) == pytest.approx(expected)
    assert (discovered["discovered"] == (discovered["q_value"].fill_null(1) <= 0.1)).all()
    neurons = discovered.filter("discovered")["neuron"].to_numpy()
    right = (neurons < 70).sum()
    assert right >= 0.85 * len(neurons)
    assert right > 50 if effect else len(neurons) == 0


def test_decoys_of_great_gain_hide_no_neuron():
    """Some maps fit any labels well; then a neuron's gain is great, and so is its decoy's."""
    table = searched(0, 210, 60.0)
    both = table.head(1).with_columns(neuron=pl.lit(999, pl.Int32), gain=700.0, decoy_gain=703.0)
    tables = {"discovery_search": pl.concat([table, both.cast(SCHEMA)])}  # type: ignore[arg-type]
    discovered = ask("discovered", tables, subject="s", level=0.1).filter("discovered")
    assert (discovered["neuron"] < 70).sum() > 50


def test_discovered_predicates_are_compared_with_labels():
    table = searched(1, 90, 60.0)
    discovered = ask("discovered", {"discovery_search": table}, subject="s", level=0.1)
    labels = pl.DataFrame({"neuron": [1, 1, 5, 80, 89]}, {"neuron": pl.Int32}).with_columns(
        operator=pl.lit("add"), layer=pl.lit(0, pl.Int16)
    )
    tables = {"discovery_search": table, "discovered": discovered, "labels": labels}
    row, total = ask("discovered_and_labels", tables, subject="s").rows(named=True)
    assert row | {"layer": None} == total
    own, labelled = set(discovered.filter("discovered")["neuron"]), {1, 5, 80, 89}
    assert len(own) > 20
    rows = {row["neuron"]: row for row in table.rows(named=True)}
    assert row["neurons"] == 90
    assert row["discovered"] == len(own)
    assert row["labelled"] == 4
    assert row["both"] == len(own & labelled)
    assert row["only_discovered"] == len(own - labelled)
    assert row["only_labelled"] == len(labelled - own)
    assert row["outside_catalogue"] == sum(rows[n]["same_as"] is None for n in own)
    pairs = [rows[n] for n in own if rows[n]["atoms"] == 2]
    for column, source in {"conjunction": "explained", "condition_sum": "sum_explained"}.items():
        mean = np.mean([pair[source] for pair in pairs]) if pairs else None
        assert row[column] == (mean and pytest.approx(mean, abs=1e-5))
    assert row["shorter"] == sum(rows[n]["gain"] > rows[n]["catalogue_gain"] for n in own)
    either = own | labelled
    explained = sum(rows[n]["explained"] for n in own) / len(either)
    assert row["explained"] == pytest.approx(explained, abs=1e-5)
    by_catalogue = np.mean([rows[n]["catalogue_explained"] for n in either])
    assert row["catalogue_explained"] == pytest.approx(by_catalogue, abs=1e-5)


def test_a_neuron_is_compared_with_the_catalogue(monkeypatch: pytest.MonkeyPatch):
    """The best heuristic and held-out shares are those of brute force, also for sets of cells."""
    side, random = 30, np.random.default_rng(3)
    op1, op2 = np.indices((side, side), np.int32).reshape(2, -1)
    values = {"op1": op1, "op2": op2}
    conditions = {"op1 mod 3 = 1": op1 % 3 == 1, "op2 in 5..9": (op2 >= 5) & (op2 <= 9)}
    conditions["op1 = op2"] = op1 == op2
    of_result = {"result in 20..29": (op1 + op2 >= 20) & (op1 + op2 <= 29)}
    grid = SimpleNamespace(
        op1=op1,
        op2=op2,
        results=op1 + op2,
        cells=np.arange(side**2),
        operands=_group(conditions, ["op1", "op2", "both"], values),
        answers=_group(of_result, ["result"], {"result": op1 + op2}),
    )
    split = random.random(side**2) < 0.8
    monkeypatch.setattr(discovery_search, "_in_training", lambda grid: split)
    language = Language(grid, LEAST)  # type: ignore[arg-type]
    for name, planted in (conditions | of_result).items():
        activations = -1.0 * planted + 0.2 * random.normal(size=side**2)
        row = language.row(activations.reshape(side, side).astype(np.float32), random)
        assert row["same_as"] == row["catalogue"] == name
        assert row["side"] == ("top" if row["predicate"] == "op1 <> op2" else "bottom")
        means = activations[split & planted].mean(), activations[split & ~planted].mean()
        held_out = activations[~split]
        error = held_out - np.where(planted[~split], *means)
        expected = 1 - error @ error / ((held_out - held_out.mean()) ** 2).sum()
        assert row["explained"] == pytest.approx(expected, abs=1e-4)
        assert row["catalogue_explained"] == row["explained"]
        share = np.corrcoef(planted[split], activations[split])[0, 1] ** 2
        gain = side * np.log2(1 / (1 - share)) - 2  # 2 bits select one of four heuristics
        assert row["catalogue_gain"] == pytest.approx(gain, abs=1e-2)
        assert row["sum_explained"] is None


def test_the_control_of_a_conjunction_is_the_sum_of_its_conditions(monkeypatch: pytest.MonkeyPatch):
    """What a sum explains is least squares of every cell, all of it if the truth is a sum."""
    side, random = 30, np.random.default_rng(4)
    op1, op2 = np.indices((side, side), np.int32).reshape(2, -1)
    first, second = op1 <= 14, op2 % 3 == 1
    grid = SimpleNamespace(
        op1=op1,
        op2=op2,
        results=op1 + op2,
        cells=np.arange(side**2),
        operands=_group({"op1 = op2": op1 == op2}, ["both"], {"op1": op1, "op2": op2}),
        answers=_group({"result in 0..9": op1 + op2 < 10}, ["result"], {"result": op1 + op2}),
    )
    split = random.random(side**2) < 0.8
    monkeypatch.setattr(discovery_search, "_in_training", lambda grid: split)
    language = Language(grid, LEAST)  # type: ignore[arg-type]
    truths = {"sum": 2.0 * first - second + 3, "conjunction": 1.0 * (first & second)}
    predicate, _ = search(
        truths["conjunction"][language.places[: language.training]], language.space, 0.0
    )
    assert language.text(predicate) == "op1 <= 14 and op2 % 3 = 1"
    design = np.stack([np.ones(side**2), first, second], 1)
    for name, truth in truths.items():
        values = truth + 0.1 * random.normal(size=side**2)
        terms = np.linalg.lstsq(design[split], values[split])[0]
        error, held_out = (values - design @ terms)[~split], values[~split]
        expected = 1 - error @ error / ((held_out - held_out.mean()) ** 2).sum()
        share = language.sum_explained(values[language.places], predicate)
        assert share == pytest.approx(expected, abs=1e-6)
        row = language.row(values.reshape(side, side).astype(np.float32), random)
        if name == "conjunction":
            assert row["sum_explained"] < row["explained"] - 0.2


def _group(
    conditions: dict[str, np.ndarray], quantities: list[str], values: dict[str, np.ndarray]
) -> Group:
    made, order = sets(np.array(list(conditions.values())), quantities, values)
    names = np.array(list(conditions), object)[order]
    kinds = np.array(quantities, object)[order]
    return Group(names, kinds, kinds, made.k / len(values[next(iter(values))]), made)
