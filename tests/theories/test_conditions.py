"""Test labels and discovered predicates as theories, on neurons that are known.

A small model computes sums from their remainders and their ranges: each neuron implements one
heuristic exactly and promotes the numbers that satisfy it. Other neurons are noise that no logit
depends on.
"""

from math import comb, log2
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.heuristics.fourier.frequencies import FrequencyPairs
from stages.lib.core.hdf5_store import LayerStore, LayerWriter, read_array, writing
from stages.lib.sql.database import Database
from stages.theories import description, theory_fits
from stages.theories.conditions import Conditions, LayerConditions
from stages.theories.theory_fits import SampledCells
from tests.made import Tables, ask
from tests.micro import SHIPPED, alone

SIDE, STEP, LAYER, TRAINING = 30, 6, 1, 400
OP1, OP2 = (axis.ravel() for axis in np.indices((SIDE, SIDE)))
RESULT = OP1 + OP2
NUMBERS = np.arange(2 * SIDE - 1)
PREDICATES = {f"result mod {STEP} = {rest}": f"result % {STEP} = {rest}" for rest in range(STEP)}
for low in range(0, 2 * SIDE, STEP):
    high = low + STEP - 1
    PREDICATES[f"result in {low}..{high}"] = f"result between {low} and {high}"
EXACT, NOISE = len(PREDICATES), 3
MIXTURE = EXACT  # its neuron has two labels, and no predicate is discovered
NEURONS = EXACT + 1 + NOISE
PROMPTS = 60
DISCOVERED_BITS = 11.5
CONTROLLED = [1]  # budgets with a control, besides the largest


def holds(numbers: np.ndarray) -> np.ndarray:
    """Return which numbers satisfy each heuristic, (heuristics, numbers)."""
    remainders = [numbers % STEP == rest for rest in range(STEP)]
    ranges = [numbers // STEP == low for low in range(EXACT - STEP)]
    return np.array(remainders + ranges)


def activations() -> np.ndarray:
    """Return the neurons' activations on all cells, (neurons, cells)."""
    random = np.random.default_rng(0)
    satisfied = holds(RESULT)
    mixture = 2.0 * satisfied[0] + satisfied[STEP]
    noise = random.normal(size=(NOISE, len(RESULT)))
    return np.concatenate([2.0 * satisfied - 0.5, mixture[None], noise])


def value_logits() -> np.ndarray:
    """Return what each neuron adds to the logit of each number, (neurons, numbers)."""
    return np.concatenate([holds(NUMBERS), np.zeros((1 + NOISE, len(NUMBERS)))]).astype(float)


def labels() -> pl.DataFrame:
    """Return the labels; neurons of noise have none."""
    names = [*PREDICATES]
    rows = [*enumerate(names), (MIXTURE, names[0]), (MIXTURE, names[STEP])]
    table = pl.DataFrame(rows, ["neuron", "heuristic"], orient="row")
    return table.with_columns(operator=pl.lit("add"), layer=pl.lit(LAYER))


def discovered() -> pl.DataFrame:
    """Return the predicates; that of the mixture is not discovered."""
    table = pl.DataFrame({"predicate": [*PREDICATES.values(), "op1 = op2"]}).with_row_index(
        "neuron"
    )
    return table.with_columns(
        operator=pl.lit("add"),
        layer=pl.lit(LAYER),
        bits=pl.lit(DISCOVERED_BITS),
        discovered=pl.col("neuron") < MIXTURE,
    )


def tables() -> Tables:
    """Return the tables that the stage reads, <folder>/<table> below data/."""
    cells = np.random.default_rng(1).permutation(len(RESULT))
    prompted = np.sort(cells[:PROMPTS])
    split = np.where(np.isin(np.arange(len(RESULT)), cells[: PROMPTS + 200]), "held-out", "train")
    numbers = pl.DataFrame({"op1": OP1, "op2": OP2, "result": RESULT}).cast(pl.Int32)
    numbers = numbers.with_columns(operator=pl.lit("add"), split=pl.Series(split))
    pairs = numbers[prompted].with_row_index("pair").cast({"pair": pl.Int32})
    catalogue = pl.DataFrame({"heuristic": [*PREDICATES], "predicate": [*PREDICATES.values()]})
    spectra = pl.DataFrame({"frequency1": [1, 2], "frequency2": [1, 2], "share": [0.5, 0.4]})
    return {
        "corpus/cells": numbers,
        "heuristics/heuristics": catalogue.with_columns(
            operator=pl.lit("add"), kind=pl.lit("custom"), quantity=pl.lit("result"), usable=True
        ),
        "s/circuit/pairs": pairs.with_columns(
            subject=pl.lit("s"),
            split=pl.lit("evaluation"),
            seed=pl.lit(0, pl.Int32),
            answer_token="result",
        ),
        "s/circuit/late_layers": pl.DataFrame({"first_layer": [LAYER], "layers": [LAYER + 1]}),
        "s/heuristics/spectra": spectra.with_columns(operator=pl.lit("add"), layer=pl.lit(LAYER)),
        "s/heuristics/labels": labels(),
        "s/heuristics/discovered": discovered(),
    }


def write_stores(folder: Path, maps: np.ndarray) -> None:
    """Write maps (neurons, cells) and the value logits into the folder of a model's stores."""
    axes = {"neuron": NEURONS, "op1": SIDE, "op2": SIDE}
    columns = {"result": RESULT.reshape(SIDE, SIDE)}
    keys = {"operator": "add"}
    with writing(folder / "activations/add.h5") as file:
        writer = LayerWriter(file, [LAYER], axes, "float16", (4, SIDE, SIDE), keys, columns=columns)
        writer.write(LAYER, 0, maps.reshape(NEURONS, SIDE, SIDE))
    axes = {"neuron": NEURONS, "number": len(NUMBERS)}
    with writing(folder / "value_logits.h5") as file:
        writer = LayerWriter(file, [LAYER], axes, "float32", tuple(axes.values()), {})
        writer.write(LAYER, 0, value_logits())


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Return the table `theories` of a folder in which theory_fits has run, and its inputs."""
    folder, read = tmp_path_factory.mktemp("conditions"), tables()
    fits = fit_theories(folder, activations())
    pairs, interventions = (
        read["s/circuit/pairs"],
        ask("theory_interventions", {"theory_fits": fits}, control_budgets=CONTROLLED),
    )
    given_tables = {
        "pairs": pairs,
        "bootstrap_weights": ask("bootstrap_weights", {"pairs": pairs}, replicates=20),
        "theory_fits": fits,
        "theory_interventions": interventions,
        "runs": runs(folder, interventions, pairs),
    }
    return given_tables | {"theories": ask("theories", given_tables)}


def fit_theories(folder: Path, maps: np.ndarray) -> pl.DataFrame:
    """Return the table theory_fits of neurons with these maps (neurons, cells)."""
    for path, table in tables().items():
        file = folder / f"data/{path}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        table.write_parquet(file)
    write_stores(folder / "data/s/store", maps)
    own = {"budgets": [1, 2], "train_cells": TRAINING, "held_out_cells": 200, "waves": 5}
    own["control_budgets"] = CONTROLLED
    sections = {name: SHIPPED[name] for name in ("helix", "spectra", "theory_fits")}
    sections["theory_fits"] = sections["theory_fits"] | own | {"neurons_at_once": 7}
    (folder / "params.yaml").write_text(yaml.safe_dump(alone("s") | sections))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        theory_fits.main("s")
    return pl.read_parquet(folder / "data/s/theories/theory_fits.parquet")


def runs(folder: Path, interventions: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the predictions of the model, whose logits are sums of what its neurons write."""
    cells = pairs["op1"].to_numpy() * SIDE + pairs["op2"].to_numpy()
    answers = pairs["result"].to_numpy()
    tables = []
    for number, name in interventions.select("intervention", "given").rows():
        neurons = activations()[:, cells].T
        if name is not None:
            neurons = read_array(folder / "data/s/theories/theory_given.h5", name)
        logits = neurons @ value_logits()
        table = pairs.select(
            "subject",
            "pair",
            experiment=pl.lit("theory"),
            intervention=pl.lit(number, pl.Int32),
            answer_logit=pl.Series(logits[np.arange(len(answers)), answers]).cast(pl.Float32),
            mean_logit=pl.Series(logits.mean(1)).cast(pl.Float32),
            correct=pl.Series(logits.argmax(1) == answers),
        )
        tables.append(table)
    return pl.concat(tables)


@pytest.mark.parametrize("theory", ["labels", "discovered"])
def test_exact_heuristics_explain_the_answer_and_those_of_other_neurons_do_not(
    project: Tables, theory: str
):
    table = project["theories"].filter(theory=theory)
    rows = {row["what"]: row for row in table.iter_rows(named=True)}
    variances = activations().var(1)
    known = np.arange(NEURONS) < EXACT + (theory == "labels")
    share = variances[known].sum() / variances.sum()
    assert rows["activation"]["value"] == pytest.approx(share, abs=0.05)
    for what in ("written", "restored"):
        assert rows[what]["value"] == pytest.approx(1, abs=1e-3)
        assert abs(rows[what]["relabelled"]) < 0.2
    assert rows["accuracy"]["value"] == 1
    counts = np.bincount(project["pairs"]["result"].to_numpy())
    assert rows["accuracy"]["majority_accuracy"] == pytest.approx(counts.max() / PROMPTS)
    assert rows["accuracy"]["relabelled"] < 0.2
    assert all(
        (row["parameters"], row["bits"]) == (None, table["bits"][0]) for row in rows.values()
    )


def test_a_search_for_fewer_terms_has_its_control_too(project: Tables):
    """The model runs with the predictions that theory_fits wrote for relabelled maps."""
    table = project["theories"].filter(theory="bag", what="restored").sort("parameters")
    assert table["parameters"].to_list() == [1, 2]
    assert (table["value"] > 0.8).all()
    assert (table["relabelled"].abs() < 0.4).all()


def test_the_control_of_waves_selects_components_of_relabelled_maps(tmp_path: Path):
    """Plant neurons whose maps are waves only after they are relabelled."""
    generator = np.random.default_rng(SHIPPED["theory_fits"]["fit_seed"])
    rows, columns = generator.permutation(SIDE), generator.permutation(SIDE)
    op1, op2 = OP1.reshape(SIDE, SIDE), OP2.reshape(SIDE, SIDE)
    maps = np.empty((NEURONS, SIDE, SIDE))
    for neuron, own in enumerate(maps):
        turns = 2 * np.pi * ((3 + neuron % 4) * op1 + 5 * op2) / SIDE
        own[rows[:, None], columns] = np.cos(turns + neuron)
    fits = fit_theories(tmp_path, maps.reshape(NEURONS, -1))
    waves = fits.filter(pl.col("layer").is_null(), theory="waves", what="activation", parameters=2)
    assert waves["value"].item() < 0.1  # the table `spectra` has other components
    assert waves["relabelled"].item() > 0.99


def test_bits_are_those_of_terms_their_number_and_coefficients(project: Tables):
    table = project["theories"].filter(what="accuracy")
    bits = {row[:2]: row[2] for row in table.select("theory", "parameters", "bits").rows()}
    choices = dict(table.select("theory", "choices").rows())
    precision = log2(TRAINING) / 2
    universal = log2(2.865064)  # bits of the integer 1: a neuron without a label
    single = universal + 1 + log2(EXACT) + precision
    double = universal + log2(3) + log2(log2(3)) + log2(comb(EXACT, 2)) + 2 * precision
    labelled = (EXACT * single + double + NOISE * universal) / NEURONS
    assert bits["labels", None] == pytest.approx(labelled, rel=1e-5)
    own = 1 + EXACT * (DISCOVERED_BITS + precision) / NEURONS
    assert bits["discovered", None] == pytest.approx(own, rel=1e-5)
    assert bits["bag", 2] == pytest.approx(log2(comb(EXACT, 2)) + 2 * precision, rel=1e-5)
    assert bits["helix", 1] == pytest.approx(log2(choices["helix"]) + precision, rel=1e-5)
    frequencies = len(FrequencyPairs.from_shape((SIDE, SIDE)).frequencies)
    selected = log2(comb(frequencies, 2)) / NEURONS
    assert bits["waves", 2] == pytest.approx(selected + log2(comb(4, 2)) + 2 * precision, rel=1e-5)
    assert (bits["mean", 0], bits["itself", None]) == (0, None)


def test_the_universal_code_of_integers_is_a_code():
    lengths = [description.integer(number) for number in range(1, 5000)]
    assert sum(2**-length for length in lengths) < 1
    assert lengths == sorted(lengths)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_conditions_are_fitted_by_least_squares(seed: int):
    random = np.random.default_rng(seed)
    conditions = random.random((4, 90)) < 0.4
    conditions[2] = ~conditions[1]  # depends on another
    table = np.concatenate([conditions, np.zeros((1, 90), bool)])
    numbers = np.array([[0, 1, 2], [3, 4, 4], [4, 4, 4]])
    values = random.normal(size=(3, 90))
    values -= values[:, :60].mean(1, keepdims=True)
    predicted = LayerConditions(table, numbers, numbers).fit(numbers, values, 60)
    for own, known, row in zip(numbers, values, predicted, strict=True):
        design = np.concatenate([np.ones((1, 90)), table[own]])
        solution = np.linalg.lstsq(design[:, :60].T, known[:60])[0]
        np.testing.assert_allclose(row, solution @ design[:, 60:], atol=1e-6)


def test_a_model_without_conditions_is_predicted_as_its_mean(tmp_path: Path):
    write_stores(tmp_path, activations())
    store, catalogue = (
        LayerStore(tmp_path / "activations/add.h5"),
        tables()["heuristics/heuristics"],
    )
    none = Conditions.labels(labels().clear(), catalogue, store, [LAYER], TRAINING)
    undiscovered = Conditions.discovered(discovered().clear(), store, [LAYER], TRAINING)
    assert none.bits == {LAYER: pytest.approx(log2(2.865064))}
    assert undiscovered.bits == {LAYER: 1}
    for conditions in (none, undiscovered):
        cells = {"op1": OP1, "op2": OP2, "result": RESULT}
        layer = conditions.of_layer(LAYER, NEURONS, Database({}), cells, 0)
        predicted = layer.fit(layer.own, activations(), TRAINING)
        assert predicted.shape == (NEURONS, len(RESULT) - TRAINING)
        assert not predicted.any()


def test_predicates_see_the_number_that_a_token_stands_for():
    results = np.array([3, 12, 40])
    cells = SampledCells(results, results, results, results, 3, 0)
    tokens = np.where(np.arange(20) < 15, np.arange(20) % 10, -1)
    assert cells.columns(tokens)["asked"].tolist() == [3, 2, -1]
    assert [*cells.columns(None)] == ["op1", "op2", "result"]
