"""Values that a table of interventions brings along: put in as they are, by the fast way as by the plain one, and refused by name."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from stages.lib.executor import executor, given, interventions
from stages.lib.executor import values as replacing
from tests.lib.test_executor import (
    ROLES,
    expected,
    intervention_table,
    measured,
    pair_table,
    subject,
)

RESIDUAL = {
    "component": "residual",
    "layer": 1,
    "units": None,
    "position": "op2",
    "key_position": None,
    "replacement": "given",
}
SOME = {**RESIDUAL, "component": "neuron", "units": [3, 7], "position": "last"}
ONE = {**SOME, "units": [5]}
ALL = {**RESIDUAL, "component": "mlp", "layer": 2, "position": "last"}
NAMES = {"residual": RESIDUAL, "neurons": SOME, "one": ONE, "mlp": ALL}


def named(table: pl.DataFrame, names: list[str | None]) -> pl.DataFrame:
    return table.with_columns(given=pl.Series(names, dtype=pl.String))


@pytest.fixture
def pairs() -> pl.DataFrame:
    return pair_table(0, [(5, 5)] * 3)


@pytest.fixture
def store(tmp_path: Path, pairs: pl.DataFrame) -> given.Given:
    """Values for more pairs than there are, in another order."""
    a, random = subject("llama").architecture, np.random.default_rng(1)
    widths = {
        "residual": a.width,
        "stream": a.width,
        "neurons": a.neurons,
        "one": a.neurons,
        "other": a.neurons,
        "mlp": a.neurons,
    }
    numbers = np.array([7, *pairs["pair"].to_list()[::-1]])
    given.write(
        tmp_path / "x_given.h5",
        numbers,
        {name: random.normal(size=(len(numbers), width)) for name, width in widths.items()},
    )
    return given.Given(tmp_path / "x_given.h5")


@pytest.mark.parametrize(("kind", "tolerance"), [("llama", 1e-5), ("neox", 1e-5)])
def test_given_values_are_put_in_by_both_ways(
    kind: str, tolerance: float, pairs: pl.DataFrame, tmp_path: Path
):
    """Among them single neurons of different names, which may not share what is put in."""
    loaded, random = subject(kind), np.random.default_rng(1)
    sizes = {"residual": loaded.architecture.width} | dict.fromkeys(
        ("neurons", "one", "other", "mlp"), loaded.architecture.neurons
    )
    values = {name: random.normal(size=(len(pairs), size)) for name, size in sizes.items()}
    given.write(tmp_path / "x_given.h5", pairs["pair"].to_numpy(), values)
    store = given.Given(tmp_path / "x_given.h5")
    patches = [[RESIDUAL], [SOME], [ONE], [ONE], [ALL], [RESIDUAL, ALL], []]
    names = ["residual", "neurons", "one", "other", "mlp", "residual", "mlp", None]
    table = named(intervention_table(patches, [None] * len(patches)), names)
    rows = interventions.read(table, loaded.architecture, ROLES)
    fast = measured(executor.Executor(loaded, None, 60, 1 << 30, given=store), pairs, rows)
    plain = expected_with(store, loaded, pairs, rows)
    assert fast.keys() == plain.keys()
    for key, numbers in fast.items():
        np.testing.assert_allclose(
            numbers, plain[key], atol=tolerance * max(1, np.abs(plain[key]).max())
        )
    assert not np.allclose(fast[2, 0], fast[3, 0])


def expected_with(store: given.Given, loaded, pairs: pl.DataFrame, rows: list) -> dict:
    with pytest.MonkeyPatch.context() as patch:
        plain = replacing.Values
        patch.setattr(
            replacing,
            "Values",
            lambda checkpoint, group, means: plain(checkpoint, group, means, given=store),
        )
        return expected(loaded, pairs, None, rows)


def test_what_is_put_in_is_what_is_stored(store: given.Given, pairs: pl.DataFrame):
    loaded = subject("llama")
    [one] = interventions.read(
        named(intervention_table([[RESIDUAL]], [None]), ["residual"]), loaded.architecture, ROLES
    )
    runner = executor.Executor(loaded, None, 60, 1 << 30, given=store)
    [block] = runner.plan(pairs, [one])
    values = runner.values(block.pairs)
    stored = store.values(one.patches[0], block.pairs.number)
    np.testing.assert_array_equal(values.replacement(one.patches[0]).numpy(), stored)
    torch.testing.assert_close(
        torch.from_numpy(stored), torch.from_numpy(stored).round(decimals=6), rtol=0, atol=1e-4
    )


def test_values_are_stored_in_steps(tmp_path: Path):
    values = np.array([[3.9, 1e-9, -0.1], [0.0, -3.0, 1 / 3]])
    given.write(
        tmp_path / "x_given.h5", np.array([4, 2]), {"one": values, "none": np.zeros((2, 2))}
    )
    store = given.Given(tmp_path / "x_given.h5")
    found = store.values(
        interventions.Patch("residual", 0, None, "last", None, "given", "one"), np.array([2, 4])
    )
    np.testing.assert_allclose(found, values[::-1], atol=2.0**-15)
    assert set(np.unique(found * 2.0**14 % 1)) == {0.0}
    nothing = store.values(
        interventions.Patch("residual", 0, None, "last", None, "given", "none"), np.array([2])
    )
    np.testing.assert_array_equal(nothing, 0)


def test_rounding_of_float64_does_not_show_in_the_middle_between_two_steps():
    """Models of simple weights have many values there; the largest value says that a step is 2^-14."""
    middle = (np.arange(-50, 50) + 0.5) * 2.0**-14
    stored = [
        given._in_steps(np.append(x, 3.9))[:-1]
        for x in (middle, middle * (1 - 1e-14), middle * (1 + 1e-14))
    ]
    np.testing.assert_array_equal(stored, [middle + 2.0**-15] * 3)


@pytest.mark.parametrize(
    ("change", "name", "message"),
    [
        ({}, None, "needs a name in the column given, and one position"),
        ({"position": "all"}, "residual", "needs a name in the column given, and one position"),
        ({"replacement": "zero"}, "residual", "needs a name in the column given"),
        (
            {"component": "head", "units": [0]},
            "residual",
            "replacement 'given' does not exist; there are zero, mean, .*, mean_divide, counterfactual$",
        ),
        (
            {"component": "mlp"},
            "residual",
            "'residual' in .* has 4 x 32 values, not 4 x 48: pairs x units",
        ),
    ],
)
def test_what_cannot_be_given_is_named(
    change: dict, name: str | None, message: str, store: given.Given
):
    architecture = subject("llama").architecture
    table = named(intervention_table([[RESIDUAL | change]], [None]), [name])

    def read() -> None:
        store.check(interventions.read(table, architecture, ROLES), architecture)

    with pytest.raises(interventions.InterventionError, match=f"intervention 0.*{message}"):
        read()


def test_values_of_other_pairs_than_the_store_names_are_refused(tmp_path: Path):
    """Their rows would be those of other pairs."""
    architecture = subject("llama").architecture
    wanted = interventions.read(
        named(intervention_table([[RESIDUAL]], [None]), ["x"]), architecture, ROLES
    )
    for shape, said in (((3, 32), "has 3 x 32 values"), ((2,), "has 2 values")):
        given.write(tmp_path / "x_given.h5", np.array([4, 2]), {"x": np.zeros(shape)})
        with pytest.raises(
            interventions.InterventionError,
            match=f"intervention 0: 'x' in .* {said}, not 2 x 32: pairs x units",
        ):
            given.Given(tmp_path / "x_given.h5").check(wanted, architecture)
    given.write(tmp_path / "x_given.h5", np.array([4, 4]), {"x": np.zeros((2, 32))})
    with pytest.raises(interventions.InterventionError, match="gives values for pair 4 twice"):
        given.Given(tmp_path / "x_given.h5")


def test_a_pair_without_a_value_and_a_missing_store_are_named(store: given.Given):
    patch = interventions.Patch("residual", 0, None, "last", None, "given", "residual")
    with pytest.raises(
        interventions.InterventionError, match=r"x_given\.h5 gives nothing for pair 5"
    ):
        store.values(patch, np.array([0, 5]))
    table = named(intervention_table([[RESIDUAL], []], [None] * 2), ["residual", None])
    assert given.Given.for_table(table, store.path.with_name("x_interventions.parquet")).path == store.path
    assert given.Given.for_table(table.filter(pl.col("component") == "none"), store.path) is None
