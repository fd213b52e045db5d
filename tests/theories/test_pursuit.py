"""The choice of terms against brute force, and planted neurons: each theory explains what is its own."""

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
OP1, OP2 = (axis.ravel() for axis in np.indices((SIDE, SIDE)))
TRAINING = 1200
BUDGETS = [1, 2, 4]


def error(terms: np.ndarray, values: np.ndarray) -> float:
    solution = np.linalg.lstsq(terms.T, values)[0]
    return float(((values - solution @ terms) ** 2).sum())


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, 3))
def test_each_next_term_is_the_one_that_lowers_the_error_most(seed: int, count: int, copies: int):
    random = np.random.default_rng(seed)
    raw = random.normal(size=(count, 60))
    terms = atoms.scaled(np.concatenate([raw, -2 * raw[:copies]]), 60)
    maps = random.normal(size=(3, 60))
    maps -= maps.mean(1, keepdims=True)
    for budget, chosen, coefficients in pursue(terms @ terms.T, maps @ terms.T, BUDGETS):
        assert chosen.shape == coefficients.shape == (3, min(budget, len(terms)))
        for values, which, sizes in zip(maps, chosen, coefficients, strict=True):
            for step in range(min(len(which), count)):
                mine = error(terms[which[: step + 1]], values)
                best = min(
                    error(terms[[*which[:step], other]], values) for other in range(len(terms))
                )
                assert mine == pytest.approx(best, rel=1e-6, abs=1e-8)
            said = sizes @ terms[which]
            assert ((values - said) ** 2).sum() == pytest.approx(
                error(terms[which], values), rel=1e-6, abs=1e-8
            )


def dictionaries() -> dict[str, np.ndarray]:
    """Small ones of all theories, on a shuffled grid."""
    result = OP1 + OP2
    heuristics = [OP1 % m == r for m in (2, 3, 5) for r in range(m)] + [
        (result >= low) & (result < low + 10) for low in range(0, 70, 3)
    ]
    pairs = FrequencyPairs.of((SIDE, SIDE))
    rows = [("s", 0, n, *f, 1 / (1 + n)) for n, f in enumerate(pairs.frequencies[::7].tolist())]
    spectra = pl.DataFrame(
        rows,
        schema=["subject", "layer", "neuron", "frequency1", "frequency2", "share"],
        orient="row",
    )
    raw = {
        "bag": np.array(heuristics, float),
        "helix": atoms.helices({"op1": OP1, "op2": OP2, "result": result}, [2, 5, 10, 100]),
        "waves": atoms.waves(spectra, (SIDE, SIDE), 60, OP1, OP2),
    }
    order = np.random.default_rng(0).permutation(SIDE * SIDE)
    return {theory: atoms.scaled(terms[:, order], TRAINING) for theory, terms in raw.items()}, order


def shares(of_cell: np.ndarray, budget: int) -> dict[str, float]:
    """What each theory explains of a map on held-out cells, with so many terms."""
    terms, order = dictionaries()
    values = of_cell[order].astype(float)
    centred = values - values[:TRAINING].mean()
    found = {}
    for theory, of in terms.items():
        train = of[:, :TRAINING]
        *_, (_, chosen, sizes) = pursue(
            train @ train.T, centred[None, :TRAINING] @ train.T, [budget]
        )
        left = centred[TRAINING:] - sizes[0] @ of[chosen[0], TRAINING:]
        found[theory] = (
            1 - (left**2).sum() / ((centred[TRAINING:] - centred[TRAINING:].mean()) ** 2).sum()
        )
    return found


def test_planted_neurons_are_explained_by_their_own_theory():
    result = OP1 + OP2
    bag = shares(3.0 * ((result >= 30) & (result < 40)) + (OP1 % 3 == 1), 2)
    assert bag["bag"] == pytest.approx(1)
    assert max(bag["helix"], bag["waves"]) < 0.8
    helix = shares(np.cos(2 * np.pi * result / 10 + 1) + 0.02 * OP1, 3)
    assert helix["helix"] == pytest.approx(1)
    assert helix["bag"] < 0.5
    first = FrequencyPairs.from_shape((SIDE, SIDE)).frequencies[::7][50]
    waves = shares(np.cos(2 * np.pi * (first[0] * OP1 + first[1] * OP2) / SIDE + 0.4), 2)
    assert waves["waves"] == pytest.approx(1)
    assert max(waves["bag"], waves["helix"]) < 0.5


def test_noise_is_explained_by_none():
    found = shares(np.random.default_rng(1).normal(size=SIDE * SIDE), 4)
    assert all(share < 0.03 for share in found.values())


def test_terms_have_one_length_in_training_and_constants_are_left_out():
    raw = np.stack([np.ones(50), np.arange(50.0), np.r_[np.ones(30), np.zeros(20)]])
    scaled = atoms.scaled(raw, 30)
    assert len(scaled) == 1  # the last is constant where theories are fitted
    np.testing.assert_allclose(
        [scaled[:, :30].mean(), (scaled[:, :30] ** 2).sum()], [0, 1], atol=1e-12
    )


def test_waves_are_those_that_most_of_the_variance_is_in():
    rows = [("add", 3, 4, 0.4), ("add", 0, 5, 0.5), ("add", 3, 4, 0.3), ("add", 2, -2, 0.1)]
    spectra = pl.DataFrame(
        rows, schema=["operator", "frequency1", "frequency2", "share"], orient="row"
    )
    terms = atoms.waves(spectra, (SIDE, SIDE), 2, OP1, OP2)
    for wave, (f1, f2) in zip(terms.reshape(2, 2, -1), [(3, 4), (0, 5)], strict=True):
        turns = 2 * np.pi * (f1 * OP1 + f2 * OP2) / SIDE
        np.testing.assert_allclose(wave, [np.cos(turns), np.sin(turns)], atol=1e-9)
    assert atoms.waves(spectra.clear(), (SIDE, SIDE), 2, OP1, OP2).shape == (0, SIDE * SIDE)


def test_cells_of_a_subject_with_a_smaller_square_are_its_own():
    """The table has the whole grid; `order` says which of its rows they are."""
    op1, op2 = (axis.ravel() for axis in np.indices((30, 30)))
    split = np.where(np.random.default_rng(0).random(900) < 0.7, "train", "held-out")
    cells = pl.DataFrame({"op1": op1, "op2": op2, "split": split}).filter(
        pl.col("op1") >= pl.col("op2")
    )  # as of subtraction
    results = np.subtract.outer(np.arange(12), np.arange(12)).clip(min=-1)
    prompts = pl.DataFrame({"op1": [7, 11], "op2": [3, 0]})
    sizes = {
        "waves": 5,
        "neurons_at_once": 4,
        "fit_replicates": 10,
        "fit_confidence": 0.9,
        "fit_seed": 0,
    }
    chosen = SampledCells.draw(
        cells, results, prompts, TheoryFits(budgets=[2], train_cells=20, held_out_cells=20, **sizes)
    )
    assert cells[chosen.order].select("op1", "op2").rows() == list(
        zip(chosen.op1.tolist(), chosen.op2.tolist(), strict=True)
    )
    assert chosen.result.tolist() == (chosen.op1 - chosen.op2).tolist()
    assert max(chosen.op1.max(), chosen.op2.max()) < 12
    split_of = cells[chosen.order]["split"].to_list()
    assert set(split_of[: chosen.training]) == {"train"}
    assert set(split_of[chosen.training : -2]) == {"held-out"}
    assert chosen.order[-2:].tolist() == [
        cells.select(pl.arg_where((pl.col("op1") == a) & (pl.col("op2") == b))).item()
        for a, b in prompts.rows()
    ]
