"""Check external values: how they are stored and written, and errors that name what is missing."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages.lib.executor import executor, external_values, interventions
from tests.lib.test_executor import (
    ROLES,
    check_same,
    expected,
    intervention_table,
    measured,
    pair_table,
    patch_row,
    subject,
)

RESIDUAL = patch_row("residual", 1, None, "op2", "given")
SOME = patch_row("neuron", 1, [3, 7], "last", "given")
SINGLE = {**SOME, "units": [5]}
MLP = patch_row("mlp", 2, None, "last", "given")


def named(table: pl.DataFrame, names: list[str | None]) -> pl.DataFrame:
    return table.with_columns(given=pl.Series(names, dtype=pl.String))


@pytest.fixture
def pairs() -> pl.DataFrame:
    return pair_table(0, [(5, 5)] * 3)


def written(folder: Path, a, numbers: np.ndarray) -> external_values.Given:
    """Write random external values for the pairs of these numbers."""
    random, arrays = np.random.default_rng(1), {}
    for name in ("residual", "neurons", "single", "other", "mlp"):
        width = a.width if name == "residual" else a.neurons
        arrays[name] = random.normal(size=(len(numbers), width))
    external_values.write(folder / "x_given.h5", numbers, arrays)
    return external_values.Given(folder / "x_given.h5")


@pytest.fixture
def store(tmp_path: Path, pairs: pl.DataFrame) -> external_values.Given:
    """External values for more pairs than the table has, in another order."""
    numbers = np.array([7, *pairs["pair"].to_list()[::-1]])
    return written(tmp_path, subject("llama").architecture, numbers)


@pytest.mark.parametrize("kind", ["llama", "neox"])
def test_the_executor_and_plain_passes_write_external_values(
    kind: str, pairs: pl.DataFrame, tmp_path: Path
):
    """Single neurons with different names may not share a replacement."""
    loaded = subject(kind)
    store = written(tmp_path, loaded.architecture, pairs["pair"].to_numpy())
    patches = [[RESIDUAL], [SOME], [SINGLE], [SINGLE], [MLP], [RESIDUAL, MLP], []]
    names = ["residual", "neurons", "single", "other", "mlp", "residual", "mlp", None]
    table = named(intervention_table(patches), names)
    rows = interventions.read(table, loaded.architecture, ROLES)
    fast = measured(executor.Executor(loaded, None, 60, 1 << 30, given=store), pairs, rows)
    check_same(fast, expected(loaded, pairs, None, rows, store), 1e-5)
    assert not np.allclose(fast[2, 0], fast[3, 0])


def test_a_patch_writes_what_is_stored(store: external_values.Given, pairs: pl.DataFrame):
    loaded = subject("llama")
    table = named(intervention_table([[RESIDUAL]]), ["residual"])
    [intervention] = interventions.read(table, loaded.architecture, ROLES)
    runner = executor.Executor(loaded, None, 60, 1 << 30, given=store)
    [block] = runner.plan(pairs, [intervention])
    [patch] = intervention.patches
    stored = store.values(patch, block.pairs.number)
    assert stored.shape == (3, loaded.architecture.width)
    written_by = runner.values(block.pairs).replacement(patch)
    np.testing.assert_array_equal(written_by.numpy(), stored)


def patch_of(name: str) -> interventions.Patch:
    return interventions.Patch("residual", 0, None, "last", None, "given", name)


def test_values_are_stored_in_steps(tmp_path: Path):
    values = np.array([[3.9, 1e-9, -0.1], [0.0, -3.0, 1 / 3]])
    arrays = {"some": values, "none": np.zeros((2, 2))}
    external_values.write(tmp_path / "x_given.h5", np.array([4, 2]), arrays)
    store = external_values.Given(tmp_path / "x_given.h5")
    stored = store.values(patch_of("some"), np.array([2, 4]))
    np.testing.assert_allclose(stored, values[::-1], atol=2.0**-15)
    assert set(np.unique(stored * 2.0**14 % 1)) == {0.0}
    np.testing.assert_array_equal(store.values(patch_of("none"), np.array([2])), 0)


def test_rounding_of_float64_does_not_show_in_the_middle_between_two_steps():
    """Models of simple weights have many values there; the largest value makes a step 2^-14."""
    middle = (np.arange(-50, 50) + 0.5) * 2.0**-14
    for rounded in (middle, middle * (1 - 1e-14), middle * (1 + 1e-14)):
        stored = external_values._in_steps(np.append(rounded, 3.9))[:-1]
        np.testing.assert_array_equal(stored, middle + 2.0**-15)


@pytest.mark.parametrize(
    ("change", "name", "message"),
    [
        ({}, None, "needs a name in the column given, and one position"),
        ({"position": "all"}, "residual", "needs a name in the column given, and one position"),
        ({"replacement": "zero"}, "residual", "needs a name in the column given"),
        (
            {"component": "head", "units": [0]},
            "residual",
            "replacement 'given' does not exist; there are zero, .*, mean_divide, counterfactual$",
        ),
        (
            {"component": "mlp"},
            "residual",
            "'residual' in .* has 4 x 32 values, not 4 x 48: pairs x units",
        ),
    ],
)
def test_an_error_names_what_cannot_be_replaced(
    change: dict, name: str | None, message: str, store: external_values.Given
):
    architecture = subject("llama").architecture
    table = named(intervention_table([[RESIDUAL | change]]), [name])

    def read() -> None:
        store.check(interventions.read(table, architecture, ROLES), architecture)

    with pytest.raises(interventions.InterventionError, match=f"intervention 0.*{message}"):
        read()


def test_arrays_that_do_not_fit_the_pairs_are_refused(tmp_path: Path):
    """Their rows would be those of other pairs."""
    architecture, path = subject("llama").architecture, tmp_path / "x_given.h5"
    table = named(intervention_table([[RESIDUAL]]), ["x"])
    wanted = interventions.read(table, architecture, ROLES)
    for shape, size in (((3, 32), "3 x 32"), ((2,), "2")):
        external_values.write(path, np.array([4, 2]), {"x": np.zeros(shape)})
        message = f"intervention 0: 'x' in .* has {size} values, not 2 x 32: pairs x units"
        with pytest.raises(interventions.InterventionError, match=message):
            external_values.Given(path).check(wanted, architecture)
    external_values.write(path, np.array([4, 4]), {"x": np.zeros((2, 32))})
    with pytest.raises(interventions.InterventionError, match="gives values for pair 4 twice"):
        external_values.Given(path)


def test_a_pair_without_a_value_is_named(store: external_values.Given):
    message = r"x_given\.h5 gives nothing for pair 5"
    with pytest.raises(interventions.InterventionError, match=message):
        store.values(patch_of("residual"), np.array([0, 5]))


def test_the_store_lies_beside_its_table(store: external_values.Given):
    table = named(intervention_table([[RESIDUAL], []]), ["residual", None])
    path = store.path.with_name("x_interventions.parquet")
    beside = external_values.Given.for_table(table, path)
    assert beside
    assert beside.path == store.path
    assert external_values.Given.for_table(table.filter(component="none"), path) is None


def test_a_missing_store_is_named(pairs: pl.DataFrame):
    loaded = subject("llama")
    table = named(intervention_table([[RESIDUAL]]), ["residual"])
    rows = interventions.read(table, loaded.architecture, ROLES)
    runner = executor.Executor(loaded, None, 60, 1 << 30)
    with pytest.raises(interventions.InterventionError, match="'residual' are needed, but there"):
        measured(runner, pairs, rows)
