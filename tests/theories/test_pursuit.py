"""Test the choice of terms against brute force, and theories on neurons that are known."""

from functools import cache

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.heuristics.fourier.frequencies import FrequencyPairs
from stages.theories import atoms
from stages.theories.pursuit import pursue
from stages.theories.settings import TheoryFits
from stages.theories.theory_fits import SampledCells

SIDE = 40
OP1, OP2 = np.indices((SIDE, SIDE)).reshape(2, -1)
RESULT = OP1 + OP2
TRAINING = 1200
BUDGETS = [1, 2, 4]
FREQUENCIES = FrequencyPairs.from_shape((SIDE, SIDE)).frequencies[::7]


def error(terms: np.ndarray, values: np.ndarray) -> float:
    """Return the squared error of least squares."""
    solution = np.linalg.lstsq(terms.T, values)[0]
    return float(((values - solution @ terms) ** 2).sum())


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, 3))
def test_each_next_term_reduces_the_error_most(seed: int, count: int, copies: int):
    random = np.random.default_rng(seed)
    raw = random.normal(size=(count, 60))
    terms = atoms.scaled(np.concatenate([raw, -2 * raw[:copies]]), 60)
    maps = random.normal(size=(3, 60))
    maps -= maps.mean(1, keepdims=True)
    for budget, picked, coefficients in pursue(terms @ terms.T, maps @ terms.T, BUDGETS):
        assert picked.shape == coefficients.shape == (3, min(budget, len(terms)))
        for values, own, sizes in zip(maps, picked, coefficients, strict=True):
            for step in range(min(len(own), count)):
                before = terms[own[:step]]
                errors = [error(np.concatenate([before, term[None]]), values) for term in terms]
                assert errors[own[step]] == pytest.approx(min(errors), rel=1e-6, abs=1e-8)
            left = ((values - sizes @ terms[own]) ** 2).sum()
            assert left == pytest.approx(error(terms[own], values), rel=1e-6, abs=1e-8)


@cache
def dictionaries() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return small dictionaries of all theories on shuffled cells, and the cells' order."""
    heuristics = []
    for modulus in (2, 3, 5):
        heuristics += (OP1 % modulus == rest for rest in range(modulus))
    heuristics += (np.isin(RESULT, range(low, low + 10)) for low in range(0, 70, 3))
    columns = {"frequency1": FREQUENCIES[:, 0], "frequency2": FREQUENCIES[:, 1]}
    spectra = pl.DataFrame(columns | {"share": 1 / np.arange(1, len(FREQUENCIES) + 1)})
    numbers = {"op1": OP1, "op2": OP2, "result": RESULT}
    raw = {
        "bag": np.array(heuristics, float),
        "helix": atoms.helices(numbers, [2, 5, 10, 100]),
        "waves": atoms.waves(spectra, (SIDE, SIDE), 60, OP1, OP2),
    }
    order = np.random.default_rng(0).permutation(SIDE * SIDE)
    scaled = {theory: atoms.scaled(terms[:, order], TRAINING) for theory, terms in raw.items()}
    return scaled, order


def shares(cells: np.ndarray, budget: int) -> dict[str, float]:
    """Return the share of a map's held-out variance that each theory explains."""
    dictionary, order = dictionaries()
    values = cells[order].astype(float)
    centred = values - values[:TRAINING].mean()
    held_out = centred[TRAINING:]
    explained = {}
    for theory, terms in dictionary.items():
        train = terms[:, :TRAINING]
        products = centred[None, :TRAINING] @ train.T
        *_, (_, picked, sizes) = pursue(train @ train.T, products, [budget])
        left = held_out - sizes[0] @ terms[picked[0], TRAINING:]
        explained[theory] = 1 - (left**2).sum() / ((held_out - held_out.mean()) ** 2).sum()
    return explained


def test_known_neurons_are_explained_by_their_own_theory():
    bag = shares(3.0 * ((RESULT >= 30) & (RESULT < 40)) + (OP1 % 3 == 1), 2)
    assert bag["bag"] == pytest.approx(1)
    assert max(bag["helix"], bag["waves"]) < 0.8
    helix = shares(np.cos(2 * np.pi * RESULT / 10 + 1) + 0.02 * OP1, 3)
    assert helix["helix"] == pytest.approx(1)
    assert helix["bag"] < 0.5
    f1, f2 = FREQUENCIES[50]
    waves = shares(np.cos(2 * np.pi * (f1 * OP1 + f2 * OP2) / SIDE + 0.4), 2)
    assert waves["waves"] == pytest.approx(1)
    assert max(waves["bag"], waves["helix"]) < 0.5


def test_noise_is_explained_by_no_theory():
    explained = shares(np.random.default_rng(1).normal(size=SIDE * SIDE), 4)
    assert max(explained.values()) < 0.03


def test_terms_have_length_1_in_training_and_constants_are_left_out():
    raw = np.stack([np.ones(50), np.arange(50.0), np.r_[np.ones(30), np.zeros(20)]])
    scaled = atoms.scaled(raw, 30)
    assert len(scaled) == 1  # the last term is constant on training cells
    train = scaled[:, :30]
    np.testing.assert_allclose([train.mean(), (train**2).sum()], [0, 1], atol=1e-12)


def test_waves_are_those_with_the_most_variance():
    rows = [("add", 3, 4, 0.4), ("add", 0, 5, 0.5), ("add", 3, 4, 0.3), ("add", 2, -2, 0.1)]
    names = ["operator", "frequency1", "frequency2", "share"]
    spectra = pl.DataFrame(rows, schema=names, orient="row")
    terms = atoms.waves(spectra, (SIDE, SIDE), 2, OP1, OP2)
    for wave, (f1, f2) in zip(terms.reshape(2, 2, -1), [(3, 4), (0, 5)], strict=True):
        turns = 2 * np.pi * (f1 * OP1 + f2 * OP2) / SIDE
        np.testing.assert_allclose(wave, [np.cos(turns), np.sin(turns)], atol=1e-9)
    assert atoms.waves(spectra.clear(), (SIDE, SIDE), 2, OP1, OP2).shape == (0, SIDE * SIDE)


def test_a_model_with_a_smaller_grid_uses_its_own_cells():
    """Test that `order` names rows of the whole grid's table."""
    op1, op2 = np.indices((30, 30)).reshape(2, -1)
    split = np.where(np.random.default_rng(0).random(900) < 0.7, "train", "held-out")
    cells = pl.DataFrame({"op1": op1, "op2": op2, "split": split})
    cells = cells.filter(pl.col("op1") >= pl.col("op2"))  # as for subtraction
    results = np.subtract.outer(np.arange(12), np.arange(12)).clip(min=-1)
    prompts = pl.DataFrame({"op1": [7, 11], "op2": [3, 0]})
    settings = TheoryFits(
        budgets=[2],
        control_budgets=[],
        train_cells=20,
        held_out_cells=20,
        waves=5,
        neurons_at_once=4,
        fit_replicates=10,
        fit_confidence=0.9,
        fit_seed=0,
    )
    sampled = SampledCells.draw(cells, results, prompts, settings)
    rows = cells[sampled.order]
    assert rows["op1"].to_list() == sampled.op1.tolist()
    assert rows["op2"].to_list() == sampled.op2.tolist()
    assert sampled.result.tolist() == (sampled.op1 - sampled.op2).tolist()
    assert max(sampled.op1.max(), sampled.op2.max()) < 12
    assert set(rows["split"][: sampled.training]) == {"train"}
    assert set(rows["split"][sampled.training : -2]) == {"held-out"}
    assert rows[-2:].select("op1", "op2").equals(prompts)
